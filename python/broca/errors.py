"""The errors: one class for each row of the table that all languages share.

Every error says what was wrong, where, and the cure, and never a key or a payload. A program matches on the class, or
on ``code`` and ``kind``, which never change. ``retry`` says whether the same call may be made again: ``"safe"``,
``"unsafe"``, or ``"unknown"`` when the other side may or may not have acted.
"""

from __future__ import annotations

import builtins
import json
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from .steps import Reply

Retry = Literal["safe", "unsafe", "unknown"]

__all__ = [
    "ApiError",
    "ApprovalDeniedError",
    "BrocaError",
    "CancelledError",
    "ClosedError",
    "ConnectError",
    "DriverNotRegisteredError",
    "ForkedError",
    "HandshakeError",
    "HookError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidParamsError",
    "IoError",
    "LaggedError",
    "LimitError",
    "LineTooLongError",
    "LoopLimitError",
    "MalformedError",
    "NotBrocaError",
    "NotOfferedError",
    "OutputInvalidError",
    "PanicError",
    "ProtocolError",
    "ProvidersFailedError",
    "Retry",
    "RpcError",
    "SessionClosedError",
    "StreamEndedEarlyError",
    "TimeoutError",
    "TlsError",
    "ToolError",
    "ToolNotAllowedError",
    "ToolTimeoutError",
    "TransportError",
    "TurnInProgressError",
    "UnauthorizedError",
    "UnknownToolError",
    "UnsupportedVersionError",
    "UsageError",
    "VersionMismatchError",
]


class BrocaError(Exception):
    """Whatever this package raises.

    ``code``: the negative number of the row. ``kind``: the row as a word. ``message``: what was wrong, where, and the
    cure. ``retry``: whether the same call may be made again. ``details``: a dictionary for programs, or ``None``.
    """

    code: ClassVar[int] = 0
    kind: ClassVar[str] = ""
    message: str
    retry: Retry = "unknown"
    details: dict[str, Any] | None

    def __init__(self, message: str, *, retry: Retry | None = None, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        if retry is not None:
            self.retry = retry

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.message), self.__dict__

    def _detail(self, name: str, default: Any = None) -> Any:
        return (self.details or {}).get(name, default)


class UsageError(BrocaError):
    """The call itself was wrong: wrong order, wrong thread or loop, an async tool on a sync client."""

    code = -1
    kind = "usage"
    retry: Retry = "unsafe"


class InvalidArgumentError(BrocaError, ValueError):
    """An argument cannot be used as given."""

    code = -2
    kind = "invalid_argument"
    retry: Retry = "unsafe"


class ClosedError(BrocaError):
    """The client or session was closed before the call."""

    code = -3
    kind = "closed"
    retry: Retry = "unsafe"


class ForkedError(BrocaError):
    """The client was made before a fork and used after it. Make one in the child."""

    code = -4
    kind = "forked"
    retry: Retry = "unsafe"


class TransportError(BrocaError):
    """The connection failed."""

    code = -100
    kind = "transport"
    retry: Retry = "unknown"


class ConnectError(TransportError):
    """No connection could be made: nothing was sent."""

    code = -101
    kind = "connect"
    retry: Retry = "safe"


class TlsError(TransportError):
    """TLS could not be agreed or the certificate was refused: nothing was sent."""

    code = -102
    kind = "tls"
    retry: Retry = "unsafe"


class IoError(TransportError):
    """The connection broke while in use."""

    code = -103
    kind = "io"
    retry: Retry = "unknown"


class TimeoutError(BrocaError, builtins.TimeoutError):
    """The peer did not answer in time."""

    code = -110
    kind = "timeout"
    retry: Retry = "unknown"


class StreamEndedEarlyError(BrocaError):
    """The stream ended without its terminal line."""

    code = -120
    kind = "stream_ended_early"
    retry: Retry = "unknown"


class LineTooLongError(BrocaError):
    """The terminal line was longer than the limit."""

    code = -121
    kind = "line_too_long"
    retry: Retry = "unknown"


class LaggedError(BrocaError):
    """The service dropped this reader because it fell behind."""

    code = -122
    kind = "lagged"
    retry: Retry = "unknown"


class ProtocolError(BrocaError):
    """The peer broke the protocol."""

    code = -200
    kind = "protocol"
    retry: Retry = "unsafe"


class MalformedError(ProtocolError):
    """Bytes that are not what the protocol says."""

    code = -201
    kind = "malformed"


class UnsupportedVersionError(ProtocolError):
    """The peer speaks a version this program does not."""

    code = -202
    kind = "unsupported_version"


class LimitError(ProtocolError):
    """A bound of this program was exceeded; the message names it."""

    code = -203
    kind = "limit"


class HandshakeError(ProtocolError):
    """The opening exchange failed."""

    code = -204
    kind = "handshake"


class NotBrocaError(ProtocolError):
    """What answered is not a session service."""

    code = -205
    kind = "not_broca"


