"""One operation of the engine as whoever waits for it holds it."""

from __future__ import annotations

import asyncio
from operator import length_hint
from typing import TYPE_CHECKING, Any, Callable

from ._core import ASKING, BURST, STEP_BATCH, Process, StepReader, error_of
from .errors import BrocaError
from .steps import Failed, Finished

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._async_beside import Beside
    from ._async_shell import Shell


class Operation:
    """One operation of the engine, with the steps that were taken and not yet handed out."""

    __slots__ = (
        "_burst",
        "_fresh",
        "_pulling",
        "_reader",
        "_waiters",
        "beside",
        "final",
        "items",
        "left",
        "op",
        "quiet",
        "running",
        "shell",
        "waits",
    )

    def __init__(self, shell: Shell, op: int, beside: Beside | None) -> None:
        self.shell = shell
        self.op = op
        self.items: Iterator[Any] = iter(())
        self.final: Finished | Failed | None = None
        self.left = False
        self._burst = 0
        self.running: dict[int, Running] = {}
        # The engine has steps that were not taken. It says so once, and again when some are left after a batch.
        self.waits = False
        # Nobody looks at the steps: only what asks for an answer, and the end, are handed out.
        self.quiet = False
        # There are new ``items``, and nobody was told by `more`.
        self._fresh = False
        self._pulling = False
        # Shown each record that is no event as soon as it comes, before those in front of it have been handed out.
        self.beside = beside
        self._reader = StepReader(shell, _nothing_runs if beside is None else beside.runs_itself)
        self._waiters: list[asyncio.Future[None]] = []

    async def more(self, timeout: float | None = None) -> bool:
        """Waits until ``items`` has something; false when the operation is over, or when nothing came in so many
        seconds. Cancelled, nothing is lost."""
        Process.check(self.shell.forks)
        loop = self.shell.loop
        until = None if timeout is None else loop.time() + timeout
        while not self._fresh and not self.pull():
            if self.final is not None:
                return False
            if self.shell.over:
                # A broken engine says why.
                self.shell.engine.steps(self.op, 1, False)
                self.shell.check()
            if until is not None and until <= loop.time():
                return False
            await self._news(until)
        self._fresh = False
        return True

    async def _news(self, until: float | None) -> None:
        """Waits until the engine has steps, the end has come, or the time."""
        loop = self.shell.loop
        waiter = loop.create_future()
        self._waiters.append(waiter)
        alarm = None if until is None else loop.call_at(until, _wake, waiter)
        try:
            await waiter
        finally:
            if alarm is not None:
                alarm.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    async def over_by(self, until: float) -> bool:
        """Waits until the operation is over, and takes nothing; false when it is not by this time of the loop."""
        loop = self.shell.loop
        while self.final is None and not self.left and not self.shell.over:
            if self.pull():
                continue
            if until <= loop.time():
                return False
            await self._news(until)
        return True

    def pull(self) -> bool:
        """Takes steps from the engine if there are any; false when ``items`` stays empty."""
        shell = self.shell
        came = False
        self._pulling = True
        try:
            while self.waits and not came and not shell.over:
                self.waits = False
                items, over, tuples, effects = shell.engine.steps(self.op, STEP_BATCH, self.quiet)
                if tuples:
                    self._read(items, tuples)
                if over:
                    self._finish(items)
                if items or over:
                    # Whoever only waits for the end has others take what was there before.
                    self.items = iter([*self.items, *items] if length_hint(self.items) else items)
                    self._fresh = came = True
                    self.wake()
                if effects is not None:
                    shell.carry_out(effects)
        except BrocaError as fault:
            shell._broken(fault)
            raise
        finally:
            self._pulling = False
        return came

    async def step(self, timeout: float | None = None) -> Any:
        """The next step; None when there is none: see `more`. Others get their turn after many."""
        self._burst += 1
        if self._burst >= BURST:
            self._burst = 0
            await asyncio.sleep(0)
        while (step := next(self.items, None)) is None:
            if not await self.more(timeout):
                return None
        return step

    def ready(self) -> None:
        """The engine has steps. If somebody waits they are taken at once, so that tools start without a detour."""
        self.waits = True
        if self.left:
            self.shell.loop.call_soon(self.discard)
        elif self._waiters and not self._pulling:
            try:
                self.pull()
            except BrocaError:
                # Whoever waits was woken by the end of the shell, and finds the same fault when it asks.
                pass

    def wake(self) -> None:
        """Wakes whoever waits."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _wake(waiter)

    def discard(self) -> None:
        """Throws away what waits, to the end if it has come."""
        while self.pull():
            pass
        self._fresh = False
        self.items = iter(())

    def start(self, call: int, running: Running) -> None:
        """Something runs for this call."""
        self.running[call] = running

    def ended(self, call: int, running: Running) -> None:
        """It no longer does; any thread may say so."""
        if self.running.get(call) is running:
            self.running.pop(call, None)

    def outcome(self) -> Finished:
        """How the operation ended; raises what it failed with."""
        final = self.final
        if isinstance(final, Failed):
            raise error_of(final)
        assert final is not None
        return final

    def stop_running(self) -> None:
        """Tells everything that runs for it to stop."""
        for running in list(self.running.values()):
            running.stop()

    def _read(self, items: list[Any], tuples: list[int]) -> None:
        """Makes steps of the records, which stand at these places. What nobody is to see is taken out."""
        beside = None if self.left else self.beside
        hidden = False
        for at in tuples:
            record = items[at]
            seen = beside is not None and beside.seen(self, record)
            hide = seen or (self.quiet and record[0] not in ASKING)
            step = items[at] = None if hide else self._reader.read(record)
            hidden = hidden or step is None
        if hidden:
            items[:] = [step for step in items if step is not None]

    def _finish(self, items: list[Any]) -> None:
        self.final = items.pop()
        self.shell.forget(self)
        # Whoever still runs was told to stop long ago, or its time was over.
        self.stop_running()
        self.running.clear()


class Running:
    """Something that runs for a turn: a tool, a hook."""

    __slots__ = ("_stop", "task")

    def __init__(self, stop: Callable[[], None] | None = None) -> None:
        self._stop = stop
        self.task: asyncio.Task[Any] | None = None

    def stop(self) -> None:
        """Tells it that its answer no longer counts."""
        if self._stop is not None:
            self._stop()
        if self.task is not None and not self.task.done():
            self.task.cancel()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _nothing_runs(_: str) -> bool:
    return False
