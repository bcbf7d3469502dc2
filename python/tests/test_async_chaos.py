"""What goes wrong in programs and hosts, played on the asynchronous client."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Coroutine
from typing import Any, Callable

import pytest
from async_service import Answer, Asked, Service, calling, endless

import broca
from broca import _broca, errors
from broca._async_shell import Shell
from broca._options import Options

Run = Callable[[Coroutine[Any, Any, None]], None]

HAS_FAULTS = hasattr(_broca.Engine, "test_panic")
needs_faults = pytest.mark.skipif(not HAS_FAULTS, reason="the native module was built without the feature testing")


def program(source: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts a program of its own that uses the package, with every warning shown."""
    text = "import asyncio, gc, os, sys, threading, time\nimport broca\n" + textwrap.dedent(source)
    return subprocess.Popen(
        [sys.executable, "-c", text, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(started: subprocess.Popen[str], seconds: float = 30) -> tuple[int, str, str]:
    try:
        out, err = started.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        started.kill()
        out, err = started.communicate()
        pytest.fail(f"the program did not end: {out} {err}")
    return started.returncode, out, err


def stuck(cancelled: threading.Event) -> Callable[[Asked, Answer], Any]:
    """A script of turns that stay open, with calls of tools if the message names them."""
    stays = endless(cancelled)

    def script(asked: Asked, answer: Answer) -> Any:
        if asked.text == "tools":
            answer.calls(("c1", "on_thread", {}), ("c2", "on_loop", {}))
            return None
        return stays(asked, answer)

    return script


INFLIGHT = """
    @broca.tool
    def on_thread() -> str:
        time.sleep(60)
        return ""

    @broca.tool
    async def on_loop() -> str:
        await asyncio.sleep(60)
        return ""

    kept = []

    async def main():
        client = broca.AsyncClient(sys.argv[1], "k")
        session = await client.open(tools=[on_thread, on_loop])
        watching = session.subscribe()
        turns = [session.send("tools"), session.send("endless")]
        async for step in turns[0]:
            if isinstance(step, broca.ToolCall) and step.name == "on_loop":
                break
        await asyncio.sleep(0.1)
        HOW
"""


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("return", 0),
        ("kept.extend([client, session, watching, *turns])", 0),
        ("sys.exit(3)", 3),
        ("threading.Thread(target=on_thread, daemon=True).start(); await client.close()", 0),
        ("asyncio.ensure_future(turns[1].reply()); await asyncio.sleep(0.1)", 0),
    ],
)
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_exit_with_inflight(how: str, code: int, loop: str) -> None:
    """Silent, and long before the tools are through."""
    pytest.importorskip(loop)
    with Service(stuck(threading.Event())) as service:
        source = INFLIGHT.replace("HOW", how) + f"\n    import {loop}\n    {loop}.run(main())\n"
        assert outcome(program(source, service.url)) == (code, "", "")


FORK = """
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    answers = []

    async def child(client, session, turn, step, watching):
        uses = [client.open, client.meta, client.close, lambda: session.ask("x"), session.history, session.close,
                session.leave, lambda: session.update_tools([]), turn.__anext__, turn.reply, turn.cancel, turn.next,
                watching.__anext__, watching.close, session.cancel]
        for use in uses:
            try:
                await use()
            except broca.errors.ForkedError:
                continue
            return 1
        for use in [lambda: session.send("x"), session.subscribe, lambda: step.complete("x"), turn.request_cancel]:
            try:
                use()
            except broca.errors.ForkedError:
                continue
            return 2
        del client, session, turn, step, watching
        gc.collect()
        async with broca.AsyncClient(sys.argv[1], "k") as own:
            session = await own.open()
            if (await session.ask("hello")).text != "hello":
                return 3
        return 0

    async def main():
        async with broca.AsyncClient(sys.argv[1], "k") as client:
            session = await client.open(tools=[broca.Tool.manual("ask_me", "", {"type": "object"})])
            watching = session.subscribe()
            turn = session.send("manual")
            async for step in turn:
                if isinstance(step, broca.ToolCall):
                    break
            parts = [client, session, turn, step, watching]
            pid = os.fork()
            if pid == 0:
                code = 9
                try:
                    code = await_in_thread(parts)
                finally:
                    sys.stderr.flush()
                    os._exit(code)
            _, status = os.waitpid(pid, 0)
            print("child", os.waitstatus_to_exitcode(status))
            step.complete("of the parent")
            reply = await turn.reply()
            print(reply.text, (await session.ask("hello")).text)

    def await_in_thread(parts):
        # The loop that was running belongs to the parent; the child makes its own.
        asyncio._set_running_loop(None)
        found = []
        thread = threading.Thread(target=lambda: found.append(asyncio.run(child(*parts))))
        thread.start()
        thread.join()
        parts.clear()
        return found[0]

    asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_fork_then_use() -> None:
    def script(asked: Asked, answer: Answer) -> None:
        if asked.text == "manual":
            answer.calls(("c1", "ask_me", {}))
        elif asked.results:
            answer.says(asked.results[0]["content"])

    with Service(script) as service:
        code, out, err = outcome(program(FORK, service.url))
        assert (code, out, err) == (0, "child 0\nof the parent hello\n", "")


def test_sigint_during_wait() -> None:
    source = """
        async def main():
            async with broca.AsyncClient(sys.argv[1], "k") as client:
                session = await client.open()
                async with session.send("endless") as turn:
                    async for step in turn:
                        if isinstance(step, broca.Event):
                            print("waiting", flush=True)

        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    cancelled = threading.Event()
    with Service(endless(cancelled), features=("cancel",)) as service:
        started = program(source, service.url)
        assert started.stdout is not None and started.stdout.readline() == "waiting\n"
        started.send_signal(signal.SIGINT)
        assert outcome(started) == (0, "interrupted\n", "")
        assert cancelled.is_set()


