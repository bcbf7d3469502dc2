"""Whole turns with one tool call: `python turns.py CONTENDER ADDRESS`.

A message, an answer that pauses for the tool `add`, its result, the final text. Two events come with
each answer; everybody reads them.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from meter import Meter, amount, run

RPC = "/api/v1/sessions/ses_1/rpc"
HEADERS = {"content-type": "application/json", "authorization": "Bearer bae_ses_1"}
TURNS = amount("TURNS")
WARM_UP = max(TURNS // 10, 1)


async def drive(turn: Callable[[], Awaitable[str]]) -> None:
    """Runs turns one after another and measures all but the first tenth."""
    meter = Meter()
    for number in range(WARM_UP + TURNS):
        if number == WARM_UP:
            meter.start()
        began = time.perf_counter()
        answer = await turn()
        meter.single(began)
        if answer != "42":
            raise SystemExit("a turn went wrong")
    meter.report(TURNS)


def drive_sync(turn: Callable[[], str]) -> None:
    """The same without a loop."""
    meter = Meter()
    for number in range(WARM_UP + TURNS):
        if number == WARM_UP:
            meter.start()
        began = time.perf_counter()
        answer = turn()
        meter.single(began)
        if answer != "42":
            raise SystemExit("a turn went wrong")
    meter.report(TURNS)


# ---- Broca ---------------------------------------------------------------------------------------


async def broca_async(address: str) -> None:
    """A tool that is a coroutine, `ask` for the whole turn."""
    import broca

    @broca.tool
    async def add(a: int, b: int) -> str:
        """Adds two numbers."""
        return str(a + b)

    async with broca.AsyncClient(address, key="bae_bench") as client:
        session = await client.open(tools=[add])

        async def turn() -> str:
            reply = await session.ask("add 2 and 40")
            return reply.text

        await drive(turn)


def broca_sync(address: str) -> None:
    """A tool that runs where the turn is read, as the tools of the peers do; `ask` for the whole turn."""
    broca_turns(address, inline=True)


def broca_pool(address: str) -> None:
    """The default: the tool runs on a thread of its own, where it can be abandoned."""
    broca_turns(address, inline=False)


def broca_turns(address: str, inline: bool) -> None:
    """A tool that is a function, `ask` for the whole turn."""
    import broca

    @broca.tool(inline=inline)
    def add(a: int, b: int) -> str:
        """Adds two numbers."""
        return str(a + b)

    with broca.Client(address, key="bae_bench") as client:
        session = client.open(tools=[add])
        drive_sync(lambda: session.ask("add 2 and 40").text)


# ---- by hand -------------------------------------------------------------------------------------


def message(content: Any) -> bytes:
    """The body of a sendMessage."""
    params = {"message": {"role": "user", "content": content}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "session.sendMessage", "params": params}
    return json.dumps(call).encode()


QUESTION = message("add 2 and 40")


def add(a: int, b: int) -> int:
    """The tool."""
    return a + b


class Turn:
    """What a turn has come to: the next body to send, or the answer."""

    def __init__(self) -> None:
        self.body: bytes | None = QUESTION
        self.answer = ""
        self.events = 0

    def next_body(self) -> bytes:
        """What to send now; what comes next depends on the lines that answer it."""
        body, self.body = self.body, None
        return body or b""

    def line(self, text: bytes | str) -> None:
        """Takes a line of an answer; runs the tool if it asks for it."""
        said = json.loads(text)
        if "id" not in said:
            self.events += 1
            return
        block = said["result"]["message"]["content"][0]
        if block["type"] == "tool_use":
            output = str(add(**block["input"]))
            self.body = message([{"type": "tool_result", "tool_use_id": block["id"], "content": output}])
        else:
            self.answer = block["text"]


async def aiohttp_turns(address: str) -> None:
    """aiohttp by line."""
    import aiohttp

    async with aiohttp.ClientSession(headers=HEADERS) as http:

        async def whole() -> str:
            turn = Turn()
            while turn.body:
                async with http.post(address + RPC, data=turn.next_body()) as answer:
                    async for line in answer.content:
                        turn.line(line)
            return turn.answer

        await drive(whole)


async def httpx_turns(address: str) -> None:
    """httpx by line."""
    import httpx

    async with httpx.AsyncClient(timeout=None, headers=HEADERS, trust_env=False) as http:

        async def whole() -> str:
            turn = Turn()
            while turn.body:
                body = turn.next_body()
                async with http.stream("POST", address + RPC, content=body) as answer:
                    async for line in answer.aiter_lines():
                        turn.line(line)
            return turn.answer

        await drive(whole)


def requests_turns(address: str) -> None:
    """requests by line."""
    import requests

    with requests.Session() as http:
        http.trust_env = False
        http.headers.update(HEADERS)

        def whole() -> str:
            turn = Turn()
            while turn.body:
                body = turn.next_body()
                with http.post(address + RPC, data=body, stream=True) as answer:
                    for line in answer.iter_lines(chunk_size=None):
                        turn.line(line)
            return turn.answer

        drive_sync(whole)


def http_client_turns(address: str) -> None:
    """http.client by line, one connection."""
    import http.client
    import urllib.parse

    place = urllib.parse.urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port)

    def whole() -> str:
        turn = Turn()
        while turn.body:
            connection.request("POST", RPC, turn.next_body(), HEADERS)
            for line in connection.getresponse():
                turn.line(line)
        return turn.answer

    drive_sync(whole)


CONTENDERS = {
    "broca-async": broca_async,
    "broca-sync": broca_sync,
    "broca-sync-pool": broca_pool,
    "aiohttp": aiohttp_turns,
    "httpx": httpx_turns,
    "requests": requests_turns,
    "http-client": http_client_turns,
}


def main() -> None:
    """Runs the contender named."""
    name, address = sys.argv[1:]
    contender = CONTENDERS[name]
    if asyncio.iscoroutinefunction(contender):
        run(contender(address))
    else:
        contender(address)


if __name__ == "__main__":
    main()
