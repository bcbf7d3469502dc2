"""Events from memory, without a network: `python boundary.py CONTENDER ADDRESS`; nobody answers there.

Everybody begins with the same buffers of 64 KiB of a stream and reads three fields of each event.
"""

import sys

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


CONTENDERS = {"orjson": orjson_lines}


def main() -> None:
    """Runs the contender named."""
    name, _ = sys.argv[1:]
    CONTENDERS[name]()


main()