class NotOfferedError(ProtocolError):
    """The service does not offer what this call needs, or this client does not ask for it."""

    code = -206
    kind = "not_offered"


class ApiError(BrocaError):
    """The service answered a REST call with a problem document."""

    code = -300
    kind = "api"
    retry: Retry = "unsafe"

    @property
    def type(self) -> str:
        """The slug that programs match on, such as ``tool_not_allowed``."""
        return str(self._detail("type", ""))

    @property
    def title(self) -> str:
        """The HTTP reason phrase."""
        return str(self._detail("title", ""))

    @property
    def status(self) -> int:
        """The HTTP status."""
        return int(self._detail("status", 0))

    @property
    def detail(self) -> str:
        """What was wrong, for people."""
        return str(self._detail("detail", ""))


class UnauthorizedError(ApiError):
    """The key was refused."""

    code = -301
    kind = "unauthorized"


class SessionClosedError(ApiError):
    """The session is closed or in error."""

    code = -302
    kind = "session_closed"


class ToolNotAllowedError(ApiError):
    """The profile does not allow a declared tool."""

    code = -303
    kind = "tool_not_allowed"


class RpcError(BrocaError):
    """The service answered with a JSON-RPC error."""

    code = -320
    kind = "rpc"
    retry: Retry = "unsafe"

    @property
    def rpc_code(self) -> int:
        """The number of the JSON-RPC error."""
        return int(self._detail("code", 0))


class DriverNotRegisteredError(RpcError):
    """The caller has not registered as a driver."""

    code = -321
    kind = "driver_not_registered"
    retry: Retry = "safe"


class TurnInProgressError(RpcError):
    """A paused turn stands in the way."""

    code = -322
    kind = "turn_in_progress"
    retry: Retry = "safe"


class InvalidParamsError(RpcError):
    """The parameters were refused."""

    code = -323
    kind = "invalid_params"


class ProvidersFailedError(BrocaError):
    """Every model provider failed."""

    code = -340
    kind = "providers_failed"
    retry: Retry = "safe"


class LoopLimitError(BrocaError):
    """The turn reached the service's limit of model rounds."""

    code = -341
    kind = "loop_limit"
    retry: Retry = "unsafe"


class OutputInvalidError(BrocaError):
    """The model's answer does not fit the type that the program wants, also after it was told so.

    ``reply`` is the last reply, counting every turn; what the model wrote is in its ``text``, and nowhere else.
    """

    code = -343
    kind = "output_invalid"
    retry: Retry = "unsafe"
    reply: Reply[Any] | None = None


class ToolError(BrocaError):
    """A tool failed. Raised in a tool, its message is what the model reads, without the name of the class."""

    code = -400
    kind = "tool"
    retry: Retry = "unsafe"


class UnknownToolError(ToolError):
    """The model asked for a tool that nobody registered."""

    code = -401
    kind = "unknown_tool"


class ToolTimeoutError(ToolError):
    """A tool did not finish before its deadline."""

    code = -402
    kind = "tool_timeout"
    retry: Retry = "unknown"


class HookError(BrocaError):
    """A hook of the application failed."""

    code = -410
    kind = "hook"
    retry: Retry = "unsafe"


class ApprovalDeniedError(BrocaError):
    """A person or a rule refused the call."""

    code = -411
    kind = "approval_denied"
    retry: Retry = "unsafe"


class CancelledError(BrocaError):
    """The application cancelled the operation. Not ``asyncio.CancelledError``, which cancels a task."""

    code = -500
    kind = "cancelled"
    retry: Retry = "safe"


class InternalError(BrocaError):
    """A fault of this library."""

    code = -900
    kind = "internal"
    retry: Retry = "unknown"


class PanicError(BrocaError):
    """A fault of the native part was caught. What it was working on is unusable; the process goes on."""

    code = -901
    kind = "panic"
    retry: Retry = "unknown"


class VersionMismatchError(BrocaError):
    """Two parts of Broca of different versions met."""

    code = -902
    kind = "version_mismatch"
    retry: Retry = "unsafe"


def _rows() -> dict[int, type[BrocaError]]:
    classes = (value for value in globals().values() if isinstance(value, type))
    return {row.code: row for row in classes if issubclass(row, BrocaError) and row is not BrocaError}


_BY_CODE = _rows()
_BY_KIND = {row.kind: row for row in _BY_CODE.values()}


def _of(code: int, message: str, retry: Retry, details: str | None) -> BrocaError:
    """The error of a row, as the native module asks for it; ``details`` is JSON text."""
    row = _BY_CODE.get(code, InternalError)
    return row(message, retry=retry, details=None if details is None else json.loads(details))


def _rebuilt(row: type[BrocaError], message: str) -> BrocaError:
    """An error as it was stored. The rest of it comes as its state: a class of the application, with arguments of its
    own, is not made again."""
    error = row.__new__(row, message)
    BrocaError.__init__(error, message)
    return error
