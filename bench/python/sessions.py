"""Many sessions at once in one process: `python sessions.py CONTENDER ADDRESS`.

Every session has made one turn and rests before the clock starts; then all of them make turns at the same
time. For ours the memory that a resting session adds is measured too.
"""

import asyncio
import gc
import os
import sys
import time
from collections.abc import Awaitable, Callable

from meter import Meter, amount, run
from turns import HEADERS, RPC, Turn

SESSIONS = amount("SESSIONS")
TURNS = amount("SESSION_TURNS")


def raise_file_limit() -> None:
    """Every session holds a connection; the usual limit of open files is near their number."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def resident_kb() -> float:
    """Resident memory of this process, in units of 1,024 bytes."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


async def drive(turns: list[Callable[[], Awaitable[str]]], idle_kb: float | None) -> None:
    """Lets every session make its turns, all sessions at once."""
    meter = Meter()

    async def one(turn: Callable[[], Awaitable[str]]) -> None:
        for _ in range(TURNS):
            began = time.perf_counter()
            answer = await turn()
            meter.single(began)
            if answer != "42":
                raise SystemExit("a turn went wrong")

    await asyncio.gather(*(one(turn) for turn in turns))
    meter.report(len(turns) * TURNS, idle_kb)


async def broca_sessions(address: str) -> None:
    """Sessions of one client, each with its tool."""
    import broca

    @broca.tool
    async def add(a: int, b: int) -> str:
        """Adds two numbers."""
        return str(a + b)

    async with broca.AsyncClient(address, key="bae_bench") as client:

        async def rest_after_one_turn() -> Callable[[], Awaitable[str]]:
            session = await client.open(tools=[add])

            async def turn() -> str:
                reply = await session.ask("add 2 and 40")
                return reply.text

            await turn()
            return turn

        # What the first session brings into memory is not the price of one more. They are opened
        # one by one, so that no crowd of requests is mistaken for memory of a resting session.
        turns = [await rest_after_one_turn()]
        gc.collect()
        before = resident_kb()
        for _ in range(SESSIONS):
            turns.append(await rest_after_one_turn())
        gc.collect()
        idle_kb = (resident_kb() - before) / SESSIONS
        await drive(turns[1:], idle_kb)


async def aiohttp_sessions(address: str) -> None:
    """One client session with as many connections as there are sessions."""
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=HEADERS) as http:

        async def turn() -> str:
            turn = Turn()
            while turn.body:
                async with http.post(address + RPC, data=turn.next_body()) as answer:
                    async for line in answer.content:
                        turn.line(line)
            return turn.answer

        await asyncio.gather(*(turn() for _ in range(SESSIONS)))
        await drive([turn] * SESSIONS, None)


CONTENDERS = {"broca": broca_sessions, "aiohttp": aiohttp_sessions}


def main() -> None:
    """Runs the contender named."""
    name, address = sys.argv[1:]
    raise_file_limit()
    run(CONTENDERS[name](address))


main()
