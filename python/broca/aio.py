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
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Callable, TypeVar, overload

from . import tracing
from ._async_beside import ApprovalHandler, Beside, Hooks, ReceivedHandler, SendingHandler
from ._async_shell import Shell
from ._async_turn import AsyncSubscription, AsyncTurn, Attached, drive, given
from ._core import (
    NotCopied,
    Opened,
    Process,
    expect,
    history_command,
    info,
    new_engine,
    open_command,
    opened,
    page,
    send_command,
    sessions_of,
    subscribe_command,
)
from ._info import SessionInfo, sessions_command, update_command
from ._json import compact
from ._options import Options
from ._pool import Pool
from ._saved import SavedSession, attach_command, session_id_of
from .errors import ClosedError, UsageError
from .steps import Cursor, Event, Page, Reply, Spent
from .tools import ToolSet, has_servers, listed

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from ._async_operation import Operation
    from ._mcp_servers import Servers
    from ._options import Approvals, ClientOptions
    from .tools import Brought, ToolLike

T = TypeVar("T")

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
        tools: Iterable[Brought] = (),
        *,
        metadata: Mapping[str, Any] | None = None,
        approvals: Approvals | None = None,
        on_approval: ApprovalHandler | None = None,
        on_sending: SendingHandler | None = None,
        on_received: ReceivedHandler | None = None,
    ) -> AsyncSession:
        """Opens a session and registers as its driver, with these tools. MCP servers among them (`broca.mcp`) are
        connected before.

        ``approvals`` says which tools of the service a person is asked for, in place of the client's option.
        ``on_approval`` decides about approvals where nobody sees the steps: in `ask` and `AsyncTurn.reply`.
        ``on_sending`` and ``on_received`` see every message that leaves and every answer that comes.
        ``metadata`` is kept with the session; see `AsyncSession.update`. Raises `NotOfferedError` where the service
        keeps none.
        """
        hooks = Hooks(on_approval, on_sending, on_received)
        options = self._options.asking(approvals)
        return await self._attach(lambda given: open_command("open", None, given, metadata), tools, hooks, options)

    async def join(
        self,
        session: SavedSession | str,
        tools: Iterable[Brought] = (),
        *,
        on_approval: ApprovalHandler | None = None,
        on_sending: SendingHandler | None = None,
        on_received: ReceivedHandler | None = None,
    ) -> AsyncSession:
        """Joins a session as one of its drivers; see `open`."""
        hooks = Hooks(on_approval, on_sending, on_received)
        session_id = session_id_of(session, self.url)
        return await self._attach(lambda given: open_command("join", session_id, given), tools, hooks)

    async def attach(
        self,
        saved: SavedSession | str,
        tools: Iterable[Brought] = (),
        *,
        on_approval: ApprovalHandler | None = None,
        on_sending: SendingHandler | None = None,
        on_received: ReceivedHandler | None = None,
    ) -> AsyncSession:
        """Goes on with a session that another program has saved, in this language or another; see `open`.

        It registers again, declares these tools if there are any, and reads the log. `AsyncSession.resume` then takes
        up the turn that was left, if there is one. ``saved``: what `AsyncSession.save` gave, or its JSON text.
        """
        hooks = Hooks(on_approval, on_sending, on_received)
        return await self._attach(lambda given: attach_command(saved, given), tools, hooks)

    async def observe(self, session: SavedSession | str) -> AsyncSession:
        """Joins a session to watch it: no registration, no tools."""
        command = open_command("observe", session_id_of(session, self.url), None)
        return await self._attach(lambda _: command, (), Hooks())

    async def sessions(self, page_size: int | None = None) -> AsyncIterator[SessionInfo]:
        """The sessions that this client's key has opened or joined, the newest first, page by page.

        Raises `NotOfferedError` where the service does not list them."""
        attached = self._new_attached(hooks=False)
        cursor: str | None = None
        try:
            while True:
                _, finished = await attached.shell.run(sessions_command(cursor, page_size))
                found = sessions_of(finished)
                for session in found.sessions:
                    yield session
                cursor = found.next
                if cursor is None:
                    return
        finally:
            attached.shell.leave_soon()

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

    def _new_attached(self, *, hooks: bool, options: Options | None = None) -> Attached:
        shell = Shell(self._on_loop(), options or self._options, hooks=hooks)
        self._shells.add(shell)
        return Attached(shell)

    async def _attach(
        self,
        command: Callable[[ToolSet], str],
        brought: Iterable[Brought],
        hooks: Hooks,
        options: Options | None = None,
    ) -> AsyncSession:
        hooks.shown = hooks.shown or self._options.hooks
        servers: Servers | None = None
        brought = listed(brought)
        self._on_loop()
        if has_servers(brought):
            from ._mcp_servers import Servers, on_loop

            servers = Servers(brought, on_loop)
            await servers.connect()
        try:
            tools = ToolSet(brought if servers is None else servers.tools(), asynchronous=True)
            written = command(tools)
        except BaseException:
            if servers is not None:
                await servers.close()
            raise
        attached = self._new_attached(hooks=hooks.shown or tracing.traces_rounds(), options=options)
        attached.shell.servers = servers
        try:
            _, finished = await attached.shell.run(written)
        except BaseException:
            attached.shell.leave_soon()
            if servers is not None:
                await servers.close()
            raise
        return AsyncSession(self, attached, opened(finished), tools, hooks)


