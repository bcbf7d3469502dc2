"""The session service for tests: started, broken and healed, with a client of the standard library."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import itertools
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from broca._version import __version__
from broca.testing import BinaryNotFoundError, Server, ServerError, VersionMismatchError
from broca.testing import binary as binaries
from broca.testing.binary import find

# Child processes test the same copy of the package.
PYTHON = str(pathlib.Path(binaries.__file__).parents[2])


def binary() -> str | None:
    """Where the command is, if there is one here."""
    with contextlib.suppress(BinaryNotFoundError):
        return find()
    return None


needs_broca = pytest.mark.skipif(binary() is None, reason="there is no broca command; set BROCA_BINARY")


class Driver:
    """A plain client of one session, on a connection that it keeps."""

    def __init__(self, server: Server, key: str | None = None, url: str | None = None) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(url or server.url).netloc, timeout=30)
        opened = self.post("/api/v1/sessions", key or server.key, {"client_version": "t/1", "tools": []})
        self.id, self.key = opened["session_id"], opened["session_key"]
        self.say("session.registerDriver", {})

    def close(self) -> None:
        self.connection.close()

    def post(self, path: str, key: str, body: Any) -> Any:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self.connection.request("POST", path, json.dumps(body), headers)
        return json.loads(self.connection.getresponse().read())

    def stream(self, method: str, params: Any) -> Iterator[dict[str, Any]]:
        """The lines of one answer as they come."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        self.connection.request("POST", f"/api/v1/sessions/{self.id}/rpc", json.dumps(body), headers)
        response = self.connection.getresponse()
        for line in iter(response.readline, b""):
            yield json.loads(line)
        # Reading lines takes a broken end for the end; this tells them apart.
        response.read()

    def say(self, method: str, params: Any) -> list[dict[str, Any]]:
        return list(self.stream(method, params))

    def message(self, content: str) -> list[dict[str, Any]]:
        return self.say("session.sendMessage", {"message": {"role": "user", "content": content}})


@contextlib.contextmanager
def driving(server: Server, **more: Any) -> Iterator[Driver]:
    driver = Driver(server, **more)
    try:
        yield driver
    finally:
        driver.close()


def text(lines: list[dict[str, Any]]) -> str:
    """The answer in the terminal line."""
    blocks = lines[-1]["result"]["message"]["content"]
    return "".join(block["text"] for block in blocks if block["type"] == "text")


