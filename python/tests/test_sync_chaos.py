"""What goes wrong in programs that use the synchronous client: exits, forks, signals, threads, late answers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from async_service import Answer, Asked, Script, Service, calling, endless

import broca
from broca import _sync_wait, _sync_wire, errors

TESTS = pathlib.Path(__file__).resolve().parent
SESSIONS = int(os.environ.get("BROCA_FLAT_SESSIONS", "2000"))


def client_of(service: Service, **options: Any) -> broca.Client:
    return broca.Client(service.url, "key", environment={}, **options)


def program(
    text: str, *arguments: str, timeout: float = 60, flags: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs a program of its own; it finds the modules of the tests."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    return subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(text), *arguments],
        capture_output=True, text=True, timeout=timeout, env=environment, check=False,
    )  # fmt: skip


WITH_WORK = """
    import sys, threading, time
    import broca

    started = threading.Event()

    def sleep_on() -> str:
        started.set()
        time.sleep(600)
        return ""

    client = broca.Client(sys.argv[1], "key", environment={})
    session = client.open(tools=[sleep_on])
"""


IN_A_THREAD = """
    threading.Thread(target=session.ask, args=("go",), daemon=True).start()
    started.wait(20)
"""
LEFT_OPEN = """
    turn = session.send("go")
    while not isinstance(turn.next(20), broca.ToolCall):
        pass
    started.wait(20)
"""
CALLED_OFF = (
    LEFT_OPEN
    + """
    sys.exit(0)
