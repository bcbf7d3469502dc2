"""A session service of the test's own."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Union
from urllib.parse import urlsplit

from . import binary as binaries
from .binary import StrPath
from .process import Process, ServerError
from .proxy import Proxy, ProxyStatus

Script = Union[Mapping[str, Any], Sequence[Any], StrPath]
"""A script of the built-in model: a file of it, its content, or the list of its rules alone."""


class Server:
    """A ``broca serve`` with a database and keys of its own, behind a proxy that breaks connections on
    demand.

    ::

        with Server(script=[{"then": {"text": "Hello."}}]) as server:
            client = broca.Client(server.url, key=server.key)
            server.cut(after_lines=2)           # the next stream breaks off after two lines
            …
            server.restart()                    # killed, and started again with what it had kept

    ``async with`` works too. Without ``with``, call :meth:`start` and :meth:`stop`.

    Nothing outlives the test process: the service and the proxy end when their standard input does, and the
    system closes that however the process ends. Its temporary folder is deleted by :meth:`stop` and at the
    end of the interpreter, so only a test process that is killed leaves one behind. A child that was forked
    without a new program neither keeps them alive nor ends them.

    Knobs say how often they hold: ``count=1`` for the next connection or response, ``count=None`` for all
    until :meth:`heal`. :meth:`drop` and :meth:`delay` concern connections. :meth:`cut`, :meth:`duplicate`,
    :meth:`buffer` and :meth:`stall` concern responses, on whichever connection, and what counts lines concerns
    only streams (NDJSON). With ``request=`` they wait for the answer to a request that contains this text, such
    as ``"session.sendMessage"``.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        model: str | None = None,
        keys: Sequence[str] = (),
        binary: StrPath | None = None,
        turn_timeout: int | None = None,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        start_timeout: float = 30.0,
    ) -> None:
        """Describe a service; nothing is started yet.

        :param script: what the built-in model says; without it, it follows its own rules
        :param model: another model in its place, as with ``broca serve --model``
        :param keys: names of further client keys, one for each driver that shares a session with another
        :param binary: the path of the ``broca`` command; without it the environment variable
            ``BROCA_BINARY``, the package ``broca-server`` and ``PATH`` are asked, in this order
        :param turn_timeout: seconds that a turn waits for the results of tools
        :param options: more options of ``broca serve``
        :param env: more of its environment; variables of this process that begin with ``BROCA_`` or ``BAE_``
            are not handed on by themselves
        :param start_timeout: seconds that the start may take
        """
        if script is not None and model is not None:
            raise ValueError("script is for the built-in model: give script or model, not both")
        self._script = script
        self._model = model
        self._key_names = list(keys)
        self._binary = binary
        self._turn_timeout = turn_timeout
        self._options = list(options)
        self._env = dict(env or {})
        self._start_timeout = start_timeout
        self._running: _Running | None = None

    # Life

    def start(self) -> Server:
        """Start it and wait until it listens; returns itself.

        :raises ServerError: when it cannot be found, is of another version or does not start, with what it
            printed
        """
        if self._running is not None:
            raise ServerError("the server runs already")
        self._running = _Running(self)
        return self

    def stop(self) -> None:
        """End it, and delete its database. Calling it again does nothing."""
        running, self._running = self._running, None
        if running is not None:
            running.close()

    def restart(self, *, down: float = 0.0) -> None:
        """Kill it, as a loss of power would, and start it again with the same database, keys and port.

        Through :attr:`url` connections are refused in between. Planned faults stay planned.

        :param down: seconds before it is started again
        """
        running = self._alive
        running.proxy.listen(False)
        running.service.kill()
        time.sleep(down)
        running.serve(urlsplit(running.direct_url).netloc)
        running.proxy.listen(True)

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Server:
        if _on_asyncio():
            return await asyncio.to_thread(self.start)
        return self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if _on_asyncio():
            await asyncio.to_thread(self.stop)
        else:
            self.stop()

    # Where it is

    @property
    def url(self) -> str:
        """The address for clients; it leads through the proxy, so the knobs hold."""
        return self._alive.proxy.url

    @property
    def direct_url(self) -> str:
        """The address of the service itself; the knobs do not hold."""
        return self._alive.direct_url

    @property
    def key(self) -> str:
        """A client key for a driver."""
        return self._alive.key

    @property
    def watch_key(self) -> str:
        """A second client key, for an observer: joining with a driver's key takes its tools away."""
        return self._alive.watch_key

    @property
    def keys(self) -> Mapping[str, str]:
        """The keys that were asked for by name."""
        return self._alive.keys

    @property
    def pid(self) -> int:
        """The process id of the service."""
        return self._alive.service.pid

    @property
    def output(self) -> str:
        """What the service printed lately, its log included."""
        return self._alive.service.said

    # Knobs

    def drop(self, count: int | None = 1, *, how: Literal["reset", "close"] = "reset") -> None:
        """Turn connections away as soon as they are made, with a reset or an orderly end."""
        self._plan(count, drop=how)

    def refuse(self) -> None:
        """Give the port up until :meth:`heal`, so that the system refuses connections. Those that are open
        stay.
        """
        self._alive.proxy.listen(False)

    def delay(
        self,
        seconds: float = 0.0,
        *,
        up: float | None = None,
        down: float | None = None,
        count: int | None = None,
    ) -> None:
        """Hold bytes back for so long in each direction; with ``count=None`` on open connections too.

        :param seconds: for both directions
        :param up: from the client to the service, in its place
        :param down: from the service to the client, in its place
        """
        up, down = (seconds if way is None else way for way in (up, down))
        self._plan(count, delay_up_ms=round(up * 1000), delay_down_ms=round(down * 1000))

    def cut(
        self,
        *,
        after_lines: int | None = None,
        after_bytes: int | None = None,
        count: int | None = 1,
        request: str | None = None,
        reset: bool = False,
    ) -> None:
        """Break the connection after so many lines of a stream, or bytes of the body of a response.

        :param reset: with a reset in place of an orderly end; what was sent just before may be lost with it
        """
        if (after_lines is None) == (after_bytes is None):
            raise ValueError("give after_lines or after_bytes; reset() ends what is open now")
        knobs = {"cut_after_lines": after_lines, "cut_after_bytes": after_bytes}
        self._plan(count, request=request, reset=reset, **knobs)

    def duplicate(self, line: int = 1, *, count: int | None = 1, request: str | None = None) -> None:
        """Send this line of a stream, counted from 1, twice."""
        self._plan(count, duplicate_line=line, request=request)

    def buffer(self, *, count: int | None = 1, request: str | None = None) -> None:
        """Hold a response back, its head included, until the service has ended it, as a proxy that buffers does.

        After :meth:`heal` what was held back comes with the next bytes of the service.
        """
        self._plan(count, buffer=True, request=request)

    def stall(
        self,
        *,
        after_lines: int | None = None,
        after_bytes: int | None = None,
        count: int | None = 1,
        request: str | None = None,
    ) -> None:
        """Fall silent and stay connected after so many lines or bytes of a response.

        Without either it is at once, on every open connection. What is held back comes after :meth:`heal`.
        """
        if after_lines is None and after_bytes is None:
            if request is not None or count != 1:
                raise ValueError("count and request need after_lines or after_bytes")
            self._alive.proxy.stall()
            return
        knobs = {"stall_after_lines": after_lines, "stall_after_bytes": after_bytes}
        self._plan(count, request=request, **knobs)

    def skip(self, *, connections: int = 0, responses: int = 0) -> None:
        """Let the next ones through unharmed, before faults that are planned after this."""
        for kind, count in (("connection", connections), ("response", responses)):
            if count:
                self._alive.proxy.command(next={"pass": kind}, count=count)

    def reset(self) -> int:
        """Reset every connection that is open now; return how many there were."""
        return self._alive.proxy.reset()

    def heal(self) -> None:
        """Do no more harm: forget every plan, let silent connections go on, take connections again."""
        self._alive.proxy.heal()

    def status(self) -> ProxyStatus:
        """Return what the proxy has seen, such as how many planned faults have not come to pass."""
        return self._alive.proxy.status()

    def _plan(self, count: int | None, **knobs: Any) -> None:
        self._alive.proxy.plan(knobs, count)

    @property
    def _alive(self) -> _Running:
        if self._running is None:
            raise ServerError("the server does not run; use `with Server(…) as server:`, or start() it")
        return self._running


