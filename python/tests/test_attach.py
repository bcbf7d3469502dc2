"""Sessions that outlive their program: saved by one process, and taken up by another, in either style."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Run

import broca
from broca import errors, tools
from broca.testing import Server

SAVED = json.dumps({"broca_session": 1, "service": "http://h", "session_id": "ses_1", "session_key": "hunter2"})

SYNC = """
import os, sys, broca
client = broca.Client(sys.argv[1], sys.argv[2])
session = client.open(tools=[broca.Tool.manual("pay", "Pays.", {"type": "object"})])
for step in session.send('pay {"amount": 9007199254740993}'):
    if isinstance(step, broca.ToolCall):
        assert not step.may_have_run
        print(step.idempotency_key, session.save().json, flush=True)
        os._exit(0)
"""
ASYNC = """
import asyncio, os, sys, broca

async def main():
    client = broca.AsyncClient(sys.argv[1], sys.argv[2])
    session = await client.open(tools=[broca.Tool.manual("pay", "Pays.", {"type": "object"})])
    async for step in session.send('pay {"amount": 9007199254740993}'):
        if isinstance(step, broca.ToolCall):
            print(step.idempotency_key, session.save().json, flush=True)
            os._exit(0)

asyncio.run(main())
"""


def left_by(program: str, server: Server) -> tuple[str, broca.SavedSession]:
    """What a program saved that died while its tool was called: the key of the call, and the session."""
    words = [sys.executable, "-c", program, server.url, server.key]
    told = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    key, _, saved = told.stdout.strip().partition(" ")
    return key, broca.SavedSession(saved)


class Till:
    """Where the calls of a tool end up."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool]] = []
        self.tool = broca.tool(self.pay)

    def pay(self, amount: int, context: broca.ToolContext) -> str:
        """Pays."""
        self.calls.append((context.idempotency_key, context.may_have_run))
        return f"paid {amount}"


def test_a_turn_left_by_an_async_program_is_taken_up_by_a_sync_one(server: Server) -> None:
    key, saved = left_by(ASYNC, server)
    till = Till()
    with broca.Client(server.url, server.key) as client, client.attach(saved, [till.tool]) as session:
        assert session.id == saved.session_id
        turn = session.resume()
        assert turn is not None
        with turn:
            steps = list(turn)
        [call] = [step for step in steps if isinstance(step, broca.ToolCall)]
        assert call.may_have_run and call.idempotency_key == key and call.input == {"amount": 2**53 + 1}
        assert till.calls == [(key, True)]
        assert isinstance(steps[-1], broca.Done) and "paid 9007199254740993" in steps[-1].reply.text
        assert session.resume() is None
        assert session.ask("hello").rounds == 1
        session.close()


def test_a_turn_left_by_a_sync_program_is_taken_up_by_an_async_one(server: Server, run: Run) -> None:
    key, saved = left_by(SYNC, server)
    till = Till()

    async def main() -> None:
        async with broca.AsyncClient(server.url, server.key) as client:
            # The text is as good as the object.
            session = await client.attach(saved.json, [till.tool])
            turn = session.resume()
            assert turn is not None
            reply = await turn.reply()
            assert "paid 9007199254740993" in reply.text and reply.tool_calls == 1
            assert till.calls == [(key, True)]
            assert session.resume() is None
            await session.close()

    run(main())


def test_an_approval_says_that_its_call_may_have_run(server: Server) -> None:
    _, saved = left_by(SYNC, server)
    till = Till()
    asked = broca.tool(approval=True)(till.pay)
    with broca.Client(server.url, server.key) as client, client.attach(saved, [asked]) as session:
        turn = session.resume()
        assert turn is not None
        with turn:
            for step in turn:
                if isinstance(step, broca.Approval):
                    assert step.may_have_run
                    step.deny("once is enough")
                elif isinstance(step, broca.Done):
                    assert "once is enough" in step.reply.text
        assert not till.calls