"""
)


class TestExit:
    @pytest.mark.parametrize(
        ("ending", "flags"),
        [
            (IN_A_THREAD, ()),
            (IN_A_THREAD, ("-X", "dev", "-W", "error")),
            (LEFT_OPEN, ()),
            (CALLED_OFF, ()),
        ],
    )
    def test_exit_with_inflight(self, ending: str, flags: tuple[str, ...]) -> None:
        text = textwrap.dedent(WITH_WORK) + textwrap.dedent(ending)
        with Service(calling(("tu_1", "sleep_on", {}))) as service:
            done = program(text, service.url, flags=flags, timeout=30)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def test_finalisers_at_exit_neither_wait_nor_connect(self) -> None:
        text = """
            import sys
            import broca
            from broca import errors

            class Closes:
                def __del__(self):
                    try:
                        self.session.close()
                    except errors.ClosedError as error:
                        sys.stdout.write(f"{type(error).__name__}: {error}\\n")

            client = broca.Client(sys.argv[1], "key", environment={})
            closes = Closes()
            closes.session = client.open()
            turn = client.open().send("go")
            turn.next()
        """
        with Service() as service:
            done = program(text, service.url, flags=("-X", "dev"), timeout=20)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("ClosedError: the interpreter ends")

    def test_a_sys_exit_in_a_tool_ends_whoever_waits(self) -> None:
        def leave() -> None:
            sys.exit(7)

        with Service(calling(("tu_1", "leave", {}))) as service, client_of(service, cancel_grace_ms=10) as client:
            session = client.open(tools=[leave])
            with pytest.raises(SystemExit) as caught:
                session.ask("go")
            assert caught.value.code == 7


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
class TestFork:
    def test_fork_then_use(self) -> None:
        done = program(
            """
            import os, sys
            import broca
            from broca import _sync_wait, _sync_wire, errors
            from async_service import Service, endless

            url = sys.argv[1]
            client = broca.Client(url, "key", environment={})
            session = client.open()
            session.ask("hello")
            turn = session.send("hello")
            subscription = session.subscribe()
            next(turn)
            child = os.fork()
            if child == 0:
                refused = 0
                for call in (
                    lambda: session.ask("x"), lambda: next(turn), turn.cancel, lambda: next(subscription),
                    client.open, client.meta, client.close, session.close, session.cancel, subscription.close,
                ):
                    try:
                        call()
                    except errors.ForkedError as error:
                        assert "child" in str(error)
                        refused += 1
                del turn, subscription, session
                with broca.Client(url, "key", environment={}) as own:
                    assert own.open().ask("hello").text == "hello"
                sys.stdout.write(f"refused {refused}\\n")
                sys.stdout.flush()
                sys.exit(0)
            _, status = os.waitpid(child, 0)
            assert status == 0, status
            # What the child did has closed nothing here.
            assert turn.reply().text == "hello"
            connections = int(sys.argv[2])
            assert session.ask("hello").text == "hello"
            print("parent goes on")
            """,
            self._service.url,
            "0",
            # What the parent keeps for its own waits is not left lying about in the child, with a warning.
            flags=("-X", "dev"),
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.split("\n")[:2] == ["refused 10", "parent goes on"]

    @pytest.fixture(autouse=True)
    def _serve(self) -> Any:
        with Service() as self._service:
            yield


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="this system has no signals for threads")
class TestSignals:
    @contextlib.contextmanager
    def interrupted(self) -> Iterator[None]:
        """What stands in here is ended by Ctrl-C."""
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            yield
        timer.join()

    def test_sigint_during_wait(self) -> None:
        cancelled = threading.Event()
        with Service(watched(endless(cancelled)), features=("cancel",)) as service, client_of(service) as client:
            session = client.open()
            with self.interrupted(), session.send("endless") as turn:
                for _ in turn:
                    pass
            # The turn was cancelled by its with block, and the session goes on.
            assert cancelled.is_set()
            assert session.ask("hello").text == "hello"
            cancelled.clear()
            with self.interrupted():
                session.ask("endless")
            assert cancelled.is_set()
            with self.interrupted(), session.subscribe() as subscription:
                list(subscription)
            assert session.ask("hello").text == "hello"

    def test_sigint_ends_the_wait_of_a_follower(self) -> None:
        cancelled = threading.Event()
        with Service(watched(endless(cancelled)), features=("cancel",)) as service, client_of(service) as client:
            session = client.open()
            turn = session.send("endless")
            with led_by(turn):
                with self.interrupted(), session.subscribe() as subscription:
                    list(subscription)
                turn.request_cancel()
            assert session.ask("hello").text == "hello"

    # Sockets and coroutines that an exception met on their way are cleared away by the collector.
    @pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
    def test_exceptions_at_any_point_leave_a_session_that_works(self) -> None:
        interrupted = 0
        service = Service(calling(("tu_1", "count", {})))
        with service, client_of(service, cancel_timeout_ms=500, cancel_grace_ms=200, recovery_timeout_ms=0) as client:
            tool = broca.Tool.raw("count", "", {"type": "object"}, lambda *_: "counted")
            session = client.open(tools=[tool])
            session.ask("warm up")
            with _Alarms() as alarms:
                for _ in range(100):
                    try:
                        with alarms.one():
                            session.ask("go")
                    except _Alarm:
                        interrupted += 1
                    except errors.BrocaError as error:
                        # Connections that were lost in the middle are lost; nothing else may be said.
                        assert isinstance(error, (errors.TransportError, errors.StreamEndedEarlyError)), repr(error)
            assert interrupted > 10
            assert self.settled(session) == "counted"

    def test_an_interrupted_connect_leaves_no_socket_and_is_made_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[weakref.ref[socket.socket]] = []
        closed: list[bool] = []

        class Interrupted(socket.socket):
            def connect_ex(self, address: Any) -> int:
                if not made:
                    made.append(weakref.ref(self))
                    raise KeyboardInterrupt
                return super().connect_ex(address)

            def close(self) -> None:
                closed.append(bool(made) and made[0]() is self)
                super().close()

        with Service() as service, client_of(service) as client:
            monkeypatch.setattr(_sync_wire.socket, "socket", Interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.open()
            assert any(closed)
            assert client.open().ask("hello").text == "hello"

    def test_sockets_that_an_interrupt_has_lost_are_closed(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            lost: list[Any] = [_sync_wait.Wake(), _sync_wire.Wire(1, None)]
            assert lost[1].connect(*listener.getsockname()) is None
            lost.clear()
            gc.collect()
        assert not caught

    def settled(self, session: broca.Session) -> str:
        """What a turn comes to, once the losses of before are behind."""
        for _ in range(5):
            try:
                return session.ask("go").text
            except (errors.TransportError, errors.StreamEndedEarlyError):
                continue
        return session.ask("go").text


class TestTools:
    def test_callback_throws(self) -> None:
        def bad() -> None:
            raise LookupError("nothing there")

        with Service(calling(("tu_1", "bad", {}), ("tu_2", "unknown", {}))) as service, client_of(service) as client:
            text = client.open(tools=[bad]).ask("go").text
        assert text.startswith("LookupError: nothing there ")

    def test_callback_reenters_sync(self) -> None:
        sessions: list[broca.Session] = []

        def other() -> str:
            """Asks in another session of the same client."""
            return sessions[1].ask("hi").text

        def deep() -> str:
            """Comes back to the first session by way of the second."""
            return sessions[2].ask("same").text

        def same() -> str:
            """Asks in its own session, where its turn would wait for itself."""
            return sessions[0].ask("hi").text

        def reads() -> str:
            """What waits for no turn works in its own session."""
            return str(len(sessions[0].participants()))

        def script(asked: Asked, answer: Answer) -> None:
            if asked.text in ("other", "deep", "same", "reads"):
                answer.calls(("tu_1", asked.text, {}))
            elif asked.results:
                answer.says(asked.results[0]["content"])

        with Service(script) as service, client_of(service) as client:
            sessions.append(client.open(tools=[other, deep, same, reads]))
            sessions.append(client.open())
            sessions.append(client.open(tools=[same]))
            assert sessions[0].ask("other").text == "hello"
            assert sessions[0].ask("reads").text == "1"
            for way in ("same", "deep"):
                text = sessions[0].ask(way).text
                assert text.startswith("UsageError: ") and "cannot start a turn in it" in text

    def test_cancel_twice(self) -> None:
        cancelled = threading.Event()
        with Service(endless(cancelled), features=("cancel",)) as service, client_of(service) as client:
            session = client.open()
            turn = session.send("endless")
            next(turn)
            turn.request_cancel()
            turn.request_cancel()
            session.cancel()
            turn.cancel()
            turn.cancel()
            turn.request_cancel()
            assert session.ask("hello").text == "hello"

    def test_late_completion_after_close(self) -> None:
        go, done = threading.Event(), threading.Event()

        def late() -> str:
            go.wait(30)
            done.set()
            return "too late"

        with Service(calling(("tu_1", "late", {}))) as service:
            client = client_of(service, cancel_timeout_ms=100, cancel_grace_ms=100)
            session = client.open(tools=[late])
            turn = session.send("go")
            call = next(step for step in turn if isinstance(step, broca.ToolCall))
            client.close()
            assert not call.complete("by hand") and not call.fail("by hand")
            driver = weakref.ref(session._driver)
            del session, turn, call
            go.set()
            assert done.wait(20)
            until = time.monotonic() + 20
            while driver() is not None and time.monotonic() < until:
                gc.collect()
                time.sleep(0.01)
            assert driver() is None

    def test_a_tool_that_does_not_listen_is_abandoned(self) -> None:
        go = threading.Event()

        def deaf() -> None:
            go.wait(60)

        with Service(calling(("tu_1", "deaf", {}))) as service, client_of(service, cancel_grace_ms=100) as client:
            session = client.open(tools=[deaf])
            with session.send("go") as turn:
                for step in turn:
                    if isinstance(step, broca.ToolCall):
                        break
            assert not go.is_set()
            go.set()


class TestThreads:
    def test_worker_threads_with_a_session_each(self) -> None:
        failures: list[BaseException] = []
        with Service(calling(("tu_1", "double", {"n": 21}))) as service, client_of(service) as client:

            def work() -> None:
                try:
                    session = client.open(tools=[broca.tool(name="double")(lambda n: 2 * n)])
                    for _ in range(10):
                        assert session.ask("go").text == "42"
                    session.close()
                except BaseException as error:
                    failures.append(error)

            together(8, work)
        assert not failures

    def test_threads_that_iterate_one_turn_are_told_what_is_wrong(self) -> None:
        cancelled = threading.Event()
        ended: list[type[BaseException]] = []
        with Service(watched(endless(cancelled)), features=("cancel",)) as service, client_of(service) as client:
            turn = client.open().send("endless")

            def work() -> None:
                try:
                    list(turn)
                except BaseException as error:
                    ended.append(type(error))

            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            while len(turn._operation.driver._gates) < 2:
                time.sleep(0.001)
            turn.request_cancel()
            for thread in threads:
                thread.join(30)
        # One learns how the turn ended; the others had no business in it, unless it was over before they looked.
        assert ended.count(errors.CancelledError) == 1
        assert set(ended) <= {errors.CancelledError, errors.UsageError}

    def test_worker_threads_in_one_session(self) -> None:
        """One leads and the others follow, whoever is done first."""
        failures: list[BaseException] = []
        with Service(calling(("tu_1", "double", {"n": 21}))) as service, client_of(service) as client:
            session = client.open(tools=[broca.tool(name="double")(lambda n: 2 * n)])

            def work() -> None:
                try:
                    for n in range(10):
                        assert session.ask("go").text == "42"
                        if n % 3 == 0:
                            assert session.participants() == ["key_1"]
                except BaseException as error:
                    failures.append(error)

            together(4, work)
        assert not failures

    def test_a_leader_that_has_what_it_came_for_hands_over(self) -> None:
        cancelled = threading.Event()
        with Service(endless(cancelled), features=("cancel",)) as service, client_of(service) as client:
            session = client.open()
            turn = session.send("endless")
            with led_by(turn):
                # Whoever leads now, both get what they came for.
                for _ in range(20):
                    assert session.participants() == ["key_1"]
                turn.request_cancel()


def test_panic_is_error() -> None:
    with Service() as service, client_of(service) as client:
        session = client.open()
        panic = getattr(session._driver.engine, "test_panic", None)
        if panic is None:
            pytest.skip("the native module was built without the feature testing")
        with pytest.raises(errors.PanicError) as caught:
            panic()
        assert isinstance(caught.value, Exception) and caught.value.code == -901
        with pytest.raises(errors.PanicError):
            session.ask("hello")
        assert client.open().ask("hello").text == "hello"


@pytest.mark.skipif(sys.platform != "linux", reason="counts what Linux tells")
@pytest.mark.timeout(600)
def test_sessions_flat() -> None:
    """Idle sessions cost a connection and some memory: no thread, and nothing to wait with."""
    done = program(
        """
        import os, resource, subprocess, sys, threading
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        import broca

        serving = '''
        import sys, resource
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        from async_service import Service
        with Service() as service:
            print(service.url, flush=True)
            sys.stdin.read()
        '''
        import textwrap
        server = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(serving)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        url = server.stdout.readline().strip()

        def memory():
            with open("/proc/self/statm") as statm:
                return int(statm.read().split()[1]) * resource.getpagesize()

        def descriptors():
            return len(os.listdir("/proc/self/fd"))

        client = broca.Client(url, "key", environment={})

        def one():
            session = client.open(tools=[broca.Tool.raw("t", "", {"type": "object"}, lambda *_: "")])
            session.ask("hello")
            return session

        warm = [one() for _ in range(20)]
        wanted = int(sys.argv[1])
        before = (memory(), threading.active_count(), descriptors())
        sessions = [one() for _ in range(wanted)]
        after = (memory(), threading.active_count(), descriptors())
        again = sum(session.ask("hello").text == "hello" for session in sessions[:: max(1, wanted // 50)])
        print((after[0] - before[0]) // wanted, after[1] - before[1], after[2] - before[2], again)
        client.close()
        server.stdin.close()
        server.wait()
        """,
        str(SESSIONS),
        timeout=600,
    )
    assert (done.returncode, done.stderr) == (0, "")
    memory, threads, descriptors, again = (int(word) for word in done.stdout.split())
    assert threads == 0
    assert descriptors <= SESSIONS + 8
    assert memory < 60 * 1024, f"{memory} bytes for each session"
    assert again >= 50


class _Alarm(BaseException):
    """Comes at any point, as a KeyboardInterrupt does."""


class _Alarms:
    """Raises `_Alarm` in the main thread after a random time, by a signal of another thread."""

    def __enter__(self) -> _Alarms:
        self._chance = random.Random(11)
        self._armed = False
        self._ask, self._set = threading.Semaphore(0), threading.Event()
        self._over = False
        self._old = signal.signal(signal.SIGUSR1, self._ring)
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._ask.release()
        self._thread.join(10)
        signal.signal(signal.SIGUSR1, self._old)

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        self._set.clear()
        self._armed = True
        self._ask.release()
        try:
            yield
        finally:
            self._armed = False
        self._set.wait(10)

    def _ring(self, *_: object) -> None:
        if self._armed:
            self._armed = False
            raise _Alarm

    def _work(self) -> None:
        while self._ask.acquire() and not self._over:
            time.sleep(self._chance.uniform(0.0, 0.004))
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            self._set.set()


def watched(script: Script) -> Script:
    """As this script, with subscriptions in which nothing happens."""

    async def silence(answer: Answer) -> None:
        answer.lines("")
        while not answer.writer.is_closing():
            await answer.sent()
            await asyncio.sleep(0.01)

    return lambda asked, answer: silence(answer) if asked.method == "session.subscribe" else script(asked, answer)


@contextlib.contextmanager
def led_by(turn: broca.Turn) -> Iterator[None]:
    """Another thread iterates the turn until it is cancelled."""
    ended: list[type[BaseException]] = []

    def lead() -> None:
        try:
            list(turn)
        except BaseException as error:
            ended.append(type(error))

    thread = threading.Thread(target=lead)
    thread.start()
    while not turn._operation.driver._leading:
        time.sleep(0.001)
    yield
    thread.join(30)
    assert ended == [errors.CancelledError]


def together(count: int, work: Any) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
