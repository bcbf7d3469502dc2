"""The quickstart for programs without an event loop."""

import os
import sys

import broca


@broca.tool
def read_file(path: str) -> str:
    """Return the text of a file."""
    return open(path).read()


url = os.environ.get("BROCA_URL", "http://127.0.0.1:8080")
with broca.Client(url, os.environ["BROCA_CLIENT_KEY"]) as client:
    session = client.open(tools=[read_file])

    with session.send("What does read_file say about quickstart_sync.py?") as turn:
        for step in turn:
            if isinstance(step, broca.TextDelta):
                print(step.delta, end="", flush=True, file=sys.stderr)
            elif isinstance(step, broca.ToolCall):
                print(f"\n[{step.name} {step.input_json}]", file=sys.stderr)
            elif isinstance(step, broca.Done):
                print(f"\n[{step.reply.rounds} rounds]", file=sys.stderr)

    reply = session.ask("And what is 2 and 2?")
    print(reply.text)
    session.close()
