"""What a turn or a subscription hands out, step by step.

Steps are frozen. Texts that may be large or private are in no ``repr``. Wherever JSON is decoded, the text is on offer
beside it, exactly as it came.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, Union, cast

from typing_extensions import TypeVar

from ._broca import Event, TextDelta, decode_json, events_of
from ._json import wire_value
from .tools import answer_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from .errors import Retry

T = TypeVar("T", default=None)

__all__ = [
    "Answered",
    "Approval",
    "ApprovalWithdrawn",
    "Cursor",
    "DisplayReset",
    "Done",
    "Event",
    "Gap",
    "Notification",
    "Page",
    "ReasoningDelta",
    "Received",
    "Reply",
    "Sending",
    "Spent",
    "Status",
    "Step",
    "TextDelta",
    "ToolCall",
    "ToolCancel",
    "ToolInputDelta",
    "ToolSettled",
    "Usage",
    "Warning",
]


class Asks(Protocol):
    """Whoever takes the answer to a question: the session's engine, from any thread."""

    def answer(
        self,
        call: int,
        word: str,
        value: str | None = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> bool:
        """True when the answer counts, false when it came too late."""


class Answered:
    """The receipt of an answer; true when the answer counts, false when it came too late.

    The answer was given when the method returned. Awaiting it does nothing more, so that the same step can be
    answered with and without ``await``.
    """

    __slots__ = ("in_time",)

    def __init__(self, in_time: bool) -> None:
        self.in_time = in_time

    def __bool__(self) -> bool:
        return self.in_time

    def __await__(self) -> Generator[None, None, bool]:
        return self.in_time
        yield

    def __repr__(self) -> str:
        return "Answered(in time)" if self.in_time else "Answered(too late)"


@dataclass(frozen=True)
class Cursor:
    """A place in a session's log: just after the event of this id. Store ``value``, or pickle the cursor."""

    value: str
    START: ClassVar[Cursor]

    def __str__(self) -> str:
        return self.value


Cursor.START = Cursor("")


@dataclass(frozen=True)
class Notification:
    """A notification that this version does not know: ``json`` is the whole line."""

    method: str
    json: str = field(repr=False)


@dataclass(frozen=True)
class ReasoningDelta:
    """A piece of the model's reasoning."""

    delta: str = field(repr=False)
    message_id: str


@dataclass(frozen=True)
class ToolInputDelta:
    """A piece of the arguments of a tool call, as JSON text."""

    delta: str = field(repr=False)
    tool_use_id: str


@dataclass(frozen=True)
class DisplayReset:
    """Everything partial shown so far is void: the attempt failed or was replaced."""

    message_id: str


@dataclass(frozen=True)
class Gap:
    """Something was lost, visibly.

    ``reason``: ``deltas`` (``count`` pieces of display; the message comes whole), ``line`` (one line of ``count``
    bytes where ``limit`` are allowed: raise ``max_line_bytes``), ``cursor`` (the service does not know ``cursor`` and
    begins at the start of its log), ``unseen`` (events, nobody knows how many: whatever happened while the stream was
    away, or what a slow program had left in the log and the log could not be had). ``after``: the place in the log.
    """

    reason: Literal["deltas", "line", "cursor", "unseen", "unknown"]
    count: int | None
    limit: int | None
    cursor: Cursor | None
    after: Cursor


@dataclass(frozen=True)
class _Called:
    """A call of one of this program's tools, asked or to be asked."""

    tool_use_id: str
    name: str
    input_json: str = field(repr=False)
    idempotency_key: str
    call: int = field(repr=False)
    _asks: Asks = field(repr=False, compare=False)

    @property
    def input(self) -> Any:
        """The arguments, decoded at each access; ``input_json`` is their text, exactly as the model wrote it."""
        return decode_json(self.input_json)

    def _answer(self, word: str, value: str | None = None) -> Answered:
        return Answered(self._asks.answer(self.call, word, value))


@dataclass(frozen=True)
class ToolCall(_Called):
    """The model called a tool. When ``runs_itself`` is true its function runs already, and the step is for display.

    ``idempotency_key`` is the same for every attempt at this call: hand it to whatever must not happen twice.
    ``may_have_run``: the program that had the session before may have run this call, and nothing says how far it came.
    """

    runs_itself: bool = False
    may_have_run: bool = False

    def complete(self, result: Any) -> Answered:
        """Answers with the result: a str as it is, a ``Content`` as blocks, everything else as JSON text."""
        return self._answer(*answer_of(result))

    def fail(self, message: str) -> Answered:
        """Answers that the tool failed; the model reads this text."""
        return self._answer("fail", message)


@dataclass(frozen=True)
class ToolCancel:
    """The call should stop. Its function is told by itself; a manual tool is the program's to stop."""

    tool_use_id: str


@dataclass(frozen=True)
class ToolSettled:
    """A call of the tool ``name`` has its one result: ``done``, ``failed``, ``not_started``,
    ``interrupted_may_have_run`` or ``timed_out_may_have_run``."""

    tool_use_id: str
    outcome: str
    name: str = ""


@dataclass(frozen=True)
class Approval(_Called):
    """Somebody has to allow this call first. Without an answer it is denied when its time is over.

    ``may_have_run``: the program that had the session before may have run this call already.
    ``server_side``: the tool is the service's own; it runs there, and only consent is asked for.
    """

    may_have_run: bool = False
    server_side: bool = False

    def allow(self) -> Answered:
        """Runs the call as it is."""
        return self._answer("allow")

    def allow_narrowed(self, input: Any) -> Answered:
        """Runs the call with narrower arguments. Those that the tool's rules do not admit are a denial."""
        return self._answer("allow_narrowed", wire_value(input, "the narrowed input"))

    def deny(self, reason: str = "denied") -> Answered:
        """Does not run the call; the model reads the reason."""
        return self._answer("deny", reason)


@dataclass(frozen=True)
class ApprovalWithdrawn:
    """The question no longer matters."""

    tool_use_id: str


@dataclass(frozen=True)
class Status:
    """Where the operation stands: ``queued``, ``sent``, ``connected``, or ``reconnecting``.

    A service that tells the place of a call that waits gives ``position`` (1 goes next) and ``waiting``, how many wait;
    ``why`` says both in words. ``reconnecting`` comes with the delay in ``delay_ms``, the ``error_kind`` of what went
    wrong, and ``why`` in words.
    """

    state: str
    delay_ms: int | None = None
    error_kind: str | None = None
    why: str | None = None
    position: int | None = None
    waiting: int | None = None


@dataclass(frozen=True)
class Warning:
    """Something odd that does not end the stream, by category."""

    category: str
    message: str


@dataclass(frozen=True)
class Sending:
    """The message about to leave, in ``round`` of the turn (from 0); answer it."""

    round: int
    message_json: str = field(repr=False)
    call: int = field(repr=False)
    _asks: Asks = field(repr=False, compare=False)

    @property
    def message(self) -> Any:
        """The message, decoded at each access: a dictionary with ``role`` and ``content``."""
        return decode_json(self.message_json)

    def send(self, message: Any = None, traceparent: str | None = None, tracestate: str | None = None) -> Answered:
        """Lets the message go, or another one in its place, perhaps with trace headers of its own."""
        value = None if message is None else wire_value(message, "the message")
        return Answered(self._asks.answer(self.call, "send", value, traceparent, tracestate))

    def refuse(self, reason: str) -> Answered:
        """Does not send it: the turn ends with a ``HookError`` of this text."""
        return Answered(self._asks.answer(self.call, "refuse", reason))


@dataclass(frozen=True)
class Received:
    """The answer to the message of ``round``."""

    round: int
    message_json: str = field(repr=False)

    @property
    def message(self) -> Any:
        """The message, decoded at each access."""
        return decode_json(self.message_json)


@dataclass(frozen=True)
class Usage:
    """Tokens of all rounds of a turn."""

    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Spent:
    """What all turns of a session have spent, those of programs that had it before included: ``rounds``, tokens as far
    as providers count them, and calls of this client's tools."""

    rounds: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    tool_calls: int = 0


@dataclass(frozen=True)
class Reply(Generic[T]):
    """What a turn came to: the text of the answer, the tokens if anybody counted them, the rounds and the calls of this
    client's tools that it took, and what all turns of the ``session`` have spent, this one included.

    ``output``: the answer as a value of the type that ``ask(…, output=…)`` asked for; otherwise None.
    """

    text: str = field(repr=False)
    message_json: str = field(repr=False)
    usage: Usage | None
    rounds: int
    events_json: str = field(repr=False)
    tool_calls: int = 0
    session: Spent = Spent()
    output: T = field(default=cast(T, None), repr=False)

    @property
    def message(self) -> Any:
        """The assistant's last message, decoded at each access."""
        return decode_json(self.message_json)

    @property
    def events(self) -> list[Event]:
        """The events of the turn, read at each access; what cannot be read is left out."""
        return events_of(self.events_json)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Done:
    """The turn is done."""

    reply: Reply


@dataclass(frozen=True)
class Page:
    """A page of the log, oldest event first. ``next`` is where the following one begins; ``None`` at the end."""

    events: list[Event]
    next: str | None


@dataclass(frozen=True)
class Failed:
    """How an operation ended that failed; never shown, raised."""

    code: int
    message: str
    retry: Retry
    details: str | None


@dataclass(frozen=True)
class Finished:
    """How an operation ended; never shown."""

    outcome: str
    value: str | None


Step = Union[
    Event,
    TextDelta,
    ReasoningDelta,
    ToolInputDelta,
    DisplayReset,
    Notification,
    Gap,
    ToolCall,
    ToolCancel,
    ToolSettled,
    Approval,
    ApprovalWithdrawn,
    Status,
    Warning,
    Sending,
    Received,
    Done,
]
"""Whatever a turn or a subscription hands out. New kinds may come: end a ``match`` with ``case _``."""