class AsyncSession(NotCopied):
    """A session, as one of its drivers or as an observer. Made by the methods of `AsyncClient`."""

    def __init__(self, client: AsyncClient, attached: Attached, opened: Opened, tools: ToolSet, hooks: Hooks) -> None:
        self._client = client
        self._attached = attached
        self._opened = opened
        self._tools = tools
        self._hooks = hooks
        self._declaring: set[asyncio.Task[None]] = set()

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

    @property
    def spent(self) -> Spent:
        """What the turns of this session have spent so far, those of programs that had it before included."""
        return self._attached.shell.spent()

    def save(self) -> SavedSession:
        """The session as a value that outlives this program, at any time, also in the middle of a turn; nothing is sent
        or waited for. **It holds the session's key and results of tools: keep it where keys are kept.** Then
        `AsyncClient.attach` goes on with it. Raises `UsageError` for a session that is only observed.
        """
        return SavedSession(str(self._shell().run_now('{"save":{}}').value))

    def resume(self, *, traceparent: str | None = None, tracestate: str | None = None) -> AsyncTurn | None:
        """Takes up the turn that the program before this one has left; None if there is none, or no more.

        It shows the events that were missed, asks for what is still open (``may_have_run``), and ends like any other
        turn. A message that is sent instead leads with results for the calls that were open.
        """
        if not self._shell().engine.pending():
            return None
        operation, beside, span = self._begun('{"resume":{}}', traceparent, tracestate)
        return AsyncTurn(operation, self._attached, beside, span)

    def send(self, message: Any, *, traceparent: str | None = None, tracestate: str | None = None) -> AsyncTurn:
        """Starts a turn: with a text, a list of content blocks, or a message with ``content``.

        Turns of one session run one after the other. Tools run in a copy of the context of this call.
        """
        operation, beside, span = self._begin(message, traceparent, tracestate)
        return AsyncTurn(operation, self._attached, beside, span)

    @overload
    async def ask(
        self, message: Any, *, output: None = None, traceparent: str | None = None, tracestate: str | None = None
    ) -> Reply: ...
    @overload
    async def ask(
        self,
        message: Any,
        *,
        output: type[T],
        repairs: int = 1,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> Reply[T]: ...
    @overload
    async def ask(
        self,
        message: Any,
        *,
        output: Any,
        repairs: int = 1,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> Reply[Any]: ...
    async def ask(
        self,
        message: Any,
        *,
        output: Any = None,
        repairs: int = 1,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> Reply[Any]:
        """Sends a message and drives the turn to its reply; see `AsyncTurn.reply`.

        ``output``: the type that the answer is to have, anything that pydantic knows: a model, a dataclass, a
        ``TypedDict``, ``list[…]``. The model is told its JSON Schema at the end of the message; ``reply.output`` is the
        value, checked. An answer that does not fit is sent back with what is wrong, up to ``repairs`` times; then it is
        an `OutputInvalidError`, whose ``reply`` has the answer. A reply counts every turn that it took.
        """
        if output is None:
            return await self._asked(message, traceparent, tracestate)
        from ._output import Output, together

        wanted: Output[Any] = Output(output, repairs)
        reply = await self._asked(wanted.asked_in(message), traceparent, tracestate)
        given = wanted.given(reply)
        while given is None:
            reply = together(reply, await self._asked(wanted.again(reply), traceparent, tracestate))
            given = wanted.given(reply)
        return given

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

    async def info(self) -> SessionInfo:
        """How the session stands, also after its end: its state and turn, its drivers, how far its log has come, and
        what is kept with it. Raises `NotOfferedError` where the service does not tell."""
        _, finished = await self._shell().run('{"info":{}}')
        return info(finished)

    async def update(self, metadata: Mapping[str, Any], *, version: int | None = None) -> SessionInfo:
        """Changes what is kept with the session, as a JSON merge patch: what ``metadata`` names is replaced, ``None``
        takes a member away. Returns how the session stands then.

        With ``version`` (``SessionInfo.metadata_version``) only that version is changed: an `ApiError` of the type
        ``version_conflict`` says that somebody else has changed it since. Raises `NotOfferedError` where the service
        keeps none.
        """
        _, finished = await self._shell().run(update_command(metadata, version))
        return info(finished)

    async def update_tools(self, tools: Iterable[ToolLike]) -> None:
        """Replaces this client's tools, from the next turn on. When it fails, the old ones stay. The tools of
        MCP servers stay beside them. Raises `UsageError` for another MCP server."""
        new = ToolSet(tools, asynchronous=True)
        servers = self._shell().servers
        if servers:
            new = ToolSet(servers.with_own(new.all()), asynchronous=True, before=self._tools)
        command = compact({"update_tools": {"tools": new.declarations()}})
        _, finished = await self._shell().run(command)
        expect(finished, "updated")
        self._tools = new

    async def cancel(self) -> None:
        """Ends every turn of this session that was started here, and returns when they are quiet, within bounds.

        Iterating one then ends with a `CancelledError`, after the steps that came before."""
        await self._shell().cancel_turns()

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

    async def _asked(self, message: Any, traceparent: str | None, tracestate: str | None) -> Reply:
        """Sends a message and drives the turn to its reply."""
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

    def _begin(
        self, message: Any, traceparent: str | None, tracestate: str | None
    ) -> tuple[Operation, Beside, tracing.SendSpan]:
        """Begins a turn with a message."""
        self._follow_servers()
        return self._begun(send_command(message), traceparent, tracestate)

    def _follow_servers(self) -> None:
        """Declares the tools anew when an MCP server has told of other ones. The turn that follows waits for that."""
        shell = self._shell()
        changed = None if shell.servers is None else shell.servers.tools_again(self._tools, asynchronous=True)
        if changed is not None:
            declaring = shell.declare(compact({"update_tools": {"tools": changed.declarations()}}))
            self._declaring.add(declaring)
            declaring.add_done_callback(self._declaring.discard)
            self._tools = changed

    def _begun(
        self, command: str, traceparent: str | None, tracestate: str | None
    ) -> tuple[Operation, Beside, tracing.SendSpan]:
        """Begins a turn."""
        shell = self._shell()
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
