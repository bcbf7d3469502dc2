"""Tools that run where their turn is read."""

from __future__ import annotations

import contextvars
import signal
import threading
import time
from typing import Any

import pytest
from async_service import Answer, Asked, Service, calling
from conftest import Run

import broca
from broca import errors


def client_of(service: Service, **options: Any) -> broca.Client:
    return broca.Client(service.url, "key", environment={}, **options)


def calling_once(*calls: tuple[str, str, Any]) -> Any:
    """As `calling` for the message "go"; every other is repeated."""
    called = calling(*calls)

    def script(asked: Asked, answer: Answer) -> None:
        if asked.results or asked.text == "go":
            called(asked, answer)
        elif asked.method == "session.sendMessage":
            answer.says(asked.text)

    return script


def outcomes(steps: list[Any]) -> dict[str, str]:
    return {step.tool_use_id: step.outcome for step in steps if isinstance(step, broca.ToolSettled)}


def test_it_runs_on_the_thread_that_reads_when_the_steps_before_it_were_handed_out() -> None:
    seen: list[Any] = []
    who = contextvars.ContextVar("who", default="nobody")

    @broca.tool(inline=True)
    def here(n: int) -> str:
        seen.append(("tool", n, threading.get_ident(), who.get()))
        return str(n)

    script = calling(("tu_1", "here", {"n": 1}), ("tu_2", "here", {"n": 2}))
    with Service(script) as service, client_of(service) as client:
        session = client.open(tools=[here])
        who.set("somebody")
        with session.send("go") as turn:
            who.set("somebody else")
            for step in turn:
                if isinstance(step, (broca.ToolCall, broca.ToolSettled)):
                    seen.append((type(step).__name__, step.tool_use_id))
        me = threading.get_ident()
        assert seen == [
            ("ToolCall", "tu_1"),
            ("ToolCall", "tu_2"),
            ("tool", 1, me, "somebody"),
            ("tool", 2, me, "somebody"),
            ("ToolSettled", "tu_1"),
            ("ToolSettled", "tu_2"),
        ]
        assert session.ask("again").text == "1 2"


def test_tools_on_threads_run_beside_it() -> None:
    together = threading.Barrier(2)

    @broca.tool(inline=True)
    def here() -> str:
        together.wait(20)
        return "here"

    @broca.tool
    def there() -> str:
        together.wait(20)
        return "there"

    script = calling(("tu_1", "here", {}), ("tu_2", "there", {}))
    with Service(script) as service, client_of(service) as client:
        assert client.open(tools=[here, there]).ask("go").text == "here there"


def test_what_it_raises_and_arguments_that_do_not_fit_are_results() -> None:
    @broca.tool(inline=True)
    def here(n: int) -> str:
        raise ValueError("not today")

    script = calling(("tu_1", "here", {"n": 1}), ("tu_2", "here", {"n": "x"}))
    with Service(script) as service, client_of(service) as client:
        text = client.open(tools=[here]).ask("go").text
        assert text.startswith("ValueError: not today ") and "`n`" in text


def test_one_that_takes_longer_than_its_time_is_timed_out_when_it_returns() -> None:
    told: list[bool] = []

    @broca.tool(inline=True, timeout=0.02)
    def slow(context: broca.ToolContext) -> str:
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            time.sleep(0.01)
        told.append(bool(context.cancelled))
        return "too late"

    with Service(calling(("tu_1", "slow", {}))) as service, client_of(service) as client:
        with client.open(tools=[slow]).send("go") as turn:
            steps = list(turn)
        assert outcomes(steps) == {"tu_1": "timed_out_may_have_run"}
        assert "too late" not in steps[-1].reply.text
        # Nobody moved the session meanwhile, so nobody could say so.
        assert told == [False]


def test_another_thread_that_cancels_is_heard_and_moves_the_session() -> None:
    begun = threading.Event()
    ran: list[str] = []

    @broca.tool(inline=True)
    def wait(context: broca.ToolContext) -> str:
        ran.append(context.tool_use_id)
        begun.set()
        assert context.cancelled.wait(20)
        return "stopped"

    for way in ("cancel", "request_cancel", "session"):
        script = calling_once(("tu_1", "wait", {}), ("tu_2", "wait", {}))
        with Service(script, features=("cancel",)) as service, client_of(service) as client:
            session = client.open(tools=[wait])
            with session.send("go") as turn:
                cancel = session.cancel if way == "session" else getattr(turn, way)

                def other(cancel: Any = cancel) -> None:
                    assert begun.wait(20)
                    cancel()

                thread = threading.Thread(target=other)
                thread.start()
                with pytest.raises(errors.CancelledError):
                    list(turn)
                thread.join(20)
                assert not thread.is_alive()
            # The second was never started.
            assert ran == ["tu_1"]
            assert session.ask("hello").text == "hello"
        begun.clear()
        ran.clear()


