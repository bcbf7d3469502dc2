"""Plays the shared vectors: holds an engine of this package and does what it is told, line by line.

    vectors --through "python -m broca.testing.vectors" core/vectors/reports.jsonl

The protocol is described in ``core/vectors/README.md``. Steps are reported from the objects that an application gets,
and questions are answered through them; the clock, the service and everything that is expected stay with the caller.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any, Callable

from .. import steps
from .._broca import ChatStream, Engine, layout_table
from .._core import LOG, LOG_DROPPED, StepReader, error_of
from ..errors import BrocaError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["main"]

_EFFECTS = {number: (name, fields) for number, name, fields in layout_table()}
_DELTAS = ("text", "reasoning", "tool_input", "reset")
_GAPS = ("deltas", "line", "cursor", "unseen")


def _word(value: str | bytes | int | None) -> str:
    """A value as a word of the protocol."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(int(value))
    data = value if isinstance(value, bytes) else value.encode()
    return "x" + data.hex()


def _bytes(word: str) -> bytes | None:
    if word == "-":
        return None
    if not word.startswith("x"):
        raise ValueError("a text begins with x")
    return bytes.fromhex(word[1:])


def _text(word: str) -> str | None:
    data = _bytes(word)
    return None if data is None else data.decode()


def _given(word: str) -> str:
    text = _text(word)
    if text is None:
        raise ValueError("something that must be there is absent")
    return text


def _line(*words: str, **fields: str | bytes | int | None) -> str:
    return " ".join([*words, *(f"{name}={_word(value)}" for name, value in fields.items())])


def _error(error: BrocaError) -> dict[str, str | int | None]:
    details = None if error.details is None else json.dumps(error.details)
    return {
        "code": error.code,
        "kind": error.kind,
        "message": error.message,
        "retry": error.retry,
        "details": details,
    }


def _event(step: steps.Event) -> str:
    return _line(
        "step",
        "event",
        id=step.id,
        event_type=step.type,
        session_id=step.session_id,
        client_key_id=step.client_key_id,
        created_at=step.created_at,
        payload=step.payload_json,
        raw=step.json,
    )


def _delta(kind: str, link: str, text: str) -> str:
    return _line("step", "delta", delta_kind=_DELTAS.index(kind), link=link, text=text)


def _gap(step: steps.Gap) -> str:
    cursor = None if step.cursor is None else step.cursor.value
    lost = _GAPS.index(step.reason)
    return _line("step", "gap", lost=lost, count=step.count, limit=step.limit, cursor=cursor, after=step.after.value)


def _call(kind: str, step: steps.ToolCall | steps.Approval) -> str:
    own = {"server_side": step.server_side} if isinstance(step, steps.Approval) else {}
    return _line(
        "step",
        kind,
        call=step.call,
        tool_use_id=step.tool_use_id,
        name=step.name,
        input=step.input_json,
        idempotency_key=step.idempotency_key,
        may_have_run=step.may_have_run,
        **own,
    )


def _status(step: steps.Status) -> str:
    return _line(
        "step",
        "status",
        state=step.state,
        delay_ms=step.delay_ms,
        error_kind=step.error_kind,
        why=step.why,
        position=step.position,
        waiting=step.waiting,
    )


