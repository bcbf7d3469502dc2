"""Tools of MCP servers: connected with the session, called like any other tool, and gone with it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from conftest import Run

import broca
from broca.testing import Server

SERVER = str(pathlib.Path(__file__).with_name("mcp_server.py"))
WORDS = [sys.executable, SERVER]


def notes_in(path: pathlib.Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def wait_for(path: pathlib.Path, words: str) -> list[str]:
    """Waits until a server has written this note."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if words in notes_in(path):
            return notes_in(path)
        time.sleep(0.02)
    raise AssertionError(f"{words!r} is not in {notes_in(path)}")


def pid_in(path: pathlib.Path) -> int:
    return int([line for line in notes_in(path) if line.startswith("began ")][-1].split()[1])


def wait_until_gone(path: pathlib.Path) -> None:
    """Waits until the server that writes these notes is gone."""
    pid = pid_in(path)
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    raise AssertionError(f"the server {pid} is still there: {notes_in(path)}")


@pytest.fixture
def notes(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "notes"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server over HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([*WORDS, "http", str(port)])
    try:
        until = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < until and process.poll() is None
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(10)


@contextlib.asynccontextmanager
async def opened(server: Server, *tools: Any, **options: Any) -> AsyncIterator[broca.AsyncSession]:
    async with broca.AsyncClient(server.url, server.key) as client, await client.open(tools, **options) as session:
        yield session


async def outcomes(session: broca.AsyncSession, message: str) -> tuple[str, list[str]]:
    """The answer of a turn, and what became of its calls."""
    found: list[str] = []
    text = ""
    async with session.send(message) as turn:
        async for step in turn:
            if isinstance(step, broca.ToolSettled):
                found.append(step.outcome)
            elif isinstance(step, broca.Done):
                text = step.reply.text
    return text, found


def test_tools_of_a_program_are_called_beside_those_of_this_one(server: Server, run: Run, notes: pathlib.Path) -> None:
    @broca.tool
    def local() -> str:
        """Is here."""
        return "from here"

    async def main() -> None:
        async with opened(server, local, broca.mcp([*WORDS, str(notes)])) as session:
            reply = await session.ask('echo "hello" and local')
            assert "echo: hello" in reply.text and "from here" in reply.text
            # From the second page of its list.
            assert "grown" in (await session.ask("grow")).text

    run(main())
    wait_until_gone(notes)


def test_a_session_without_a_loop_calls_them_too(server: Server, notes: pathlib.Path) -> None:
    with broca.Client(server.url, server.key) as client:
        with client.open([broca.mcp([*WORDS, str(notes)])]) as session:
            assert "echo: hello" in session.ask('echo "hello"').text
            assert "count" in session.ask("count").text
        wait_until_gone(notes)


def test_a_server_over_http_is_called_by_its_address(server: Server, run: Run, address: str) -> None:
    async def main() -> None:
        async with opened(server, broca.mcp(address, headers={"X-Key": "hunter2"})) as session:
            assert "echo: hello" in (await session.ask('echo "hello"')).text

    run(main())
    with broca.Client(server.url, server.key) as client, client.open([broca.mcp(address)]) as session:
        assert "echo: hello" in session.ask('echo "hello"').text


def test_a_tool_that_failed_says_why(server: Server) -> None:
    async def main() -> None:
        async with opened(server, broca.mcp(WORDS)) as session:
            text, found = await outcomes(session, "fail")
            assert "it did not work" in text and found == ["failed"]
            text, found = await outcomes(session, "echo {}")
            assert found == ["failed"]

    asyncio.run(main())


@pytest.mark.parametrize("features", [None, ["display", "cancel"]], ids=["blocks", "text only"])
def test_an_image_is_content_where_the_session_takes_it_and_words_elsewhere(
    server: Server, features: list[str] | None
) -> None:
    async def main() -> None:
        options = {} if features is None else {"features": features}
        async with broca.AsyncClient(server.url, server.key, **options) as client:  # type: ignore[arg-type]
            session = await client.open([broca.mcp(WORDS)])
            await session.ask("draw")
            [result] = [event.payload async for event in session.events() if event.type == "tool.result"]
            assert ("base64" in str(result)) == (features is None)
            assert "a cat" in str(result) and "image/png" in str(result)
            await session.leave()

    asyncio.run(main())


def test_names_get_a_prefix_and_lists_choose_among_them(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        brought = broca.mcp(WORDS, prefix="t_", allow=["echo", "fail", "nothing"], deny=["fail"])
        async with opened(server, brought) as session:
            assert [tool.name for tool in session._tools.all()] == ["t_echo"]
            assert "echo: hello" in (await session.ask('t_echo "hello"')).text
        assert "has no tool nothing" in caplog.text

    asyncio.run(main())


def test_two_tools_of_one_name_are_refused_with_both_owners(server: Server, notes: pathlib.Path) -> None:
    @broca.tool
    def echo(text: str) -> str:
        return text

    async def main(*tools: Any) -> None:
        async with opened(server, *tools):
            pass

    with pytest.raises(broca.InvalidArgumentError, match='"echo" comes from this program and from the MCP server'):
        asyncio.run(main(echo, broca.mcp([*WORDS, str(notes)])))
    # What was connected for that is gone again.
    wait_until_gone(notes)
    with pytest.raises(broca.InvalidArgumentError, match=r"#1.*#2"):
        asyncio.run(main(broca.mcp(WORDS, name="two"), broca.mcp(WORDS, name="two")))


def test_a_server_that_cannot_be_had_is_named_or_left_out(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async def main(**options: Any) -> int:
        async with opened(server, broca.mcp(["/nowhere/at-all", "--key=hunter2"], **options)) as session:
            return len(session._tools.all())

    with pytest.raises(broca.TransportError, match='"at-all" cannot be used: No such file') as told:
        asyncio.run(main())
    assert "hunter2" not in str(told.value)
    assert asyncio.run(main(required=False, name="extra")) == 0
    assert '"extra"' in caplog.text and "left out" in caplog.text

    silent = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(broca.TransportError, match=r"not ready within 0\.3 s"):
        broca.Client(server.url, server.key).open([broca.mcp(silent, connect_timeout=0.3)])


def test_tools_that_a_server_gets_later_are_there_at_the_next_message(server: Server, run: Run) -> None:
    async def main() -> None:
        async with opened(server, broca.mcp(WORDS)) as session:
            await session.ask("grow")
            assert "extra_0 ran" in (await session.ask("extra_0")).text

    run(main())
    with broca.Client(server.url, server.key) as client, client.open([broca.mcp(WORDS)]) as session:
        session.ask("grow")
        assert "extra_0 ran" in session.ask("extra_0").text


def test_a_server_that_ends_in_a_call_may_have_run_it_and_is_started_again(
    server: Server, run: Run, notes: pathlib.Path
) -> None:
    async def main() -> None:
        async with opened(server, broca.mcp([*WORDS, str(notes)])) as session:
            text, found = await outcomes(session, "die")
            assert found == ["interrupted_may_have_run"] and "may have run" in text
            assert "echo: hello" in (await session.ask('echo "hello"')).text

    run(main())
    assert len({line for line in notes_in(notes) if line.startswith("began")}) == 2


def test_a_server_that_ends_again_and_again_is_given_up(server: Server) -> None:
    async def main() -> None:
        async with opened(server, broca.mcp(WORDS, restarts=0)) as session:
            await outcomes(session, "die")
            text, found = await outcomes(session, "echo")
            assert found == ["failed"] and "not started again" in text

    asyncio.run(main())


def test_a_call_that_no_longer_counts_is_cancelled_at_the_server(server: Server, run: Run, notes: pathlib.Path) -> None:
    async def main() -> None:
        async with opened(server, broca.mcp([*WORDS, str(notes)])) as session:
            async with session.send("sleep") as turn:
                async for step in turn:
                    if isinstance(step, broca.ToolCall):
                        await asyncio.to_thread(wait_for, notes, "call sleep")
                        break
            await asyncio.to_thread(wait_for, notes, "sleep was told to stop")

    run(main())


def test_the_time_of_a_call_is_kept_and_the_server_told(server: Server, notes: pathlib.Path) -> None:
    brought = broca.mcp([*WORDS, str(notes)], timeout=0.3)
    with broca.Client(server.url, server.key) as client, client.open([brought]) as session:
        found = [step.outcome for step in session.send("sleep") if isinstance(step, broca.ToolSettled)]
        assert found == ["timed_out_may_have_run"]
        wait_for(notes, "sleep was told to stop")


def test_consent_is_asked_for_by_what_the_server_says_of_a_tool(server: Server) -> None:
    async def main() -> None:
        asked: list[str] = []

        def decide(approval: broca.Approval) -> bool:
            asked.append(approval.name)
            return True

        brought = broca.mcp(WORDS, approval=lambda tool: not tool.read_only)
        async with opened(server, brought, on_approval=decide) as session:
            await session.ask('echo "hello"')
            await session.ask("grow")
        assert asked == ["grow"]

    asyncio.run(main())


def test_a_program_sees_few_variables_and_those_that_were_given(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_PROGRAM", "hunter2")

    async def main() -> None:
        async with opened(server, broca.mcp(WORDS, env={"GIVEN": "1"})) as session:
            text = (await session.ask("environment")).text
            assert "GIVEN" in text and "PATH" in text and "SECRET_OF_THE_PROGRAM" not in text

    asyncio.run(main())


def test_a_dropped_session_takes_its_server_along(server: Server, notes: pathlib.Path) -> None:
    client = broca.Client(server.url, server.key)
    session: Any = client.open([broca.mcp([*WORDS, str(notes)])])
    del session
    gc.collect()
    wait_until_gone(notes)


PROGRAM = """
import asyncio, sys, broca

async def main():
    client = broca.AsyncClient(sys.argv[1], sys.argv[2])
    session = await client.open([broca.mcp(sys.argv[4:])])
    if sys.argv[3] == "leave":
        return
    async for step in session.send("sleep"):
        if isinstance(step, broca.ToolCall):
            print("called", flush=True)

def plain():
    client = broca.Client(sys.argv[1], sys.argv[2])
    session = client.open([broca.mcp(sys.argv[4:])])
    if sys.argv[3] == "leave":
        return
    for step in session.send("sleep"):
        if isinstance(step, broca.ToolCall):
            print("called", flush=True)

plain() if len(sys.argv[3]) > 9 else asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["leave", "interrupt", "interrupt plain"])
def test_no_server_outlives_its_program(server: Server, notes: pathlib.Path, how: str) -> None:
    words = [sys.executable, "-c", PROGRAM, server.url, server.key, how, *WORDS, str(notes)]
    program = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert program.stdout is not None
    if how != "leave":
        assert program.stdout.readline() == "called\n"
        program.send_signal(signal.SIGINT)
    program.communicate(timeout=60)
    wait_until_gone(notes)


def test_what_cannot_be_a_server_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("", [], 'a "b', [""]):
        with pytest.raises(broca.InvalidArgumentError):
            broca.mcp(wrong)
    for more in ({"allow": "echo"}, {"headers": {"a": "b"}}, {"transport": "pigeon"}, {"restarts": -1}):
        with pytest.raises(broca.InvalidArgumentError):
            broca.mcp("x", **more)
    assert repr(broca.mcp("https://key@host/secret?key=hunter2")) == "McpServer(host)"
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(broca.UsageError, match=r"broca-sdk\[mcp\]"):
        broca.mcp("x")


def test_the_tools_of_a_server_stay_when_the_others_are_replaced(server: Server) -> None:
    @broca.tool
    def local() -> str:
        return "from here"

    async def main() -> None:
        async with opened(server, broca.mcp(WORDS)) as session:
            await session.update_tools([local])
            reply = await session.ask('echo "hello" and local')
            assert "echo: hello" in reply.text and "from here" in reply.text
            with pytest.raises(broca.UsageError, match="is brought when"):
                await session.update_tools([broca.mcp(WORDS)])  # type: ignore[list-item]

    asyncio.run(main())


logging.getLogger("mcp").setLevel(logging.CRITICAL)
