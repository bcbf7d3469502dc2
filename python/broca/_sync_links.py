"""The connections of one session in the synchronous shell, and the effects that concern them.

Everything here is called with the driver's lock held.
"""

from __future__ import annotations

from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Any, Callable, Optional

from . import _core as core
from ._awake import Awake
from ._sync_wire import BLOCKED, CLOSED, CONNECTING, SECURING, Wire
from .errors import BrocaError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._options import Options

Effects = Optional["Iterable[tuple[Any, ...]]"]
"""What an input gives: what is to be carried out now, in order."""

# Reads in one go; then the reader of steps gets its turn.
_READS = 4
# Numbers of connections and look-ups that one batch of effects may name.
_LOST = 64
# How often time is told to an engine whose timer is not known.
_BLIND_MS = 100

# Memory that sockets are read to, as many pieces as threads ever read at once.
_BUFFERS: list[bytearray] = []


class Links:
    """The engine and its connections."""

    def __init__(self, options: Options, *, hooks: bool) -> None:
        self.engine = core.new_engine(options, hooks=hooks)
        self._options = options
        self._wires: dict[int, Wire] = {}
        self._by_fd: dict[int, Wire] = {}
        self._awake = Awake(options.awake_us)
        self._awake_until = 0.0
        self._unwritten: list[Wire] = []
        self._later: list[tuple[Any, ...]] = []
        """Effects of inputs that were given while others were carried out."""
        self._to_resolve: list[tuple[int, str]] = []
        self._timer: int | None = None
        self._fired = -1
        self._polling_until = 0
        self._poll: Any = None
        self._nudge = False
        """The leader must look again."""
        self._torn = False
        """An exception came between taking effects and carrying them out."""
        self._unsettled = False
        """An input was given whose effects were perhaps not taken."""
        self._blind = False
        """The engine's timer is not known."""
        self._last_number = 0

    def _on_ready(self, now: int, op: int) -> None:
        """Steps of an operation wait."""
        raise NotImplementedError

    def _all_ready(self) -> None:
        """Steps of every operation may wait."""
        raise NotImplementedError

    def _advance(self) -> bool:
        """Reads, writes and lets time pass; true when there is more to read already."""
        now = now_ms()
        if self._torn:
            self._mend(now)
            self._unsettled = True
        if self._unsettled:
            self._carry_out_all(now)
            self._unsettled = False
        # What is interrupted from here on (Ctrl-C comes anywhere) has lost bytes or effects: see `_mend`.
        reads = _READS
        more = False
        self._torn = True
        for wire in list(self._wires.values()):
            if wire.stage == CONNECTING:
                if wire.readable:
                    wire.readable = False
                    self._connected(wire, now)
                continue
            if wire.unfinished:
                self._flush(wire, now)
                # There may be room for more now.
                self._carry_out(None, now)
            while wire.readable and not wire.paused and wire.conn in self._wires:
                if reads == 0:
                    more = True
                    break
                reads -= 1
                self._read(wire, now)
        self._torn = False
        timer = self._timer
        if timer is not None and timer <= now and self._fired != now:
            self._fired = now
            if self._blind:
                self._timer = now + _BLIND_MS
            self._torn = True
            self._carry_out(self.engine.timeout(now), now)
            self._torn = False
        return more

    def _read(self, wire: Wire, now: int) -> None:
        buffer = _take_buffer()
        effects: Effects = None
        if wire.tls is None:
            found = wire.read(buffer)
            if found > 0:
                self._awake.heard(monotonic())
                effects = self.engine.data(wire.conn, buffer, found, now)
        else:
            plain = _take_buffer()
            found = wire.read_tls(buffer, plain)
            if wire.stage == SECURING and wire.secured():
                self._secured(wire, now)
            if found > 0:
                self._awake.heard(monotonic())
                effects = self.engine.data(wire.conn, plain, found, now)
            _BUFFERS.append(plain)
        _BUFFERS.append(buffer)
        if found == BLOCKED:
            wire.readable = False
        elif found == CLOSED:
            self._unlink(wire)
            wire.drop()
            effects = self.engine.closed(wire.conn, wire.why, now)
        self._carry_out(effects, now)

    def _carry_out_all(self, now: int) -> None:
        """Carries out what waits in the engine."""
        torn, self._torn = self._torn, True
        self._carry_out(self.engine.effects(), now)
        self._torn = torn

    def _carry_out(self, effects: Effects, now: int) -> None:
        """Carries out effects, and those that were put off, in order."""
        if effects is not None:
            self._later.extend(effects)
        while self._later:
            torn, self._torn = self._torn, True
            effects, self._later = self._later, []
            for effect in effects:
                _PERFORM[effect[0]](self, now, *effect[1:])
            if self._unwritten:
                unwritten, self._unwritten = self._unwritten, []
                for wire in unwritten:
                    self._flush(wire, now)
            self._torn = torn

    def _note(self, effects: Effects) -> None:
        """Puts effects off until those in hand are carried out."""
        if effects is not None:
            self._later.extend(effects)

    def _mend(self, now: int) -> None:
        """An exception came between taking effects and carrying them out, so the connections are not what the engine
        thinks: they are given up, which it can deal with. May itself be interrupted, and is then done again."""
        self._unwritten.clear()
        self._later.clear()
        while self._wires:
            wire = next(iter(self._wires.values()))
            self._note(self.engine.closed(wire.conn, "local", now))
            self._unlink(wire)
            wire.drop()
        # What it may have asked for since; other numbers mean nothing to it.
        for number in range(self._last_number + 1, self._last_number + _LOST):
            self._note(self.engine.closed(number, "local", now))
            self._note(self.engine.resolved(number, None, "the look-up was interrupted", now))
        # Nor is it known when the timer goes off, or who has steps.
        self._blind = True
        self._all_ready()
        self._timer = now
        self._torn = False

    def _flush(self, wire: Wire, now: int) -> None:
        if wire.stage == CONNECTING:
            return
        asked = monotonic()
        size = wire.flush()
        if size:
            wire.unsaid += size
            self._awake_until = self._awake.asked(asked)
        if wire.unsaid >= core.WORTH_SAYING:
            # The engine hands out more than this without a word.
            size, wire.unsaid = wire.unsaid, 0
            self._note(self.engine.written(wire.conn, size, now))
        if wire.unfinished:
            self._nudge = True

    def _on_write(self, now: int, conn: int, data: bytes) -> None:
        wire = self._wires.get(conn)
        if wire is not None and wire.push(data):
            self._unwritten.append(wire)

    def _on_timer(self, now: int, at: int | None) -> None:
        self._timer = at
        self._blind = False
        if at is not None and at < self._polling_until:
            self._nudge = True

    def _on_resolve(self, now: int, req: int, host: str) -> None:
        self._to_resolve.append((req, host))
        self._last_number = max(self._last_number, req)
        self._nudge = True

    def _on_connect(self, now: int, conn: int, address: str, port: int, server_name: str | None) -> None:
        wire = Wire(conn, server_name)
        fault = wire.connect(address, port)
        if fault is not None:
            wire.drop()
            self._note(self.engine.closed(conn, core.close_reason(fault), now))
            return
        self._wires[conn] = wire
        self._by_fd[wire.fd] = wire
        self._last_number = max(self._last_number, conn)
        self._nudge = True

    def _connected(self, wire: Wire, now: int) -> None:
        try:
            if not wire.connected():
                return
        except OSError as fault:
            self._unlink(wire)
            wire.drop()
            self._note(self.engine.closed(wire.conn, core.close_reason(fault), now))
        else:
            if wire.server_name is not None:
                self._secure(wire, wire.server_name, False, now)
            else:
                self._note(self.engine.connected(wire.conn, now))
        self._carry_out(None, now)

    def _on_start_tls(self, now: int, conn: int, server_name: str) -> None:
        wire = self._wires.get(conn)
        if wire is not None:
            self._secure(wire, server_name, True, now)

    def _secure(self, wire: Wire, server_name: str, tunnel: bool, now: int) -> None:
        try:
            wire.start_tls(self._options.ssl_context(), server_name, tunnel)
        except (BrocaError, OSError, ValueError) as fault:
            core.logger.warning("TLS cannot be started: %s", fault)
            self._unlink(wire)
            wire.drop()
            self._note(self.engine.closed(wire.conn, "tls_other", now))
        else:
            self._unwritten.append(wire)
            self._flush(wire, now)

    def _secured(self, wire: Wire, now: int) -> None:
        if wire.tunnel:
            self._note(self.engine.tls_started(wire.conn, now))
        else:
            self._note(self.engine.connected(wire.conn, now))

    def _on_pause(self, now: int, conn: int) -> None:
        wire = self._wires.get(conn)
        if wire is not None:
            wire.paused = True

    def _on_resume(self, now: int, conn: int) -> None:
        wire = self._wires.get(conn)
        if wire is not None:
            wire.paused = False
            self._nudge = True

    def _on_close(self, now: int, conn: int, abort: int) -> None:
        wire = self._wires.get(conn)
        if wire is not None:
            self._unlink(wire)
            if abort:
                wire.drop()
            else:
                wire.finish()

    def _on_busy(self, now: int, busy: int) -> None:
        """Nothing of this shell keeps a process alive."""

    def _unlink(self, wire: Wire) -> None:
        self._wires.pop(wire.conn, None)
        self._by_fd.pop(wire.fd, None)
        self._unwatch(wire.fd)
        wire.watched = 0

    def _unwatch(self, fd: int) -> None:
        if self._poll is not None:
            try:
                self._poll.unregister(fd)
            except KeyError:
                # It was not asked about.
                pass

    def _end_wires(self) -> None:
        """As politely as it goes at once."""
        for wire in list(self._wires.values()):
            self._unlink(wire)
            wire.finish()


_PERFORM: dict[int, Callable[..., None]] = {
    core.RESOLVE: Links._on_resolve,
    core.CONNECT: Links._on_connect,
    core.START_TLS: Links._on_start_tls,
    core.WRITE: Links._on_write,
    core.PAUSE_READ: Links._on_pause,
    core.RESUME_READ: Links._on_resume,
    core.CLOSE: Links._on_close,
    core.TIMER: Links._on_timer,
    core.BUSY: Links._on_busy,
    core.READY: lambda links, now, op: links._on_ready(now, op),
    core.LOG: lambda links, now, level, message: core.log((core.LOG, level, message)),
    core.LOG_DROPPED: lambda links, now, count: core.log((core.LOG_DROPPED, count)),
}


def now_ms() -> int:
    return monotonic_ns() // 1_000_000


def _take_buffer() -> bytearray:
    try:
        return _BUFFERS.pop()
    except IndexError:
        return bytearray(core.READ_BYTES)