def _done(step: steps.Done) -> str:
    reply = step.reply
    usage = reply.usage
    counted = None
    if usage is not None:
        counted = json.dumps({"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens})
    return _line(
        "step",
        "done",
        text=reply.text,
        message=reply.message_json,
        usage=counted,
        rounds=reply.rounds,
        events=reply.events_json,
        tool_calls=reply.tool_calls,
        session=json.dumps(dataclasses.asdict(reply.session)),
    )


_SAYS: dict[type, Callable[[Any], str]] = {
    steps.Event: _event,
    steps.Notification: lambda s: _line("step", "notification", method=s.method, raw=s.json),
    steps.TextDelta: lambda s: _delta("text", s.message_id, s.delta),
    steps.ReasoningDelta: lambda s: _delta("reasoning", s.message_id, s.delta),
    steps.ToolInputDelta: lambda s: _delta("tool_input", s.tool_use_id, s.delta),
    steps.DisplayReset: lambda s: _delta("reset", s.message_id, ""),
    steps.Gap: _gap,
    steps.ToolCall: lambda s: _call("tool_call", s),
    steps.Approval: lambda s: _call("approval", s),
    steps.ToolCancel: lambda s: _line("step", "tool_cancel", tool_use_id=s.tool_use_id),
    steps.ApprovalWithdrawn: lambda s: _line("step", "approval_withdrawn", tool_use_id=s.tool_use_id),
    steps.ToolSettled: lambda s: _line(
        "step", "tool_settled", tool_use_id=s.tool_use_id, outcome=s.outcome, name=s.name
    ),
    steps.Status: _status,
    steps.Warning: lambda s: _line("step", "warning", **{"class": s.category, "message": s.message}),
    steps.Sending: lambda s: _line("step", "sending", call=s.call, round=s.round, message=s.message_json),
    steps.Received: lambda s: _line("step", "received", round=s.round, message=s.message_json),
    steps.Done: _done,
    steps.Finished: lambda s: _line("step", "finished", outcome=s.outcome, value=s.value),
    steps.Failed: lambda s: _line("step", "failed", **_error(error_of(s))),
}


class Child:
    """One engine, and the questions that it asked."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._chat: ChatStream | None = None
        self._readers: dict[int, StepReader] = {}
        self._asked: dict[int, Any] = {}
        self._now = 0

    def serve(self, line: str) -> list[str]:
        """The lines that answer a request."""
        verb, *words = line.split(" ")
        return list(getattr(self, f"_on_{verb}")(*words))

    def answer(
        self,
        call: int,
        word: str,
        value: str | None = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> bool:
        """Where the steps take their answers to."""
        return self._live().answer(call, word, value, self._now, traceparent, tracestate)[0]

    def _live(self) -> Engine:
        if self._engine is None:
            raise ValueError("there is no engine")
        return self._engine

    def _stream(self) -> ChatStream:
        if self._chat is None:
            raise ValueError("there is no answer of a provider")
        return self._chat

    def _effects(self, taken: list[tuple[Any, ...]] | None = None) -> Iterator[str]:
        """The effects that an input gave; without them, those that wait in the engine."""
        for number, *values in taken or self._live().effects() or ():
            if number not in (LOG, LOG_DROPPED):
                name, fields = _EFFECTS[number]
                yield _line("effect", name, **dict(zip(fields, values)))

    def _on_new(self, options: str, seed: str, wall_ms: str) -> Iterator[str]:
        self._readers, self._asked = {}, {}
        try:
            self._engine = Engine(_given(options), int(seed), int(wall_ms))
        except BrocaError as error:
            yield _line("error", **_error(error))

    def _on_command(self, now: str, command: str, traceparent: str, tracestate: str) -> Iterator[str]:
        try:
            op, effects = self._live().command(_given(command), int(now), _text(traceparent), _text(tracestate))
            self._readers[op] = StepReader(self, lambda _: False)
            yield f"op {op}"
        except BrocaError as error:
            effects = None
            yield _line("error", **_error(error))
        yield from self._effects(effects)

    def _on_cancel(self, now: str, op: str) -> Iterator[str]:
        self._live().cancel(int(op), int(now))
        return self._effects()

    def _on_answer(
        self, now: str, call: str, word: str, value: str, traceparent: str, tracestate: str
    ) -> Iterator[str]:
        self._now = int(now)
        try:
            in_time = self._give(int(call), word, _text(value), _text(traceparent), _text(tracestate))
            yield f"accepted {int(in_time)}"
        except BrocaError as error:
            yield _line("error", **_error(error))
        yield from self._effects()

    def _give(self, call: int, word: str, value: str | None, *trace: str | None) -> bool:
        """Answers as an application would; what no method of the step says in the same words, at the engine."""
        step = self._asked.get(call)
        if word == "complete" and value is not None and value.startswith('"') and step is not None:
            return bool(step.complete(json.loads(value)))
        if word in ("fail", "deny", "refuse") and step is not None and hasattr(step, word):
            return bool(getattr(step, word)(value or ""))
        if word == "allow" and isinstance(step, steps.Approval):
            return bool(step.allow())
        return self.answer(call, word, value, *trace)

    def _on_resolved(self, now: str, req: str, why: str, *addresses: str) -> Iterator[str]:
        found = [_given(address) for address in addresses] if why == "-" else None
        return self._effects(self._live().resolved(int(req), found, _text(why), int(now)))

    def _on_connected(self, now: str, conn: str) -> Iterator[str]:
        return self._effects(self._live().connected(int(conn), int(now)))

    def _on_tls_started(self, now: str, conn: str) -> Iterator[str]:
        return self._effects(self._live().tls_started(int(conn), int(now)))

    def _on_data(self, now: str, conn: str, data: str) -> Iterator[str]:
        came = _bytes(data) or b""
        return self._effects(self._live().data(int(conn), came, len(came), int(now)))

    def _on_written(self, now: str, conn: str, size: str) -> Iterator[str]:
        return self._effects(self._live().written(int(conn), int(size), int(now)))

    def _on_closed(self, now: str, conn: str, why: str) -> Iterator[str]:
        return self._effects(self._live().closed(int(conn), why, int(now)))

    def _on_timeout(self, now: str) -> Iterator[str]:
        return self._effects(self._live().timeout(int(now)))

    def _on_steps(self, op: str, max_bytes: str) -> Iterator[str]:
        records, over, _, effects = self._live().steps(int(op), int(max_bytes), False)
        for record in records:
            step = self._readers[int(op)].read(record) if isinstance(record, tuple) else record
            if isinstance(step, (steps.ToolCall, steps.Approval, steps.Sending)):
                self._asked[step.call] = step
            yield _SAYS[type(step)](step)
        yield f"over {int(over)}"
        yield from self._effects(effects)

    def _on_chat_new(self, status: str) -> Iterator[str]:
        self._chat = ChatStream(int(status))
        return iter(())

    def _on_chat_data(self, data: str) -> Iterator[str]:
        self._stream().data(_bytes(data) or b"")
        return iter(())

    def _on_chat_end(self) -> Iterator[str]:
        self._stream().end()
        return iter(())

    def _on_chat_broken(self) -> Iterator[str]:
        self._stream().broken()
        return iter(())

    def _on_chat_take(self) -> Iterator[str]:
        yield f"chat {_word(self._stream().take())}"


def main() -> None:
    """Answers requests until there are no more."""
    child = Child()
    output = sys.stdout.buffer
    for line in sys.stdin.buffer:
        answer = child.serve(line.decode("ascii").rstrip("\r\n"))
        output.write("".join(f"{said}\n" for said in [*answer, "."]).encode("ascii"))
        output.flush()


if __name__ == "__main__":
    main()
