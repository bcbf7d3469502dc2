"""The client for asyncio.

    async with broca.AsyncClient("http://127.0.0.1:8080", key) as client:
        session = await client.open(tools=[read_file])
        async with session.send("What does read_file say about main.py?") as turn:
            async for step in turn:
                match step:
                    case broca.TextDelta(delta=text):
                        print(text, end="", flush=True)
                    case broca.Approval():
                        step.allow()
        reply = await session.ask("And in one line?")

A client belongs to the event loop on which it is first used. Tools written with ``async def`` run there as tasks, plain
functions on threads of the client; both see the context variables of the `AsyncSession.send` that called them.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from . import tracing
from ._async_beside import ApprovalHandler, Beside, Hooks, ReceivedHandler, SendingHandler
from ._async_shell import Shell
from ._async_turn import AsyncSubscription, AsyncTurn, Attached, drive, given
from ._core import (
    NotCopied,
    Opened,
    Process,
    SavedSession,
    expect,
    history_command,
    new_engine,
    open_command,
    opened,
    page,
    send_command,
    session_id_of,
    subscribe_command,
)
from ._json import compact
from ._options import Options
from ._pool import Pool
from .errors import ClosedError, UsageError
from .steps import Cursor, Event, Page, Reply
from .tools import ToolSet

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from ._async_operation import Operation
    from ._options import ClientOptions
    from .tools import ToolLike

__all__ = [
    "ApprovalHandler",
    "AsyncClient",
    "AsyncSession",
    "AsyncSubscription",
    "AsyncTurn",
    "ReceivedHandler",
    "SendingHandler",
]


class AsyncClient(NotCopied):
    """A service and a key: where sessions come from.

    ``url``: ``http://host:port`` or ``https://…``. ``key``: the client key. The options are those of `ClientOptions`.
    Nothing is sent before a session is opened. Raises `InvalidArgumentError` for what cannot be used.
    """

    def __init__(self, url: str, key: str, **options: Unpack[ClientOptions]) -> None:
        self._options = Options(url, key, options)
        # What is wrong with the options shows here, not at the first session.
        new_engine(self._options)
        if url.lstrip().lower().startswith("https"):
            self._options.ssl_context()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool = Pool(self._options.tool_threads)
        self._shells: weakref.WeakSet[Shell] = weakref.WeakSet()
        self._closed = False
        self._forks = Process.forks

    @property
    def url(self) -> str:
        """The address of the service."""
        return self._options.url

    async def open(
        self,
        tools: Iterable[ToolLike] = (),
        *,
        on_approval: ApprovalHandler | None = None,
        on_sending: SendingHandler | None = None,
        on_received: ReceivedHandler | None = None,
    ) -> AsyncSession:
        """Opens a session and registers as its driver, with these tools.

        ``on_approval`` decides about approvals where nobody sees the steps: in `ask` and `AsyncTurn.reply`.
        ``on_sending`` and ``on_received`` see every message that leaves and every answer that comes.
        """
        hooks = Hooks(on_approval, on_sending, on_received)
        return await self._attach("open", None, ToolSet(tools, asynchronous=True), hooks)

    async def join(
        self,
        session: SavedSession | str,
        tools: Iterable[ToolLike] = (),
        *,
        on_approval: ApprovalHandler | None = None,
        on_sending: SendingHandler | None = None,
        on_received: ReceivedHandler | None = None,
    ) -> AsyncSession:
        """Joins a session as one of its drivers; see `open`."""
        hooks = Hooks(on_approval, on_sending, on_received)
        session_id = session_id_of(session, self.url)
        return await self._attach("join", session_id, ToolSet(tools, asynchronous=True), hooks)

    async def observe(self, session: SavedSession | str) -> AsyncSession:
        """Joins a session to watch it: no registration, no tools."""
        return await self._attach("observe", session_id_of(session, self.url), None, Hooks())

    async def meta(self) -> dict[str, Any]:
        """What the service is and can do."""
        attached = self._new_attached(hooks=False)
        try:
            _, finished = await attached.shell.run('{"meta":{}}')
        finally:
            attached.shell.leave_soon()
        return dict(expect(finished, "meta"))

    async def close(self) -> None:
        """Lets go of every session: what is under way is cancelled and waited for, and every connection is closed.

        The sessions stay open for others; `AsyncSession.close` ends one. A second call does nothing.
        """
        Process.check(self._forks)
        if self._loop is not None:
            self._own_loop()
        self._closed = True
        shells = list(self._shells)
        if shells:
            await asyncio.gather(*(shell.leave_all() for shell in shells))
        self._pool.close()

    async def __aenter__(self) -> Self:
        self._on_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if Process.forks == self._forks:
            await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self.url!r})"

    def _on_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that runs, if the client may be used on it."""
        Process.check(self._forks)
        loop = self._own_loop()
        if self._closed:
            raise ClosedError("the client is closed")
        return loop

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that runs; it has to be the client's."""
        loop = _running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise UsageError(
                "this client belongs to another event loop, where it was used first: make a client for each loop"
            )
        return loop

    def _new_attached(self, *, hooks: bool) -> Attached:
        shell = Shell(self._on_loop(), self._options, hooks=hooks)
        self._shells.add(shell)
        return Attached(shell)

    async def _attach(self, way: str, session_id: str | None, tools: ToolSet | None, hooks: Hooks) -> AsyncSession:
        hooks.shown = hooks.shown or self._options.hooks
        attached = self._new_attached(hooks=hooks.shown or tracing.traces_rounds())
        try:
            _, finished = await attached.shell.run(open_command(way, session_id, tools))
        except BaseException:
            attached.shell.leave_soon()
            raise
        return AsyncSession(self, attached, opened(finished), tools or ToolSet((), asynchronous=True), hooks)