class _Running:
    """What a server that was started consists of."""

    service: Process
    direct_url: str
    key: str
    watch_key: str

    def __init__(self, server: Server) -> None:
        self._binary = binaries.find(server._binary)
        self._timeout = server._start_timeout
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="broca-test-"))
        self._parts: list[Process | Proxy] = []
        self.close = weakref.finalize(self, _close, os.getpid(), self._parts, self._folder)
        try:
            self._env = _environment(self._folder, server._env)
            self._database = self._folder / "broca.db"
            self._options = self._describe(server)
            self.keys = {name: self._make_key(name) for name in server._key_names}
            self.serve("127.0.0.1:0")
            upstream = urlsplit(self.direct_url).netloc
            self.proxy = Proxy(self._binary, upstream, self._env, self._timeout)
            self._parts.append(self.proxy)
        except BaseException:
            self.close()
            raise

    def serve(self, address: str) -> None:
        """Start the service there and wait until it listens."""
        command = [self._binary, "serve", "--dev", "--json", "--addr", address]
        service = Process([*command, *self._options], self._env, "the service")
        self._parts[:] = [service, *(part for part in self._parts if isinstance(part, Proxy))]
        self.service = service
        ready = service.listening(self._timeout)
        self.direct_url = str(ready["url"])
        key_file = pathlib.Path(str(ready["key_file"]))
        self.key = key_file.read_text().strip()
        self.watch_key = key_file.with_name("watch-key").read_text().strip()

    def _describe(self, server: Server) -> list[str]:
        """Return the options that each start of the service gets."""
        options = ["--end-with-input", "--shutdown-timeout", "1", "--db", str(self._database)]
        model = server._model
        if server._script is not None:
            model = f"scripted:{self._script_file(server._script)}"
        if model is not None:
            options += ["--model", model]
        if server._turn_timeout is not None:
            options += ["--turn-timeout", str(server._turn_timeout)]
        return [*options, *server._options]

    def _script_file(self, script: Script) -> str:
        if isinstance(script, (str, os.PathLike)):
            return os.path.abspath(script)
        content = script if isinstance(script, Mapping) else {"rules": list(script)}
        file = self._folder / "script.json"
        file.write_text(json.dumps(content), encoding="utf-8")
        return str(file)

    def _make_key(self, name: str) -> str:
        command = [self._binary, "key", "create", name, "--db", str(self._database)]
        done = subprocess.run(
            command,
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=self._timeout,
            check=False,
        )
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip()
            raise ServerError(f"the key {name} could not be made: {said}")
        return done.stdout.decode().strip()


def _close(owner: int, parts: list[Process | Proxy], folder: pathlib.Path) -> None:
    """End the proxy first, so that no connection keeps the service. A forked child has nothing to end."""
    if os.getpid() != owner:
        return
    for part in reversed(parts):
        if isinstance(part, Proxy):
            part.stop()
        else:
            part.end(timeout=5.0)
    shutil.rmtree(folder, ignore_errors=True)


def _environment(folder: pathlib.Path, more: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without what would lead the service elsewhere."""
    own = {name: value for name, value in os.environ.items() if not name.upper().startswith(("BROCA_", "BAE_"))}
    return {**own, "XDG_STATE_HOME": str(folder), **more}


def _on_asyncio() -> bool:
    """Tell whether an asyncio loop runs this code; other loops have their own threads."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