def meta(url: str) -> Any:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.request("GET", "/api/v1/meta")
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def is_running(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = pathlib.Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def wait_until(holds: Any) -> None:
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until, "it never came to pass"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(script=[{"then": {"text": "one two"}}]) as server:
        yield server


@pytest.fixture(autouse=True)
def healed(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "server" in request.fixturenames:
        request.getfixturevalue("server").heal()


# Life


@needs_broca
def test_a_server_answers_as_its_script_says_through_the_proxy_and_beside_it(server: Server) -> None:
    assert server.url != server.direct_url
    for url in (server.url, server.direct_url):
        assert meta(url)["version"] == __version__
        with driving(server, url=url) as driver:
            assert text(driver.message("hello")) == "one two"


@needs_broca
@pytest.mark.parametrize("kind", ["mapping", "path", "text"])
def test_a_script_may_be_a_mapping_or_a_file(kind: str, tmp_path: pathlib.Path) -> None:
    content = {"rules": [{"then": {"text": kind}}]}
    file = tmp_path / "script.json"
    file.write_text(json.dumps(content))
    script: Any = {"mapping": content, "path": file, "text": str(file)}[kind]
    with Server(script=script) as server, driving(server) as driver:
        assert text(driver.message("hello")) == kind


@needs_broca
def test_a_script_that_cannot_be_read_is_told_with_what_the_service_said() -> None:
    with pytest.raises(ServerError, match=r"the service did not start; it said:\n.*line 1, column"):
        Server(script=[{"then": {"txt": "hello"}}]).start()


@needs_broca
def test_keys_that_are_asked_for_are_drivers_of_their_own() -> None:
    with Server(keys=["ann", "bob"]) as server:
        keys = [server.key, server.watch_key, *server.keys.values()]
        assert len(set(keys)) == 4
        assert list(server.keys) == ["ann", "bob"]
        with driving(server, key=server.keys["bob"]) as driver:
            assert driver.message("hello")


@needs_broca
def test_a_restart_keeps_sessions_keys_and_port(server: Server) -> None:
    with driving(server) as driver:
        driver.message("hello")
        before = (server.url, server.direct_url, server.key, server.pid)
        server.restart()
        after = (server.url, server.direct_url, server.key, server.pid)
        assert before[:3] == after[:3]
        assert before[3] != after[3]
        assert not is_running(before[3])
        driver.connection.close()
        assert text(driver.message("again")) == "one two"


@needs_broca
def test_while_it_is_down_connections_are_refused(server: Server) -> None:
    refusals = 0
    restarting = threading.Thread(target=lambda: server.restart(down=0.3))
    restarting.start()
    while restarting.is_alive():
        try:
            meta(server.url)
        except ConnectionRefusedError:
            refusals += 1
            time.sleep(0.01)
        except (OSError, http.client.HTTPException):
            pass
    restarting.join()
    assert refusals > 0
    assert meta(server.url)


@needs_broca
def test_stop_leaves_nothing_behind_and_may_be_repeated() -> None:
    server = Server()
    server.start()
    pids = [server.pid, server._alive.proxy.pid]
    folder = server._alive._folder
    assert folder.exists()
    server.stop()
    server.stop()
    assert not any(map(is_running, pids))
    assert not folder.exists()
    with pytest.raises(ServerError, match="does not run"):
        _ = server.url


@needs_broca
def test_a_server_that_is_forgotten_ends() -> None:
    server = Server()
    server.start()
    pid = server.pid
    del server
    gc.collect()
    wait_until(lambda: not is_running(pid))


@needs_broca
def test_it_cannot_be_started_twice(server: Server) -> None:
    with pytest.raises(ServerError, match="runs already"):
        server.start()


@needs_broca
def test_async_with_starts_and_stops_it_without_holding_up_the_loop() -> None:
    async def main() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        async with Server() as server:
            pid = server.pid
            assert ticks > 5
            assert is_running(pid)
        ticking.cancel()
        return pid

    assert not is_running(asyncio.run(main()))


CHILD = """
    import os, sys, time
    from broca.testing import Server
    server = Server().start()
    print(server.pid, server._alive.proxy.pid, flush=True)
    {then}
"""


@needs_broca
@pytest.mark.skipif(sys.platform == "win32", reason="signals and forks of Unix")
@pytest.mark.parametrize(
    ("then", "status"),
    [
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("raise SystemExit(3)", 3),
        # A child that lives on has the pipes of its parent, too.
        ("os.fork() and os.kill(os.getpid(), 9) or os.close(1) or time.sleep(60)", -signal.SIGKILL),
    ],
    ids=["killed", "ended", "killed after a fork"],
)
def test_nothing_outlives_the_test_process(then: str, status: int, tmp_path: pathlib.Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(CHILD).format(then=then)],
        stdout=subprocess.PIPE,
        # The folder of a service whose test was killed is left behind.
        env={**os.environ, "PYTHONPATH": PYTHON, "TMPDIR": str(tmp_path)},
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(timeout=30)
        assert child.returncode == status
        pids = [int(pid) for pid in output.split()]
        assert len(pids) == 2
        wait_until(lambda: not any(map(is_running, pids)))
    finally:
        # What was forked is in a group of its own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


@needs_broca
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_does_not_end_the_service_of_its_parent(server: Server) -> None:
    code = CHILD.format(
        then="pid = os.fork() or sys.exit(0); os.waitpid(pid, 0); print(server._alive.service.is_running)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": PYTHON},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout.splitlines()[-1] == "True", done


# Which binary


def script(tmp_path: pathlib.Path, version: str) -> str:
    """A program that says it is broca of this version."""
    file = tmp_path / "broca"
    file.write_text(f"#!/bin/sh\necho {version}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def test_another_version_is_refused_with_a_sentence_that_names_both_and_the_file(
    tmp_path: pathlib.Path,
) -> None:
    file = script(tmp_path, "broca 9.8.7")
    with pytest.raises(VersionMismatchError) as caught:
        Server(binary=file).start()
    assert all(part in str(caught.value) for part in (file, "9.8.7", __version__, "pip install"))


def test_a_program_that_is_not_broca_is_told(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ServerError, match="is not the broca command"):
        find(script(tmp_path, "hello"))


def test_the_places_are_asked_in_order(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {}
    for name in ("given", "variable", "package", "path"):
        (tmp_path / name).mkdir()
        places[name] = script(tmp_path / name, f"broca {__version__}")
    package = tmp_path / "site" / "broca_server.py"
    package.parent.mkdir()
    package.write_text(f"def binary_path():\n    return {places['package']!r}\n")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, "broca_server", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("BROCA_BINARY", places["variable"])
    assert find(places["given"]) == places["given"]
    assert find() == places["variable"]
    monkeypatch.delenv("BROCA_BINARY")
    assert find() == places["package"]
    monkeypatch.setitem(sys.modules, "broca_server", None)
    assert find() == places["path"]
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BinaryNotFoundError, match="pip install broca-server"):
        find()


def test_a_named_place_without_a_program_is_told_and_no_other_is_tried(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROCA_BINARY", str(tmp_path / "nothing"))
    with pytest.raises(BinaryNotFoundError, match=r"nothing \(BROCA_BINARY\)"):
        find()


def test_a_script_and_a_model_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="not both"):
        Server(script=[], model="scripted")


# The network


@needs_broca
def test_a_dropped_connection_is_reset_or_closed_and_the_next_passes(server: Server) -> None:
    server.drop()
    with pytest.raises(ConnectionResetError):
        meta(server.url)
    server.drop(2, how="close")
    for _ in range(2):
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            meta(server.url)
    assert meta(server.url)
    server.drop(None)
    for _ in range(3):
        with pytest.raises(ConnectionResetError):
            meta(server.url)
    assert meta(server.direct_url)
    server.heal()
    assert meta(server.url)


@needs_broca
def test_a_refused_connection_is_refused_by_the_system_until_all_is_healed(server: Server) -> None:
    server.refuse()
    with pytest.raises(ConnectionRefusedError):
        meta(server.url)
    server.heal()
    assert meta(server.url)


@needs_broca
def test_a_delay_holds_for_open_connections_too(server: Server) -> None:
    with driving(server) as driver:
        server.delay(up=0.05, down=0.1)
        begun = time.monotonic()
        assert text(driver.message("hello")) == "one two"
        assert time.monotonic() - begun >= 0.15


@needs_broca
def test_a_cut_after_lines_hits_the_next_stream_and_later_ones_pass(server: Server) -> None:
    with driving(server) as driver:
        whole = driver.message("hello")
        assert len(whole) > 2
        server.cut(after_lines=2)
        got = []
        with pytest.raises(http.client.IncompleteRead):
            for line in driver.stream("session.sendMessage", {"message": {"role": "user", "content": "x"}}):
                got.append(line)
        assert len(got) == 2
        driver.connection.close()
        assert server.status()["planned"] == 0
        assert text(driver.message("again")) == "one two"


@needs_broca
def test_a_cut_after_bytes_waits_for_the_request_that_it_names(server: Server) -> None:
    server.cut(after_bytes=10, request="session.sendMessage", reset=True)
    assert meta(server.url)
    with driving(server) as driver:
        assert server.status()["planned"] == 1
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError, ValueError)):
            driver.message("hello")
    assert server.status()["planned"] == 0