def test_callback_throws(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    def on_received(received: broca.Received) -> None:
        raise RuntimeError("of the handler")

    def on_approval(approval: broca.Approval) -> bool:
        raise KeyError("of the handler")

    @broca.tool(approval=True)
    def careful() -> str:
        return "ran"

    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open(tools=[careful], on_received=on_received, on_approval=on_approval)
            assert "KeyError" in (await session.ask("go")).text

    with Service(calling(("c1", "careful", {}))) as service:
        run(main())
    assert "the on_received handler failed" in caplog.text and "the on_approval handler failed" in caplog.text


def test_callback_reenters(run: Run) -> None:
    sessions: list[broca.AsyncSession] = []

    @broca.tool
    async def asks_another() -> str:
        return (await sessions[1].ask("hello")).text + " from another"

    @broca.tool
    async def reads_its_own() -> str:
        return str(len(await sessions[0].participants()))

    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            sessions.append(await client.open(tools=[asks_another, reads_its_own]))
            sessions.append(await client.open())
            assert (await sessions[0].ask("go")).text == "hello from another 1"

    def script(asked: Asked, answer: Answer) -> None:
        if asked.text == "go":
            answer.calls(("c1", "asks_another", {}), ("c2", "reads_its_own", {}))
        elif asked.results:
            answer.says(" ".join(block["content"] for block in asked.results))

    with Service(script) as service:
        run(main())


def test_a_turn_that_is_asked_for_inside_a_tool_of_its_session_waits_for_the_tool(run: Run) -> None:
    """Turns of one session run one after the other, so the tool has to let go before its turn's time is over."""
    sessions: list[broca.AsyncSession] = []

    @broca.tool(timeout=0.3)
    async def asks_its_own() -> str:
        return (await sessions[0].ask("hello")).text

    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            sessions.append(await client.open(tools=[asks_its_own]))
            assert "time" in (await sessions[0].ask("go")).text
            assert (await sessions[0].ask("hello")).text == "hello"

    def script(asked: Asked, answer: Answer) -> None:
        if asked.text == "go":
            answer.calls(("c1", "asks_its_own", {}))
        elif asked.results:
            answer.says(asked.results[0]["content"])

    with Service(script) as service:
        run(main())


def test_cancel_twice(run: Run) -> None:
    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open()
            turn = session.send("endless")
            await asyncio.gather(turn.cancel(), turn.cancel())
            await turn.cancel()
            turn.request_cancel()
            async for _ in turn:
                pytest.fail("a cancelled turn has no more steps")
            done = session.send("hello")
            await done.reply()
            await done.cancel()
            await session.cancel()
            await client.close()
            await client.close()

    with Service(endless(threading.Event()), features=("cancel",)) as service:
        run(main())


def test_late_completion_after_close(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    begun, go, over = threading.Event(), threading.Event(), threading.Event()

    @broca.tool
    def late() -> str:
        begun.set()
        go.wait(30)
        threading.Timer(0.05, over.set).start()
        return "late"

    async def main() -> None:
        client = broca.AsyncClient(service.url, "k", cancel_grace_ms=50)
        session = await client.open(tools=[late])
        task = asyncio.ensure_future(session.ask("go"))
        await asyncio.get_running_loop().run_in_executor(None, begun.wait, 30)
        await client.close()
        with pytest.raises(errors.BrocaError):
            await task
        go.set()
        await asyncio.get_running_loop().run_in_executor(None, over.wait, 30)
        with pytest.raises(errors.ClosedError):
            await session.ask("hello")

    with Service(calling(("c1", "late", {}))) as service:
        run(main())
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_loop_closed_early() -> None:
    begun, go, over = threading.Event(), threading.Event(), threading.Event()
    kept: list[Any] = []

    @broca.tool
    def late() -> str:
        begun.set()
        go.wait(30)
        threading.Timer(0.05, over.set).start()
        return "late"

    async def main() -> None:
        client = broca.AsyncClient(service.url, "k")
        session = await client.open(tools=[late])
        turn = session.send("go")
        task = asyncio.ensure_future(turn.reply())
        await asyncio.get_running_loop().run_in_executor(None, begun.wait, 30)
        kept.extend([client, session, turn, task])

    async def again() -> None:
        client, session, turn, _ = kept
        with pytest.raises(errors.UsageError, match="another event loop"):
            await client.open()
        with pytest.raises(errors.UsageError, match="another event loop"):
            await session.ask("hello")
        with pytest.raises(errors.UsageError, match="another event loop"):
            await client.close()
        turn.request_cancel()

    with Service(calling(("c1", "late", {}))) as service:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        task = kept[3]
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.close()
        go.set()
        assert over.wait(30)
        asyncio.run(again())
        kept.clear()
        del task, loop
        with warnings.catch_warnings():
            # Sockets whose loop was closed under them are asyncio's to complain about.
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


def test_two_loops(run: Run) -> None:
    clients: list[broca.AsyncClient] = []

    async def first() -> None:
        clients.append(broca.AsyncClient(service.url, "k"))
        await (await clients[0].open()).ask("hello")
        await clients[0].close()

    async def second() -> None:
        with pytest.raises(errors.UsageError, match="another event loop"):
            await clients[0].open()
        async with broca.AsyncClient(service.url, "k") as client:
            assert (await (await client.open()).ask("hello")).text == "hello"

    def on_a_thread(texts: list[str]) -> None:
        async def many() -> None:
            async with broca.AsyncClient(service.url, "k") as client:
                session = await client.open()
                for _ in range(50):
                    texts.append((await session.ask("hello")).text)

        run(many())

    with Service() as service:
        run(first())
        run(second())
        heard: list[list[str]] = [[], []]
        threads = [threading.Thread(target=on_a_thread, args=(texts,)) for texts in heard]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert heard == [["hello"] * 50] * 2


def test_clients_are_closed_by_any_task_and_in_any_order(run: Run) -> None:
    """What was entered in one task may be left in another, and whoever came first may go first."""
    entered: list[tuple[broca.AsyncClient, broca.AsyncTurn]] = []

    async def enter() -> None:
        client = await broca.AsyncClient(service.url, "k").__aenter__()
        turn = await (await client.open()).send("endless").__aenter__()
        while not isinstance(await turn.__anext__(), broca.Event):
            pass
        entered.append((client, turn))

    async def leave(client: broca.AsyncClient, turn: broca.AsyncTurn) -> None:
        await turn.__aexit__(None, None, None)
        await client.__aexit__(None, None, None)

    async def main() -> None:
        for _ in range(3):
            await asyncio.ensure_future(enter())
        for client, turn in entered:
            await asyncio.ensure_future(leave(client, turn))
            with pytest.raises(errors.ClosedError):
                await client.open()
        entered.clear()

    cancelled = threading.Event()
    with Service(endless(cancelled), features=("cancel",)) as service:
        run(main())


def test_no_loop() -> None:
    client = broca.AsyncClient("http://127.0.0.1:1", "k")
    opening = client.open()
    with pytest.raises(errors.UsageError, match=r"asyncio\.run"):
        opening.send(None)


def test_answers_from_other_threads_wake_the_loop_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    manual = broca.Tool.manual("ask_me", "", {"type": "object"})
    wakes: list[object] = []
    waking = Shell._on_loop

    def counted(shell: Shell, call: Callable[..., None], *words: Any) -> None:
        wakes.append(call)
        waking(shell, call, *words)

    async def main() -> None:
        async with broca.AsyncClient(service.url, "k", concurrent_tools=20) as client:
            session = await client.open(tools=[manual])
            calls: list[broca.ToolCall] = []
            async with session.send("go") as turn:
                async for step in turn:
                    if isinstance(step, broca.ToolCall):
                        calls.append(step)
                    if len(calls) == 20:
                        # The loop does not run while this thread answers.
                        monkeypatch.setattr(Shell, "_on_loop", counted)
                        thread = threading.Thread(target=lambda: [call.complete("x") for call in calls])
                        thread.start()
                        thread.join()
                        monkeypatch.undo()
                        assert len(wakes) == 1
                        break
                wakes.clear()

    with Service(calling(*((f"c{n}", "ask_me", {}) for n in range(20)))) as service:
        run(main())


@needs_faults
def test_panic_is_error(run: Run) -> None:
    engine = _broca.Engine(Options("http://h", "k", {}).engine_json(), 1, 1)
    with pytest.raises(errors.PanicError, match="a test asked for it") as caught:
        engine.test_panic()  # type: ignore[attr-defined]
    assert isinstance(caught.value, Exception)
    with pytest.raises(errors.PanicError):
        engine.effects()
    whole = _broca.Engine(Options("http://h", "k", {}).engine_json(), 1, 1)
    with pytest.raises(errors.PanicError):
        whole.test_panic_outside()  # type: ignore[attr-defined]
    for code, _, name, _, _ in _broca.error_table():
        with pytest.raises(getattr(errors, name)) as thrown:
            whole.test_throw(code)  # type: ignore[attr-defined]
        assert thrown.value.code == code and thrown.value.details == {"test": "details"}


@needs_faults
def test_a_panic_under_way_ends_one_session_and_no_other(run: Run) -> None:
    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session, other = await client.open(), await client.open()
            task = asyncio.ensure_future(session.ask("endless"))
            await asyncio.sleep(0.1)
            with pytest.raises(errors.PanicError):
                session._attached.shell.engine.test_panic()  # type: ignore[attr-defined]
            with pytest.raises((errors.PanicError, errors.ClosedError)):
                await asyncio.wait_for(task, 10)
            with pytest.raises((errors.PanicError, errors.ClosedError)):
                await session.ask("hello")
            assert (await other.ask("hello")).text == "hello"

    with Service(endless(threading.Event())) as service:
        run(main())


def _resident_kb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is read from /proc")
def test_ten_thousand_sessions() -> None:
    """One after the other and some at once: nothing of them stays. BROCA_TEST_SESSIONS says how many."""
    count = int(os.environ.get("BROCA_TEST_SESSIONS", "2000"))

    @broca.tool
    def add(a: int, b: int) -> int:
        return a + b

    async def one(client: broca.AsyncClient, n: int) -> None:
        session = await client.open(tools=[add])
        async with session.send("go") as turn:
            async for step in turn:
                # Some are left early, some are dropped, some are closed.
                if n % 3 == 0 and isinstance(step, broca.ToolCall):
                    break
        if n % 2:
            await session.close()
        if n % 5 == 0:
            await session.leave()

    async def many(client: broca.AsyncClient, total: int) -> None:
        for start in range(0, total, 20):
            await asyncio.gather(*(one(client, start + n) for n in range(20)))

    async def settled() -> tuple[float, int, int]:
        for _ in range(20):
            gc.collect()
            await asyncio.sleep(0.05)
        return _resident_kb(), threading.active_count(), len(os.listdir("/proc/self/fd"))

    async def main() -> None:
        async with broca.AsyncClient(service.url, "k", cancel_grace_ms=20) as client:
            await many(client, 400)
            before = await settled()
            await many(client, count)
            after = await settled()
            assert after[0] - before[0] < 1.0 * count
            assert after[1] <= before[1] + 32 and after[2] <= before[2] + 8
            assert len(client._shells) <= 4

    with Service(calling(("c1", "add", {"a": 1, "b": 2}))) as service:
        service.asked = _Forgets()
        asyncio.run(main())


class _Forgets(list[Any]):
    def append(self, item: Any) -> None:
        """The memory of the service is not what is measured."""
