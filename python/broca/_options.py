"""The options of a client: names, and their way to the engine."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, TypedDict

from ._awake import DEFAULT_US
from ._json import compact
from ._version import __version__
from .errors import InvalidArgumentError, TlsError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Approvals", "ClientOptions", "Options"]


class Approvals(TypedDict, total=False):
    """Which tools of the service a person is asked for before they run."""

    ask: str | Sequence[str]
    """Their names, or ``"*"`` for all."""
    narrow: Mapping[str, Mapping[str, str]]
    """What an approval may narrow, by tool and JSON pointer; without a rule an argument stays as it is. The rules are
    those of `tool`."""


class ClientOptions(TypedDict, total=False):
    """What can be set about a client. Times are milliseconds, sizes bytes; what is left out has its default."""

    client_version: str
    """A version text of the application, shown in the session's log."""
    user_agent: str
    """The ``User-Agent`` header. Default ``broca-python/VERSION``."""
    features: Sequence[str]
    """Features to ask for where the service has them. Default: all."""
    max_line_bytes: int
    """The longest line of a stream. Default 16 MiB."""
    max_answer_bytes: int
    """The largest answer of a REST call. Default 64 MiB."""
    connect_timeout_ms: int
    """Time to find the host's addresses and to connect. Default 10 s."""
    head_timeout_ms: int
    """Time from the request to the head of its answer. Default 30 s."""
    rest_timeout_ms: int
    """Time for a whole REST call. Default 60 s."""
    silence_timeout_ms: int
    """Silence on a stream after which it counts as dead. Default: never, silence is normal."""
    silence_intervals: int
    """Signs of life of a service that gives them that must be missing on a stream before it counts as dead, unless
    ``silence_timeout_ms`` says when; 0: never. Default 3."""
    reply_bytes: int
    """Bytes of the events of one request that are kept for the reply where the service does not send them twice. Of a
    longer one the reply lists the last events. Default 64 MiB."""
    recovery_timeout_ms: int
    """A turn whose stream broke is looked for in the session's log. Without news in it for this time the turn is given
    up, and its outcome is unknown; 0: it is not looked for. Default 120 s."""
    reach_timeout_ms: int
    """As long as the service cannot be reached for that, it is tried again for at most this time; and for as long
    without news for events that a slow program has left in the log (``step_buffer_bytes``). Default 10 s."""
    replay_timeout_ms: int
    """What the log holds already of such a turn must begin to come within this time once it is read. Default 2 s."""
    cancel_timeout_ms: int
    """Time for an answer to a cancel before the stream is dropped. Default 5 s."""
    resume_wait_ms: int
    """A turn that was left by another program and still runs is given up after this time without an event.
    Default 5 min."""
    eyeballs_delay_ms: int
    """Delay before the next address is tried beside the first. Default 250 ms."""
    idle_reuse_ms: int
    """A message is not sent on a connection that was idle for longer. Default 4 s."""
    idle_close_ms: int
    """An idle connection is closed after this time. Default 60 s."""
    max_connections: int
    """Connections of one session at once; one more is always there for cancelling and holding. Default 6."""
    delta_buffer_bytes: int
    """Bytes of steps that wait before display deltas are dropped, with a ``Gap``. Default 1 MiB."""
    step_buffer_bytes: int
    """Bytes of steps that wait before events are left in the log and read from there later. Default 64 MiB."""
    hold_ms: int
    """How long a paused turn is held at most while its tools run or a person decides, where the service can; it has a
    bound of its own. 0: not at all, and what is open at the service's deadline has failed. Default 24 h."""
    turn_rounds: int
    """Messages to the service that one turn may take: the application's, and those that bring results. A turn that
    needs more than a budget ends with ``LoopLimitError``; its open calls get results that say so. Default: no
    limit."""
    turn_tokens: int
    """Tokens that one turn may take, read and written together, as far as providers count them. Default: no limit."""
    turn_tool_calls: int
    """Calls of this client's tools in one turn. Default: no limit."""
    session_rounds: int
    """As ``turn_rounds``, for all turns of a session together, those of programs that had it before included."""
    session_tokens: int
    """As ``turn_tokens``, for all turns of a session together."""
    session_tool_calls: int
    """As ``turn_tool_calls``, for all turns of a session together."""
    concurrent_tools: int
    """Tools of one session that run at once. Default 16."""
    pause_ms: int
    """Time for tools where the service does not say. Default 120 s."""
    cancel_grace_ms: int
    """Time for tools to stop when their turn is cancelled. Default 2 s."""
    results_bytes: int
    """Bytes of the results of one pause together, since they travel in one request; the largest make way for a word
    about it. Default 16 MiB."""
    approvals: Approvals
    """Which tools of the service a person is asked for before they run, in sessions that this client opens, where the
    service can; its operator may require more. Default: none."""
    reconnect_first_delay_ms: int
    """Delay before a lost subscription is taken up again, doubled at each failure. Default 100 ms."""
    reconnect_max_delay_ms: int
    """The longest such delay. Default 10 s."""
    reconnect_max_failures: int
    """Failures in a row after which a subscription gives up. Default: never."""
    hooks: bool
    """Show ``Sending`` and ``Received`` as steps. Default: only if there are handlers for them."""
    hook_timeout_ms: int
    """Time for the answer to ``Sending``. Default 30 s."""
    environment: Mapping[str, str]
    """Proxy variables (``http_proxy``, ``https_proxy``, ``all_proxy``, ``no_proxy``) instead of the environment's."""
    ssl_context: ssl.SSLContext
    """Whom TLS trusts. Default: ``ssl.create_default_context()``."""
    tool_threads: int
    """Threads for tools that are plain functions. Default 32."""
    awake_us: int
    """Microseconds in which an answer is looked for without sleeping, if the one before came within them: on the same
    machine that is faster than to sleep and be woken, and costs no more. 0: never. Default 300."""


