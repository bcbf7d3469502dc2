"""JSON on its way in and out of the native module."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from .errors import InvalidArgumentError

__all__ = ["compact", "wire_value"]

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_encode_as_it_is = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode


def compact(value: Any) -> str:
    """JSON text of plain objects, escaped so that any string can be carried."""
    return _encode(value)


def wire_value(value: Any, what: str) -> str:
    """JSON text of a message, blocks or arguments, with everything in it that pydantic can write.

    Half of a surrogate pair is refused: whoever reads the session could not decode the text around it.
    """
    try:
        text = _encode_as_it_is(value if type(value) is str else to_jsonable_python(value))
        if not text.isascii():
            text.encode()
        return text
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{what} holds half of a surrogate pair, which is no Unicode") from None
    except (PydanticSerializationError, TypeError, ValueError, RecursionError) as fault:
        raise InvalidArgumentError(f"{what} is no JSON: {_reason(fault)}") from None


def _reason(fault: Exception) -> str:
    # Pydantic's words name types and not values.
    return str(fault) if isinstance(fault, PydanticSerializationError) else type(fault).__name__
