"""One leg of a relay: leaves a session in the middle of a turn, or takes one up that another program has left.

    relay.py leave|take FILE

scripts/examples.py has every language follow every other; the same program stands in the other languages beside this one.
"""

import os
import pathlib
import sys

import broca


def main() -> None:
    leg, file = sys.argv[1], pathlib.Path(sys.argv[2])
    client = broca.Client(os.environ["BROCA_URL"], os.environ["BROCA_CLIENT_KEY"])
    tools = [broca.Tool.manual(name, "A leg.", {"type": "object"}) for name in ("quick", "slow")]
    if leg == "leave":
        session = client.open(tools=tools)
        turn = session.send("use quick and slow")
    else:
        session = client.attach(file.read_text(), tools)
        resumed = session.resume()
        assert resumed is not None, "nothing was left"
        turn = resumed
    for step in turn:
        if isinstance(step, broca.Event):
            print("event", step.id)
        elif isinstance(step, broca.ToolCall):
            print("call", step.name, step.idempotency_key, int(step.may_have_run))
            if leg == "take" or step.name == "quick":
                step.complete(f"{step.name} by python")
        elif isinstance(step, broca.ToolSettled) and leg == "leave":
            file.write_text(session.save().json)
            sys.stdout.flush()
            # As a crash would: nobody is told.
            os._exit(0)
        elif isinstance(step, broca.Done):
            print("reply", step.reply.text)
    session.close()


main()
