"""The shell of the synchronous client: sockets and clock for one engine, moved by whoever waits.

There is no thread and no event loop behind a program's back. A session moves only while somebody is inside a call that
waits. Any number of threads may be inside calls of one session:

1. The first becomes the *leader*: it waits for the sockets of the whole session and moves every operation, not just
   its own. The lock is free while it waits.
2. The others are *followers*: each waits for its gate, which the leader opens when steps came that may be theirs.
3. When the leader has got what it came for it leaves, and a follower takes the place.
4. Calls that do not wait (a new turn, answers, cancelling) reach the engine from any thread at once and write to the
   sockets themselves. When that concerns the leader, they end its wait.
"""

from __future__ import annotations

import atexit
import socket
import sys
import threading
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, Callable, Protocol, TypeVar

from . import _core as core
from ._pool import Pool
from ._sync_links import Links, now_ms
from ._sync_wait import IN, OUT, Gate, Wake, new_poll
from ._sync_wire import CONNECTING
from .errors import BrocaError, ClosedError, UsageError

if TYPE_CHECKING:
    from ._mcp_servers import OnThread
    from ._options import Options
    from .tools import Answer, ToolContext

T = TypeVar("T")

# The leader looks up at least this often, so that only nearer timers have to wake it.
_LOOK_UP_MS = 1_000
_ALL = 1 << 62
_CONCERNS = core.ASKING | {core.TOOL_CANCEL, core.APPROVAL_WITHDRAWN, core.RECEIVED}
"""Records that matter although nobody looks at the steps."""

LEFT_EARLY = "The program left the turn before the call was started."


class Inline:
    """A call whose tool runs on the thread that reads the turn, from the moment it came until it has been answered."""

    __slots__ = ("begun", "call", "work")

    def __init__(self, call: int, work: Callable[[], Answer]) -> None:
        self.call = call
        self.work = work
        self.begun = False


class Waiting:
    """Who waits for an operation."""

    __slots__ = (
        "cancelled",
        "inline",
        "inside",
        "is_turn",
        "left",
        "over",
        "quiet",
        "raised",
        "ready",
        "running",
        "stash",
    )

    def __init__(self, is_turn: bool) -> None:
        self.is_turn = is_turn
        self.inline: deque[Inline] = deque()
        """Calls for the thread that reads the turn."""
        self.inside = 0
        """That thread, while it runs the first of them."""
        self.cancelled = False
        """No further tool is started."""
        self.stash: list[Any] = []
        """Steps that were taken on behalf of whoever waits."""
        self.over = False
        """The last step is in the stash."""
        self.left = False
        """Nobody waits any more: steps are thrown away."""
        self.quiet = False
        """Nobody looks at the steps: who waits is woken only for `_CONCERNS`."""
        self.ready = True
        """The engine may have steps: it says so once, and again when some are left after a batch."""
        self.running: dict[int, ToolContext] = {}
        """Calls whose tools run now."""
        self.raised: BaseException | None = None
        """What a tool raised that is no result, such as SystemExit. It belongs to whoever waits."""

    def stop_tools(self) -> None:
        """Tells every tool to stop; what it answers then no longer counts."""
        for context in self.running.values():
            context.cancelled._set()
        self.running.clear()


class Holder(Protocol):
    """Who holds an operation."""

    op: int


