"""Answers that are values: what the model is told of the type, and how its text becomes one.

pydantic does the work; it is imported with the first answer that is asked for so, not with the package.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from ._json import compact
from ._media import plain
from ._schema import faults_of, schema_of_type
from .errors import InvalidArgumentError, OutputInvalidError
from .steps import Usage

if TYPE_CHECKING:
    from .steps import Reply

T = TypeVar("T")

_FORM = (
    "Give your final answer as one JSON value and nothing else: no words around it. "
    "It must fit this JSON Schema:\n{schema}"
)
_AGAIN = (
    "{faults}\n\nGive the answer again, whole and corrected, "
    "as one JSON value and nothing else. It must fit the same JSON Schema."
)
# A line of a JSON text never begins with a fence: inside of its strings there are no lines.
_FENCED = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n]*\n(.*?)^[ \t]*\1[ \t]*$", re.DOTALL | re.MULTILINE)


class Output(Generic[T]):
    """A type that an answer is asked for in."""

    __slots__ = ("_adapter", "_form", "_kinds", "_left", "_name", "_repairs", "_told")

    def __init__(self, wanted: Any, repairs: int = 1) -> None:
        """``repairs``: how often an answer that does not fit is sent back. Raises `InvalidArgumentError` for what
        pydantic does not know, or what has no JSON Schema."""
        if not isinstance(repairs, int) or isinstance(repairs, bool) or repairs < 0:
            raise InvalidArgumentError("repairs must be a whole number from 0 on")
        self._repairs = self._left = repairs
        self._name = getattr(wanted, "__name__", None) or "type"
        try:
            self._adapter: TypeAdapter[T] = TypeAdapter(wanted)
            schema = schema_of_type(self._adapter)
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InvalidArgumentError(f"output= takes a type with a JSON Schema: {reason}") from error
        self._form = _FORM.format(schema=compact(schema, "the schema"))
        # What is wrong with the answer that was looked at last: for the model, and without its words.
        self._told = ""
        self._kinds: list[str] = []

    def asked_in(self, message: Any) -> Any:
        """The message with a word about the form of the answer at its end."""
        message = plain(message)
        if isinstance(message, str):
            return f"{message}\n\n{self._form}"
        if isinstance(message, Mapping) and "content" in message:
            return {**message, "content": self.asked_in(message["content"])}
        if isinstance(message, (list, tuple)):
            return [*message, {"type": "text", "text": self._form}]
        raise InvalidArgumentError("a message is a text, a list of content blocks, or an object with content")

    def given(self, reply: Reply[Any]) -> Reply[T] | None:
        """The reply with the value of its text; None if it does not fit."""
        blocks = [match[2] for match in _FENCED.finditer(reply.text)]
        meant = blocks[-1] if blocks else reply.text
        # All of it, or the last code block in it that is JSON.
        for text in (reply.text, *reversed(blocks)):
            try:
                return replace(reply, output=self._adapter.validate_json(text.strip()))
            except ValidationError as error:
                kinds = [fault["type"] for fault in error.errors(include_url=False, include_input=False)]
                is_json = kinds != ["json_invalid"]
                if is_json or text is meant:
                    self._told, self._kinds = faults_of(error, "Your answer does not fit"), kinds
                if is_json:
                    break
        return None

    def again(self, reply: Reply[Any]) -> str:
        """What the model is told about an answer that does not fit. Raises `OutputInvalidError` when it was told often
        enough, with the kinds of faults alone: places and words may be what the model wrote."""
        if self._left > 0:
            self._left -= 1
            return _AGAIN.format(faults=self._told)
        kinds = ", ".join(self._kinds[:5])
        after = f", also after it was told so (repairs: {self._repairs})" if self._repairs else ""
        error = OutputInvalidError(
            f"the model's answer is no {self._name}{after} ({kinds}); "
            "the session's log has the answers: ask with a simpler type, or say more about it in the message",
            details={"faults": self._kinds, "repairs": self._repairs},
        )
        error.reply = reply
        raise error


def together(first: Reply[Any], second: Reply[Any]) -> Reply[Any]:
    """The second reply, with what it and the ones before it took and logged."""
    counted = [reply.usage for reply in (first, second) if reply.usage is not None]
    usage = Usage(sum(u.input_tokens for u in counted), sum(u.output_tokens for u in counted)) if counted else None
    lists = (reply.events_json.strip()[1:-1].strip() for reply in (first, second))
    return replace(
        second,
        usage=usage,
        rounds=first.rounds + second.rounds,
        tool_calls=first.tool_calls + second.tool_calls,
        events_json=f"[{','.join(filter(None, lists))}]",
    )
