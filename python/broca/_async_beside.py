"""What runs beside a turn on a loop: tools and hooks, each as a task or on a thread, and each answers by itself."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Callable, Union

from ._async_operation import Operation, Running
from ._core import APPROVAL_WITHDRAWN, RECEIVED, SENDING, TOOL_CALL, TOOL_CANCEL, logger
from .errors import BrocaError
from .steps import Approval, Asks, Received, Sending
from .tools import ToolContext, failure_text

if TYPE_CHECKING:
    from ._pool import Pool
    from .tools import Tool, ToolSet
    from .tracing import SendSpan, ToolSpan

ApprovalHandler = Callable[[Approval], Union[Awaitable[Any], Any]]
"""Decides about a call: answers with the methods of the `Approval`, or gives True, False, or the reason of a denial."""
SendingHandler = Callable[[Sending], Union[Awaitable[Any], Any]]
"""Sees a message before it leaves: gives the message to send in its place or None, or raises to refuse."""
ReceivedHandler = Callable[[Received], None]
"""Sees the answer to a message. It must not block."""


class Hooks:
    """Handlers of the application that are no tools. ``shown``: whether `Sending` and `Received` are steps."""

    __slots__ = ("on_approval", "on_received", "on_sending", "shown")

    def __init__(
        self,
        on_approval: ApprovalHandler | None = None,
        on_sending: SendingHandler | None = None,
        on_received: ReceivedHandler | None = None,
    ) -> None:
        self.on_approval = on_approval
        self.on_sending = on_sending
        self.on_received = on_received
        self.shown = on_sending is not None or on_received is not None


class Beside:
    """What runs beside a turn: its tools and hooks, each in a copy of the context that the turn was started in."""

    __slots__ = ("_context", "_hooks", "_pool", "_span", "_tools")

    def __init__(self, tools: ToolSet, hooks: Hooks, pool: Pool, span: SendSpan) -> None:
        self._tools = tools
        self._hooks = hooks
        self._pool = pool
        self._span = span
        self._context = contextvars.copy_context()

    def runs_itself(self, name: str) -> bool:
        """Whether a function of the program answers calls of this name."""
        return self._tools.runnable(name) is not None

    def seen(self, operation: Operation, record: tuple[Any, ...]) -> bool:
        """Starts what a record asks for, or tells it to stop; true when the application does not see the record."""
        kind = record[0]
        if kind == TOOL_CALL:
            tool = self._tools.runnable(record[3])
            if tool is not None:
                call, tool_use_id, name, input, key, again = record[1:7]
                self._start_tool(operation, tool, call, ToolContext(name, tool_use_id, key, input, bool(again)))
                # Who waits for the reply only has nothing to do about it.
                return operation.quiet
        elif kind in (TOOL_CANCEL, APPROVAL_WITHDRAWN):
            running = operation.running.get(record[1])
            if running is not None:
                running.stop()
        elif kind == SENDING:
            return self._sending(operation, *record[1:4])
        elif kind == RECEIVED:
            return self._received(*record[1:3])
        return False

    def decide(self, operation: Operation, approval: Approval, otherwise: str) -> None:
        """Has the approval handler decide; without one, denies with this reason."""
        handler = self._hooks.on_approval
        if handler is not None:
            _start(operation, approval.call, self._context, _decided(handler, approval))
        else:
            # Withdrawn in the meantime, perhaps: then the answer does not matter.
            approval.deny(otherwise)

    def _sending(self, operation: Operation, call: int, round: int, message: str) -> bool:
        """Gives the message its trace headers, and the application its say."""
        handler = self._hooks.on_sending
        if handler is None and self._hooks.shown:
            return False
        headers = self._span.sending(round)
        if handler is None:
            operation.shell.answer(call, "send", None, *headers)
        else:
            sending = Sending(round, message, call, operation.shell)
            _start(operation, call, self._context, _sent(handler, sending, headers))
        return True

    def _received(self, round: int, message: str) -> bool:
        self._span.received(round)
        if self._hooks.on_received is not None:
            try:
                self._context.copy().run(self._hooks.on_received, Received(round, message))
            except Exception:
                logger.exception("the on_received handler failed")
        return not self._hooks.shown

    def _start_tool(self, operation: Operation, tool: Tool[..., Any], call: int, context: ToolContext) -> None:
        running = Running(context.cancelled._set)
        span = self._span.start_tool(context.name, context.tool_use_id)
        shell = operation.shell
        operation.start(call, running)
        if tool.is_async or tool.inline:
            work = _run_tool(operation, running, tool, call, context, span)
            running.task = self._context.run(shell.loop.create_task, work)
            return
        copied = self._context.copy()

        def job() -> None:
            try:
                word, value = copied.run(span.run, tool.run, context)
            except BaseException as error:
                # What is no Exception (an exit, an interrupt) has nobody to go to from this thread but the model.
                word, value = "fail", failure_text(error)
            operation.ended(call, running)
            span.end(None if word.startswith("complete") else value)
            _answer(shell, call, word, value)

        try:
            self._pool.submit(job)
        except RuntimeError as error:
            span.end(type(error).__name__)
            _answer(shell, call, "fail", failure_text(error))


def _start(
    operation: Operation,
    call: int,
    context: contextvars.Context,
    work: Coroutine[Any, Any, None],
) -> None:
    """Runs a handler's coroutine beside a turn, as a task with a copy of the context."""
    started = Running()
    operation.start(call, started)
    started.task = context.run(operation.shell.loop.create_task, work)
    started.task.add_done_callback(lambda _: operation.ended(call, started))


async def _run_tool(
    operation: Operation, running: Running, tool: Tool[..., Any], call: int, context: ToolContext, span: ToolSpan
) -> None:
    word, value = "fail", "the tool was cancelled"
    try:
        if span:
            with span.active():
                word, value = tool.run(context) if tool.inline else await tool.run_async(context)
        else:
            word, value = tool.run(context) if tool.inline else await tool.run_async(context)
    except asyncio.CancelledError:
        # Somebody else may want the task to end: the loop at its end, say.
        if not context.cancelled:
            raise
    except BaseException as error:
        value = failure_text(error)
        raise
    finally:
        operation.ended(call, running)
        span.end(None if word.startswith("complete") else value)
        _answer(operation.shell, call, word, value)


async def _sent(handler: SendingHandler, sending: Sending, headers: tuple[str | None, str | None]) -> None:
    try:
        message = handler(sending)
        if inspect.isawaitable(message):
            message = await message
        sending.send(message, *headers)
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