class Driver(Links, core.Answering):
    """What every handle of a session shares: the engine, its connections, and who waits for which operation."""

    def __init__(self, options: Options, *, hooks: bool = False) -> None:
        super().__init__(options, hooks=hooks)
        # Each session has its own threads: tools that use another session of the client cannot wait for each other.
        self.pool = Pool(options.tool_threads)
        self.servers: OnThread | None = None
        """MCP servers, which end with the session."""
        self._forks = core.Process.forks
        self._closed = False
        self._at_exit = False
        """The interpreter ends, and has taken the connections away."""
        self._lock = threading.Lock()
        self._waiting: dict[int, Waiting] = {}
        self._dropped: deque[int] = deque()
        self._wake: Wake | None = None
        self._leading = 0
        """The thread that waits for the sockets."""
        self._news = False
        """Steps came, or the leader's place is free."""
        self._gates: list[Gate] = []
        self._next_op = 1
        self._unsure = False
        """Whether the last command has begun an operation is not known."""
        self.wakes: list[Callable[[], None]] = []
        """What wakes threads for tools. They are woken when this thread is about to wait, since one at a time runs."""
        core.Process.keep(self)

    def enter(self, what: str) -> None:
        """Refuses calls that cannot be: in a child of a fork, after the end, and on a thread with an event loop."""
        self.check()
        # A loop can only run where the module has been imported.
        events = sys.modules.get("asyncio.events")
        if events is not None and events._get_running_loop() is not None:
            other = what.replace("__next__", "__anext__")
            raise UsageError(
                f"{what}() would block the event loop that runs on this thread: "
                f"use Async{other}() of broca.AsyncClient, or asyncio.to_thread"
            )

    def check_fork(self) -> None:
        """Refuses calls in a child of a fork."""
        core.Process.check(self._forks)

    def usable(self) -> bool:
        """Whether the connections are still here, and belong to this process."""
        return not self._closed and not self._at_exit and self._forks == core.Process.forks

    def cancel_wait_ms(self) -> int:
        """How long a cancelled turn may take to become quiet."""
        return self._options.cancel_wait_ms()

    def check(self) -> None:
        """Refuses calls after a fork and after the end."""
        if self._forks != core.Process.forks:
            core.Process.check(self._forks)
        if self._closed:
            raise ClosedError("the session's connections are closed here; join it again with a client")
        if self._at_exit:
            if threading.current_thread() is not threading.main_thread():
                # Only daemons are left. They end where they are, and nobody listens to what they say of it.
                threading.Event().wait()
            raise ClosedError("the interpreter ends; leave the session before that, with a 'with' block or in main()")

    # Inputs that wait for nothing, from any thread.

    def begin(
        self,
        holder: Holder,
        command: str,
        is_turn: bool,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> None:
        """Begins an operation, whose number the holder gets at once."""
        self.check()

        def begin(now: int) -> None:
            if self._unsure:
                # An exception came while a command was given: if there is an operation of that number, it is nobody's.
                self._waiting[self._next_op] = Waiting(False)
                self._abandon(self._next_op, now)
            self._unsure = True
            try:
                op, effects = self.engine.command(command, now, traceparent, tracestate)
                self._note(effects)
            except BrocaError:
                self._unsure = False
                self._waiting.pop(self._next_op, None)
                raise
            self._waiting[op] = Waiting(is_turn)
            holder.op = op
            self._next_op = op + 1
            self._unsure = False

        self._give(begin)

    def answer(
        self,
        call: int,
        word: str,
        value: str | None = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> bool:
        """Answers a question of the engine; false when it came too late."""
        if self._closed or self._at_exit:
            return False
        self.check()

        def give(now: int) -> bool:
            if self._timer is not None and self._timer <= now:
                # Nobody may have moved the session for a while, and what has passed comes before the answer.
                self._note(self.engine.timeout(now))
            in_time, effects = self.engine.answer(call, word, value, now, traceparent, tracestate, True)
            self._note(effects)
            return in_time

        try:
            return self._give(give)
        except UnicodeEncodeError:
            # Nothing was given yet. Every call gets its answer, so this one goes with what can be written of it.
            value, traceparent, tracestate = (core.whole(text) for text in (value, traceparent, tracestate))
            return self._give(give)

    def cancel(self, op: int) -> None:
        """Asks for the end of an operation."""
        if not self._closed and not self._at_exit:
            self.check()
            self._give(lambda now: self._cancel(op, now))

    def cancel_turns(self, only: int | None = None) -> None:
        """Ends every turn, or one, and waits until it is quiet, within bounds. Steps are kept for whoever waits."""
        self.check()
        turns: dict[int, Waiting] = {}

        def cancel(now: int) -> None:
            turns.update((op, w) for op, w in self._waiting.items() if w.is_turn and only in (None, op))
            for op, waiting in turns.items():
                waiting.cancelled = True
                waiting.stop_tools()
                self._cancel(op, now)

        def quiet() -> bool | None:
            for op, waiting in turns.items():
                if op in self._waiting and not waiting.over:
                    steps, waiting.over, _ = self.take(op, waiting, _ALL)
                    waiting.stash.extend(steps)
                    self._news = self._news or bool(steps)
            self.follow(now_ms())
            return True if all(w.over or op not in self._waiting for op, w in turns.items()) else None

        self._give(cancel)
        self.pump(quiet, monotonic() + self.cancel_wait_ms() / 1000)

    def leave_all(self) -> None:
        """Cancels everything, waits until it is quiet, within bounds, and ends the connections."""
        if not self.usable():
            return

        def cancel(now: int) -> None:
            for op in list(self._waiting):
                self._abandon(op, now)

        try:
            self._give(cancel)
            until = monotonic() + self.cancel_wait_ms() / 1000
            self.pump(lambda: None if self._waiting else True, until)
        except BrocaError as error:
            # A broken engine has nothing to cancel. Whoever used it has been told.
            core.logger.warning("a session ends: %s", error.message)
        finally:
            self.close()

    def waiting(self, op: int) -> Waiting | None:
        """Who waits for this operation."""
        return self._waiting.get(op)

    def raised(self, op: int, error: BaseException) -> None:
        """Hands what a tool raised, and what is no result, to whoever waits."""
        with self._lock:
            waiting = self._waiting.get(op)
            if waiting is not None:
                waiting.raised = error
                self._news = True
            self._tell()

    def forget(self, op: int) -> None:
        """The operation has finished, and its steps were taken."""
        with self._lock:
            waiting = self._waiting.pop(op, None)
            if waiting is not None:
                # Whoever still runs was told to stop long ago, or its time was over.
                waiting.stop_tools()
            self._rest()

    def enter_inline(self, waiting: Waiting) -> Inline | None:
        """The call whose tool this thread is to run now, until `leave_inline`; none when there is no other."""
        with self._lock:
            if not waiting.inline:
                return None
            waiting.inside = threading.get_ident()
            return waiting.inline[0]

    def leave_inline(self, waiting: Waiting, *, answered: bool) -> None:
        """The tool has come to its end."""
        with self._lock:
            waiting.inside = 0
            if answered:
                waiting.inline.popleft()

    def leave(self, op: int, within_ms: int) -> None:
        """Cancels an operation that nobody waits for any more, and waits until it is quiet, at most so long."""
        if not self.usable():
            return
        self._give(lambda now: self._abandon(op, now))
        if within_ms:
            self.pump(lambda: None if op in self._waiting else True, monotonic() + within_ms / 1000)

    def drop(self, op: int) -> None:
        """As `leave`, from a finaliser: that may run inside of anything, so it waits for nothing, not even the lock."""
        self._dropped.append(op)
        if self._lock.acquire(blocking=False):
            try:
                if not self._torn:
                    self._end_dropped(now_ms())
                    self._tell()
            except BrocaError:
                # Whoever uses the session next is told.
                self._torn = True
            finally:
                self._lock.release()

    def start_tools(self) -> None:
        """Wakes the threads that have tools to run; from any thread."""
        wakes = self.wakes
        while wakes:
            try:
                wake = wakes.pop()
            except IndexError:
                break
            wake()

    # Moving.

    def pump(self, done: Callable[[], T | None], until: float | None = None) -> T | None:
        """Moves the session until `done` gives something, at most until then; None when it has not."""
        me = threading.get_ident()
        while True:
            gate = None
            names: list[tuple[int, str]] = []
            wait: int | None = None
            if self._at_exit:
                self.check()
            try:
                with self._lock:
                    if self._closed:
                        raise ClosedError("the session's connections were closed while this call waited")
                    more = self._advance()
                    result = done()
                    if self._dropped:
                        self._end_dropped(now_ms())
                    late = until is not None and monotonic() >= until
                    if result is not None or late:
                        self._news = self._news or not self._leading
                        self._tell()
                        break
                    if self._to_resolve:
                        names, self._to_resolve = self._to_resolve, []
                        self._tell()
                    elif not self._leading:
                        self._leading = me
                        wait = self._prepare(until, more)
                    else:
                        gate = Gate()
                        self._gates.append(gate)
                        self._tell()
                if self.wakes:
                    self.start_tools()
                if wait is not None:
                    events = self._look() or self._poll.poll(wait)
                    with self._lock:
                        self._leading = 0
                        self._mark(events)
                elif gate is not None:
                    left = _LOOK_UP_MS / 1000 if until is None else min(1.0, until - monotonic())
                    gate.wait(max(left, 0.0))
            except BaseException:
                self._step_down(me)
                raise
            try:
                for req, host in names:
                    self._resolve(req, host)
            except BaseException:
                # Interrupted: whoever moves the session next looks them up.
                with self._lock:
                    self._to_resolve.extend(names)
                raise
        if self._dropped:
            self._sweep()
        return result

    def close(self) -> None:
        """Ends all connections. Whoever waits gets a `ClosedError`."""
        if self._forks != core.Process.forks:
            return
        with self._lock:
            self._closed = True
            for waiting in self._waiting.values():
                waiting.stop_tools()
            self._waiting.clear()
            self._end_wires()
            self._news = True
            self._tell()
            self._rest()
        self.pool.close()
        if self.servers is not None:
            self.servers.close()

    def _look(self) -> list[tuple[int, int]]:
        """Looks for what will be there at once, without sleeping. The lock is free meanwhile."""
        until = self._awake_until
        poll = self._poll.poll
        while monotonic() < until:
            events: list[tuple[int, int]] = poll(0)
            if events:
                return events
        return []

    def _step_down(self, me: int) -> None:
        """If this thread leads, somebody else has to. Takes the lock."""
        with self._lock:
            if self._leading == me:
                self._leading = 0
                self._open_gates()
                self._rest()

    def __del__(self) -> None:
        if getattr(self, "_forks", -1) == core.Process.forks:
            # Nobody holds the session any more, so nobody holds the lock.
            self.pool.close()
            self._end_wires()
            if self._wake is not None:
                self._wake.give_back()

    # Everything below is called with the lock held, unless it says otherwise.

    def _give(self, give: Callable[[int], T]) -> T:
        """Gives the engine an input and carries out what follows. Takes the lock."""
        now = now_ms()
        with self._lock:
            if self._torn:
                self._mend(now)
            self._unsettled = self._torn = True
            try:
                result = give(now)
            except Exception:
                # It refuses, and has given nothing.
                self._torn = False
                raise
            self._torn = False
            if self._dropped:
                self._end_dropped(now)
            self._carry_out(None, now)
            self._unsettled = False
            self._tell()
        if self._dropped:
            self._sweep()
        return result

    def _end_dropped(self, now: int) -> None:
        """Ends the operations that finalisers dropped."""
        while self._dropped:
            self._abandon(self._dropped.popleft(), now)
        self._carry_out(None, now)

    def follow(self, now: int) -> None:
        """Carries out what was put off: taking steps may let a socket be read again."""
        if self._later:
            self._carry_out(None, now)

    def _on_ready(self, now: int, op: int) -> None:
        waiting = self._waiting.get(op)
        if waiting is None:
            self._news = True
            return
        waiting.ready = True
        if waiting.left:
            self._discard(op, waiting, now)
        elif (waiting.quiet or waiting.inside) and threading.current_thread() is not threading.main_thread():
            # On the main thread an interrupt could come between taking steps and keeping them.
            self._keep(op, waiting)
        else:
            self._news = True

    def _all_ready(self) -> None:
        for waiting in self._waiting.values():
            waiting.ready = True

    def _keep(self, op: int, waiting: Waiting) -> None:
        """Takes steps on behalf of somebody who only waits for the reply, so that nobody is woken for the others; or of
        somebody who is busy with a tool, so that the tool hears that it is to stop."""
        steps, over, tuples = self.take(op, waiting, core.STEP_BATCH)
        for at in tuples:
            context = waiting.running.get(steps[at][1]) if steps[at][0] == core.TOOL_CANCEL else None
            if context is not None:
                context.cancelled._set()
        kept = [steps[at] for at in tuples if steps[at][0] in _CONCERNS] if waiting.quiet else steps
        waiting.stash += kept
        waiting.over = over
        self._news = self._news or over or bool(kept)

    def _abandon(self, op: int, now: int) -> None:
        waiting = self._waiting.get(op)
        if waiting is None:
            return
        waiting.left = True
        waiting.is_turn = False
        waiting.stop_tools()
        self._cancel(op, now)
        self._discard(op, waiting, now)

    def _cancel(self, op: int, now: int) -> None:
        torn, self._torn = self._torn, True
        self.engine.cancel(op, now)
        self._note(self.engine.effects())
        waiting = self._waiting.get(op)
        if waiting is not None and waiting.inline:
            self._stop_inline(waiting, now)
        self._torn = torn

    def _stop_inline(self, waiting: Waiting, now: int) -> None:
        """The turn was cancelled: calls that wait for the thread that reads it are not started any more."""
        inline = waiting.inline
        while len(inline) > bool(waiting.inside):
            self._note(self.engine.answer(inline.pop().call, "fail", LEFT_EARLY, now, None, None, True)[1])
        if waiting.inside:
            # Who would tell the tools of this turn is busy with one of them.
            for context in waiting.running.values():
                context.cancelled._set()

    def take(self, op: int, waiting: Waiting, size: int) -> tuple[list[Any], bool, list[int]]:
        """Takes steps from the engine, about so many bytes of them; what follows is put off."""
        torn, self._torn = self._torn, True
        steps, over, tuples, effects = self.engine.steps(op, size, waiting.quiet)
        waiting.ready = False
        self._note(effects)
        self._torn = torn
        return steps, over, tuples

    def _discard(self, op: int, waiting: Waiting, now: int) -> None:
        """Throws the steps of an operation away that nobody waits for."""
        while True:
            steps, over = waiting.stash, waiting.over
            waiting.stash = []
            if not over:
                taken, over, _ = self.take(op, waiting, _ALL)
                steps += taken
            for step in steps:
                if type(step) is tuple and step[0] == core.TOOL_CALL:
                    self._note(self.engine.answer(step[1], "fail", LEFT_EARLY, now, None, None, True)[1])
            if over:
                self._waiting.pop(op, None)
                self._news = True
                return
            if not steps:
                return

    def _prepare(self, until: float | None, more: bool) -> int:
        """Gets ready to wait for the sockets; the milliseconds to wait."""
        if self._poll is None:
            self._poll = new_poll()
        if self._wake is None:
            self._wake = Wake.take()
        # Again and again, as below: it costs little, and an exception may have come in between.
        self._poll.register(self._wake.fd, IN)
        for wire in self._wires.values():
            wanted = 0 if wire.paused else IN
            if wire.stage == CONNECTING:
                wanted = OUT
            elif wire.unfinished:
                wanted |= OUT
            if wanted != wire.watched:
                if not wanted:
                    # Not even asked about, or it would tell of its end again and again.
                    self._unwatch(wire.fd)
                else:
                    self._poll.register(wire.fd, wanted)
                wire.watched = wanted
        self._nudge = False
        if self._news:
            self._news = False
            self._open_gates()
        now = self._polling_until = now_ms()
        if more:
            return 0
        latest = now + _LOOK_UP_MS
        if self._timer is not None:
            # A timer that was served just now and is still due comes again with the next millisecond.
            latest = min(latest, max(self._timer, now + 1))
        self._polling_until = latest
        wait = latest - now
        if until is not None:
            wait = min(wait, max(0, int((until - monotonic()) * 1000) + 1))
        return wait

    def _mark(self, events: list[tuple[int, int]]) -> None:
        """Notes what the system says about the sockets."""
        if self._closed:
            self._rest()
            return
        wake = self._wake
        for fd, event in events:
            wire = self._by_fd.get(fd)
            if wire is None:
                if wake is not None and fd == wake.fd:
                    wake.drain()
                else:
                    self._unwatch(fd)
                continue
            # A connect is over when the socket is writable or broken; both are looked at when it moves.
            if wire.stage == CONNECTING or event & ~OUT:
                wire.readable = True

    def _tell(self) -> None:
        """Tells the leader and the followers what concerns them."""
        if self._leading:
            if (self._news or self._nudge) and self._wake is not None:
                self._wake.wake()
        elif self._news:
            self._open_gates()
            self._news = False
        self._nudge = False

    def _open_gates(self) -> None:
        gates = self._gates
        if gates:
            self._gates = []
            for gate in gates:
                gate.open()

    def _rest(self) -> None:
        """Gives back what only waiting needs. Idle sessions hold their connections and nothing else."""
        if not self._waiting and not self._leading and self._wake is not None:
            wake, self._wake = self._wake, None
            self._unwatch(wake.fd)
            wake.give_back()

    def _sweep(self) -> None:
        """Ends what finalisers dropped meanwhile. Takes the lock."""
        if not self._closed:
            self._give(lambda now: None)

    def _resolve(self, req: int, host: str) -> None:
        """Looks a name up, on this thread and without the lock. The system's resolver cannot be interrupted."""
        addresses: list[str] | None = None
        why = None
        try:
            found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        except (OSError, UnicodeError) as fault:
            why = getattr(fault, "strerror", None) or str(fault)
        self._give(lambda now: self._note(self.engine.resolved(req, addresses, why, now)))


@atexit.register
def _at_exit() -> None:
    """Closes what the system would close anyway, so that development mode has nothing to say about it."""
    for owner in list(core.Process._alive):
        if isinstance(owner, Driver):
            # Finalisers that run after this must neither wait for these connections nor open others.
            owner._at_exit = True
            for wire in list(owner._wires.values()):
                wire.drop()
            wake, owner._wake = owner._wake, None
            if wake is not None:
                wake.close()
    Wake.close_spare()
