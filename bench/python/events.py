"""Consumers of a stream of events: `python events.py CONTENDER [payload] ADDRESS`.

Each subscribes to a session and reads three fields of every event, and with `payload` also one
inside its payload. The connection is there before the clock starts: everybody has asked something on it.
"""

import asyncio
import sys
from typing import Any

from meter import Meter, amount, run

META = "/api/v1/meta"
RPC = "/api/v1/sessions/ses_1/rpc"
SUBSCRIBE = b'{"jsonrpc":"2.0","id":1,"method":"session.subscribe","params":{}}'
HEADERS = {"content-type": "application/json", "authorization": "Bearer bae_ses_1"}

# The stream ends with the event that the session is closed.
EVENTS = amount("EVENTS") + 1


def report(meter: Meter, events: int, seen: int, done: bool) -> None:
    """Prints the figures of a stream that came whole."""
    if events != EVENTS or not seen or not done:
        raise SystemExit(f"the stream was not complete: {events} of {EVENTS} events, {done=}")
    meter.report(events)


# ---- Broca ---------------------------------------------------------------------------------------


async def broca_async(address: str, payload: bool) -> None:
    """`async for` over a subscription."""
    import broca

    events = seen = 0
    done = False
    async with broca.AsyncClient(address, key="bae_bench") as client:
        session = await client.observe("ses_1")
        meter = Meter()
        async with session.subscribe() as steps:
            async for step in steps:
                if type(step) is broca.Event:
                    events += 1
                    seen += len(step.id) + len(step.created_at)
                    done = step.type == "session.close"
                    if payload:
                        seen += step.payload.get("index", 0)
        report(meter, events, seen, done)


def broca_sync(address: str, payload: bool) -> None:
    """`for` over a subscription."""
    import broca

    events = seen = 0
    done = False
    with broca.Client(address, key="bae_bench") as client:
        session = client.observe("ses_1")
        meter = Meter()
        with session.subscribe() as steps:
            for step in steps:
                if type(step) is broca.Event:
                    events += 1
                    seen += len(step.id) + len(step.created_at)
                    done = step.type == "session.close"
                    if payload:
                        seen += step.payload.get("index", 0)
        report(meter, events, seen, done)


# ---- by hand -------------------------------------------------------------------------------------


async def aiohttp_chunks(address: str, payload: bool) -> None:
    """aiohttp, lines cut from whole chunks, orjson: the quickest that asyncio users write."""
    import aiohttp
    import orjson

    events = seen = 0
    done = False
    async with aiohttp.ClientSession(read_bufsize=1 << 18, headers=HEADERS) as http:
        async with http.get(address + META) as answer:
            await answer.read()
        meter = Meter()
        async with http.post(address + RPC, data=SUBSCRIBE) as answer:
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    message = orjson.loads(line)
                    event = message.get("params")
                    if event is None:
                        done = "id" in message
                        continue
                    events += 1
                    seen += len(event["id"]) + len(event["event_type"]) + len(event["created_at"])
                    if payload:
                        seen += event["payload"].get("index", 0)
        report(meter, events, seen, done)


async def httpx_lines(address: str, payload: bool) -> None:
    """httpx by line, orjson."""
    import httpx
    import orjson

    events = seen = 0
    done = False
    async with httpx.AsyncClient(timeout=None, headers=HEADERS, trust_env=False) as http:
        await http.get(address + META)
        meter = Meter()
        async with http.stream("POST", address + RPC, content=SUBSCRIBE) as answer:
            async for line in answer.aiter_lines():
                message = orjson.loads(line)
                event = message.get("params")
                if event is None:
                    done = "id" in message
                    continue
                events += 1
                seen += len(event["id"]) + len(event["event_type"]) + len(event["created_at"])
                if payload:
                    seen += event["payload"].get("index", 0)
        report(meter, events, seen, done)


def requests_lines(address: str, payload: bool) -> None:
    """requests by line, the standard library's json."""
    import json

    import requests

    events = seen = 0
    done = False
    with requests.Session() as http:
        http.trust_env = False
        http.headers.update(HEADERS)
        http.get(address + META)
        meter = Meter()
        with http.post(address + RPC, data=SUBSCRIBE, stream=True) as answer:
            for line in answer.iter_lines(chunk_size=None):
                message = json.loads(line)
                event = message.get("params")
                if event is None:
                    done = "id" in message
                    continue
                events += 1
                seen += len(event["id"]) + len(event["event_type"]) + len(event["created_at"])
                if payload:
                    seen += event["payload"].get("index", 0)
        report(meter, events, seen, done)


def http_client_chunks(address: str, payload: bool) -> None:
    """http.client in large reads, msgspec into typed structs: the quickest by hand."""
    import http.client
    import urllib.parse

    import msgspec

    class Delta(msgspec.Struct, gc=False):
        type: str
        text: str

    class Payload(msgspec.Struct, gc=False):
        message_id: str = ""
        index: int = 0
        delta: Delta | None = None

    class Event(msgspec.Struct, gc=False):
        id: str
        session_id: str
        client_key_id: str
        event_type: str
        payload: Payload
        created_at: str

    class Message(msgspec.Struct, gc=False):
        params: Event | None = None
        id: Any = None
        result: Any = None

    decode = msgspec.json.Decoder(Message).decode
    events = seen = 0
    done = False
    place = urllib.parse.urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port)
    connection.request("GET", META)
    connection.getresponse().read()
    meter = Meter()
    connection.request("POST", RPC, SUBSCRIBE, HEADERS)
    answer = connection.getresponse()
    rest = b""
    while chunk := answer.read1(1 << 17):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            message = decode(line)
            event = message.params
            if event is None:
                done = message.id is not None
                continue
            events += 1
            seen += len(event.id) + len(event.event_type) + len(event.created_at)
            if payload:
                seen += event.payload.index
    report(meter, events, seen, done)


CONTENDERS = {
    "broca-async": broca_async,
    "broca-sync": broca_sync,
    "aiohttp": aiohttp_chunks,
    "httpx": httpx_lines,
    "requests": requests_lines,
    "http-client": http_client_chunks,
}


def main() -> None:
    """Runs the contender named."""
    name, *words, address = sys.argv[1:]
    contender = CONTENDERS[name]
    if asyncio.iscoroutinefunction(contender):
        run(contender(address, "payload" in words))
    else:
        contender(address, "payload" in words)


main()
