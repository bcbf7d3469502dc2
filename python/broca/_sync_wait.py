"""What threads of the synchronous shell wait with: the system's word about sockets, a way to end that wait, gates."""

from __future__ import annotations

import select
import socket
import threading
from typing import Any

from . import _core as core

IN: int = getattr(select, "POLLIN", 1)
OUT: int = getattr(select, "POLLOUT", 4)
ERR: int = getattr(select, "POLLERR", 8)


def new_poll() -> Any:
    return select.poll() if hasattr(select, "poll") else _Select()


class Gate:
    """What a follower waits for: opened once, by whoever holds the driver's lock."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        self._lock.release()

    def wait(self, timeout: float) -> None:
        self._lock.acquire(timeout=timeout)


class Wake:
    """Ends a leader's wait: a pair of connected sockets. They are lent out, since only waiting needs them."""

    __slots__ = ("_forks", "_sender", "_sent", "fd", "reader")

    _spare: list[Wake] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.reader, self._sender = socket.socketpair()
        self.reader.setblocking(False)
        self._sender.setblocking(False)
        self.fd = self.reader.fileno()
        self._forks = core.Process.forks
        self._sent = False
        """There may be something to drain."""

    def __del__(self) -> None:
        # An interrupt (Ctrl-C comes anywhere) may lose it between two owners.
        for end in ("reader", "_sender"):
            if hasattr(self, end):
                getattr(self, end).close()

    @classmethod
    def take(cls) -> Wake:
        try:
            while True:
                wake = cls._spare.pop()
                if wake._forks == core.Process.forks:
                    return wake
                # A pair that was made before a fork is the parent's, too; this end of it is in nobody's way there.
                wake.close()
        except IndexError:
            return cls()

    def give_back(self) -> None:
        self.drain()
        if len(self._spare) < 16:
            self._spare.append(self)
        else:
            self.close()

    def close(self) -> None:
        self.reader.close()
        self._sender.close()

    @classmethod
    def close_spare(cls) -> None:
        while cls._spare:
            cls._spare.pop().close()

    def wake(self) -> None:
        self._sent = True
        try:
            self._sender.send(b"\0")
        except (BlockingIOError, InterruptedError):
            # It is full: the leader has been told more than once.
            pass

    def drain(self) -> None:
        if not self._sent:
            return
        try:
            while len(self.reader.recv(4096)) == 4096:
                pass
        except (BlockingIOError, InterruptedError):
            pass
        self._sent = False


class _Select:
    """As `select.poll`, for systems that do not have it."""

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}

    def register(self, fd: Any, mask: int) -> None:
        self._masks[fd if isinstance(fd, int) else fd.fileno()] = mask

    modify = register

    def unregister(self, fd: Any) -> None:
        self._masks.pop(fd if isinstance(fd, int) else fd.fileno(), None)

    def poll(self, wait: int) -> list[tuple[int, int]]:
        masks = dict(self._masks)
        reading = [fd for fd, mask in masks.items() if mask & IN]
        writing = [fd for fd, mask in masks.items() if mask & OUT]
        # Windows tells of a connect that failed as of an exception.
        came = select.select(reading, writing, writing, wait / 1000)
        found: dict[int, int] = {}
        for fds, bit in zip(came, (IN, OUT, ERR)):
            for fd in fds:
                found[fd] = found.get(fd, 0) | bit
        return list(found.items())
