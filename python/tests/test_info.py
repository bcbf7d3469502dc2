"""How a session stands, what is kept with it, and the sessions of a client, in either style; the place in a queue."""

from __future__ import annotations

import json
from typing import Any

import pytest
from async_service import Answer, Asked, Service
from conftest import Run

import broca
from broca import errors
from broca.testing import Server


def test_a_session_tells_how_it_stands_and_keeps_what_is_said_of_it(server: Server) -> None:
    with broca.Client(server.url, server.key) as client:
        session = client.open(metadata={"title": "first", "tags": {"a": 1, "b": 2}})
        begun = session.info()
        assert begun.metadata == {"title": "first", "tags": {"a": 1, "b": 2}} and begun.metadata_version == 0
        assert (begun.session_id, begun.state, begun.closed_at) == (session.id, "open", None)
        assert begun.drivers == (begun.created_by,) and begun.turn == broca.TurnInfo("idle")
        assert begun.profile == session.profile and begun.compaction == "client"
        session.ask("say something")
        then = session.info()
        assert then.events > begun.events and then.last_event_id == list(session.events())[-1].id
        changed = session.update({"title": None, "tags": {"a": 3}}, version=0)
        assert changed.metadata == {"tags": {"a": 3, "b": 2}} and changed.metadata_version == 1
        with pytest.raises(errors.ApiError) as late:
            session.update({"title": "late"}, version=0)
        assert (late.value.type, late.value.status) == ("version_conflict", 409)
        # What was changed is an event like others, and none of the turn's.
        assert [event.type for event in session.events()][-1] == "session.metadata.updated"
        session.close()
        assert session.info().state == "closed" and session.info().metadata == changed.metadata
        with pytest.raises(errors.ClosedError):
            session.update({"title": "over"})


def test_the_async_half_does_the_same(run: Run, server: Server) -> None:
    async def main() -> None:
        async with broca.AsyncClient(server.url, server.key) as client:
            session = await client.open(metadata={"n": 1})
            observer = await client.observe(session.id)
            assert (await observer.info()).metadata == {"n": 1}
            changed = await session.update({"n": 2, "m": [None, 1.5]})
            assert changed.metadata == {"n": 2, "m": [None, 1.5]} and changed == await observer.info()
            listed = [info async for info in client.sessions(page_size=1)]
            assert listed[0].session_id == session.id and listed[0].metadata == changed.metadata
            async for info in client.sessions():
                assert info.session_id == session.id
                break

    run(main())


def test_sessions_are_listed_newest_first_and_page_by_page(server: Server) -> None:
    with broca.Client(server.url, server.key) as client:
        opened = [client.open(metadata={"n": n}).id for n in range(3)]
        listed = list(client.sessions(page_size=2))
        assert [info.session_id for info in listed][:3] == opened[::-1]
        assert [info.metadata["n"] for info in listed[:3]] == [2, 1, 0]
        assert len({info.session_id for info in listed}) == len(listed)


def test_a_plain_service_is_told_nothing_and_asked_for_nothing() -> None:
    with Service() as service, broca.Client(service.url, "key", environment={}) as client:
        session = client.open()
        before = len(service.asked)
        for call in (session.info, lambda: session.update({"a": 1})):
            with pytest.raises(errors.NotOfferedError, match='"metadata"'):
                call()
        assert len(service.asked) == before
        with pytest.raises(errors.NotOfferedError):
            client.open(metadata={"a": 1})
        with pytest.raises(errors.NotOfferedError):
            next(client.sessions())
        assert {asked.line.split(" ")[1] for asked in service.asked[before:]} == {"/api/v1/meta"}


@pytest.mark.parametrize("metadata", [[1], "text", 7, {"a": float("nan")}, {"a": object()}], ids=str)
def test_metadata_that_is_no_object_is_refused_before_anything_is_sent(metadata: Any, server: Server) -> None:
    with broca.Client(server.url, server.key) as client:
        with pytest.raises(errors.InvalidArgumentError, match="metadata"):
            client.open(metadata=metadata)
        session = client.open()
        with pytest.raises(errors.InvalidArgumentError, match="metadata"):
            session.update(metadata)


def test_what_is_kept_is_not_printed_and_what_cannot_be_read_is_malformed() -> None:
    def script(asked: Asked, answer: Answer) -> None:
        if asked.line.startswith("GET") and asked.line.split(" ")[1].endswith("ses_1"):
            answer.respond("200 OK", '{"session_id":"ses_1"}')

    service = Service(script, features=("metadata",))
    with service, broca.Client(service.url, "key", environment={}) as client:
        session = client.open()
        with pytest.raises(errors.MalformedError):
            session.info()
    info = broca._info.info_of(
        {
            "session_id": "s", "state": "dreaming", "created_at": "", "updated_at": "", "created_by": "k",
            "metadata": {"key": "hunter2"}, "mood": "fine",
        }
    )  # fmt: skip
    assert info.state == "dreaming" and "hunter2" not in repr(info)


QUEUED = {"jsonrpc": "2.0", "method": "session.queued"}


def test_a_call_that_waits_is_told_its_place_in_numbers() -> None:
    def script(asked: Asked, answer: Answer) -> None:
        if asked.method == "session.sendMessage":
            for position in (2, 1):
                answer.lines(json.dumps({**QUEUED, "params": {"position": position, "waiting": 3}}))
            answer.says("done")

    service = Service(script, features=("queue",))
    with service, broca.Client(service.url, "key", environment={}) as client, client.open().send("go") as turn:
        steps = [step for step in turn if isinstance(step, broca.Status)]
    places = [(step.position, step.waiting) for step in steps if step.state == "queued"]
    assert places == [(2, 3), (1, 3)]
    assert all((step.position, step.waiting) == (None, None) for step in steps if step.state != "queued")
    assert "place 1 of 3" in next(step.why or "" for step in steps if step.position == 1)
