"""Sessions, turns, tools, hooks and subscriptions of the asynchronous client."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Callable

import pytest
from async_service import Answer, Asked, Service, calling, endless

import broca
from broca import errors
from broca.testing import Server

Run = Callable[[Coroutine[Any, Any, None]], None]

ASKS = {"type": "object", "properties": {"path": {"type": "string"}}}


@broca.tool
async def read_file(path: str) -> str:
    """Return the text of a file."""
    return f"the text of {path}"


@broca.tool
def count_lines(path: str) -> int:
    """Count the lines of a file."""
    return len(path)


def test_a_turn_with_a_tool_against_the_service(server: Server, run: Run) -> None:
    async def main() -> None:
        async with broca.AsyncClient(server.url, server.key) as client:
            session = await client.open(tools=[read_file, count_lines])
            assert session.id.startswith("ses_") and session.profile["name"] and "display" in session.features
            assert session.meta["version"] == broca.__version__
            kinds: list[str] = []
            async with session.send('What does read_file say about "main.py"?') as turn:
                async for step in turn:
                    kinds.append(type(step).__name__)
                    if isinstance(step, broca.Done):
                        assert "the text of main.py" in step.reply.text
            for kind in ("Status", "Event", "TextDelta", "ToolInputDelta", "ToolCall", "ToolSettled"):
                assert kind in kinds
            assert kinds[-1] == "Done"

            reply = await session.ask('What does count_lines say about "main.py"?')
            assert "7" in reply.text and reply.rounds == 2 and reply.usage is not None
            assert {event.session_id for event in reply.events} == {session.id}
            assert reply.message["role"] == "assistant" and str(reply) == reply.text
            await session.close()

    run(main())


def test_the_log_is_read_by_page_and_as_a_whole(server: Server, run: Run) -> None:
    async def main() -> None:
        async with broca.AsyncClient(server.url, server.key) as client:
            session = await client.open()
            await session.ask("hello")
            page = await session.history(limit=2)
            assert len(page.events) == 2 and page.next is not None
            second = await session.history(page.next, 2)
            everything = [event async for event in session.events(page_size=3)]
            assert everything[:4] == page.events + second.events
            assert everything[0].type == "session.open"
            assert await session.participants()
            assert (await client.meta())["api_versions"] == ["v1"]

    run(main())


def test_an_observer_sees_the_log_from_a_stored_cursor_to_its_end(server: Server, run: Run) -> None:
    async def main() -> None:
        async with (
            broca.AsyncClient(server.url, server.key) as client,
            broca.AsyncClient(server.url, server.key) as other,
        ):
            session = await client.open()
            await session.ask("one")
            watching = await other.observe(session.id)
            seen: list[broca.Event] = []
            subscription = watching.subscribe(broca.Cursor.START)
            async for step in subscription:
                if isinstance(step, broca.Event):
                    seen.append(step)
                    assert subscription.cursor == broca.Cursor(step.id)
                if len(seen) == 3:
                    break
            cursor = subscription.cursor
            await subscription.close()
            await session.ask("two")
            await session.close()
            async for step in watching.subscribe(cursor):
                if isinstance(step, broca.Event):
                    seen.append(step)
            assert seen[-1].type == "session.close"
            assert seen == [event async for event in watching.events()]

    run(main())


def test_a_subscription_survives_its_connections(binary: str, run: Run) -> None:
    async def main() -> None:
        with Server(binary=binary) as server:
            async with broca.AsyncClient(server.url, server.key, reconnect_first_delay_ms=10) as client:
                session = await client.open()
                watching = await client.observe(session.id)
                seen: list[str] = []
                reconnected = 0

                async def watch() -> None:
                    nonlocal reconnected
                    async for step in watching.subscribe(broca.Cursor.START):
                        if isinstance(step, broca.Event):
                            seen.append(step.id)
                        elif isinstance(step, broca.Status) and step.state == "reconnecting":
                            reconnected += 1

                server.cut(after_lines=3, count=4, request="session.subscribe")
                task = asyncio.ensure_future(watch())
                for n in range(5):
                    await session.ask(f"message {n}")
                await session.close()
                await asyncio.wait_for(task, 60)
                assert reconnected >= 4
                assert seen == [event.id async for event in watching.events()]

    run(main())


def test_tools_run_beside_each_other_and_see_the_context_of_send(run: Run) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    together = threading.Barrier(2, timeout=10)
    loops: list[object] = []

    @broca.tool
    async def on_loop() -> str:
        loops.append(asyncio.get_running_loop())
        await asyncio.get_running_loop().run_in_executor(None, together.wait)
        return variable.get()

    @broca.tool
    def on_thread(context: broca.ToolContext) -> str:
        together.wait()
        variable.set("changed here alone")
        return f"{context.tool_use_id} {threading.current_thread().name}"

    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open(tools=[on_loop, on_thread])
            variable.set("of the turn")
            turn = session.send("go")
            variable.set("later")
            assert (await turn.reply()).text == "of the turn call_2 broca-tool"
            assert loops == [asyncio.get_running_loop()] and variable.get() == "later"

    with Service(calling(("call_1", "on_loop", {}), ("call_2", "on_thread", {}))) as service:
        run(main())


def test_whatever_a_tool_does_the_model_gets_one_result(run: Run) -> None:
    @broca.tool
    async def fails() -> str:
        raise KeyError("missing")

    @broca.tool
    def fails_too() -> str:
        raise ValueError("bad")

    @broca.tool
    def structured() -> dict[str, int]:
        return {"a": 1}

    @broca.tool
    async def cancels_itself() -> str:
        raise asyncio.CancelledError

    @broca.tool
    def exits() -> str:
        raise SystemExit(3)

    tools: list[broca.Tool[..., Any]] = [fails, fails_too, structured, cancels_itself, exits]
    names = ["fails", "fails_too", "structured", "cancels_itself", "exits", "unknown"]

    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open(tools=tools)
            assert (await session.ask("go")).text == "done"

    def script(asked: Asked, answer: Answer) -> None:
        if asked.method == "session.sendMessage":
            if asked.results:
                answer.says("done")
            else:
                answer.calls(*((f"c{i}", name, {}) for i, name in enumerate(names)))

    with Service(script) as service:
        run(main())
        results = service.calls("session.sendMessage")[1].results
    assert [block["tool_use_id"] for block in results] == [f"c{i}" for i in range(6)]
    contents = [block["content"] for block in results]
    assert contents[0] == "KeyError: 'missing'" and contents[1] == "ValueError: bad"
    assert contents[2] == '{"a":1}' and "cancelled" in contents[3] and "SystemExit" in contents[4]
    assert [bool(block.get("is_error")) for block in results] == [True, True, False, True, True, True]


def test_a_manual_tool_is_answered_by_the_program_or_fails_when_nobody_looks(run: Run) -> None:
    manual = broca.Tool.manual("ask_me", "Ask me.", ASKS)

    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open(tools=[manual])
            async with session.send("go") as turn:
                async for step in turn:
                    if isinstance(step, broca.ToolCall):
                        assert not step.runs_itself and step.input == {"path": "x"} and step.idempotency_key
                        assert await step.complete({"seen": 1})
                        assert not step.fail("too late")
                    if isinstance(step, broca.Done):
                        assert step.reply.text == '{"seen":1}'
            assert "Nobody is there to run this tool" in (await session.ask("go")).text

    with Service(calling(("c1", "ask_me", {"path": "x"}))) as service:
        run(main())


@pytest.mark.parametrize(
    ("decision", "result"),
    [(True, "ran"), (False, "denied"), ("not today", "not today"), (None, "did not decide"), ("raise", "RuntimeError")],
)
def test_an_approval_handler_decides_where_nobody_looks(run: Run, decision: Any, result: str) -> None:
    @broca.tool(approval=True)
    def careful() -> str:
        return "ran"

    async def decide(approval: broca.Approval) -> Any:
        assert approval.name == "careful"
        if decision == "raise":
            raise RuntimeError("no")
        return decision

    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open(tools=[careful], on_approval=decide)
            assert result in (await session.ask("go")).text
            alone = await client.open(tools=[careful])
            assert "nobody to ask" in (await alone.ask("go")).text
            async with session.send("go") as turn:
                async for step in turn:
                    if isinstance(step, broca.Approval):
                        await step.allow()
                    if isinstance(step, broca.Done):
                        assert step.reply.text == "ran"

    with Service(calling(("c1", "careful", {}))) as service:
        run(main())


def test_hooks_see_and_change_what_leaves_and_comes(run: Run) -> None:
    rounds: list[tuple[str, int]] = []

    async def on_sending(sending: broca.Sending) -> Any:
        rounds.append(("sending", sending.round))
        if sending.message["content"] == "secret":
            raise PermissionError("not out of here")
        return "changed" if sending.round == 0 else None

    def on_received(received: broca.Received) -> None:
        rounds.append(("received", received.round))
        assert received.message["role"] == "assistant"

    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open(tools=[count_lines], on_sending=on_sending, on_received=on_received)
            await session.ask("go")
            with pytest.raises(errors.HookError, match="PermissionError: not out of here"):
                await session.ask("secret")

    with Service(calling(("c1", "count_lines", {"path": "abc"}))) as service:
        run(main())
        assert [asked.text for asked in service.calls("session.sendMessage")] == ["changed", ""]
    assert rounds[:4] == [("sending", 0), ("received", 0), ("sending", 1), ("received", 1)]


def test_sending_and_received_are_steps_when_they_are_asked_for(run: Run) -> None:
    async def main() -> None:
        async with broca.AsyncClient(service.url, "k", hooks=True) as client:
            session = await client.open()
            seen = []
            async with session.send("hello") as turn:
                async for step in turn:
                    seen.append(type(step))
                    if isinstance(step, broca.Sending):
                        step.send("other words", traceparent="00-1-2-01")
            assert broca.Sending in seen and broca.Received in seen
            assert (await session.ask("again")).text == "hello"

    with Service() as service:
        run(main())
        first = service.calls("session.sendMessage")[0]
        assert first.text == "other words" and first.header("traceparent") == "00-1-2-01"


def test_trace_headers_of_the_caller_are_sent(run: Run) -> None:
    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open()
            await session.ask("hello", traceparent="00-a-b-01", tracestate="x=1")

    with Service() as service:
        run(main())
        sent = service.calls("session.sendMessage")[0]
        assert (sent.header("traceparent"), sent.header("tracestate")) == ("00-a-b-01", "x=1")


def test_a_turn_left_early_is_cancelled_and_the_session_goes_on(run: Run) -> None:
    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open()
            async with session.send("endless") as turn:
                async for step in turn:
                    if isinstance(step, broca.Event):
                        break
            assert cancelled.is_set()
            assert (await session.ask("hello")).text == "hello"

    cancelled = threading.Event()
    with Service(endless(cancelled), features=("cancel",)) as service:
        run(main())


def test_a_dropped_turn_warns_and_is_cancelled(run: Run) -> None:
    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open()
            turn = session.send("endless")
            while not isinstance(await turn.__anext__(), broca.Event):
                pass
            with pytest.warns(ResourceWarning, match="dropped before its end"):
                del turn
                gc.collect()
            assert (await session.ask("hello")).text == "hello"
            assert cancelled.is_set()

    cancelled = threading.Event()
    with Service(endless(cancelled), features=("cancel",)) as service:
        run(main())


def test_cancelling_the_task_cancels_its_turn(run: Run) -> None:
    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open()
            task = asyncio.ensure_future(session.ask("endless"))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await session.ask("hello")).text == "hello"
            assert cancelled.is_set()

            cancelled.clear()
            turn = session.send("endless")

            async def read() -> None:
                async for _ in turn:
                    pass

            reading = asyncio.ensure_future(read())
            await asyncio.sleep(0.1)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            with pytest.raises(errors.CancelledError):
                async for _ in turn:
                    pass
            assert cancelled.is_set()

    cancelled = threading.Event()
    with Service(endless(cancelled), features=("cancel",)) as service:
        run(main())


def test_waiting_for_a_step_is_bounded_without_losing_anything(run: Run) -> None:
    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open()
            async with session.send("slow") as turn:
                kinds = []
                timeouts = 0
                while True:
                    try:
                        step = await turn.next(0.02)
                    except TimeoutError:
                        timeouts += 1
                        continue
                    if step is None:
                        break
                    kinds.append(type(step).__name__)
                assert timeouts > 3 and kinds == ["Status", "Event", "Event", "Done"]

    async def script(asked: Asked, answer: Answer) -> None:
        if asked.text == "slow":
            await asyncio.sleep(0.15)
            answer.event("provider.request", {})
            await answer.sent()
            await asyncio.sleep(0.15)
            answer.says("at last")

    with Service(script) as service:
        run(main())


def test_cancelling_a_session_ends_all_its_turns(run: Run) -> None:
    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open()
            tasks = [asyncio.ensure_future(session.ask("endless")) for _ in range(3)]
            await asyncio.sleep(0.1)
            await session.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(outcome, errors.CancelledError)

    cancelled = threading.Event()
    with Service(endless(cancelled), features=("cancel",)) as service:
        run(main())


def test_a_cancelled_tool_is_told_and_its_turn_ends(run: Run) -> None:
    ends: dict[str, str] = {}
    begun = [threading.Event(), threading.Event()]

    @broca.tool
    async def sleeps() -> str:
        begun[0].set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ends["task"] = "cancelled"
            raise
        return "never"

    @broca.tool
    def waits(context: broca.ToolContext) -> str:
        begun[1].set()
        ends["thread"] = "cancelled" if context.cancelled.wait(60) else "not cancelled"
        return "stopped"

    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open(tools=[sleeps, waits])
            outcomes = {}
            turn = session.send("go")
            with pytest.raises(errors.CancelledError):
                async for step in turn:
                    if isinstance(step, broca.ToolCall) and step.tool_use_id == "c2":
                        for event in begun:
                            await asyncio.get_running_loop().run_in_executor(None, event.wait, 10)
                        turn.request_cancel()
                    if isinstance(step, broca.ToolSettled):
                        outcomes[step.tool_use_id] = step.outcome
            assert ends == {"task": "cancelled", "thread": "cancelled"}
            assert outcomes["c1"] == "interrupted_may_have_run"

    with Service(calling(("c1", "sleeps", {}), ("c2", "waits", {}))) as service:
        run(main())


def test_new_tools_count_from_the_next_turn_on(run: Run) -> None:
    @broca.tool
    def other(path: str) -> str:
        return "the other"

    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open(tools=[count_lines])
            with pytest.raises(errors.InvalidArgumentError, match="two tools"):
                await session.update_tools([other, other])
            await session.update_tools([other])
            assert (await session.ask("go")).text == "the other"

    with Service(calling(("c1", "other", {"path": "x"}))) as service:
        run(main())


def test_errors_of_the_service_have_their_classes(server: Server, run: Run) -> None:
    async def main() -> None:
        with pytest.raises(errors.UnauthorizedError) as unauthorized:
            await broca.AsyncClient(server.url, "bae_wrong").open()
        assert unauthorized.value.status == 401 and "bae_wrong" not in str(unauthorized.value)
        async with broca.AsyncClient(server.url, server.key) as client:
            with pytest.raises(errors.ApiError) as missing:
                await client.join("ses_unknown")
            assert missing.value.status == 404
            session = await client.open()
            await session.close()
            with pytest.raises(errors.BrocaError):
                await session.ask("hello")
        with pytest.raises(errors.ConnectError):
            await broca.AsyncClient("http://127.0.0.1:9", "k").open()

    run(main())


def test_a_message_may_be_blocks_or_whole_but_not_anything(run: Run) -> None:
    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open()
            await session.ask([{"type": "text", "text": "one"}])
            await session.ask({"role": "user", "content": "two"})
            for wrong in (7, object(), {"x": 1}):
                with pytest.raises(errors.InvalidArgumentError):
                    session.send(wrong)

    with Service() as service:
        run(main())
        sent = [asked.params["message"]["content"] for asked in service.calls("session.sendMessage")]
        assert sent == [[{"type": "text", "text": "one"}], "two"]


@pytest.mark.parametrize("how", ["for", "next"])
def test_a_reader_gives_others_a_turn_within_a_flood(run: Run, how: str) -> None:
    async def read(turn: broca.AsyncTurn) -> AsyncIterator[broca.Step]:
        if how == "for":
            async for step in turn:
                yield step
        while (last := await turn.next(30)) is not None:
            yield last

    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open()
            turns = steps = longest = since = 0

            async def other() -> None:
                nonlocal turns, since
                while True:
                    turns += 1
                    since = 0
                    await asyncio.sleep(0)

            task = asyncio.ensure_future(other())
            async for _ in read(session.send("flood")):
                steps += 1
                since += 1
                longest = max(longest, since)
            task.cancel()
            assert steps > 20_000 and longest <= 300

    def script(asked: Asked, answer: Answer) -> None:
        if asked.text == "flood":
            for _ in range(20):
                answer.lines(*(service.event_line("provider.response.delta", {"index": n}) for n in range(1_000)))
            answer.says("done")

    with Service(script) as service:
        run(main())


def test_two_readers_of_one_turn_share_its_steps(run: Run) -> None:
    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open()
            turn = session.send("hello")
            seen: list[str] = []

            async def read() -> None:
                async for step in turn:
                    seen.append(type(step).__name__)

            await asyncio.gather(read(), read())
            assert sorted(seen) == ["Done", "Event", "Status"]

    with Service() as service:
        run(main())


def test_a_session_that_is_left_stays_open_for_others(server: Server, run: Run) -> None:
    async def main() -> None:
        async with broca.AsyncClient(server.url, server.key) as client:
            async with await client.open() as session:
                saved = session.save()
            with pytest.raises(errors.ClosedError):
                await session.ask("hello")
            again = await client.join(saved)
            assert (await again.ask("hello")).text

    run(main())


def test_both_clients_have_the_same_surface() -> None:
    pairs = [
        (broca.AsyncClient, broca.Client),
        (broca.AsyncSession, broca.Session),
        (broca.AsyncTurn, broca.Turn),
        (broca.AsyncSubscription, broca.Subscription),
    ]
    for one, other in pairs:
        names = {name for name in vars(one) if not name.startswith("_")}
        assert names == {name for name in vars(other) if not name.startswith("_")}
        for name in names:
            if callable(getattr(one, name)):
                ours, theirs = (inspect.signature(getattr(of, name)).parameters.values() for of in (one, other))
                shapes = [[(p.name, p.kind, p.default) for p in parameters] for parameters in (ours, theirs)]
                assert shapes[0] == shapes[1], name


def test_log_records_of_the_engine_reach_the_logger(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with broca.AsyncClient(service.url, "hunter2") as client:
            with caplog.at_level("DEBUG", "broca"):
                session = await client.open()
                await session.ask("hello")

    with Service() as service:
        run(main())
    assert "hunter2" not in caplog.text
