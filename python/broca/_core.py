"""What the asynchronous and the synchronous shell share: reading steps and outcomes, and what a fork means.

Both shells move one engine for each session in the same way. What an input gives they carry out in order; ``Ready``
says that ``engine.steps(op)`` has something. `StepReader` turns what comes there into the classes of ``broca.steps``.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import socket
import ssl
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, ClassVar, NoReturn

from pydantic_core import from_json

from . import _broca, errors
from ._broca import LAYOUT_VERSION, Engine, __version__
from ._info import SessionInfo, SessionPage, info_of, metadata_json, session_page
from ._json import compact, wire_value
from ._media import plain
from ._version import __version__ as package_version
from .errors import BrocaError, ForkedError, InternalError
from .steps import (
    Approval,
    ApprovalWithdrawn,
    Asks,
    Cursor,
    DisplayReset,
    Done,
    Failed,
    Finished,
    Gap,
    Notification,
    Page,
    ReasoningDelta,
    Received,
    Reply,
    Sending,
    Spent,
    Status,
    ToolCall,
    ToolCancel,
    ToolInputDelta,
    ToolSettled,
    Usage,
    Warning,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self, SupportsIndex

    from ._options import Options
    from .tools import ToolSet

if __version__ != package_version or LAYOUT_VERSION != 1:
    raise ImportError(
        f"broca {package_version} met its native module of version {__version__} (layout {LAYOUT_VERSION}); "
        f"install the package again ({_broca.__file__})"
    )

logger = logging.getLogger("broca")

# The numbers of records, as the native module's layout_table() has them.
NOTIFICATION, DELTA, GAP, TOOL_CALL, TOOL_CANCEL, TOOL_SETTLED, APPROVAL = 2, 3, 4, 5, 6, 7, 8
APPROVAL_WITHDRAWN, STATUS, WARNING, SENDING, RECEIVED, DONE, FINISHED, FAILED = 9, 10, 11, 12, 13, 14, 15, 16
RESOLVE, CONNECT, START_TLS, WRITE, PAUSE_READ, RESUME_READ, CLOSE, TIMER, BUSY, READY = range(64, 74)
LOG, LOG_DROPPED = 96, 97

ASKING = frozenset((TOOL_CALL, APPROVAL, SENDING, DONE, FINISHED, FAILED))
"""What matters to somebody who only waits for the reply."""
STEP_BATCH = 256 * 1024
"""Steps taken from the engine at once, in bytes."""
BURST = 256
"""Steps handed out without giving others a turn."""
READ_BYTES = 256 * 1024
"""Bytes read from a socket at once."""
WORTH_SAYING = 64 * 1024
"""Bytes written of which the engine is told at once; it hands out several times as many before it waits for that."""

NOBODY_TO_ASK = "the program has nobody to ask for consent (no approval handler is set)"
NOBODY_TO_RUN = "Nobody is there to run this tool: the program only waits for the reply."

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING)
_GAPS = ("deltas", "line", "cursor", "unseen")


def new_engine(options: Options, *, hooks: bool = False) -> Engine:
    """An engine with fresh random bits and the wall clock of now."""
    seed = random.SystemRandom().getrandbits(64)
    return Engine(options.engine_json(hooks=hooks), seed, time.time_ns() // 1_000_000)


def whole(text: str | None) -> str | None:
    """The text with what is no Unicode (half of a surrogate pair: names of files have it) replaced by U+FFFD."""
    return None if text is None else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def log(record: tuple[Any, ...]) -> None:
    """Hands a log record of the engine to the logger ``broca``. There are no keys and no payloads in it."""
    if record[0] == LOG_DROPPED:
        logger.info("%d earlier log records were dropped: nobody took them", record[1])
    else:
        logger.log(_LEVELS[min(record[1], 2)], "%s", record[2])


def open_command(way: str, session_id: str | None, tools: ToolSet | None, metadata: Any = None) -> str:
    """The command that opens, joins or observes; metadata for a session that is opened."""
    value: dict[str, Any] = {}
    if session_id is not None:
        value["session_id"] = session_id
    if tools is not None:
        value["tools"] = tools.declarations()
    if metadata is None:
        return compact({way: value})
    return f'{{"{way}":{compact(value)[:-1]},"metadata":{metadata_json(metadata)}}}}}'


def send_command(message: Any) -> str:
    """The command that starts a turn: a text, a list of texts, images, files and blocks, or a whole message."""
    written = message if type(message) is str else plain(message)
    return f'{{"send":{{"message":{wire_value(written, "the message")}}}}}'


def subscribe_command(after: Cursor | str | None) -> str:
    """The command that watches the session, from now on or after a cursor."""
    return compact({"subscribe": {"from": None if after is None else str(after)}})


def history_command(cursor: str | None, limit: int | None) -> str:
    """The command that reads one page of the log."""
    return compact({"history": {"cursor": cursor, "limit": limit}})


@dataclass(frozen=True)
class Opened:
    """What opening a session brought."""

    session_id: str
    profile: Any
    features: tuple[str, ...]
    meta: dict[str, Any]


class NotCopied:
    """What holds sockets: it lives once. A copy would end the original's work when it is dropped, and the key must not
    be in a pickle."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} holds connections and is neither copied nor pickled: "
            "store what Session.save() gives, and attach with a client made there"
        )


