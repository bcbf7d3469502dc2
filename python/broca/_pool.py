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
        self._lock = threading.Lock()
        self._threads = 0
        # What each thread that has nothing to do waits for. The last one to rest is the first to be called.
        self._idle: list[threading.Lock] = []
        self._closed = False

    def submit(self, job: Callable[[], None], wakes: list[Callable[[], None]] | None = None) -> None:
        """Runs the job, which must not raise, as soon as a thread is free.

        With ``wakes`` a thread that has to be woken for it is not: what wakes it is added there, for the caller to call
        when it is about to wait itself. Raises ``RuntimeError`` when no thread can be had."""
        with self._lock:
            if self._closed:
                return
            self._jobs.append(job)
            if self._idle:
                wake = self._idle.pop().release
                if wakes is None:
                    wake()
                else:
                    wakes.append(wake)
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
            while self._idle:
                self._idle.pop().release()

    def _work(self) -> None:
        late = False
        while True:
            job = None
            with self._lock:
                if self._jobs:
                    job = self._jobs.popleft()
                elif late or self._closed:
                    self._threads -= 1
                    return
                else:
                    gate = threading.Lock()
                    gate.acquire()
                    self._idle.append(gate)
            if job is None:
                late = not gate.acquire(timeout=self._IDLE_S)
                if late:
                    with self._lock:
                        # One that is no longer there has been called.
                        late = gate in self._idle
                        if late:
                            self._idle.remove(gate)
                continue
            ended = late = False
            try:
                job()
                ended = True
            finally:
                if not ended:
                    # The thread ends with what the job raised; another one can take its place.
                    with self._lock:
                        self._threads -= 1
            del job