@needs_broca
def test_a_line_comes_twice_inside_a_whole_stream(server: Server) -> None:
    with driving(server) as driver:
        usual = driver.message("hello")
        server.duplicate(2)
        lines = driver.message("hello")
        assert len(lines) == len(usual) + 1
        assert lines[1] == lines[2]
        assert text(driver.message("again")) == "one two"


@needs_broca
def test_a_buffered_stream_is_held_back_while_it_goes_on_and_comes_when_all_is_healed(server: Server) -> None:
    with driving(server) as driver, driving(server) as beside:
        beside.id, beside.key = driver.id, driver.key
        server.buffer(request="session.subscribe")
        got: list[Any] = []

        def watch() -> None:
            try:
                got.extend(itertools.islice(driver.stream("session.subscribe", {"since_event_id": ""}), 3))
            except (OSError, http.client.HTTPException) as error:
                got.append(error)

        watching = threading.Thread(target=watch)
        watching.start()
        wait_until(lambda: server.status()["planned"] == 0)
        assert text(beside.message("hello")) == "one two"
        time.sleep(0.1)
        assert not got
        server.heal()
        beside.message("again")
        watching.join(timeout=20)
        assert got[0]["params"]["event_type"] == "session.open"


@needs_broca
def test_a_buffered_answer_comes_whole_when_it_has_ended(server: Server) -> None:
    with driving(server) as driver:
        server.buffer()
        assert text(driver.message("hello")) == "one two"
    assert server.status()["planned"] == 0