def test_a_message_sent_instead_gives_the_turn_up(server: Server) -> None:
    _, saved = left_by(SYNC, server)
    till = Till()
    with broca.Client(server.url, server.key) as client, client.attach(saved, [till.tool]) as session:
        reply = session.ask("hello")
        assert session.resume() is None and not till.calls
        assert reply.rounds == 1
        # The call has its one result, and it says what nobody knows.
        sent = [event.json for event in session.events() if event.type == "client.message.send"]
        assert [json.count('"tool_result"') for json in sent] == [0, 1] and "may have run" in sent[1]


def test_what_was_not_left_is_not_taken_up(server: Server, run: Run) -> None:
    with broca.Client(server.url, server.key) as client:
        session = client.open()
        session.ask("hello")
        assert session.resume() is None
        with client.attach(session.save()) as again:
            assert again.resume() is None
            assert again.spent == session.spent and (again.spent.rounds, again.spent.tool_calls) == (1, 0)

    async def main() -> None:
        async with broca.AsyncClient(server.url, server.key) as client:
            session = await client.open()
            assert session.resume() is None and session.spent == broca.Spent()
            await session.ask("hello")
            again = await client.attach(session.save())
            assert again.resume() is None and again.spent == session.spent and again.spent.rounds == 1

    run(main())


def test_an_observer_has_nothing_to_save(server: Server, run: Run) -> None:
    with broca.Client(server.url, server.key) as client, broca.Client(server.url, server.watch_key) as other:
        watching = other.observe(client.open().id)
        with pytest.raises(errors.UsageError, match="observer"):
            watching.save()

    async def main() -> None:
        async with broca.AsyncClient(server.url, server.key) as client:
            watching = await client.observe((await client.open()).id)
            with pytest.raises(errors.UsageError, match="observer"):
                watching.save()

    run(main())


def test_a_session_is_saved_in_the_middle_of_its_turn(server: Server) -> None:
    kept: list[broca.SavedSession] = []

    @broca.tool
    def keep(n: int) -> str:
        """Keeps."""
        # On a thread of the session, while another one waits for the turn.
        kept.append(session.save())
        return "kept"

    with broca.Client(server.url, server.key) as client, client.open(tools=[keep]) as session:
        assert "kept" in session.ask("keep 1").text
        [saved] = kept
        assert json.loads(saved.json)["turn"] is not None
        assert json.loads(session.save().json)["turn"] is None


def test_saved_sessions_can_be_stored_and_show_nothing() -> None:
    saved = broca.SavedSession(SAVED)
    for again in (pickle.loads(pickle.dumps(saved)), copy.deepcopy(saved), broca.SavedSession(saved.json)):
        assert again == saved and (again.session_id, again.service) == ("ses_1", "http://h")
    assert "ses_1" in repr(saved)
    for shown in (repr(saved), str(saved), f"{saved}"):
        assert "hunter2" not in shown


@pytest.mark.parametrize("text", ["", "[]", "null", '{"session_id":1,"service":"hunter2"}', "hunter2", 7])
def test_what_is_no_saved_session_is_refused_without_its_words(text: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError) as caught:
        broca.SavedSession(text)
    assert "hunter2" not in str(caught.value)
    with broca.Client("http://h", "key", environment={}) as client, pytest.raises(errors.InvalidArgumentError):
        client.attach(text)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"broca_session": 99}, errors.UnsupportedVersionError),
        ({"session_key": ""}, errors.InvalidArgumentError),
        ({"service": "http://elsewhere"}, errors.InvalidArgumentError),
    ],
)
def test_what_cannot_be_attached_is_refused(change: dict[str, Any], error: type[Exception], run: Run) -> None:
    text = json.dumps({**json.loads(SAVED), **change})
    with broca.Client("http://h", "key", environment={}) as client, pytest.raises(error) as caught:
        client.attach(text)
    assert "hunter2" not in str(caught.value)

    async def main() -> None:
        async with broca.AsyncClient("http://h", "key", environment={}) as client:
            with pytest.raises(error):
                await client.attach(text)

    run(main())


def test_a_saved_session_names_where_to_join_and_observe() -> None:
    with broca.Client("http://other", "key", environment={}) as client:
        for join in (client.join, client.observe):
            with pytest.raises(errors.InvalidArgumentError, match="lives at http://h"):
                join(broca.SavedSession(SAVED))