_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_NOT_FOR_THE_ENGINE = ("environment", "ssl_context", "tool_threads", "awake_us")
_TOOL_THREADS = 32


class Options:
    """The options of one client, read once."""

    __slots__ = ("_engine", "_ssl_context", "awake_us", "tool_threads", "url")

    def __init__(self, url: str, key: str, options: Mapping[str, Any]) -> None:
        unknown = set(options) - set(ClientOptions.__annotations__)
        if unknown:
            names = ", ".join(sorted(unknown))
            raise InvalidArgumentError(f"there is no option {names}; see broca.ClientOptions")
        if not isinstance(url, str) or not isinstance(key, str):
            raise InvalidArgumentError("the address of the service and the client key are texts")
        given = {name: value for name, value in options.items() if value is not None}
        for name, value in given.items():
            if not _fits(name, value):
                raise InvalidArgumentError(f"the option {name} cannot be of {type(value).__name__}; see ClientOptions")
        engine = {name: value for name, value in given.items() if name not in _NOT_FOR_THE_ENGINE}
        if "features" in engine:
            engine["features"] = list(engine["features"])
        if "approvals" in engine:
            engine["approvals"] = _approvals(engine["approvals"])
        engine.setdefault("user_agent", f"broca-python/{__version__}")
        engine["environment"] = _proxy_variables(given.get("environment", os.environ))
        self.url = url
        self._engine: dict[str, Any] = {"base_url": url, "client_key": key, **engine}
        self._ssl_context: ssl.SSLContext | None = given.get("ssl_context")
        self.tool_threads: int = given.get("tool_threads", _TOOL_THREADS)
        if self.tool_threads < 1:
            raise InvalidArgumentError("tool_threads must be 1 or more")
        self.awake_us: int = given.get("awake_us", DEFAULT_US)
        if not 0 <= self.awake_us <= 1_000_000:
            raise InvalidArgumentError("awake_us must be from 0 to 1,000,000")

    def engine_json(self, *, hooks: bool = False) -> str:
        """The options as the engine reads them; ``hooks`` turns ``Sending`` and ``Received`` on. Holds the key."""
        return compact({**self._engine, "hooks": True} if hooks else self._engine, "an option")

    def asking(self, approvals: Approvals | None) -> Options:
        """The same options with these ``approvals``, if there are any."""
        if approvals is None:
            return self
        changed = copy(self)
        changed._engine = {**self._engine, "approvals": _approvals(approvals)}
        return changed

    @property
    def hooks(self) -> bool:
        """Whether the application asked for `Sending` and `Received` as steps."""
        return bool(self._engine.get("hooks"))

    def cancel_wait_ms(self) -> int:
        """How long a cancelled turn may take to become quiet."""
        cancel = int(self._engine.get("cancel_timeout_ms", 5_000))
        return cancel + int(self._engine.get("cancel_grace_ms", 2_000)) + 1_000

    def ssl_context(self) -> ssl.SSLContext:
        """Whom TLS trusts; made when it is first needed."""
        if self._ssl_context is None:
            try:
                context = ssl.create_default_context()
            except (ssl.SSLError, OSError) as fault:
                message = f"the platform's certificates cannot be read: {type(fault).__name__}"
                raise TlsError(message) from None
            context.set_alpn_protocols(["http/1.1"])
            self._ssl_context = context
        return self._ssl_context

    def __repr__(self) -> str:
        return f"Options({self.url!r})"


def _fits(name: str, value: Any) -> bool:
    """Whether it can be said to the engine at all; that checks the rest."""
    if name == "features":
        return not isinstance(value, str) and isinstance(value, Iterable) and all(isinstance(f, str) for f in value)
    if name in ("environment", "approvals"):
        return isinstance(value, Mapping)
    if name == "ssl_context":
        return isinstance(value, ssl.SSLContext)
    if name == "hooks":
        return isinstance(value, bool)
    if name in ("client_version", "user_agent"):
        return isinstance(value, str)
    return isinstance(value, int) and not isinstance(value, bool)


def _approvals(given: Any) -> dict[str, Any]:
    """As JSON can write it; the engine checks what it says."""
    if not isinstance(given, Mapping):
        raise InvalidArgumentError("approvals are a dict with ask and narrow; see broca.Approvals")
    plain = dict(given)
    if "ask" in plain and not isinstance(plain["ask"], str):
        plain["ask"] = list(plain["ask"])
    if "narrow" in plain:
        plain["narrow"] = {name: dict(rules) for name, rules in dict(plain["narrow"]).items()}
    return plain


def _proxy_variables(source: Mapping[str, str]) -> dict[str, str]:
    names = [*_PROXY_VARIABLES, *(name.upper() for name in _PROXY_VARIABLES), "REQUEST_METHOD"]
    return {name: source[name] for name in names if name in source}