class Answering:
    """Who takes the answers to steps. A copy of a step, such as ``dataclasses.asdict`` makes, answers to the same."""

    __slots__ = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            "a step that waits for an answer belongs to its session and is not pickled: store its own fields"
        )


class StepReader:
    """Turns the tuples of one operation into steps. Events and pieces of text are steps already.

    It remembers the calls that are open, so that what stops them can be shown by their ids.
    """

    __slots__ = ("_asks", "_names", "_runs_itself")

    def __init__(self, asks: Asks, runs_itself: Callable[[str], bool]) -> None:
        self._asks = asks
        self._runs_itself = runs_itself
        self._names: dict[int, str] = {}

    def read(self, record: tuple[Any, ...]) -> Any:
        """The step, or how the operation ended (`Finished`, `Failed`), or None for what this version does not know."""
        read = _READERS.get(record[0])
        # Fields that a newer native module adds stand behind those that are known.
        return None if read is None else read[0](self, *record[1 : read[1]])

    def _tool_call(self, call: int, tool_use_id: str, name: str, input: str, key: str, again: int) -> ToolCall:
        self._names[call] = tool_use_id
        return ToolCall(tool_use_id, name, input, key, call, self._asks, self._runs_itself(name), bool(again))

    def _approval(
        self, call: int, tool_use_id: str, name: str, input: str, key: str, again: int, server_side: int
    ) -> Approval:
        self._names[call] = tool_use_id
        return Approval(tool_use_id, name, input, key, call, self._asks, bool(again), bool(server_side))

    def _tool_cancel(self, call: int) -> ToolCancel:
        return ToolCancel(self._names.get(call, ""))

    def _approval_withdrawn(self, call: int) -> ApprovalWithdrawn:
        return ApprovalWithdrawn(self._names.get(call, ""))

    def _sending(self, call: int, round: int, message: str) -> Sending:
        return Sending(round, message, call, self._asks)

    def _delta(self, kind: int, link: str, text: str) -> ReasoningDelta | ToolInputDelta | DisplayReset | None:
        if kind == 1:
            return ReasoningDelta(text, link)
        if kind == 2:
            return ToolInputDelta(text, link)
        return DisplayReset(link) if kind == 3 else None

    def _gap(self, lost: int, count: int | None, limit: int | None, cursor: str | None, after: str | None) -> Gap:
        reason: Any = _GAPS[lost] if lost < len(_GAPS) else "unknown"
        return Gap(reason, count, limit, None if cursor is None else Cursor(cursor), Cursor(after or ""))

    def _status(
        self,
        state: str,
        delay_ms: int | None,
        kind: str | None,
        why: str | None,
        position: int | None,
        waiting: int | None,
    ) -> Status:
        return Status(state, delay_ms, kind, why, position, waiting)

    def _done(
        self,
        text: str,
        message: str,
        usage: str | None,
        rounds: int,
        events: str,
        tool_calls: int,
        session: str | None,
    ) -> Done:
        counted = None
        if usage is not None:
            tokens = from_json(usage)
            counted = Usage(tokens.get("input_tokens", 0), tokens.get("output_tokens", 0))
        spent = Spent() if session is None else Spent(**from_json(session))
        return Done(Reply(text, message, counted, rounds, events, tool_calls, spent))

    def _failed(self, code: int, kind: str, message: str, retry: Any, details: str | None) -> Failed:
        return Failed(code, message, retry, details)


def _reader(read: Callable[..., Any]) -> tuple[Callable[..., Any], int]:
    """What reads a record, and where the fields end that it knows."""
    return read, read.__code__.co_argcount


