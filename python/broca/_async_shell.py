"""The shell around an engine on an asyncio loop: sockets, names, TLS and the timer. It decides nothing.

Everything here runs on the loop's thread, with three exceptions that say so: `Shell.answer`, `Shell.cancel` and
`Shell.leave_soon` may come from any thread; they reach the engine directly and wake the loop once.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import weakref
from asyncio.events import _get_running_loop
from typing import TYPE_CHECKING, Any, Callable, ClassVar

from . import tracing
from ._async_link import Link
from ._async_operation import Operation
from ._awake import Awake
from ._core import (
    BUSY,
    CLOSE,
    CONNECT,
    LOG,
    LOG_DROPPED,
    PAUSE_READ,
    READ_BYTES,
    READY,
    RESOLVE,
    RESUME_READ,
    START_TLS,
    TIMER,
    WRITE,
    Answering,
    Process,
    close_reason,
    log,
    logger,
    new_engine,
    whole,
)
from .errors import BrocaError, ClosedError
from .steps import Spent

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ._async_beside import Beside
    from ._mcp_servers import Servers
    from ._options import Options
    from .steps import Finished


# Seconds that a TLS peer may take to say goodbye.
_GOODBYE_S = 1.0


class Room:
    """What all shells on a loop share."""

    __slots__ = ("_looking", "_until", "buffer", "view")

    _all: ClassVar[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Room]] = weakref.WeakKeyDictionary()

    def __init__(self) -> None:
        # Whatever is read is copied into the engine before the next read.
        self.buffer = bytearray(READ_BYTES)
        self.view = memoryview(self.buffer)
        self._until = 0.0
        self._looking = False

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Room:
        """The room of this loop."""
        room = cls._all.get(loop)
        if room is None:
            room = cls._all[loop] = cls()
        return room

    def stay_awake(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        """Keeps the loop from sleeping until then: while something is to be called, it only looks."""
        self._until = until
        if not self._looking:
            self._looking = True
            loop.call_soon(self._look, loop)

    def sleep(self) -> None:
        """Nothing is expected at once any more."""
        self._until = 0.0

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop.time() < self._until:
            loop.call_soon(self._look, loop)
        else:
            self._looking = False


class Shell(Answering):
    """One session's engine, its connections, and who waits for its operations."""

    __slots__ = (
        "__weakref__",
        "_carrying_out",
        "_connecting",
        "_later",
        "_leave_timer",
        "_leaving",
        "_links",
        "_open",
        "_operations",
        "_options",
        "_quiet",
        "_ready",
        "_tasks",
        "_timer",
        "_timer_at",
        "_timer_ms",
        "_wake_pending",
        "awake",
        "busy",
        "engine",
        "forks",
        "loop",
        "over",
        "room",
        "servers",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, options: Options, *, hooks: bool) -> None:
        self.loop = loop
        self.engine = new_engine(options, hooks=hooks)
        self.busy = False
        self.over = False
        self._options = options
        self.room = Room.of(loop)
        self.awake = Awake(options.awake_us)
        self._links: dict[int, Link] = {}
        self._open: set[Link] = set()
        self._connecting: dict[int, asyncio.Task[None] | None] = {}
        self._operations: dict[int, Operation] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._timer_at: int | None = None
        self._carrying_out = False
        # Effects of inputs that were given while others were carried out.
        self._later: list[tuple[Any, ...]] = []
        # Operations with steps, until the effects in hand are carried out.
        self._ready: list[Operation] = []
        self._wake_pending = False
        self._leaving = False
        self._leave_timer: asyncio.TimerHandle | None = None
        self._quiet: asyncio.Future[None] | None = None
        self.servers: Servers | None = None
        """MCP servers, which end with the shell."""
        self.forks = Process.forks
        Process.keep(self)

    # Inputs of the application.

    def check(self) -> None:
        """Raises when the shell cannot be used: after a fork, or when it has ended."""
        Process.check(self.forks)
        if self.over:
            raise ClosedError("the session's connections are closed here; join it again with a client")

    def begin(
        self,
        command: str,
        beside: Beside | None,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> Operation:
        """Begins an operation; a turn, if something may run beside it."""
        self.check()
        op, effects = self.engine.command(command, self.now(), traceparent, tracestate)
        operation = self._operations[op] = Operation(self, op, beside)
        if effects is not None:
            self.carry_out(effects)
        return operation

    @property
    def cancel_wait_s(self) -> float:
        """Seconds that something cancelled may take to become quiet."""
        return self._options.cancel_wait_ms() / 1000

    def run_now(self, command: str) -> Finished:
        """Runs an operation that waits for nothing."""
        operation = self.begin(command, None)
        operation.waits = True
        operation.pull()
        return operation.outcome()

    def spent(self) -> Spent:
        """What the session's turns have spent."""
        Process.check(self.forks)
        return Spent(*self.engine.spent())

    async def run(self, command: str) -> tuple[list[Any], Finished]:
        """Runs an operation that has no steps but events; gives them and its outcome."""
        operation = self.begin(command, None, *tracing.headers())
        events: list[Any] = []
        try:
            while await operation.more():
                events.extend(operation.items)
        except asyncio.CancelledError:
            self.leave(operation)
            raise
        return events, operation.outcome()

    def declare(self, command: str) -> asyncio.Task[None]:
        """Begins to declare tools; what comes of it is only told when it fails."""
        operation = self.begin(command, None)

        async def outcome() -> None:
            try:
                while await operation.more():
                    pass
                operation.outcome()
            except BrocaError as fault:
                logger.warning("the tools of an MCP server have changed, and the old ones stay: %s", fault.message)

        return self.loop.create_task(outcome())

    def answer(
        self,
        call: int,
        word: str,
        value: str | None = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> bool:
        """Gives an answer, from any thread; false when it came too late."""
        Process.check(self.forks)
        if self.over:
            return False
        here = _get_running_loop() is self.loop
        now = self.now()
        try:
            in_time, effects = self.engine.answer(call, word, value, now, traceparent, tracestate, here)
        except UnicodeEncodeError:
            # Nothing was given yet. Every call gets its answer, so this one goes with what can be written of it.
            words = [whole(text) for text in (value, traceparent, tracestate)]
            in_time, effects = self.engine.answer(call, word, words[0], now, words[1], words[2], here)
        if effects is not None:
            self.carry_out(effects)
        elif not here:
            self._wake()
        return in_time

    def cancel(self, op: int) -> None:
        """Asks for the end of an operation, from any thread."""
        if not self.over and Process.forks == self.forks:
            self.engine.cancel(op, self.now())
            self.moved()

    def moved(self) -> None:
        """Carries out what waits in the engine, on the loop."""
        if _get_running_loop() is self.loop:
            self.settle()
        else:
            self._wake()

    async def cancel_turns(self) -> None:
        """Ends every turn and waits until they are quiet, within bounds. Their steps are kept for whoever waits."""
        turns = [operation for operation in self._operations.values() if operation.beside is not None]
        for operation in turns:
            self.cancel(operation.op)
        until = self.loop.time() + self.cancel_wait_s
        for operation in turns:
            if not await operation.over_by(until):
                logger.warning("a cancelled turn did not become quiet within %.1f s", self.cancel_wait_s)

    def forget(self, operation: Operation) -> None:
        """The operation is over, and its steps were taken."""
        self._operations.pop(operation.op, None)

    def leave(self, operation: Operation) -> None:
        """Nobody waits for the operation any more: it is cancelled, and its steps are thrown away."""
        if operation.final is not None or self.over:
            return
        operation.left = True
        operation.stop_running()
        try:
            self.cancel(operation.op)
        except BrocaError as fault:
            self._broken(fault)
        operation.discard()

    def leave_later(self, operation: Operation) -> None:
        """As `leave`, from any thread and from a finaliser."""
        if not self.over and Process.forks == self.forks:
            self._on_loop(self.leave, operation)

    # The end.

    def leave_soon(self) -> None:
        """Ends what is under way, then the shell itself; from any thread and from a finaliser."""
        if not self.over and Process.forks == self.forks:
            self._on_loop(self._start_leaving)

    async def leave_all(self) -> None:
        """Ends what is under way, waits until it is quiet (bounded), then closes every connection."""
        self._start_leaving()
        if not self.over:
            if self._quiet is None:
                self._quiet = self.loop.create_future()
            try:
                await asyncio.shield(self._quiet)
            finally:
                self.end()
        if self._open:
            gone = [link.gone() for link in self._open]
            await asyncio.wait(gone, timeout=_GOODBYE_S)
            for link in list(self._open):
                link.close(abort=True)
        if self.servers is not None:
            await self.servers.close()

    def end(self) -> None:
        """Closes every connection at once. Whoever still waits is told."""
        if self.over:
            return
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._leave_timer is not None:
            self._leave_timer.cancel()
        if self.servers is not None:
            self.servers.close_soon()
        for task in list(self._tasks):
            task.cancel()
        for link in list(self._links.values()):
            link.close(abort=False)
        self._links.clear()
        self._connecting.clear()
        operations = list(self._operations.values())
        self._operations.clear()
        for operation in operations:
            operation.stop_running()
            operation.wake()
        if self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)

    def _start_leaving(self) -> None:
        if self.over or self._leaving:
            return
        self._leaving = True
        for operation in list(self._operations.values()):
            self.leave(operation)
        if self._may_end():
            self.end()
        else:
            self._leave_timer = self.loop.call_later(self.cancel_wait_s, self.end)

    def _may_end(self) -> bool:
        return not self.busy and not self._operations

    # Effects.

    def now(self) -> int:
        """Milliseconds of the loop's clock."""
        return int(self.loop.time() * 1000)

    def settle(self) -> None:
        """Carries out what waits in the engine: an answer or a cancellation was given."""
        if self.over:
            return
        try:
            effects = self.engine.effects()
        except BrocaError as fault:
            self._broken(fault)
        else:
            if effects is not None:
                self.carry_out(effects)

    def carry_out(self, effects: list[tuple[Any, ...]]) -> None:
        """Carries out effects, in order."""
        if self._carrying_out:
            self._later.extend(effects)
            return
        self._carrying_out = True
        try:
            while effects and not self.over:
                for effect in effects:
                    kind = effect[0]
                    if kind == READY:
                        operation = self._operations.get(effect[1])
                        if operation is not None:
                            self._ready.append(operation)
                    elif kind == WRITE:
                        link = self._links.get(effect[1])
                        if link is not None:
                            link.write(effect[2])
                    elif kind == TIMER:
                        # An alarm that goes off too early, or for nothing, finds that out by itself; only an earlier
                        # one needs another.
                        at = self._timer_at = effect[1]
                        if at is not None and (self._timer is None or at < self._timer_ms):
                            self._set_timer(at)
                    elif kind == BUSY:
                        self.busy = bool(effect[1])
                    else:
                        self._perform_rare(kind, effect)
                effects, self._later = self._later, []
        finally:
            self._carrying_out = False
        if self._ready:
            ready, self._ready = self._ready, []
            for operation in ready:
                operation.ready()
        if self._leaving and not self.over and self._may_end():
            self.end()

    def _perform_rare(self, kind: int, effect: tuple[Any, ...]) -> None:
        if kind in (PAUSE_READ, RESUME_READ):
            link = self._links.get(effect[1])
            if link is not None:
                link.pause(kind == PAUSE_READ)
        elif kind in (LOG, LOG_DROPPED):
            log(effect)
        elif kind == CONNECT:
            _, conn, address, port, server_name = effect
            self._connecting[conn] = None
            task = self._task(self._connect(conn, address, port, server_name))
            if conn in self._connecting:
                self._connecting[conn] = task
        elif kind == RESOLVE:
            self._task(self._resolve(effect[1], effect[2]))
        elif kind == START_TLS:
            self._task(self._start_tls(effect[1], effect[2]))
        elif kind == CLOSE:
            connecting = self._connecting.pop(effect[1], None)
            if connecting is not None:
                connecting.cancel()
            link = self._links.pop(effect[1], None)
            if link is not None:
                link.close(abort=bool(effect[2]))

    def _set_timer(self, at: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = at
        self._timer = self.loop.call_at(at / 1000, self._alarm)

    def _alarm(self) -> None:
        self._timer = None
        if self.over or self._timer_at is None:
            return
        now = self.now()
        if self._timer_at <= now:
            self._input(self.engine.timeout, now)
        at = self._timer_at
        if at is not None and self._timer is None and not self.over:
            # One that was served just now and is still due comes again with the next millisecond.
            self._set_timer(max(at, now + 1))

    def _input(self, give: Callable[..., list[tuple[Any, ...]] | None], *words: Any) -> None:
        """Gives the engine an input from the network or the clock, and carries out what follows."""
        try:
            effects = give(*words)
        except BrocaError as fault:
            self._broken(fault)
        else:
            if effects is not None:
                self.carry_out(effects)

    def _broken(self, fault: BrocaError) -> None:
        """The engine is unusable. Whoever waits finds the same fault when it asks for steps."""
        if not self.over:
            logger.error("a session ends: %s", fault.message)
            self.end()

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _resolve(self, req: int, host: str) -> None:
        addresses: list[str] | None = None
        why = None
        try:
            found = await self.loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        except (OSError, UnicodeError) as fault:
            why = getattr(fault, "strerror", None) or str(fault)
        except RuntimeError:
            why = "the loop takes no more look-ups"
        if not self.over:
            self._input(self.engine.resolved, req, addresses, why, self.now())

    async def _connect(self, conn: int, address: str, port: int, server_name: str | None) -> None:
        try:
            how: dict[str, Any] = {}
            if server_name is not None:
                how = self._tls(server_name)
            await self.loop.create_connection(lambda: Link(self, conn), address, port, **how)
        except Exception as fault:
            if conn in self._connecting and not self.over:
                del self._connecting[conn]
                self._lost(conn, fault)

    async def _start_tls(self, conn: int, server_name: str) -> None:
        link = self._links.get(conn)
        if link is None or link.transport is None:
            return
        try:
            how = self._tls(server_name)
            transport = await self.loop.start_tls(link.transport, link, how.pop("ssl"), **how)
            if transport is None:
                raise ConnectionResetError
        except Exception as fault:
            if self._links.pop(conn, None) is not None:
                link.close(abort=True)
                self._lost(conn, fault)
            return
        link.secured(transport)
        if self._links.get(conn) is link:
            self._input(self.engine.tls_started, conn, self.now())
        else:
            transport.abort()

    def _tls(self, server_name: str) -> dict[str, Any]:
        how: dict[str, Any] = {"ssl": self._options.ssl_context(), "server_hostname": server_name}
        if sys.version_info >= (3, 11):
            # A peer that does not say goodbye must not keep the socket.
            how["ssl_shutdown_timeout"] = _GOODBYE_S
        return how

    def _lost(self, conn: int, fault: Exception) -> None:
        if isinstance(fault, BrocaError):
            logger.warning("%s", fault.message)
            why = "tls_other"
        else:
            why = close_reason(fault)
            if not isinstance(fault, OSError):
                # A loop or a context of a kind that this package does not know: the logger tells which.
                logger.warning("a connection could not be made", exc_info=fault)
        self._input(self.engine.closed, conn, why, self.now())

    def connected(self, link: Link) -> None:
        """A connection is open, its handshake done."""
        self._open.add(link)
        if link.conn not in self._connecting or self.over:
            link.close(abort=True)
            return
        del self._connecting[link.conn]
        self._links[link.conn] = link
        self._input(self.engine.connected, link.conn, self.now())

    def lost(self, link: Link, why: str) -> None:
        """A connection is gone. The engine is told once, and not when it closed the connection itself."""
        if self._links.get(link.conn) is link and not self.over:
            del self._links[link.conn]
            self._input(self.engine.closed, link.conn, why, self.now())

    def written(self, conn: int, size: int) -> None:
        """The buffer below has room again."""
        if not self.over:
            self._input(self.engine.written, conn, size, self.now())

    # Wakes.

    def _wake(self) -> None:
        if not self._wake_pending:
            self._wake_pending = True
            self._on_loop(self._woken)

    def _woken(self) -> None:
        self._wake_pending = False
        self.settle()

    def _on_loop(self, call: Callable[..., None], *words: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(call, *words)
        except RuntimeError:
            # The loop is closed, and with it every socket: there is nothing left to end.
            self.over = True
