"""Consent to tools that the service runs, in either style."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import Run

import broca
from broca.testing import Server

RULES = [
    {"when": {"after_tools": True}, "then": {"text": "done"}},
    {"then": {"tool_calls": [{"name": "clock", "input": {"timezone": "U"}}]}},
]
ASKED: broca.Approvals = {"ask": ["clock"], "narrow": {"clock": {"/timezone": "one_of_prefix"}}}


@pytest.fixture(scope="module")
def server(binary: str) -> Iterator[Server]:
    with Server(binary=binary, script={"rules": RULES}) as started:
        yield started


def answers(step: broca.Approval, way: str) -> None:
    assert step.server_side and not step.may_have_run
    assert (step.name, step.input) == ("clock", {"timezone": "U"})
    if way == "allow":
        step.allow()
    elif way == "narrow":
        step.allow_narrowed({"timezone": "UTC"})
    elif way == "widen":
        step.allow_narrowed({"timezone": "GMT"})
    else:
        step.deny("not now")


def told(events: list[broca.Event]) -> str:
    """What the log says: the decision, and the result that the model was given."""
    resolved = [event.payload for event in events if event.type == "session.approval.resolved"]
    results = [event.payload for event in events if event.type == "tool.result"]
    assert len(resolved) == len(results) == 1
    return f"{resolved[0]['decision']}: {results[0]['content'][0]['text']}"


WAYS = [
    ("allow", "allow: this clock knows only UTC"),
    ("narrow", "allow_narrowed: 2"),
    ("widen", "deny: The call was denied and not run: narrowing_widens"),
    ("deny", "deny: The call was denied and not run: not now"),
]


@pytest.mark.parametrize(("way", "expected"), WAYS)
def test_a_person_is_asked_before_the_service_runs_its_tool(server: Server, way: str, expected: str) -> None:
    with broca.Client(server.url, server.key) as client, client.open(approvals=ASKED) as session:
        events: list[broca.Event] = []
        questions = 0
        with session.send("what time is it") as turn:
            for step in turn:
                if isinstance(step, broca.Event):
                    events.append(step)
                elif isinstance(step, broca.Approval):
                    questions += 1
                    answers(step, way)
        assert questions == 1
        assert told(events).startswith(expected)


@pytest.mark.parametrize(("way", "expected"), WAYS)
def test_a_person_is_asked_in_a_loop_of_events(server: Server, run: Run, way: str, expected: str) -> None:
    async def main() -> None:
        async with broca.AsyncClient(server.url, server.key) as client:
            session = await client.open(approvals=ASKED)
            events: list[broca.Event] = []
            async with session.send("what time is it") as turn:
                async for step in turn:
                    if isinstance(step, broca.Event):
                        events.append(step)
                    elif isinstance(step, broca.Approval):
                        answers(step, way)
            assert told(events).startswith(expected)
            await session.close()

    run(main())


def test_a_handler_decides_where_nobody_sees_the_steps_and_without_one_the_answer_is_no(server: Server) -> None:
    asked: list[bool] = []

    def allow(approval: broca.Approval) -> bool:
        asked.append(approval.server_side)
        return True

    with broca.Client(server.url, server.key, approvals={"ask": "*"}) as client:
        with client.open(on_approval=allow) as session:
            events = session.ask("what time is it").events
            assert told(list(events)).startswith("allow: ")
        with client.open() as session:
            assert "nobody to ask" in told(list(session.ask("what time is it").events))
    assert asked == [True]


def test_a_cancelled_turn_takes_its_question_back(server: Server) -> None:
    with broca.Client(server.url, server.key) as client, client.open(approvals=ASKED) as session:
        turn = session.send("what time is it")
        question = next(step for step in turn if isinstance(step, broca.Approval))
        turn.cancel()
        assert not question.allow()


def test_what_cannot_be_asked_for_is_refused_by_name(server: Server) -> None:
    with broca.Client(server.url, server.key) as client:
        with pytest.raises(broca.ApiError, match="clok"):
            client.open(approvals={"ask": ["clok"]})
        with pytest.raises(broca.InvalidArgumentError, match="ask"):
            client.open(approvals={"ask": "clock"})
    with pytest.raises(broca.InvalidArgumentError, match="approvals"):
        broca.Client(server.url, server.key, approvals="clock")  # type: ignore[arg-type]
