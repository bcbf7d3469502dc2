"""JSON on its way in and out of the native module."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from .errors import InvalidArgumentError

__all__ = ["compact", "wire_value"]

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode


def compact(value: Any, what: str = "the call") -> str:
    """JSON text of plain objects. Raises `InvalidArgumentError` for what has none.

    Half of a surrogate pair is refused: whoever reads the session could not decode the text around it.
    """
    try:
        text = _encode(value)
        if not text.isascii():
            text.encode()
        return text
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{what} holds half of a surrogate pair, which is no Unicode") from None
    except (TypeError, ValueError, RecursionError) as fault:
        # Of plain objects, these words name types and not values.
        raise InvalidArgumentError(f"{what} is no JSON: {fault}") from None


def wire_value(value: Any, what: str) -> str:
    """JSON text of a message, blocks or arguments, with everything in it that pydantic can write."""
    if type(value) is str:
        return compact(value, what)
    try:
        plain = to_jsonable_python(value)
    except (PydanticSerializationError, TypeError, ValueError, RecursionError) as fault:
        raise InvalidArgumentError(f"{what} is no JSON: {_reason(fault)}") from None
    return compact(plain, what)


def _reason(fault: Exception) -> str:
    # Pydantic's words name types and not values.
    return str(fault) if isinstance(fault, PydanticSerializationError) else type(fault).__name__