_READERS: dict[int, tuple[Callable[..., Any], int]] = {
    NOTIFICATION: _reader(lambda _, method, raw: Notification(method, raw)),
    DELTA: _reader(StepReader._delta),
    GAP: _reader(StepReader._gap),
    TOOL_CALL: _reader(StepReader._tool_call),
    TOOL_CANCEL: _reader(StepReader._tool_cancel),
    TOOL_SETTLED: _reader(lambda _, tool_use_id, outcome, name: ToolSettled(tool_use_id, outcome, name)),
    APPROVAL: _reader(StepReader._approval),
    APPROVAL_WITHDRAWN: _reader(StepReader._approval_withdrawn),
    STATUS: _reader(StepReader._status),
    WARNING: _reader(lambda _, category, message: Warning(category, message)),
    SENDING: _reader(StepReader._sending),
    RECEIVED: _reader(lambda _, round, message: Received(round, message)),
    DONE: _reader(StepReader._done),
    FINISHED: _reader(lambda _, outcome, value: Finished(outcome, value)),
    FAILED: _reader(StepReader._failed),
}


def error_of(failed: Failed) -> BrocaError:
    """The exception of an operation that failed."""
    return errors._of(failed.code, failed.message, failed.retry, failed.details)


def info(finished: Finished) -> SessionInfo:
    """How a session stands."""
    return info_of(expect(finished, "info"))


def sessions_of(finished: Finished) -> SessionPage:
    """A page of sessions."""
    return session_page(expect(finished, "sessions"))


def expect(finished: Finished, outcome: str) -> Any:
    """The decoded value of an operation that came to this outcome."""
    if finished.outcome != outcome:
        raise InternalError(f"an operation came to {finished.outcome!r} instead of {outcome!r}")
    return None if finished.value is None else json.loads(finished.value)


def opened(finished: Finished) -> Opened:
    """What opening, joining or observing brought."""
    value = expect(finished, "opened")
    return Opened(value["session_id"], value["profile"], tuple(value["features"]), value["meta"] or {})


def page(finished: Finished, events: Iterable[Any]) -> Page:
    """The page whose events came before its end."""
    return Page(list(events), expect(finished, "page")["next"])


_UNREACHABLE = {
    getattr(errno, name)
    for name in ("EHOSTUNREACH", "ENETUNREACH", "ENETDOWN", "EADDRNOTAVAIL", "EAFNOSUPPORT", "EHOSTDOWN")
    if hasattr(errno, name)
}
# What OpenSSL says when the certificate is good and for somebody else: X509_V_ERR_HOSTNAME_MISMATCH and its kin.
_OTHER_HOST = (62, 63, 64)


def close_reason(fault: BaseException | None, *, tls: bool = False) -> str:
    """Why a connection is gone, in the engine's word for this exception. Without one the peer has closed it; inside
    TLS that is `unclean_eof`, because a clean end announces itself first."""
    if fault is None:
        return "unclean_eof" if tls else "eof"
    if isinstance(fault, ssl.SSLCertVerificationError):
        return "tls_host" if fault.verify_code in _OTHER_HOST else "tls_cert"
    if isinstance(fault, ssl.SSLEOFError):
        return "unclean_eof"
    if isinstance(fault, (ssl.SSLError, ssl.CertificateError)):
        return "tls_other"
    if isinstance(fault, ConnectionRefusedError):
        return "refused"
    if isinstance(fault, (ConnectionError, EOFError)):
        return "reset"
    if isinstance(fault, (TimeoutError, socket.timeout)):
        return "timed_out"
    if isinstance(fault, OSError) and fault.errno in _UNREACHABLE:
        return "unreachable"
    if isinstance(fault, OSError) and fault.errno in (errno.ENOTCONN, errno.ECONNRESET, errno.EPIPE):
        return "reset"
    return "local"


class Process:
    """Counts forks. What was made before one cannot be used after it: two processes must not share a socket."""

    forks: ClassVar[int] = 0
    _alive: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()
    _inherited: ClassVar[list[Any]] = []

    @classmethod
    def keep(cls, owner: Any) -> None:
        """Remembers an owner of sockets. A child that inherits it keeps it, so that nothing is closed there."""
        cls._alive.add(owner)

    @classmethod
    def check(cls, forks: int) -> None:
        """Raises `ForkedError` for what was made before a fork."""
        if forks != cls.forks:
            raise ForkedError(
                "this client was made before a fork, and its connections belong to the parent: "
                "make a client in the child"
            )

    @classmethod
    def _in_child(cls) -> None:
        cls.forks += 1
        cls._inherited.append(list(cls._alive))
        cls._alive = weakref.WeakSet()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Process._in_child)
