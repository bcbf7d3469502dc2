"""A process of the ``broca`` command that never outlives this one."""

from __future__ import annotations

import collections
import json
import os
import queue
import subprocess
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import IO, Any

_MAX_LINE = 64 * 1024
_KEPT_LINES = 1_000


class ServerError(RuntimeError):
    """The service or its proxy could not be started, has ended, or refused a command."""


class Process:
    """``broca …`` with JSON lines on its output and everything it says kept for error messages.

    It is started with a pipe as standard input and told to end with it. The write end of the pipe lives in
    this process alone, so the system closes it however this process ends, ``kill -9`` included, on every
    platform.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], title: str) -> None:
        """Start the command.

        :param command: the program and its arguments
        :param env: its whole environment
        :param title: what error messages call it, such as ``"the service"``
        :raises ServerError: when it cannot be started
        """
        self.title = title
        try:
            self._popen = subprocess.Popen(
                list(command),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(env),
                # Ctrl-C at the terminal is for the tests; the service goes with them.
                start_new_session=True,
            )
        except OSError as error:
            raise ServerError(f"{command[0]} cannot be started: {error}") from error
        self._owner = os.getpid()
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._said: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self._readers = [
            threading.Thread(target=self._read, args=(stream, is_output), daemon=True)
            for stream, is_output in ((self._popen.stdout, True), (self._popen.stderr, False))
        ]
        for reader in self._readers:
            reader.start()
        _running.add(self)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._popen.poll() is None

    @property
    def said(self) -> str:
        """The last lines that it printed on either stream."""
        return "".join(self._said)

    def listening(self, timeout: float) -> dict[str, Any]:
        """The line that tells where it listens.

        :param timeout: seconds to wait for it
        :raises ServerError: when it does not start, with all that it said
        """
        ready = self.object(timeout)
        if ready.get("type") != "listening":
            self.end(timeout=5)
            raise self.error("did not start")
        return ready

    def object(self, timeout: float) -> dict[str, Any]:
        """The next line of its output, a JSON object.

        :param timeout: seconds to wait for it
        :raises ServerError: when it ends or stays silent instead, with all that it said
        """
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise self.error(f"did not answer within {timeout:g} s") from None
        if line is None:
            for reader in self._readers:
                reader.join(timeout=5)
            raise self.error(f"ended with status {self._popen.wait()}")
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise self.error("printed a line that is no JSON object")
        return value

    def write(self, line: str) -> None:
        """Hand it a line of input.

        :raises ServerError: when it has ended
        """
        try:
            self._input.write(line.encode() + b"\n")
        except (OSError, ValueError):
            raise self.error("has ended") from None

    def error(self, what: str) -> ServerError:
        """An error about it, with all that it said."""
        said = self.said.rstrip()
        return ServerError(f"{self.title} {what}" + (f"; it said:\n{said}" if said else ""))

    def kill(self) -> None:
        """End it at once, as a loss of power would."""
        if os.getpid() == self._owner:
            self._popen.kill()
            self._release()

    def end(self, timeout: float) -> None:
        """Ask it to end, and end it when that takes longer than ``timeout`` seconds."""
        if os.getpid() != self._owner:
            return
        self._input.close()
        try:
            self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self._popen.kill()
        self._release()

    def _release(self) -> None:
        self._popen.wait()
        _running.discard(self)
        self._input.close()
        for reader in self._readers:
            reader.join(timeout=5)

    @property
    def _input(self) -> IO[bytes]:
        stream = self._popen.stdin
        assert stream is not None, "it was started with a pipe"
        return stream

    def _read(self, stream: IO[bytes], is_output: bool) -> None:
        """Carry one stream to its end, so that the process never waits for a reader."""
        pending = b""
        with stream:
            while True:
                data = stream.read(_MAX_LINE)
                *lines, pending = (pending + (data or b"\n")).split(b"\n")
                if len(pending) > _MAX_LINE:
                    lines, pending = [*lines, pending], b""
                for line in lines:
                    text = line.decode("utf-8", "replace")
                    if text:
                        self._said.append(text + "\n")
                    if text and is_output:
                        self._lines.put(text)
                if not data:
                    break
        if is_output:
            self._lines.put(None)


_running: weakref.WeakSet[Process] = weakref.WeakSet()


def _let_go() -> None:
    """Close in a forked child what keeps the processes of its parent alive."""
    for process in list(_running):
        process._input.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
