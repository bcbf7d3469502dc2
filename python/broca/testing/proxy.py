"""A proxy that breaks the network on demand: ``broca proxy``, driven by lines of JSON."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any, TypedDict

from .process import Process

_ANSWER_TIMEOUT = 30.0


class ProxyStatus(TypedDict):
    """What a proxy has seen."""

    connections: int
    """Connections so far, refused ones included."""
    open: int
    """Connections that are open now."""
    planned: int
    """Faults that were planned for single connections or responses and have not come to pass."""
    bytes: int
    """Bytes of the service that were handed on so far."""


class Proxy:
    """A proxy before a service. The vocabulary is described in the guide on testing.

    Any thread may use it; each method returns when what it asks for holds.
    """

    def __init__(self, binary: str, upstream: str, env: Mapping[str, str], timeout: float = 30.0) -> None:
        """Start it on a free port of 127.0.0.1.

        :param binary: the path of the ``broca`` command
        :param upstream: ``HOST:PORT`` of the service
        :param env: the environment of the process
        :param timeout: seconds that the start may take
        :raises ServerError: when it cannot be started
        """
        command = [binary, "proxy", "--upstream", upstream]
        self._process = Process(command, env, "the proxy")
        self._lock = threading.Lock()
        self._last_id = 0
        try:
            self.url = str(self._process.listening(timeout)["url"])
        except BaseException:
            self._process.kill()
            raise

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._process.pid

    def command(self, **members: Any) -> dict[str, Any]:
        """Carry out one command of the vocabulary, such as ``next={"cut_after_lines": 3}``.

        :returns: the members of the answer
        :raises ServerError: when the proxy refuses the command or has ended
        """
        with self._lock:
            self._last_id += 1
            self._process.write(json.dumps({"id": self._last_id, **members}))
            answer = self._process.object(_ANSWER_TIMEOUT)
        if answer.get("id") != self._last_id or "error" in answer:
            raise self._process.error(f"refused a command: {answer.get('error', 'another id')}")
        return answer

    def plan(self, knobs: Mapping[str, Any], count: int | None) -> None:
        """Set knobs for the next ``count`` connections or responses; with ``None`` for all until healed."""
        given = {name: value for name, value in knobs.items() if value is not None}
        if count is None:
            self.command(all=given)
        else:
            self.command(next=given, count=count)

    def listen(self, listening: bool) -> None:
        """Give the port up, so that connections are refused, or listen again."""
        self.command(listen=listening)

    def reset(self) -> int:
        """Reset every connection that is open; return how many."""
        return int(self.command(reset=True)["connections"])

    def stall(self) -> int:
        """Silence every connection that is open until it is reset or healed; return how many."""
        return int(self.command(stall=True)["connections"])

    def heal(self) -> None:
        """Forget every plan, let silent connections go on, and listen."""
        self.command(heal=True)

    def status(self) -> ProxyStatus:
        """Return what it has seen."""
        answer = self.command(status=True)
        return ProxyStatus(
            connections=answer["connections"],
            open=answer["open"],
            planned=answer["planned"],
            bytes=answer["bytes"],
        )

    def stop(self, timeout: float = 5.0) -> None:
        """End it and every connection through it. Calling it again does nothing."""
        self._process.end(timeout)
