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
import contextvars
import inspect
import warnings
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Callable, Union

from ._async_shell import Operation, Running, Shell
from ._core import (
    APPROVAL_WITHDRAWN,
    BURST,
    NOBODY_TO_ASK,
    NOBODY_TO_RUN,
    RECEIVED,
    SENDING,
    TOOL_CALL,
    TOOL_CANCEL,
    Opened,
    Process,
    SavedSession,
    expect,
    history_command,
    logger,
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
from .errors import BrocaError, CancelledError, ClosedError, InternalError, UsageError
from .steps import Approval, Asks, Cursor, Done, Event, Gap, Page, Received, Reply, Sending, Step, ToolCall
from .tools import ToolContext, ToolSet, failure_text

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from ._options import ClientOptions
    from .tools import Tool, ToolLike

__all__ = ["AsyncClient", "AsyncSession", "AsyncSubscription", "AsyncTurn"]

ApprovalHandler = Callable[[Approval], Union[Awaitable[Any], Any]]
"""Decides about a call: answers with the methods of the `Approval`, or gives True, False, or the reason of a denial."""
SendingHandler = Callable[[Sending], Union[Awaitable[Any], Any]]
"""Sees a message before it leaves: gives the message to send in its place or None, or raises to refuse."""
ReceivedHandler = Callable[[Received], None]
"""Sees the answer to a message. It must not block."""


class AsyncClient:
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

        ``on_approval`` decides about approvals where nobody sees the steps: in `AsyncSession.ask` and `AsyncTurn.reply`.
        ``on_sending`` and ``on_received`` see every message that leaves and every answer that comes.
        """
        hooks = _Hooks(on_approval, on_sending, on_received)
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
        hooks = _Hooks(on_approval, on_sending, on_received)
        session_id = session_id_of(session, self.url)
        return await self._attach("join", session_id, ToolSet(tools, asynchronous=True), hooks)

    async def observe(self, session: SavedSession | str) -> AsyncSession:
        """Joins a session to watch it: no registration, no tools."""
        return await self._attach("observe", session_id_of(session, self.url), None, _Hooks())

    async def meta(self) -> dict[str, Any]:
        """What the service is and can do."""
        attached = self._new_attached(hooks=False)
        try:
            _, finished = await attached.shell.run('{"meta":{}}')
        finally:
            attached.shell.leave_soon()
        return dict(expect(finished, "meta"))

    async def close(self) -> None:
        """Lets go of every session: what is under way is cancelled, waited for within bounds, and every connection is closed.

        The sessions stay open for others; `AsyncSession.close` ends one. A second call does nothing.
        """
        Process.check(self._forks)
        if self._loop is not None:
            self._on_loop()
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
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self.url!r})"

    def _on_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that runs, if the client may be used on it."""
        Process.check(self._forks)
        loop = _running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise UsageError(
                "this client belongs to another event loop, where it was used first: make a client for each loop"
            )
        if self._closed:
            raise ClosedError("the client is closed")
        return loop

    def _new_attached(self, *, hooks: bool) -> _Attached:
        shell = Shell(self._on_loop(), self._options, hooks=hooks)
        self._shells.add(shell)
        return _Attached(shell, self)

    async def _attach(
        self, way: str, session_id: str | None, tools: ToolSet | None, hooks: _Hooks
    ) -> AsyncSession:
        attached = self._new_attached(hooks=hooks.on_sending is not None or hooks.on_received is not None)
        try:
            _, finished = await attached.shell.run(open_command(way, session_id, tools))
        except BaseException:
            attached.shell.leave_soon()
            raise
        return AsyncSession(attached, opened(finished), tools or ToolSet((), asynchronous=True), hooks)


class _Hooks:
    """Handlers of the application that are no tools."""

    __slots__ = ("on_approval", "on_received", "on_sending")

    def __init__(
        self,
        on_approval: ApprovalHandler | None = None,
        on_sending: SendingHandler | None = None,
        on_received: ReceivedHandler | None = None,
    ) -> None:
        self.on_approval = on_approval
        self.on_sending = on_sending
        self.on_received = on_received


class _Attached:
    """What every handle of a session holds. When the last one goes, the session is left."""

    __slots__ = ("client", "shell")

    def __init__(self, shell: Shell, client: AsyncClient) -> None:
        self.shell = shell
        self.client = client

    def __del__(self) -> None:
        self.shell.leave_soon()


class AsyncSession:
    """A session, as one of its drivers or as an observer. Made by `AsyncClient.open`, `join` and `observe`."""

    def __init__(self, attached: _Attached, opened: Opened, tools: ToolSet, hooks: _Hooks) -> None:
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
        return SavedSession(self._attached.client.url, self.id)

    def send(
        self, message: Any, *, traceparent: str | None = None, tracestate: str | None = None
    ) -> AsyncTurn:
        """Starts a turn: with a text, a list of content blocks, or a message with ``content``.

        Turns of one session run one after the other. Tools run in a copy of the context of this call.
        """
        shell = self._shell()
        operation = shell.begin(send_command(message), self._runs_itself, traceparent, tracestate)
        return AsyncTurn(operation, self)

    async def ask(
        self, message: Any, *, traceparent: str | None = None, tracestate: str | None = None
    ) -> Reply:
        """Sends a message and drives the turn to its reply; see `AsyncTurn.reply`."""
        return await self.send(message, traceparent=traceparent, tracestate=tracestate).reply()

    def subscribe(self, after: Cursor | str | None = None) -> AsyncSubscription:
        """Watches the session: from now on, or after a stored cursor; ``Cursor.START`` is the beginning of its log."""
        cursor = after if after is None or isinstance(after, Cursor) else Cursor(after)
        return AsyncSubscription(self._shell().begin(subscribe_command(after), _no_tool), self._attached, cursor)

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
        """Asks every turn of this session to end; iterating them ends with a `CancelledError`. `AsyncTurn.cancel` also waits."""
        self._shell().cancel_turns()

    async def leave(self) -> None:
        """Lets go of the session, which stays open for others: what is under way here is cancelled and waited for."""
        Process.check(self._attached.client._forks)
        if not self._attached.shell.over:
            self._attached.client._on_loop()
        await self._attached.shell.leave_all()

    async def close(self) -> None:
        """Closes the session for everybody, and lets go of it. One that is closed already is no error."""
        _, finished = await self._shell().run('{"close":{}}')
        expect(finished, "closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave()

    def __repr__(self) -> str:
        return f"AsyncSession({self.id})"

    def _shell(self) -> Shell:
        client = self._attached.client
        client._on_loop()
        return self._attached.shell

    def _runs_itself(self, name: str) -> bool:
        return self._tools.runnable(name) is not None


class AsyncTurn:
    """A turn under way: an asynchronous iterator of steps that ends after `Done`, or raises what the turn failed with.

    Tools are started while the turn is iterated, as soon as their calls come, and answer by themselves. Everything
    else that asks for an answer (a manual tool, an approval) waits for it until the service's time is over.

    Leave it with ``async with``: then a turn that is left early is cancelled and waited for. One that is dropped without
    is cancelled with a `ResourceWarning`. When the task that waits for a step is cancelled, so is the turn.
    """

    def __init__(self, operation: Operation, session: AsyncSession) -> None:
        self._operation = operation
        self._attached = session._attached
        self._hooks = session._hooks
        self._told = False
        self._given_up = False
        self._waiting = 0
        self._context = contextvars.copy_context()
        operation.is_turn = True
        operation.seen = _Beside(session, self._context).seen

    def __aiter__(self) -> AsyncGenerator[Step, None]:
        return self._steps()

    async def __anext__(self) -> Step:
        """The next step."""
        operation = self._operation
        while True:
            step: Step | None = next(operation.items, None)
            if step is not None:
                return step
            if not await self._more():
                self._tell()
                raise StopAsyncIteration

    async def reply(self) -> Reply:
        """Drives the turn to its end and returns the reply. Raises what the turn failed with.

        Approvals are decided by the session's ``on_approval`` handler; without one they are denied, and so fail
        calls of manual tools, because nobody is there to answer.
        """
        reply: Reply | None = None
        try:
            while await self._more():
                for step in self._operation.items:
                    kind = type(step)
                    if kind is Event:
                        continue
                    if kind is Done:
                        reply = step.reply
                    elif kind is ToolCall and not step.runs_itself:
                        step.fail(NOBODY_TO_RUN)
                    elif kind is Approval:
                        self._decide(step)
                    elif kind is Sending:
                        step.send()
        except asyncio.CancelledError:
            self._give_up()
            raise
        self._tell()
        if reply is None:
            raise InternalError("the turn ended without a reply")
        return reply

    async def cancel(self) -> None:
        """Ends the turn early and returns when it is quiet: the service has let go of it, or does not matter any more, and
        tools have stopped or were abandoned. Steps that were still waiting are dropped. A turn that has ended is no
        error; one that had failed before raises that.
        """
        others = self._waiting
        self.request_cancel()
        await self._drained()
        if others:
            return
        try:
            self._tell()
        except CancelledError:
            pass

    def request_cancel(self) -> None:
        """Asks for the end of the turn without waiting, from any thread; iterating then ends with a `CancelledError`."""
        self._operation.shell.cancel(self._operation.op)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._told or self._given_up:
            return
        self.request_cancel()
        limit = self._attached.client._options.cancel_wait_ms() / 1000
        try:
            await asyncio.wait_for(self._drained(), limit)
        except asyncio.TimeoutError:
            logger.warning("a cancelled turn did not become quiet within %.1f s and was abandoned", limit)
        finally:
            self._give_up()

    def __repr__(self) -> str:
        state = "over" if self._operation.final is not None else "under way"
        return f"AsyncTurn({state})"

    def __del__(self) -> None:
        # One that was never made has nothing to give up.
        operation: Operation | None = self.__dict__.get("_operation")
        if operation is None or operation.final is not None or self._given_up:
            return
        shell = operation.shell
        if shell.over or Process.forks != shell.forks:
            return
        shell.leave_later(operation)
        warnings.warn(
            "a turn was dropped before its end, and is cancelled; use 'async with session.send(…) as turn'",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )

    async def _steps(self) -> AsyncGenerator[Step, None]:
        operation = self._operation
        burst = 0
        while True:
            for step in operation.items:
                yield step
                burst += 1
                if burst >= BURST:
                    burst = 0
                    await asyncio.sleep(0)
            burst = 0
            if not await self._more():
                self._tell()
                return

    async def _more(self) -> bool:
        self._waiting += 1
        try:
            return await self._operation.more()
        except asyncio.CancelledError:
            self.request_cancel()
            raise
        finally:
            self._waiting -= 1

    async def _drained(self) -> None:
        operation = self._operation
        while await operation.more():
            operation.items = iter(())

    def _tell(self) -> None:
        """Says once how the turn ended."""
        if self._told:
            return
        self._told = True
        self._operation.outcome()

    def _give_up(self) -> None:
        """Nobody looks at the turn any more."""
        if not self._given_up:
            self._given_up = True
            self._operation.shell.leave(self._operation)

    def _decide(self, approval: Approval) -> None:
        """Has the approval handler decide; without one, denies."""
        handler = self._hooks.on_approval
        if handler is None:
            # Withdrawn in the meantime, perhaps: then the answer does not matter.
            approval.deny(NOBODY_TO_ASK)
            return
        _start(self._operation, approval.call, self._context, _decided(handler, approval))


class AsyncSubscription:
    """A session's events as they happen: an asynchronous iterator that outlives its connections and ends with the session.

    Every event comes once and in order; what cannot be had is a visible `Gap`. Dropped, it ends.
    """

    def __init__(self, operation: Operation, attached: _Attached, cursor: Cursor | None) -> None:
        self._operation = operation
        self._attached = attached
        self._cursor = cursor
        self._last: Event | None = None
        self._told = False

    @property
    def cursor(self) -> Cursor | None:
        """Just after the last event handed out: store it to go on from there, in this process or another. None before the
        first event of a subscription that began with what happens from now on."""
        if self._last is not None:
            self._cursor = Cursor(self._last.id)
        return self._cursor

    def __aiter__(self) -> AsyncGenerator[Step, None]:
        return self._steps()

    async def __anext__(self) -> Step:
        """The next step."""
        operation = self._operation
        while True:
            step: Step | None = next(operation.items, None)
            if step is not None:
                self._follow(step)
                return step
            if not await operation.more():
                self._tell()
                raise StopAsyncIteration

    async def close(self) -> None:
        """Ends the subscription. What was not handed out comes again after `cursor`."""
        self._told = True
        self._operation.shell.leave(self._operation)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncSubscription({self.cursor!r})"

    def __del__(self) -> None:
        operation: Operation | None = self.__dict__.get("_operation")
        if operation is not None and operation.final is None and not operation.left:
            operation.shell.leave_later(operation)

    async def _steps(self) -> AsyncGenerator[Step, None]:
        operation = self._operation
        burst = 0
        while True:
            for step in operation.items:
                if step.__class__ is Event:
                    self._last = step
                else:
                    self._follow(step)
                yield step
                burst += 1
                if burst >= BURST:
                    burst = 0
                    await asyncio.sleep(0)
            burst = 0
            if not await operation.more():
                self._tell()
                return

    def _follow(self, step: Step) -> None:
        if isinstance(step, Event):
            self._last = step
        elif isinstance(step, Gap) and step.reason == "cursor":
            # The service forgot the cursor and begins again at the start of its log.
            self._last = None
            self._cursor = Cursor.START

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            self._operation.outcome()


class _Beside:
    """What runs beside a turn: its tools and hooks, each in a copy of the context that the turn was started in."""

    __slots__ = ("_context", "_hooks", "_pool", "_tools")

    def __init__(self, session: AsyncSession, context: contextvars.Context) -> None:
        self._tools = session._tools
        self._hooks = session._hooks
        self._pool = session._attached.client._pool
        self._context = context

    def seen(self, operation: Operation, record: tuple[Any, ...]) -> bool:
        """Starts what a record asks for, or tells it to stop; true when the application does not see the record."""
        kind = record[0]
        if kind == TOOL_CALL:
            tool = self._tools.runnable(record[3])
            if tool is not None:
                _, call, tool_use_id, name, input, key = record
                self._start_tool(operation, tool, call, ToolContext(name, tool_use_id, key, input))
        elif kind in (TOOL_CANCEL, APPROVAL_WITHDRAWN):
            running = operation.running.get(record[1])
            if running is not None:
                running.stop()
        elif kind == SENDING and self._hooks.on_sending is not None:
            _, call, round, message = record
            sending = Sending(round, message, call, operation.shell)
            _start(operation, call, self._context, _sent(self._hooks.on_sending, sending))
            return True
        elif kind == RECEIVED and self._hooks.on_received is not None:
            try:
                self._context.copy().run(self._hooks.on_received, Received(*record[1:]))
            except Exception:
                logger.exception("the on_received handler failed")
        return False

    def _start_tool(self, operation: Operation, tool: Tool[..., Any], call: int, context: ToolContext) -> None:
        if tool.is_async:
            running = Running(context.cancelled._set)
            _start(operation, call, self._context, _run_tool(operation.shell, tool, call, context), running)
            return
        running = Running(context.cancelled._set)
        operation.start(call, running)
        copied = self._context.copy()

        def job() -> None:
            try:
                word, value = copied.run(tool.run, context)
            except BaseException as error:
                # What is no Exception (an exit, an interrupt) has nobody to go to from this thread but the model.
                word, value = "fail", failure_text(error)
            operation.ended(call, running)
            _answer(operation.shell, call, word, value)

        try:
            self._pool.submit(job)
        except RuntimeError as error:
            _answer(operation.shell, call, "fail", failure_text(error))


def _start(
    operation: Operation,
    call: int,
    context: contextvars.Context,
    work: Coroutine[Any, Any, None],
    running: Running | None = None,
) -> None:
    """Runs a coroutine beside a turn, as a task with a copy of the context."""
    started = running or Running()
    operation.start(call, started)
    started.task = context.run(operation.shell.loop.create_task, work)
    started.task.add_done_callback(lambda _: operation.ended(call, started))


async def _run_tool(shell: Shell, tool: Tool[..., Any], call: int, context: ToolContext) -> None:
    word, value = "fail", "the tool was cancelled"
    try:
        word, value = await tool.run_async(context)
    except asyncio.CancelledError:
        # Somebody else may want the task to end: the loop at its end, say.
        if not context.cancelled:
            raise
    except BaseException as error:
        value = failure_text(error)
        raise
    finally:
        _answer(shell, call, word, value)


async def _sent(handler: SendingHandler, sending: Sending) -> None:
    try:
        message = handler(sending)
        if inspect.isawaitable(message):
            message = await message
        sending.send(message)
    except Exception as error:
        _answer(sending._asks, sending.call, "refuse", failure_text(error))


async def _decided(handler: ApprovalHandler, approval: Approval) -> None:
    try:
        decision = handler(approval)
        if inspect.isawaitable(decision):
            decision = await decision
    except Exception as error:
        logger.exception("the on_approval handler failed")
        approval.deny(f"the approval handler failed ({type(error).__name__})")
        return
    if decision is True:
        approval.allow()
    elif isinstance(decision, str):
        approval.deny(decision)
    elif isinstance(decision, Mapping):
        approval.allow_narrowed(decision)
    elif decision is False:
        approval.deny()
    else:
        # Too late when the handler has answered; otherwise nobody has decided.
        approval.deny("the approval handler did not decide")


def _answer(asks: Asks, call: int, word: str, value: str) -> None:
    """The answer of something that ran by itself. Too late, or about a turn that is over, it no longer matters."""
    try:
        asks.answer(call, word, value)
    except BrocaError as error:
        logger.debug("an answer was not taken: %s", error.message)


def _no_tool(_: str) -> bool:
    return False


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "an AsyncClient is used inside a running event loop (asyncio.run); broca.Client needs none"
        ) from None

