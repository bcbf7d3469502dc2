"""One operation of the engine, as the synchronous handles hold it, and what runs beside a turn."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Callable

from . import _core as core
from . import tracing
from ._sync_links import now_ms
from ._sync_shell import LEFT_EARLY, Driver, Inline
from .errors import BrocaError, ClosedError, InternalError, UsageError
from .steps import Approval, Failed, Finished, Received, Sending
from .tools import ToolContext, ToolSet, failure_text

if TYPE_CHECKING:
    from ._sync_shell import Waiting
    from .tools import Answer, Tool

ApprovalHandler = Callable[[Approval], Any]
"""Decides about a call: answers with the methods of the `Approval`, or gives True, False, the reason of a denial, or
narrower arguments. It runs on a thread of the session."""
SendingHandler = Callable[[Sending], Any]
"""Sees a message before it leaves: gives the message to send in its place or None, or raises to refuse. It runs on
a thread of the session."""
ReceivedHandler = Callable[[Received], None]
"""Sees the answer to a message. It is called by whoever waits for the turn."""

INTERRUPTED = "The tool was interrupted before its end."

_LAST = (core.FINISHED, core.FAILED)
"""The records that end an operation."""

_INSIDE: contextvars.ContextVar[tuple[int, ...]] = contextvars.ContextVar("broca_inside", default=())
"""The sessions whose tools and handlers run here, innermost last."""


def runs_inside(driver: Driver) -> bool:
    """Whether this is called by a tool or a handler of the session."""
    return id(driver) in _INSIDE.get()


class Hooks:
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

    def wanted(self) -> bool:
        """Whether the engine has to ask before it sends."""
        return self.on_sending is not None or self.on_received is not None


class Operation:
    """An operation under way, with the steps that were taken and not yet handed out."""

    __slots__ = (
        "_beside",
        "_name",
        "_over",
        "_raw",
        "_reader",
        "_tuples",
        "driver",
        "final",
        "forgotten",
        "items",
        "left",
        "op",
        "reading",
    )

    def __init__(
        self,
        driver: Driver,
        command: str,
        name: str,
        *,
        beside: Beside | None = None,
        runs_itself: Callable[[str], bool] | None = None,
        headers: tracing.Headers | None = None,
    ) -> None:
        self.driver = driver
        self.items: Iterator[Any] = iter(())
        self.final: Finished | Failed | None = None
        self.forgotten = False
        self.left = False
        self.reading = 0
        """The thread that waits for steps, or runs a tool meanwhile."""
        self._name = name
        self._beside = beside
        self._over = False
        self._raw: list[Any] | None = None
        self._tuples: list[int] = []
        """Where records stand that are no steps yet."""
        self._reader = core.StepReader(driver, runs_itself or _nothing_runs)
        traceparent, tracestate = tracing.headers() if headers is None else headers
        self.op = 0
        driver.begin(self, command, beside is not None, traceparent, tracestate)

    def more(self, until: float | None = None) -> bool:
        """Waits until `items` has something; false when the operation is over, or the time."""
        reading, self.reading = self.reading, threading.get_ident()
        try:
            while self.final is None and not self.left:
                self.driver.enter(self._name)
                waiting = self.driver.waiting(self.op)
                if waiting is not None and waiting.inline:
                    self._run_inline(waiting)
                raw = self._more_records(until)
                if raw is None:
                    # Not over, only late.
                    return False
                if self._tuples:
                    self._read(raw)
                if raw:
                    self.items = iter(raw)
                    return True
            return False
        finally:
            self.reading = reading
            # Nobody waits here any more.
            self.driver.start_tools()

    def be_quiet(self) -> None:
        """Nobody looks at the steps any more, but for those that ask for an answer."""
        waiting = self.driver.waiting(self.op)
        if waiting is not None:
            waiting.quiet = True

    def finish(self) -> Finished:
        """How it ended. Raises what it failed with."""
        final = self.final
        if isinstance(final, Finished):
            return final
        if isinstance(final, Failed):
            raise core.error_of(final)
        raise InternalError("an operation ended without its outcome")

    def leave(self, *, wait: bool) -> None:
        """Nobody waits for it any more: it is cancelled, and its steps are thrown away."""
        self.left = True
        if not self.forgotten:
            self.forgotten = True
            self.items = iter(())
            self.driver.leave(self.op, self.driver.cancel_wait_ms() if wait else 0)

    def __del__(self) -> None:
        if getattr(self, "op", 0) and not self.forgotten and self.driver.usable():
            self.driver.drop(self.op)

    def _more_records(self, until: float | None) -> list[Any] | None:
        """Waits until there is something; None when there was nothing in time."""
        driver = self.driver
        if self._raw is None:
            driver.pump(self._take, until)
        waiting = driver.waiting(self.op)
        if waiting is not None and waiting.raised is not None:
            raised, waiting.raised = waiting.raised, None
            raise raised
        raw, self._raw = self._raw, None
        if raw is None:
            if waiting is None:
                if self.forgotten and not self.left:
                    raise UsageError("another thread has come to the end of this: one thread at a time iterates it")
                raise ClosedError("the session was left while this call waited")
            return None
        if self._over and not self.forgotten:
            self.forgotten = True
            driver.forget(self.op)
        return raw

    def _run_inline(self, waiting: Waiting) -> None:
        """Runs the tools that were called for this thread, one after the other, and answers their calls."""
        driver = self.driver
        if waiting.inside:
            if waiting.inside == threading.get_ident():
                raise UsageError(
                    "a tool that runs inline cannot wait for its own turn, which goes on when the tool returns; "
                    "request_cancel() asks for the end of the turn"
                )
            # Another thread is here to end the turn, and that runs no tools.
            return
        driver.start_tools()
        while True:
            inline = driver.enter_inline(waiting)
            if inline is None:
                return
            answered = False
            try:
                word, value = "fail", INTERRUPTED
                if not inline.begun:
                    inline.begun = True
                    word, value = inline.work()
                driver.answer(inline.call, word, value)
                answered = True
            except BrocaError as error:
                # About a turn that is over, an answer no longer matters.
                core.logger.debug("an answer was not taken: %s", error.message)
                answered = True
            finally:
                driver.leave_inline(waiting, answered=answered)

    def _take(self) -> bool | None:
        """Takes steps from the engine. Called while the session is moved, with its lock held."""
        waiting = self.driver.waiting(self.op)
        if waiting is None or waiting.raised is not None:
            return True
        if waiting.stash:
            self._raw, self._over, waiting.stash = waiting.stash, waiting.over, []
            self._tuples = [at for at, step in enumerate(self._raw) if type(step) is tuple]
            return True
        while waiting.ready:
            steps, over, tuples = self.driver.take(self.op, waiting, core.STEP_BATCH)
            self.driver.follow(now_ms())
            if steps or over:
                self._raw, self._over, self._tuples = steps, over, tuples
                return True
        return None

    def _read(self, raw: list[Any]) -> None:
        """Makes steps of records, in place, and starts what they ask for before the first of them is handed out."""
        hidden = False
        for at in self._tuples:
            record = raw[at]
            shown = self._beside is None or not self._beside.seen(self.op, record)
            step = self._reader.read(record) if shown else None
            if record[0] in _LAST:
                self.final = step
                step = None
            raw[at] = step
            hidden = hidden or step is None
        if hidden:
            raw[:] = [step for step in raw if step is not None]


def run(driver: Driver, command: str, name: str) -> tuple[list[Any], Finished]:
    """Runs an operation that has no steps but events; gives them and its outcome."""
    driver.enter(name)
    operation = Operation(driver, command, name)
    events: list[Any] = []
    try:
        while operation.more():
            events.extend(operation.items)
    except BaseException:
        # Interrupted: what it is about is not waited for.
        operation.leave(wait=False)
        raise
    return events, operation.finish()


class Beside:
    """What runs beside a turn: its tools and handlers, on threads, each in a copy of the context of `Session.send`."""

    __slots__ = ("_asked", "_context", "_driver", "_hooks", "_span", "_tools")

    def __init__(self, driver: Driver, tools: ToolSet, hooks: Hooks, span: tracing.SendSpan, *, asked: bool) -> None:
        self._driver = driver
        self._tools = tools
        self._hooks = hooks
        self._span = span
        self._asked = asked
        self._context = contextvars.copy_context()

    def seen(self, op: int, record: tuple[Any, ...]) -> bool:
        """Starts what a record asks for, or tells it to stop; true when the application does not see the record."""
        kind = record[0]
        if kind == core.TOOL_CALL:
            tool = self._tools.runnable(record[3])
            if tool is not None:
                self._start_tool(op, tool, *record[1:7])
                # Who waits for the reply only has nothing to do about it.
                waiting = self._driver.waiting(op)
                return waiting is not None and waiting.quiet
        elif kind == core.TOOL_CANCEL or kind == core.APPROVAL_WITHDRAWN:
            waiting = self._driver.waiting(op)
            context = None if waiting is None else waiting.running.get(record[1])
            if context is not None:
                context.cancelled._set()
        elif kind == core.SENDING:
            return self._sending(op, *record[1:4])
        elif kind == core.RECEIVED:
            return self._received(record)
        return False

    def decide(self, op: int, approval: Approval) -> None:
        """Has the approval handler decide; without one, denies."""
        handler = self._hooks.on_approval
        if handler is None:
            # Withdrawn in the meantime, perhaps: then the answer does not matter.
            approval.deny(core.NOBODY_TO_ASK)
            return
        decided = handler

        def job() -> None:
            try:
                decision = decided(approval)
            except Exception as error:
                core.logger.exception("the on_approval handler failed")
                approval.deny(f"the approval handler failed ({type(error).__name__})")
                return
            _decide(approval, decision)

        self._start(op, job, lambda error: approval.deny(failure_text(error)))

    def _start_tool(
        self, op: int, tool: Tool[..., Any], call: int, tool_use_id: str, name: str, input: str, key: str, again: int
    ) -> None:
        driver = self._driver
        context = ToolContext(name, tool_use_id, key, input, bool(again))
        waiting = driver.waiting(op)
        if waiting is None or waiting.cancelled:
            driver.answer(call, "fail", LEFT_EARLY)
            return
        waiting.running[call] = context
        span = self._span.start_tool(name, tool_use_id)

        if tool.inline:
            inside = (*_INSIDE.get(), id(driver))

            def work() -> Answer:
                _INSIDE.set(inside)
                failure: str | None = "it did not come to its end"
                try:
                    answer = span.run(tool.run, context)
                    failure = answer[1] if answer[0] == "fail" else None
                finally:
                    span.end(failure)
                    waiting.running.pop(call, None)
                return answer

            copied = self._context.copy()
            waiting.inline.append(Inline(call, lambda: copied.run(work)))
            return

        def job() -> None:
            failure: str | None = "it did not come to its end"
            try:
                word, value = span.run(tool.run, context)
                failure = None if word.startswith("complete") else value
            finally:
                span.end(failure)
                waiting.running.pop(call, None)
            driver.answer(call, word, value)

        self._start(op, job, lambda error: driver.answer(call, "fail", failure_text(error)))

    def _sending(self, op: int, call: int, round: int, message: str) -> bool:
        handler = self._hooks.on_sending
        traceparent, tracestate = self._span.sending(round)
        if handler is None:
            if self._asked:
                return False
            self._driver.answer(call, "send", None, traceparent, tracestate)
            return True
        sending = Sending(round, message, call, self._driver)
        see = handler

        def job() -> None:
            try:
                changed = see(sending)
                sending.send(changed, traceparent, tracestate)
            except Exception as error:
                core.logger.debug("the on_sending handler refused", exc_info=True)
                sending.refuse(failure_text(error))

        self._start(op, job, lambda error: sending.refuse(failure_text(error)))
        return True

    def _received(self, record: tuple[Any, ...]) -> bool:
        received = Received(*record[1:3])
        self._span.received(received.round)
        handler = self._hooks.on_received
        if handler is not None:
            try:
                self._context.copy().run(handler, received)
            except Exception:
                core.logger.exception("the on_received handler failed")
        return not self._asked

    def _start(self, op: int, job: Callable[[], None], refuse: Callable[[BaseException], Any]) -> None:
        driver = self._driver

        def run() -> None:
            _INSIDE.set((*_INSIDE.get(), id(driver)))
            try:
                job()
            except BrocaError as error:
                # Too late, or about a turn that is over, an answer no longer matters.
                core.logger.debug("an answer was not taken: %s", error.message)
            except BaseException as error:
                # What is no Exception (an exit, an interrupt) is no result: it belongs to whoever waits.
                driver.raised(op, error)

        copied = self._context.copy()
        try:
            driver.pool.submit(lambda: copied.run(run), driver.wakes)
        except RuntimeError as error:
            refuse(error)


def _decide(approval: Approval, decision: bool | str | Mapping[str, Any] | None) -> None:
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


def _nothing_runs(_: str) -> bool:
    return False