@contextlib.contextmanager
def looping(binary: str) -> Iterator[Server]:
    """A service whose model calls a tool again and again."""
    rules = [{"then": {"tool_calls": [{"name": "again", "input": {}}]}}]
    with Server(script={"rules": rules}, binary=binary) as server:
        yield server


def test_a_turn_and_a_session_spend_what_they_may(binary: str, run: Run) -> None:
    ran: list[int] = []

    @broca.tool
    def again() -> str:
        """Runs again."""
        ran.append(1)
        return "again"

    async def main(url: str, key: str) -> None:
        async with broca.AsyncClient(url, key, session_rounds=4, turn_rounds=3) as client:
            session = await client.open(tools=[again])
            with pytest.raises(errors.LoopLimitError, match="rounds"):
                await session.ask("go")
            assert session.spent.rounds == 3
            with pytest.raises(errors.LoopLimitError):
                await session.ask("go")
            assert session.spent.rounds == 4

    with looping(binary) as server:
        with broca.Client(server.url, server.key, turn_tool_calls=2) as client:
            session = client.open(tools=[again])
            with pytest.raises(errors.LoopLimitError, match="tool"):
                session.ask("go")
            assert len(ran) == 2
        run(main(server.url, server.key))


def test_a_reply_says_what_its_turn_and_its_session_have_spent(server: Server) -> None:
    till = Till()
    with broca.Client(server.url, server.key) as client, client.open(tools=[till.tool]) as session:
        first = session.ask('pay {"amount": 1}')
        assert (first.rounds, first.tool_calls) == (2, 1)
        assert first.session == session.spent and (first.session.rounds, first.session.tool_calls) == (2, 1)
        second = session.ask("hello")
        assert (second.rounds, second.tool_calls) == (1, 0)
        assert (second.session.rounds, second.session.tool_calls) == (3, 1) and second.output is None


def test_a_settled_call_names_its_tool(server: Server) -> None:
    with broca.Client(server.url, server.key) as client, client.open(tools=[Till().tool]) as session:
        with session.send('pay {"amount": 1}') as turn:
            [settled] = [step for step in turn if isinstance(step, broca.ToolSettled)]
        assert (settled.name, settled.outcome) == ("pay", "done")


OPTIONS = [
    "silence_intervals", "reply_bytes", "recovery_timeout_ms", "reach_timeout_ms", "resume_wait_ms", "hold_ms",
    "replay_timeout_ms",
    "turn_rounds", "turn_tokens", "turn_tool_calls", "session_rounds", "session_tokens", "session_tool_calls",
]  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_limits_are_options_of_both_clients(name: str) -> None:
    for client in (broca.Client, broca.AsyncClient):
        made = client("http://h", "key", environment={}, **{name: 1000})  # type: ignore[arg-type]
        assert json.loads(made._options.engine_json())[name] == 1000
        with pytest.raises(errors.InvalidArgumentError, match=name):
            client("http://h", "key", environment={}, **{name: -1})  # type: ignore[arg-type]


def test_a_context_made_by_a_test_is_of_a_first_call() -> None:
    assert tools.ToolContext("t", "tu_1", "k", "{}").may_have_run is False


def test_a_pause_that_another_driver_has_taken_over_is_told_to_whoever_comes_back() -> None:
    with Server(turn_timeout=1, keys=["second"]) as server:
        _, saved = left_by(SYNC, server)
        with broca.Client(server.url, server.keys["second"]) as second, second.join(saved.session_id) as session:
            # It waits until the time of the pause is over.
            assert session.ask("hello").text
        with broca.Client(server.url, server.key) as client, client.attach(saved) as session:
            turn = session.resume()
            assert turn is not None
            with pytest.raises(errors.TimeoutError, match="given the paused turn up"):
                turn.reply()
            abandoned = [event.payload for event in session.events() if event.type == "session.error"]
            assert [payload["reason"] for payload in abandoned] == ["driver_turn_abandoned"]
            assert session.ask("again").text