class AsyncSession(NotCopied):
    """A session, as one of its drivers or as an observer. Made by `AsyncClient.open`, `join` and `observe`."""

    def __init__(self, client: AsyncClient, attached: Attached, opened: Opened, tools: ToolSet, hooks: Hooks) -> None:
        self._client = client
        self._attached = attached
        self._opened = opened
        self._tools = tools
        self._hooks = hooks

    @property
    def id(self) -> str:
        """The session's id."""
        return self._opened.session_id

    @property
    def profile(self) -> Any:
        """The profile as the service shows it."""
        return self._opened.profile

    @property
    def features(self) -> tuple[str, ...]:
        """The features in force: asked for here and offered by the service."""
        return self._opened.features

    @property
    def meta(self) -> dict[str, Any]:
        """What the service said of itself when the session was opened."""
        return self._opened.meta

    def saved(self) -> SavedSession:
        """Where the session lives, to be stored and joined later. There is no key in it."""
        return SavedSession(self._client.url, self.id)

    def send(self, message: Any, *, traceparent: str | None = None, tracestate: str | None = None) -> AsyncTurn:
        """Starts a turn: with a text, a list of content blocks, or a message with ``content``.

        Turns of one session run one after the other. Tools run in a copy of the context of this call.
        """
        operation, beside, span = self._begin(message, traceparent, tracestate)
        return AsyncTurn(operation, self._attached, beside, span)

    async def ask(self, message: Any, *, traceparent: str | None = None, tracestate: str | None = None) -> Reply:
        """Sends a message and drives the turn to its reply; see `AsyncTurn.reply`."""
        operation, beside, span = self._begin(message, traceparent, tracestate)
        try:
            reply = await drive(operation, beside)
            operation.outcome()
        except BaseException as error:
            if operation.final is None:
                # Nobody knows on which thread a coroutine that is dropped is closed.
                shell = self._attached.shell
                (shell.leave_later if isinstance(error, GeneratorExit) else shell.leave)(operation)
            span.end(error)
            raise
        span.end(None)
        return given(reply)

    def subscribe(self, after: Cursor | str | None = None) -> AsyncSubscription:
        """Watches the session: from now on, or after a stored cursor; ``Cursor.START`` is the beginning of its log."""
        cursor = after if after is None or isinstance(after, Cursor) else Cursor(after)
        operation = self._shell().begin(subscribe_command(cursor), None, *tracing.headers())
        return AsyncSubscription(operation, self._attached, cursor)

    async def history(self, cursor: str | None = None, limit: int | None = None) -> Page:
        """One page of the log, from its start or from the ``next`` of the page before."""
        events, finished = await self._shell().run(history_command(cursor, limit))
        return page(finished, events)

    async def events(self, page_size: int | None = None) -> AsyncIterator[Event]:
        """The whole log as it is now, page by page."""
        cursor: str | None = None
        while True:
            found = await self.history(cursor, page_size)
            for event in found.events:
                yield event
            cursor = found.next
            if cursor is None:
                return

    async def participants(self) -> list[str]:
        """The client keys that drive the session, by their ids."""
        _, finished = await self._shell().run('{"participants":{}}')
        return list(expect(finished, "participants")["drivers"])

    async def update_tools(self, tools: Iterable[ToolLike]) -> None:
        """Replaces this client's tools, from the next turn on. When it fails, the old ones stay."""
        new = ToolSet(tools, asynchronous=True)
        command = compact({"update_tools": {"tools": new.declarations()}})
        _, finished = await self._shell().run(command)
        expect(finished, "updated")
        self._tools = new

    async def cancel(self) -> None:
        """Asks every turn of this session to end: iterating one then ends with a `CancelledError`.

        `AsyncTurn.cancel` also waits."""
        self._shell().cancel_turns()

    async def leave(self) -> None:
        """Lets go of the session, which stays open for others: what is under way here is cancelled and waited for."""
        Process.check(self._client._forks)
        if not self._attached.shell.over:
            self._client._on_loop()
        await self._attached.shell.leave_all()

    async def close(self) -> None:
        """Closes the session for everybody. One that is closed already is no error. Its connections go with `leave`."""
        _, finished = await self._shell().run('{"close":{}}')
        expect(finished, "closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if Process.forks == self._client._forks:
            await self.leave()

    def __repr__(self) -> str:
        return f"AsyncSession({self.id})"

    def _begin(
        self, message: Any, traceparent: str | None, tracestate: str | None
    ) -> tuple[Operation, Beside, tracing.SendSpan]:
        """Begins a turn."""
        shell = self._shell()
        command = send_command(message)
        span = tracing.start_send(self.id, traceparent, tracestate)
        beside = Beside(self._tools, self._hooks, self._client._pool, span)
        try:
            return shell.begin(command, beside, *span.headers), beside, span
        except BaseException as error:
            span.end(error)
            raise

    def _shell(self) -> Shell:
        self._client._on_loop()
        return self._attached.shell


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "an AsyncClient is used inside a running event loop (asyncio.run); broca.Client needs none"
        ) from None
