"""Threads for tools that are plain functions."""

from __future__ import annotations

import threading
from collections import deque
from typing import Callable

__all__ = ["Pool"]


class Pool:
    """A bounded pool of daemon threads.

    The executor of the standard library makes the interpreter wait at exit for whatever its threads do. A tool that
    does not end must not keep a program alive, so these threads are daemons. They end when nothing came for a
    while.
    """

    _IDLE_S = 10.0

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._jobs: deque[Callable[[], None]] = deque()
        # Entered directly: an exception of a signal may come inside of a condition's own methods, and leave it locked.
        self._lock = threading.Lock()
        self._change = threading.Condition(self._lock)
        self._threads = 0
        self._idle = 0
        self._closed = False

    def submit(self, job: Callable[[], None]) -> None:
        """Runs the job, which must not raise, as soon as a thread is free.

        Raises ``RuntimeError`` when no thread can be had."""
        with self._lock:
            if self._closed:
                return
            self._jobs.append(job)
            if self._idle >= len(self._jobs):
                self._change.notify()
                return
            if self._threads >= self._limit:
                return
            self._threads += 1
        thread = threading.Thread(target=self._work, name="broca-tool", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # No thread can be had: at exit, or at the machine's limit. Those that run will come to it.
            with self._lock:
                self._threads -= 1
                if self._threads == 0 and job in self._jobs:
                    self._jobs.remove(job)
                    raise

    def close(self) -> None:
        """Takes no more jobs and forgets those that have not begun; what runs goes on."""
        with self._lock:
            self._closed = True
            self._jobs.clear()
            self._change.notify_all()

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._jobs:
                    if self._closed:
                        self._threads -= 1
                        return
                    self._idle += 1
                    came = self._change.wait(self._IDLE_S)
                    self._idle -= 1
                    if not came and not self._jobs:
                        self._threads -= 1
                        return
                job = self._jobs.popleft()
            ended = False
            try:
                job()
                ended = True
            finally:
                if not ended:
                    # The thread ends with what the job raised; another one can take its place.
                    with self._lock:
                        self._threads -= 1
            del job