def test_one_that_does_not_listen_is_abandoned_by_the_thread_that_cancels() -> None:
    begun, end, cancelled = threading.Event(), threading.Event(), threading.Event()

    @broca.tool(inline=True)
    def deaf() -> str:
        begun.set()
        assert end.wait(20)
        return "done after all"

    script = calling(("tu_1", "deaf", {}))
    with Service(script, features=("cancel",)) as service, client_of(service, cancel_grace_ms=20) as client:
        session = client.open(tools=[deaf])

        def other() -> None:
            assert begun.wait(20)
            session.cancel()
            cancelled.set()
            end.set()

        thread = threading.Thread(target=other)
        thread.start()
        with pytest.raises(errors.CancelledError):
            session.ask("go")
        thread.join(20)
        assert cancelled.is_set()


def test_a_turn_left_before_it_was_started_does_not_start_it() -> None:
    ran: list[int] = []

    @broca.tool(inline=True)
    def here() -> str:
        ran.append(1)
        return "ran"

    for way in ("leave", "cancel", "session"):
        script = calling_once(("tu_1", "here", {}))
        with Service(script, features=("cancel",)) as service, client_of(service) as client:
            session = client.open(tools=[here])
            with session.send("go") as turn:
                for step in turn:
                    if isinstance(step, broca.ToolCall):
                        break
                if way == "cancel":
                    turn.cancel()
                elif way == "session":
                    session.cancel()
            assert session.ask("hello").text == "hello"
            assert ran == []


def test_an_interrupt_ends_it_and_the_turn() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:

        @broca.tool(inline=True)
        def interrupted() -> str:
            signal.raise_signal(signal.SIGINT)
            return "went on"

        script = calling_once(("tu_1", "interrupted", {}))
        with Service(script, features=("cancel",)) as service, client_of(service) as client:
            session = client.open(tools=[interrupted])
            with pytest.raises(KeyboardInterrupt):
                session.ask("go")
            assert session.ask("hello").text == "hello"
            # One who goes on all the same has its result, once.
            turn = session.send("go")
            with pytest.raises(KeyboardInterrupt):
                list(turn)
            assert turn.reply().text == "The tool was interrupted before its end."
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_exit_goes_to_whoever_reads() -> None:
    @broca.tool(inline=True)
    def leave() -> str:
        raise SystemExit(3)

    with Service(calling(("tu_1", "leave", {}))) as service, client_of(service) as client:
        session = client.open(tools=[leave])
        with pytest.raises(SystemExit):
            session.ask("go")


def test_it_may_use_its_session_but_neither_read_its_turn_nor_start_another() -> None:
    raised: list[BaseException] = []

    @broca.tool(inline=True)
    def nosy() -> str:
        for call in (lambda: next(turn), lambda: session.ask("inside")):
            try:
                call()
            except errors.UsageError as error:
                raised.append(error)
        return ",".join(session.participants())

    with Service(calling(("tu_1", "nosy", {}))) as service, client_of(service) as client:
        session = client.open(tools=[nosy])
        with session.send("go") as turn:
            steps = list(turn)
        assert [type(error) for error in raised] == [errors.UsageError] * 2
        assert "inline" in str(raised[0])
        assert isinstance(steps[-1], broca.Done)


def test_on_a_loop_it_runs_on_the_loops_thread(run: Run) -> None:
    @broca.tool(inline=True)
    def here(n: int) -> str:
        return str(threading.get_ident() == me and n)

    me = 0

    async def main(service: Service) -> str:
        nonlocal me
        me = threading.get_ident()
        async with broca.AsyncClient(service.url, "k", environment={}) as client:
            session = await client.open(tools=[here])
            return (await session.ask("go")).text

    with Service(calling(("tu_1", "here", {"n": 7}), ("tu_2", "here", {"n": 8}))) as service:
        assert run(main(service)) == "7 8"


def test_an_async_function_is_not_inline() -> None:
    async def wait() -> str:
        return ""

    async def wait_raw(arguments: Any, context: broca.ToolContext) -> str:
        return ""

    with pytest.raises(broca.InvalidArgumentError, match="plain functions"):
        broca.tool(inline=True)(wait)
    with pytest.raises(broca.InvalidArgumentError, match="plain functions"):
        broca.Tool.raw("wait", "", {"type": "object"}, wait_raw, inline=True)
