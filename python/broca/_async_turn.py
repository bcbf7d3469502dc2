"""Turns and subscriptions on a loop."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator
from itertools import islice
from operator import length_hint
from typing import TYPE_CHECKING

from ._core import BURST, NOBODY_TO_ASK, NOBODY_TO_RUN, NotCopied, Process, logger
from .errors import BrocaError, CancelledError, InternalError, TimeoutError
from .steps import Approval, Cursor, Done, Event, Gap, Reply, Sending, Step, ToolCall

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from ._async_beside import Beside
    from ._async_operation import Operation
    from ._async_shell import Shell
    from .tracing import SendSpan


class Attached:
    """What every handle of a session holds. When the last one goes, the session is left."""

    __slots__ = ("shell",)

    def __init__(self, shell: Shell) -> None:
        self.shell = shell

    def __del__(self) -> None:
        self.shell.leave_soon()


class AsyncTurn(NotCopied):
    """A turn under way: an asynchronous iterator of steps. It ends after `Done`, or raises what the turn failed with.

    Tools are started while the turn is iterated, as soon as their calls come, and answer by themselves. Everything
    else that asks for an answer (a manual tool, an approval) waits for it until the service's time is over.

    Leave it with ``async with``: then a turn that is left early is cancelled and waited for. One that is dropped
    without is cancelled with a `ResourceWarning`. When the task that waits for a step is cancelled, so is the turn.
    """

    def __init__(self, operation: Operation, attached: Attached, beside: Beside, span: SendSpan) -> None:
        self._operation = operation
        self._attached = attached
        self._beside = beside
        self._span = span
        self._told = False
        self._given_up = False
        self._waiting = 0

    def __aiter__(self) -> AsyncGenerator[Step, None]:
        return self._steps()

    async def __anext__(self) -> Step:
        step = await self.next()
        if step is None:
            raise StopAsyncIteration
        return step

    async def next(self, timeout: float | None = None) -> Step | None:
        """The next step, waited for at most so many seconds; None after the last. Raises `TimeoutError` when none came
        in time, which changes nothing: ask again."""
        self._waiting += 1
        try:
            step: Step | None = await self._operation.step(timeout)
        except asyncio.CancelledError:
            self._cancel()
            raise
        finally:
            self._waiting -= 1
        if step is None:
            if self._operation.final is None:
                raise _none_in_time(timeout)
            self._tell()
        return step

    async def reply(self) -> Reply:
        """Drives the turn to its end and returns the reply. Raises what the turn failed with.

        Approvals are decided by the session's ``on_approval`` handler; without one they are denied, and so fail
        calls of manual tools, because nobody is there to answer.
        """
        self._waiting += 1
        try:
            reply = await drive(self._operation, self._beside)
        except asyncio.CancelledError:
            self._give_up()
            raise
        finally:
            self._waiting -= 1
        self._tell()
        return given(reply)

    async def cancel(self) -> None:
        """Ends the turn early and returns when it is quiet: the service has let go of it, or does not matter any more,
        and tools have stopped or were abandoned. Steps that were still waiting are dropped. A turn that has ended is
        no error; one that had failed before raises that.
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
        """Asks for the end of the turn without waiting, from any thread. Iterating then ends with `CancelledError`."""
        Process.check(self._operation.shell.forks)
        self._cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._told or self._given_up or Process.forks != self._operation.shell.forks:
            return
        self._cancel()
        limit = self._operation.shell.cancel_wait_s
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
        self._span.end(None)
        warnings.warn(
            "a turn was dropped before its end, and is cancelled; use 'async with session.send(…) as turn'",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )

    async def _steps(self) -> AsyncGenerator[Step, None]:
        operation = self._operation
        burst = BURST
        while True:
            items = operation.items
            while left := length_hint(items):
                if burst == 0:
                    burst = BURST
                    await asyncio.sleep(0)
                left = min(left, burst)
                burst -= left
                for step in islice(items, left):
                    yield step
            if not await self._more():
                self._tell()
                return

    def _cancel(self) -> None:
        self._operation.shell.cancel(self._operation.op)

    async def _more(self) -> bool:
        self._waiting += 1
        try:
            return await self._operation.more()
        except asyncio.CancelledError:
            self._cancel()
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
        try:
            self._operation.outcome()
        except BrocaError as error:
            self._span.end(error)
            raise
        self._span.end(None)

    def _give_up(self) -> None:
        """Nobody looks at the turn any more."""
        if not self._given_up:
            self._given_up = True
            self._operation.shell.leave(self._operation)
            self._span.end(None)


