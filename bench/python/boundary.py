"""Events from memory, without a network: `python boundary.py CONTENDER ADDRESS`; nobody answers there.

Everybody begins with the same buffers of 64 KiB of a stream and reads three fields of each event. Ours
goes all the way: the engine that the package's shells feed from sockets reads them as the body of an answer.
"""

import json
import sys
import time
from typing import Any

from meter import Meter, amount

EVENTS = amount("EVENTS")
BUFFER = 64 * 1024
LINE = (
    '{"jsonrpc":"2.0","method":"session.event","params":{"id":"evt_01J8ZQ4Y7M%08d",'
    '"session_id":"ses_01J8ZQ4Y7M","client_key_id":"key_01J8ZQ4Y7M",'
    '"event_type":"provider.response.delta","payload":{"message_id":"msg_01J8ZQ","index":%d,'
    '"delta":{"type":"text_delta","text":"%s"}},"created_at":"2026-07-06T18:26:10.123Z"}}\n'
)
PLAIN = "a slow brown bear walks around the lake"
TEXTS = {0: "café naïve — a slow brown bear", 8: r"line one\nline \"two\" of the answer"}


def buffers() -> list[bytes]:
    """The stream, cut as reads of a socket would cut it."""
    lines = (LINE % (i, i % 7, TEXTS.get(i % 16, PLAIN)) for i in range(EVENTS))
    stream = "".join(lines).encode()
    return [stream[at : at + BUFFER] for at in range(0, len(stream), BUFFER)]


def orjson_lines() -> None:
    """A dict of each line."""
    import orjson

    events = seen = 0
    stream = buffers()
    meter = Meter()
    rest = b""
    for buffer in stream:
        *lines, rest = (rest + buffer).split(b"\n")
        for line in lines:
            event = orjson.loads(line)["params"]
            events += 1
            seen += len(event["id"]) + len(event["event_type"]) + len(event["created_at"])
    if events != EVENTS or not seen:
        raise SystemExit(f"{events} of {EVENTS} events")
    meter.report(events)


def broca_steps() -> None:
    """The native steps of an engine, fed as the shells feed it."""
    from broca._broca import Event, layout_table

    kinds = {name: number for number, name, _ in layout_table()}
    feed = Feed(kinds["connect"], kinds["write"])
    feed.run({"observe": {"session_id": "ses_1"}})
    op = feed.run({"subscribe": {"from": None}})
    stream = buffers()
    length = sum(map(len, stream))
    feed.answer(b"", "application/x-ndjson", length)
    engine, conn = feed.engine, feed.conn
    events = seen = 0
    meter = Meter()
    for buffer in stream:
        engine.data(conn, buffer, len(buffer), now())
        steps = engine.steps(op, 1 << 18, False)[0]
        while steps:
            for step in steps:
                if type(step) is Event:
                    events += 1
                    seen += len(step.id) + len(step.type) + len(step.created_at)
            steps = engine.steps(op, 1 << 18, False)[0]
    if events != EVENTS or not seen:
        raise SystemExit(f"{events} of {EVENTS} events")
    meter.report(events)


def now() -> int:
    """Milliseconds of a monotonic clock."""
    return time.monotonic_ns() // 1_000_000


class Feed:
    """An engine whose only connection is this object."""

    META = b'{"api_versions":["v1"],"version":"0.1.0"}'
    JOINED = b'{"session_id":"ses_1","session_key":"bae_ses_1","profile":{"id":"pro_1","name":"main"}}'

    def __init__(self, connect: int, write: int) -> None:
        from broca._broca import Engine

        options = {"base_url": "http://127.0.0.1:1", "client_key": "bae_bench"}
        self.engine = Engine(json.dumps(options), 1, time.time_ns() // 1_000_000)
        self.conn = 0
        self._connect = connect
        self._write = write

    def run(self, command: dict[str, Any]) -> int:
        """Begins an operation and answers what it asks, but for a subscription."""
        op, effects = self.engine.command(json.dumps(command), now())
        while effects:
            later: list[Any] = []
            for kind, *fields in effects:
                if kind == self._connect:
                    self.conn = fields[0]
                    later += self.engine.connected(self.conn, now()) or ()
                elif kind == self._write:
                    conn, request = fields
                    later += self.engine.written(conn, len(request), now()) or ()
                    if b"/meta " in request:
                        later += self.answer(self.META, "application/json", len(self.META))
                    elif b"/join " in request:
                        later += self.answer(self.JOINED, "application/json", len(self.JOINED))
            effects = later
        return op

    def answer(self, body: bytes, content_type: str, length: int) -> list[Any]:
        """Lets an answer come, or the head of a longer one; what follows."""
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\r\n"
        data = head.encode() + body
        return self.engine.data(self.conn, data, len(data), now()) or []


CONTENDERS = {"orjson": orjson_lines, "broca": broca_steps}


def main() -> None:
    """Runs the contender named."""
    name, _ = sys.argv[1:]
    CONTENDERS[name]()


main()
