"""What one run cost, printed as the line of JSON that the bench program reads.

Every program here is called as `python FILE CONTENDER … ADDRESS`. How much it does is in the
environment (`BENCH_EVENTS` and others), set by the bench program. `BENCH_UVLOOP=1` runs the asyncio
contenders, ours and the peers alike, on uvloop.
"""

import asyncio
import json
import os
import resource
import time
from collections.abc import Coroutine
from typing import Any


def amount(name: str) -> int:
    """How much to do: the number in the environment variable BENCH_name."""
    return int(os.environ[f"BENCH_{name}"])


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Runs an asyncio contender."""
    if os.environ.get("BENCH_UVLOOP"):
        import uvloop

        uvloop.run(coroutine)
    else:
        asyncio.run(coroutine)


class Meter:
    """A stopwatch for one run of this process."""

    def __init__(self) -> None:
        self._singles: list[float] = []
        self.start()

    def start(self) -> None:
        """Starts it, again if it runs."""
        self._singles.clear()
        self._switches = _switches()
        self._cpu = time.process_time()
        self._wall = time.perf_counter()

    def single(self, since: float) -> None:
        """Notes the time of one thing that began at `since` (`time.perf_counter()`)."""
        self._singles.append(time.perf_counter() - since)

    def report(self, things: int, idle_kb: float | None = None) -> None:
        """Stops it after so many things and prints what they cost."""
        wall = time.perf_counter() - self._wall
        cpu = time.process_time() - self._cpu
        switches = _switches() - self._switches
        singles = sorted(self._singles)
        figures = {
            "rate": things / wall,
            "p50_us": singles[len(singles) // 2] * 1e6 if singles else None,
            "switches": switches * 1e3 / things,
            "cpu_us": cpu * 1e6 / things,
            "idle_kb": idle_kb,
        }
        print(json.dumps(figures), flush=True)


def _switches() -> int:
    """Voluntary context switches of all threads so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
