"""The client for programs without an event loop.

    with broca.Client("http://127.0.0.1:8080", key) as client:
        session = client.open(tools=[read_file])
        with session.send("What does read_file say about main.py?") as turn:
            for step in turn:
                match step:
                    case broca.TextDelta(delta=text):
                        print(text, end="", flush=True)
                    case broca.Approval():
                        step.allow()
        reply = session.ask("And in one line?")

A session moves only while some thread is inside a call that waits: iterating a `Turn` or a `Subscription`,
`Session.ask`, `Session.history` and the like. Between such calls nothing is kept alive: a paused turn's deadline can
pass, a subscription lags and recovers at the next call. A program that must not let that happen gives the session a
thread of its own, or uses `broca.AsyncClient`. Any number of threads may be inside calls of one session.

Tools run on threads of their session, with the context variables of the `Session.send` that called them. Ctrl-C ends
any wait at once, except while the system looks a name up.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any, Callable, TypeVar, overload

from . import tracing
from ._core import (
    NOBODY_TO_RUN,
    NotCopied,
    Opened,
    Process,
    expect,
    history_command,
    info,
    logger,
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
from ._saved import SavedSession, attach_command, session_id_of
from ._sync_operation import (
    ApprovalHandler,
    Beside,
    Hooks,
    Operation,
    ReceivedHandler,
    SendingHandler,
    run,
    runs_inside,
)
from ._sync_shell import Driver
from .errors import BrocaError, CancelledError, ClosedError, InternalError, TimeoutError, UsageError
from .steps import Approval, Cursor, Done, Event, Gap, Page, Reply, Sending, Spent, Step, ToolCall
from .tools import ToolSet, has_servers, listed

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from ._mcp_servers import OnThread
    from ._options import Approvals, ClientOptions
    from .tools import Brought, ToolLike

T = TypeVar("T")

__all__ = ["Client", "Session", "Subscription", "Turn"]


class Client(NotCopied):
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
        self._drivers: weakref.WeakSet[Driver] = weakref.WeakSet()
        self._closed = False
        self._forks = Process.forks

    @property
    def url(self) -> str:
        """The address of the service."""
        return self._options.url

    def open(
        self,
        tools: Iterable[Brought] = (),
        *,
        metadata: Mapping[str, Any] | None = None,
        approvals: Approvals | None = None,
        on_approval: ApprovalHandler | None = None,
        on_sending: SendingHandler | None = None,
        on_received: ReceivedHandler | None = None,
    ) -> Session:
        """Opens a session and registers as its driver, with these tools. MCP servers among them (`broca.mcp`) are
        connected before; they live on a thread of the session until it is left.

        ``approvals`` says which tools of the service a person is asked for, in place of the client's option.
        ``on_approval`` decides about approvals where nobody sees the steps: in `Session.ask` and `Turn.reply`.
        ``on_sending`` and ``on_received`` see every message that leaves and every answer that comes.
        ``metadata`` is kept with the session; see `Session.update`. Raises `NotOfferedError` where the service keeps
        none.
        """
        hooks = Hooks(on_approval, on_sending, on_received)
        options = self._options.asking(approvals)
        return self._attach("open", lambda given: open_command("open", None, given, metadata), tools, hooks, options)

    def join(
        self,
        session: SavedSession | str,
        tools: Iterable[Brought] = (),
        *,
        on_approval: ApprovalHandler | None = None,
        on_sending: SendingHandler | None = None,
        on_received: ReceivedHandler | None = None,
    ) -> Session:
        """Joins a session as one of its drivers; see `open`."""
        hooks = Hooks(on_approval, on_sending, on_received)
        session_id = session_id_of(session, self.url)
        return self._attach("join", lambda given: open_command("join", session_id, given), tools, hooks)

    def attach(
        self,
        saved: SavedSession | str,
        tools: Iterable[Brought] = (),
        *,
        on_approval: ApprovalHandler | None = None,
        on_sending: SendingHandler | None = None,
        on_received: ReceivedHandler | None = None,
    ) -> Session:
        """Goes on with a session that another program has saved, in this language or another; see `open`.

        It registers again, declares these tools if there are any, and reads the log. `Session.resume` then takes up
        the turn that was left, if there is one. ``saved``: what `Session.save` gave, or its JSON text.
        """
        hooks = Hooks(on_approval, on_sending, on_received)
        return self._attach("attach", lambda given: attach_command(saved, given), tools, hooks)

    def observe(self, session: SavedSession | str) -> Session:
        """Joins a session to watch it: no registration, no tools."""
        command = open_command("observe", session_id_of(session, self.url), None)
        return self._attach("observe", lambda _: command, (), Hooks())

    def sessions(self, page_size: int | None = None) -> Iterator[SessionInfo]:
        """The sessions that this client's key has opened or joined, the newest first, page by page.

        Raises `NotOfferedError` where the service does not list them."""
        driver = self._driver(hooks=False)
        cursor: str | None = None
        try:
            while True:
                _, finished = run(driver, sessions_command(cursor, page_size), "Client.sessions")
                found = sessions_of(finished)
                yield from found.sessions
                cursor = found.next
                if cursor is None:
                    return
        finally:
            driver.close()

    def meta(self) -> dict[str, Any]:
        """What the service is and can do."""
        driver = self._driver(hooks=False)
        try:
            _, finished = run(driver, '{"meta":{}}', "Client.meta")
        finally:
            driver.close()
        return dict(expect(finished, "meta"))

    def close(self) -> None:
        """Lets go of every session: what is under way is cancelled, waited for within bounds, and every connection is
        closed.

        The sessions stay open for others; `Session.close` ends one. A second call does nothing.
        """
        Process.check(self._forks)
        self._closed = True
        for driver in list(self._drivers):
            driver.leave_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def _check(self) -> None:
        Process.check(self._forks)
        if self._closed:
            raise ClosedError("the client is closed")

    def _driver(self, *, hooks: bool, options: Options | None = None) -> Driver:
        self._check()
        driver = Driver(options or self._options, hooks=hooks)
        self._drivers.add(driver)
        return driver

    def _attach(
        self,
        way: str,
        command: Callable[[ToolSet], str],
        brought: Iterable[Brought],
        hooks: Hooks,
        options: Options | None = None,
    ) -> Session:
        brought = listed(brought)
        on_thread: OnThread | None = None
        if has_servers(brought):
            from ._mcp_servers import OnThread

            self._check()
            on_thread = OnThread(brought)
        try:
            tools = ToolSet(brought if on_thread is None else on_thread.servers.tools(), asynchronous=False)
            written = command(tools)
            driver = self._driver(hooks=hooks.wanted() or tracing.traces_rounds(), options=options)
        except BaseException:
            if on_thread is not None:
                on_thread.close()
            raise
        driver.servers = on_thread
        try:
            _, finished = run(driver, written, f"Client.{way}")
        except BaseException:
            driver.close()
            raise
        return Session(driver, self, opened(finished), tools, hooks)


class Session(NotCopied):
    """A session, as one of its drivers or as an observer. Made by the methods of `Client`."""

    def __init__(self, driver: Driver, client: Client, opened: Opened, tools: ToolSet, hooks: Hooks) -> None:
        self._driver = driver
        self._client = client
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

    @property
    def spent(self) -> Spent:
        """What the turns of this session have spent so far, those of programs that had it before included."""
        return Spent(*self._driver.engine.spent())

    def save(self) -> SavedSession:
        """The session as a value that outlives this program, at any time, also in the middle of a turn; nothing is sent
        or waited for. **It holds the session's key and results of tools: keep it where keys are kept.** Then
        `Client.attach` goes on with it. Raises `UsageError` for a session that is only observed.
        """
        _, finished = run(self._driver, '{"save":{}}', "Session.save")
        return SavedSession(str(finished.value))

    def resume(self, *, traceparent: str | None = None, tracestate: str | None = None) -> Turn | None:
        """Takes up the turn that the program before this one has left; None if there is none, or no more.

        It shows the events that were missed, asks for what is still open (``may_have_run``), and ends like any other
        turn. A message that is sent instead leads with results for the calls that were open.
        """
        self._driver.enter("Session.resume")
        if not self._driver.engine.pending():
            return None
        self._refuse_inside()
        return self._begun('{"resume":{}}', traceparent, tracestate)

    def send(self, message: Any, *, traceparent: str | None = None, tracestate: str | None = None) -> Turn:
        """Starts a turn: with a text, a list of content blocks, or a message with ``content``.

        Turns of one session run one after the other. Tools run in a copy of the context of this call. Raises
        `UsageError` in a tool of this session: its turn would wait for the tool, and the tool for its turn.
        """
        self._driver.enter("Session.send")
        self._refuse_inside()
        command = send_command(message)
        if self._driver.servers is not None:
            self._follow(self._driver.servers)
        return self._begun(command, traceparent, tracestate)

    @overload
    def ask(
        self, message: Any, *, output: None = None, traceparent: str | None = None, tracestate: str | None = None
    ) -> Reply: ...
    @overload
    def ask(
        self,
        message: Any,
        *,
        output: type[T],
        repairs: int = 1,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> Reply[T]: ...
    @overload
    def ask(
        self,
        message: Any,
        *,
        output: Any,
        repairs: int = 1,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> Reply[Any]: ...
    def ask(
        self,
        message: Any,
        *,
        output: Any = None,
        repairs: int = 1,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> Reply[Any]:
        """Sends a message and drives the turn to its reply; see `Turn.reply`.

        ``output``: the type that the answer is to have, anything that pydantic knows: a model, a dataclass, a
        ``TypedDict``, ``list[…]``. The model is told its JSON Schema at the end of the message; ``reply.output`` is the
        value, checked. An answer that does not fit is sent back with what is wrong, up to ``repairs`` times; then it is
        an `OutputInvalidError`, whose ``reply`` has the answer. A reply counts every turn that it took.
        """
        if output is None:
            return self._asked(message, traceparent, tracestate)
        from ._output import Output, together

        wanted: Output[Any] = Output(output, repairs)
        reply = self._asked(wanted.asked_in(message), traceparent, tracestate)
        given = wanted.given(reply)
        while given is None:
            reply = together(reply, self._asked(wanted.again(reply), traceparent, tracestate))
            given = wanted.given(reply)
        return given

    def subscribe(self, after: Cursor | str | None = None) -> Subscription:
        """Watches the session: from now on, or after a stored cursor; ``Cursor.START`` is the beginning of its log."""
        cursor = after if after is None or isinstance(after, Cursor) else Cursor(after)
        self._driver.enter("Session.subscribe")
        return Subscription(Operation(self._driver, subscribe_command(after), "Subscription.__next__"), cursor)

    def history(self, cursor: str | None = None, limit: int | None = None) -> Page:
        """One page of the log, from its start or from the ``next`` of the page before."""
        events, finished = run(self._driver, history_command(cursor, limit), "Session.history")
        return page(finished, events)

    def events(self, page_size: int | None = None) -> Iterator[Event]:
        """The whole log as it is now, page by page."""
        cursor: str | None = None
        while True:
            found = self.history(cursor, page_size)
            yield from found.events
            cursor = found.next
            if cursor is None:
                return

    def participants(self) -> list[str]:
        """The client keys that drive the session, by their ids."""
        _, finished = run(self._driver, '{"participants":{}}', "Session.participants")
        return list(expect(finished, "participants")["drivers"])

    def info(self) -> SessionInfo:
        """How the session stands, also after its end: its state and turn, its drivers, how far its log has come, and
        what is kept with it. Raises `NotOfferedError` where the service does not tell."""
        _, finished = run(self._driver, '{"info":{}}', "Session.info")
        return info(finished)

    def update(self, metadata: Mapping[str, Any], *, version: int | None = None) -> SessionInfo:
        """Changes what is kept with the session, as a JSON merge patch: what ``metadata`` names is replaced, ``None``
        takes a member away. Returns how the session stands then.

        With ``version`` (``SessionInfo.metadata_version``) only that version is changed: an `ApiError` of the type
        ``version_conflict`` says that somebody else has changed it since. Raises `NotOfferedError` where the service
        keeps none.
        """
        _, finished = run(self._driver, update_command(metadata, version), "Session.update")
        return info(finished)

    def update_tools(self, tools: Iterable[ToolLike]) -> None:
        """Replaces this client's tools, from the next turn on. When it fails, the old ones stay. The tools of
        MCP servers stay beside them. Raises `UsageError` for another MCP server."""
        new = ToolSet(tools, asynchronous=False)
        servers = self._driver.servers and self._driver.servers.servers
        if servers:
            new = ToolSet(servers.with_own(new.all()), asynchronous=False, before=self._tools)
        command = compact({"update_tools": {"tools": new.declarations()}})
        _, finished = run(self._driver, command, "Session.update_tools")
        expect(finished, "updated")
        self._tools = new

    def cancel(self) -> None:
        """Ends every turn of this session that was started here, and returns when they are quiet, within bounds.

        Iterating one then ends with a `CancelledError`, after the steps that came before."""
        self._driver.enter("Session.cancel")
        self._driver.cancel_turns()

    def leave(self) -> None:
        """Lets go of the session, which stays open for others: what is under way here is cancelled and waited for."""
        Process.check(self._client._forks)
        self._driver.leave_all()

    def close(self) -> None:
        """Closes the session for everybody. One that is closed already is no error. Its connections go with `leave`."""
        _, finished = run(self._driver, '{"close":{}}', "Session.close")
        expect(finished, "closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def __repr__(self) -> str:
        return f"Session({self.id})"

    def _asked(self, message: Any, traceparent: str | None, tracestate: str | None) -> Reply:
        """Sends a message and drives the turn to its reply."""
        return self.send(message, traceparent=traceparent, tracestate=tracestate).reply()

    def _follow(self, on_thread: OnThread) -> None:
        """Declares the tools anew when an MCP server has told of other ones."""
        changed = on_thread.servers.tools_again(self._tools, asynchronous=False)
        if changed is None:
            return
        try:
            command = compact({"update_tools": {"tools": changed.declarations()}})
            expect(run(self._driver, command, "Session.send")[1], "updated")
        except BrocaError as fault:
            logger.warning("the tools of an MCP server have changed, and the old ones stay: %s", fault.message)
            return
        self._tools = changed

    def _refuse_inside(self) -> None:
        if runs_inside(self._driver):
            raise UsageError(
                "a tool or a handler of a session cannot start a turn in it: that turn would wait for the one that "
                "waits for the tool. Another session of the client can be used"
            )

    def _begun(self, command: str, traceparent: str | None, tracestate: str | None) -> Turn:
        """Begins a turn."""
        driver = self._driver
        span = tracing.start_send(self.id, traceparent, tracestate)
        beside = Beside(driver, self._tools, self._hooks, span, asked=self._client._options.hooks)
        try:
            operation = Operation(
                driver, command, "Turn.__next__",
                beside=beside, runs_itself=self._runs_itself, headers=span.headers,
            )  # fmt: skip
        except BaseException as error:
            span.end(error)
            raise
        return Turn(operation, beside, span)

    def _runs_itself(self, name: str) -> bool:
        return self._tools.runnable(name) is not None


class Turn(NotCopied):
    """A turn under way: an iterator of steps that ends after `Done`, or raises what the turn failed with.

    Tools are started while the turn is iterated, as soon as their calls come, and answer by themselves. Everything
    else that asks for an answer (a manual tool, an approval) waits for it until the service's time is over.

    Leave it with ``with``: then a turn that is left early is cancelled and waited for, after Ctrl-C as well. One that
    is dropped without is cancelled with a `ResourceWarning`. One thread at a time iterates it; any may cancel it.
    """

    def __init__(self, operation: Operation, beside: Beside, span: tracing.SendSpan) -> None:
        self._operation = operation
        self._beside = beside
        self._span = span
        self._told = False

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        """The next step."""
        operation = self._operation
        while True:
            step: Step
            for step in operation.items:
                return step
            if not operation.more():
                self._tell()
                raise StopIteration

    def next(self, timeout: float | None = None) -> Step | None:
        """The next step, waited for at most so many seconds; None after the last. Raises `TimeoutError` when none came
        in time, which changes nothing: ask again."""
        return _next(self, self._operation, timeout)

    def reply(self) -> Reply:
        """Drives the turn to its end and returns the reply. Raises what the turn failed with.

        Approvals are decided by the session's ``on_approval`` handler; without one they are denied, and so fail
        calls of manual tools, because nobody is there to answer. Interrupted, it cancels the turn.
        """
        reply: Reply | None = None
        operation = self._operation
        operation.be_quiet()
        try:
            more = True
            while more:
                for step in operation.items:
                    kind = type(step)
                    if kind is Event:
                        continue
                    if kind is Done:
                        reply = step.reply
                    elif kind is ToolCall and not step.runs_itself:
                        step.fail(NOBODY_TO_RUN)
                    elif kind is Approval:
                        self._beside.decide(operation.op, step)
                    elif kind is Sending:
                        step.send()
                more = operation.more()
        except BaseException:
            self._leave()
            raise
        self._tell()
        if reply is None:
            raise InternalError("the turn ended without a reply")
        return reply

    def cancel(self) -> None:
        """Ends the turn early and returns when it is quiet: the service has let go of it, or does not matter any more,
        and tools have stopped or were abandoned. Steps that were still waiting are dropped. A turn that has ended is
        no error; one that had failed before raises that.
        """
        operation = self._operation
        if operation.reading not in (0, get_ident()):
            # Another thread reads, and is to hear how it ended.
            operation.driver.cancel_turns(operation.op)
            return
        self.request_cancel()
        while not operation.forgotten and operation.more():
            operation.items = iter(())
        operation.items = iter(())
        try:
            if operation.final is not None:
                self._tell()
        except CancelledError:
            pass

    def request_cancel(self) -> None:
        """Asks for the end of the turn, from any thread, and does not wait; then iterating raises `CancelledError`."""
        self._operation.driver.cancel(self._operation.op)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def __repr__(self) -> str:
        return f"Turn({'over' if self._operation.final is not None else 'under way'})"

    def __del__(self) -> None:
        # One that was never made has nothing to give up.
        operation: Operation | None = self.__dict__.get("_operation")
        if operation is None or operation.forgotten or not operation.driver.usable():
            return
        # The operation ends with its last holder, which is this one.
        self._span.end(None)
        warnings.warn(
            "a turn was dropped before its end, and is cancelled; use 'with session.send(…) as turn'",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )

    def _tell(self) -> None:
        """Says once how the turn ended."""
        if self._told:
            return
        self._told = True
        try:
            self._operation.finish()
        except BrocaError as error:
            self._span.end(error)
            raise
        self._span.end(None)

    def _leave(self) -> None:
        """Nobody looks at the turn any more: it is cancelled and waited for."""
        self._told = True
        self._operation.leave(wait=True)
        self._span.end(None)


class Subscription(NotCopied):
    """A session's events as they happen: an iterator that outlives its connections and ends with the session.

    Every event comes once and in order; what cannot be had is a visible `Gap`. Dropped, it ends.
    """

    def __init__(self, operation: Operation, cursor: Cursor | None) -> None:
        self._operation = operation
        self._cursor = cursor
        self._last: Event | None = None
        self._told = False

    @property
    def cursor(self) -> Cursor | None:
        """Just after the last event handed out: store it to go on from there, in this process or another. None before
        the first event of a subscription that began with what happens from now on."""
        if self._last is not None:
            self._cursor = Cursor(self._last.id)
        return self._cursor

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        """The next step."""
        operation = self._operation
        while True:
            step: Step
            for step in operation.items:
                if step.__class__ is Event:
                    self._last = step
                elif step.__class__ is Gap and step.reason == "cursor":
                    # The service forgot the cursor and begins again at the start of its log.
                    self._last = None
                    self._cursor = Cursor.START
                return step
            if operation.forgotten or not operation.more():
                self._tell()
                raise StopIteration

    def next(self, timeout: float | None = None) -> Step | None:
        """The next step, waited for at most so many seconds; None after the last. Raises `TimeoutError` when none came
        in time, which changes nothing: ask again."""
        return _next(self, self._operation, timeout)

    def close(self) -> None:
        """Ends the subscription. What was not handed out comes again after `cursor`."""
        self._operation.driver.check_fork()
        self._told = True
        self._operation.leave(wait=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Subscription({self.cursor!r})"

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            self._operation.finish()


def _next(of: Turn | Subscription, operation: Operation, timeout: float | None) -> Step | None:
    if timeout is not None and operation.final is None and not operation.forgotten:
        waiting = list(operation.items)
        operation.items = iter(waiting)
        if not waiting and not operation.more(monotonic() + timeout) and operation.final is None:
            raise TimeoutError(f"no step came within {timeout} s", retry="safe")
    try:
        return of.__next__()
    except StopIteration:
        return None