@needs_broca
def test_a_stalled_stream_is_silent_until_all_is_healed(server: Server) -> None:
    with driving(server) as driver:
        server.stall(after_lines=1)
        message = {"message": {"role": "user", "content": "x"}}
        lines = driver.stream("session.sendMessage", message)
        next(lines)
        rest: list[Any] = []
        reading = threading.Thread(target=lambda: rest.extend(lines))
        reading.start()
        time.sleep(0.1)
        assert not rest
        server.heal()
        reading.join(timeout=20)
        assert text(rest) == "one two"


@needs_broca
def test_what_is_open_can_be_silenced_and_reset_at_once(server: Server) -> None:
    with driving(server) as driver:
        server.stall()
        outcome: list[BaseException] = []

        def ask() -> None:
            try:
                driver.message("hello")
            except (OSError, http.client.HTTPException) as error:
                outcome.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(0.1)
        assert asking.is_alive()
        assert server.reset() == 1
        asking.join(timeout=20)
        assert isinstance(outcome[0], ConnectionResetError)


@needs_broca
def test_what_is_skipped_passes_before_what_is_planned_after_it(server: Server) -> None:
    server.skip(connections=2)
    server.drop()
    assert meta(server.url)
    assert meta(server.url)
    with pytest.raises(ConnectionResetError):
        meta(server.url)


@needs_broca
def test_wrong_knobs_are_told_and_change_nothing(server: Server) -> None:
    with pytest.raises(ValueError, match="after_lines or after_bytes"):
        server.cut()
    with pytest.raises(ValueError, match="need after_lines"):
        server.stall(count=3)
    with pytest.raises(ServerError, match="counted from 1"):
        server.duplicate(0)
    with pytest.raises(ServerError, match="count must be"):
        server.drop(0)
    assert meta(server.url)


@needs_broca
def test_a_service_that_has_ended_is_told_with_its_last_words() -> None:
    server = Server(options=["--log", "info"])
    with server:
        server._alive.proxy._process.kill()
        with pytest.raises(ServerError, match="the proxy has ended"):
            server.drop()


@needs_broca
def test_variables_of_this_process_lead_the_service_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROCA_DB_PATH", "/nowhere/broca.db")
    monkeypatch.setenv("BAE_TURN_TIMEOUT", "nonsense")
    with Server(env={"BROCA_LOG": "info"}) as server:
        assert meta(server.url)
