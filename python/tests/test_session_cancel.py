"""`Session.cancel` in both styles: it asks, and returns when every turn that was started here is quiet."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from async_service import Answer, Asked, Service, calling, endless
from conftest import Run

import broca
from broca import errors


def ticking(cancelled: threading.Event, begun: threading.Event | None = None) -> Any:
    """A script whose turns log some events and then stay open until they are cancelled."""
    forever = endless(cancelled)

    async def script(asked: Asked, answer: Answer) -> None:
        if asked.method == "session.sendMessage" and "endless" in asked.text:
            for n in range(20):
                answer.event("x", {"n": n})
            if begun is not None:
                begun.set()
        await forever(asked, answer)  # type: ignore[misc]

    return script


def numbers(steps: list[Any]) -> list[int]:
    return [step.payload["n"] for step in steps if isinstance(step, broca.Event) and step.type == "x"]


def test_it_waits_and_keeps_the_steps_for_whoever_takes_them(run: Run) -> None:
    async def main(service: Service) -> None:
        async with broca.AsyncClient(service.url, "k", environment={}) as client:
            session = await client.open()
            turn = session.send("endless")
            steps: list[Any] = [await turn.next() for _ in range(5)]
            waiting = session.send("endless too")
            await session.cancel()
            assert cancelled.is_set()
            with pytest.raises(errors.CancelledError):
                async for step in turn:
                    steps.append(step)
            assert numbers(steps) == list(range(20))
            with pytest.raises(errors.CancelledError):
                await waiting.reply()
            assert (await session.ask("hello")).text == "hello"

    cancelled = threading.Event()
    with Service(ticking(cancelled), features=("cancel",)) as service:
        run(main(service))


def test_a_loop_may_cancel_its_session(run: Run) -> None:
    async def main(service: Service) -> None:
        async with broca.AsyncClient(service.url, "k", environment={}) as client:
            session = await client.open()
            steps: list[Any] = []
            with pytest.raises(errors.CancelledError):
                async for step in session.send("endless"):
                    steps.append(step)
                    if numbers(steps) == [0, 1]:
                        await session.cancel()
                        assert cancelled.is_set()
            assert numbers(steps) == list(range(20))

    cancelled = threading.Event()
    with Service(ticking(cancelled), features=("cancel",)) as service:
        run(main(service))
        cancelled.clear()
        with broca.Client(service.url, "k", environment={}) as client:
            session = client.open()
            steps: list[Any] = []
            with pytest.raises(errors.CancelledError):
                for step in session.send("endless"):
                    steps.append(step)
                    if numbers(steps) == [0, 1]:
                        session.cancel()
                        assert cancelled.is_set()
            assert numbers(steps) == list(range(20))


def test_one_who_waits_for_the_reply_elsewhere_gets_the_error(run: Run) -> None:
    async def main(service: Service) -> None:
        async with broca.AsyncClient(service.url, "k", environment={}) as client:
            session = await client.open()
            asking = asyncio.ensure_future(session.ask("endless"))
            assert await asyncio.to_thread(begun.wait, 20)
            await session.cancel()
            assert cancelled.is_set()
            with pytest.raises(errors.CancelledError):
                await asking

    cancelled, begun = threading.Event(), threading.Event()
    with Service(ticking(cancelled, begun), features=("cancel",)) as service:
        run(main(service))


def test_a_tool_that_runs_is_told_and_waited_for(run: Run) -> None:
    async def main(service: Service) -> None:
        started, stopped = asyncio.Event(), asyncio.Event()

        @broca.tool
        async def works() -> None:
            """Works."""
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        async with broca.AsyncClient(service.url, "k", environment={}) as client:
            session = await client.open(tools=[works])
            asking = asyncio.ensure_future(session.ask("go"))
            await started.wait()
            await session.cancel()
            assert stopped.is_set()
            with pytest.raises(errors.CancelledError):
                await asking

    with Service(calling(("tu_1", "works", {})), features=("cancel",)) as service:
        run(main(service))


def test_without_turns_it_returns_at_once(run: Run) -> None:
    async def main(service: Service) -> None:
        async with broca.AsyncClient(service.url, "k", environment={}) as client:
            session = await client.open()
            await session.cancel()
            async with session.subscribe() as watching:
                # A subscription is no turn.
                await session.cancel()
                assert not watching._operation.left

    with Service() as service:
        run(main(service))
        with broca.Client(service.url, "k", environment={}) as client:
            client.open().cancel()


def test_a_turn_that_it_has_ended_is_left_at_once() -> None:
    cancelled = threading.Event()
    with Service(ticking(cancelled), features=("cancel",)) as service:
        # It would wait for longer than this, and than any test may take.
        client = broca.Client(service.url, "k", environment={}, cancel_grace_ms=300_000)
        session = client.open()
        with session.send("endless") as turn:
            next(turn)
            session.cancel()
        assert session.ask("hello").text == "hello"
        client.close()