async def drive(operation: Operation, beside: Beside) -> Reply | None:
    """Takes a turn to its end, for somebody who only waits for the reply; see `AsyncTurn.reply`."""
    reply: Reply | None = None
    operation.quiet = True
    while True:
        for step in operation.items:
            kind = type(step)
            if kind is Event:
                continue
            if kind is Done:
                reply = step.reply
            elif kind is ToolCall and not step.runs_itself:
                step.fail(NOBODY_TO_RUN)
            elif kind is Approval:
                beside.decide(operation, step, NOBODY_TO_ASK)
            elif kind is Sending:
                step.send()
        if operation.final is not None or not await operation.more():
            return reply
        if operation.waits:
            # More is there already; others get their turn first.
            await asyncio.sleep(0)


def given(reply: Reply | None) -> Reply:
    """The reply of a turn that has ended well."""
    if reply is None:
        raise InternalError("the turn ended without a reply")
    return reply


class AsyncSubscription(NotCopied):
    """A session's events as they happen: an asynchronous iterator that outlives its connections.

    It ends with the session. Every event comes once and in order; what cannot be had is a visible `Gap`. Dropped, it
    ends.
    """

    def __init__(self, operation: Operation, attached: Attached, cursor: Cursor | None) -> None:
        self._operation = operation
        self._attached = attached
        self._cursor = cursor
        self._last: Event | None = None
        self._told = False

    @property
    def cursor(self) -> Cursor | None:
        """Just after the last event handed out: store it to go on from there, in this process or another.

        None before the first event of a subscription that began with what happens from now on."""
        if self._last is not None:
            self._cursor = Cursor(self._last.id)
        return self._cursor

    def __aiter__(self) -> AsyncGenerator[Step, None]:
        return self._steps()

    async def __anext__(self) -> Step:
        step = await self.next()
        if step is None:
            raise StopAsyncIteration
        return step

    async def next(self, timeout: float | None = None) -> Step | None:
        """The next step, waited for at most so many seconds; None after the last. Raises `TimeoutError` when none came
        in time, which changes nothing: ask again."""
        if self._told:
            return None
        step: Step | None = await self._operation.step(timeout)
        if step is not None:
            self._follow(step)
        elif self._operation.final is None:
            raise _none_in_time(timeout)
        else:
            self._tell()
        return step

    async def close(self) -> None:
        """Ends the subscription. What was not handed out comes again after `cursor`."""
        Process.check(self._operation.shell.forks)
        self._told = True
        self._operation.shell.leave(self._operation)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if Process.forks == self._operation.shell.forks:
            await self.close()

    def __repr__(self) -> str:
        return f"AsyncSubscription({self.cursor!r})"

    def __del__(self) -> None:
        operation: Operation | None = self.__dict__.get("_operation")
        if operation is not None and operation.final is None and not operation.left:
            operation.shell.leave_later(operation)

    async def _steps(self) -> AsyncGenerator[Step, None]:
        operation = self._operation
        burst = BURST
        while True:
            items = operation.items
            while left := length_hint(items):
                if burst == 0:
                    burst = BURST
                    await asyncio.sleep(0)
                left = min(left, burst)
                burst -= left
                for step in islice(items, left):
                    if step.__class__ is Event:
                        self._last = step
                    else:
                        self._follow(step)
                    yield step
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


def _none_in_time(timeout: float | None) -> TimeoutError:
    return TimeoutError(f"no step came within {timeout} s", retry="safe")
