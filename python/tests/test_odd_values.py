"""Values that programs give by accident: half surrogate pairs, copies of what lives once, options of other kinds."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from async_service import Service, calling

import broca
from broca import errors
from broca._core import whole
from broca._pool import Pool
from broca.testing import Server


@broca.tool
def listed() -> str:
    """List a folder."""
    return "caf\udce9.txt"


@broca.tool
async def listed_later() -> str:
    """List a folder."""
    return "caf\udce9.txt"


@broca.tool
def opened() -> str:
    """Open a file."""
    raise ValueError("no caf\udce9.txt")


@broca.tool
async def opened_later() -> str:
    """Open a file."""
    raise ValueError("no caf\udce9.txt")


def client_of(service: Service) -> broca.Client:
    return broca.Client(service.url, "key", environment={})


def test_half_a_pair_is_replaced_and_a_whole_one_joined() -> None:
    assert whole("a\udce9b") == "a\ufffdb"
    assert whole("\ud83d\ude00") == "\U0001f600"
    assert whole(None) is None


@pytest.mark.parametrize(
    ("tool", "text"), [(listed, "caf\ufffd.txt"), (opened, "ValueError: no caf\ufffd.txt")], ids=["result", "failure"]
)
def test_a_tool_that_speaks_of_a_name_that_is_no_unicode_is_answered(tool: Any, text: str) -> None:
    with Service(calling(("c1", tool.name, {}))) as service, client_of(service) as client:
        assert client.open(tools=[tool]).ask("go").text == text


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        (listed, "caf\ufffd.txt"),
        (listed_later, "caf\ufffd.txt"),
        (opened, "ValueError: no caf\ufffd.txt"),
        (opened_later, "ValueError: no caf\ufffd.txt"),
    ],
    ids=["result", "async result", "failure", "async failure"],
)
def test_a_tool_on_a_loop_that_speaks_of_a_name_that_is_no_unicode_is_answered(tool: Any, text: str) -> None:
    async def main(url: str) -> None:
        async with broca.AsyncClient(url, "key", environment={}) as client:
            session = await client.open(tools=[tool])
            reply = await asyncio.wait_for(session.ask("go"), 20)
            assert reply.text == text

    with Service(calling(("c1", tool.name, {}))) as service:
        asyncio.run(main(service.url))


def test_a_pool_replaces_a_thread_that_a_job_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda said: seen.append(said.exc_type))
    pool = Pool(1)
    done = threading.Event()

    def bad() -> None:
        raise MemoryError

    pool.submit(bad)
    deadline = time.monotonic() + 20
    while not seen and time.monotonic() < deadline:
        time.sleep(0.001)
    pool.submit(done.set)
    assert done.wait(20) and seen == [MemoryError]
    pool.close()


copies = pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])


@copies
def test_what_holds_connections_is_neither_copied_nor_pickled(make: Callable[[Any], Any], server: Server) -> None:
    with broca.Client(server.url, server.key) as client:
        session = client.open()
        with session.send("go") as turn, session.subscribe() as subscription:
            for handle in (client, session, turn, subscription):
                with pytest.raises(TypeError, match="neither copied nor pickled"):
                    make(handle)
            assert [step for step in turn if isinstance(step, broca.Done)]


@copies
def test_what_holds_connections_on_a_loop_is_neither_copied_nor_pickled(
    make: Callable[[Any], Any], server: Server
) -> None:
    async def main() -> None:
        async with broca.AsyncClient(server.url, server.key) as client:
            session = await client.open()
            async with session.send("go") as turn, session.subscribe() as subscription:
                for handle in (client, session, turn, subscription):
                    with pytest.raises(TypeError, match="neither copied nor pickled"):
                        make(handle)
                assert (await turn.reply()).text

    asyncio.run(main())


def test_a_copied_step_answers_to_the_same_session() -> None:
    tool = broca.Tool.manual("ask_me", "Ask.", {"type": "object"})
    texts = []
    with Service(calling(("c1", "ask_me", {"a": 1}))) as service, client_of(service) as client:
        for step in client.open(tools=[tool]).send("go"):
            if isinstance(step, broca.ToolCall):
                assert dataclasses.asdict(step)["name"] == "ask_me"
                with pytest.raises(TypeError, match="belongs to its session"):
                    pickle.dumps(step)
                assert copy.deepcopy(step).complete("copied")
            elif isinstance(step, broca.Done):
                texts.append(step.reply.text)
    assert texts == ["copied"]


def test_tools_are_pickled_by_their_names_as_functions_are() -> None:
    assert pickle.loads(pickle.dumps(listed)) is listed
    assert copy.deepcopy(listed) is listed
    assert copy.copy(listed) is not listed and copy.copy(listed)() == listed()


@pytest.mark.parametrize(
    "options",
    [
        {"features": "cancel"},
        {"features": [b"cancel"]},
        {"connect_timeout_ms": float("nan")},
        {"connect_timeout_ms": True},
        {"tool_threads": "many"},
        {"ssl_context": 3},
        {"environment": 3},
        {"hooks": "yes"},
        {"user_agent": b"mine"},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [broca.Client, broca.AsyncClient])
def test_an_option_of_another_kind_is_refused_by_its_name(kind: Any, options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=next(iter(options))):
        kind("http://127.0.0.1:1", "key", **options)


HALF = "caf\udce9"


@pytest.mark.parametrize(
    "message", [HALF, [{"type": "text", "text": HALF}], {"role": "user", "content": HALF}], ids=repr
)
def test_a_message_that_is_no_unicode_is_refused_by_name(message: Any) -> None:
    with Service() as service, client_of(service) as client:
        session = client.open()
        with pytest.raises(errors.InvalidArgumentError, match="the message holds half of a surrogate pair"):
            session.send(message)
        assert session.ask("caf\u00e9 \U0001f600 \\udce9").text == "hello"
        assert service.calls("session.sendMessage")[-1].text == "caf\u00e9 \U0001f600 \\udce9"


def test_content_that_is_no_unicode_is_a_failed_call() -> None:
    tool = broca.Tool.raw("content", "", {"type": "object"}, lambda *_: broca.Content([{"type": "text", "text": HALF}]))
    with Service(calling(("c1", "content", {}))) as service, client_of(service) as client:
        assert (
            client.open(tools=[tool]).ask("go").text
            == "the content holds half of a surrogate pair, which is no Unicode"
        )


CALLS: list[Callable[[broca.Client, broca.Session], Any]] = [
    lambda client, session: session.send("go", traceparent=HALF),
    lambda client, session: session.send("go", tracestate=3),  # type: ignore[arg-type]
    lambda client, session: session.send([float("nan")]),
    lambda client, session: session.subscribe(HALF),
    lambda client, session: session.history(HALF),
    lambda client, session: session.history(b"evt_1"),  # type: ignore[arg-type]
    lambda client, session: session.history(limit=float("nan")),  # type: ignore[arg-type]
    lambda client, session: client.join(HALF),
    lambda client, session: session.update_tools([broca.Tool.manual("ask", HALF, {"type": "object"})]),
    lambda client, session: session.update_tools([broca.Tool.manual("ask", "", {"type": "object", "enum": {1}})]),
]


@pytest.mark.parametrize("call", CALLS)
def test_what_has_no_json_is_an_invalid_argument_wherever_it_is_given(
    call: Callable[[broca.Client, broca.Session], Any],
) -> None:
    with Service() as service, client_of(service) as client:
        session = client.open()
        with pytest.raises(errors.InvalidArgumentError, match=r"no Unicode|no JSON|ASCII"):
            call(client, session)
        assert session.ask("go").text == "hello"
