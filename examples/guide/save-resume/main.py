"""A program dies between two results; the next one takes its turn up, and nothing is done twice."""

import asyncio
import os
import pathlib
import sys

import broca

SAVED = pathlib.Path("session.json")
BANK = pathlib.Path("bank")  # keeps the key of what it has paid


# guide: begin
@broca.tool
async def price() -> str:
    """Look the price up."""
    return "12 crowns"


pay = broca.Tool.manual("pay", "Pay.", {"type": "object"})


async def first(client: broca.AsyncClient) -> None:
    session = await client.open(tools=[price, pay])
    async with session.send("Pay what it costs.") as turn:
        async for step in turn:
            if isinstance(step, broca.ToolCall) and step.name == "pay":
                BANK.write_text(step.idempotency_key)
                print("pay: the bank has it")  # and this program dies before it answers the call
            elif isinstance(step, broca.ToolSettled):
                print(f"{step.name}: {step.outcome}")
                SAVED.touch(mode=0o600)  # it holds the key of the session
                SAVED.write_text(session.save().json)
                print("saved; now this program and the service are killed", flush=True)
                os._exit(0)


async def next_one(client: broca.AsyncClient) -> None:
    session = await client.attach(SAVED.read_text(), tools=[price, pay])
    turn = session.resume()
    if turn is None:
        return  # no turn was left: send a message, as ever
    async with turn:
        async for step in turn:
            if isinstance(step, broca.ToolCall) and step.may_have_run:  # not `price`: its result was saved
                print(f"{step.name} may have run")
                if step.idempotency_key == BANK.read_text():
                    step.complete("paid before")
                else:
                    step.fail("nothing was paid")
            elif isinstance(step, broca.Done):
                print("the model:", step.reply.text)
# guide: end


async def main() -> None:
    async with broca.AsyncClient(os.environ["BROCA_URL"], os.environ["BROCA_CLIENT_KEY"]) as client:
        await (first if sys.argv[1] == "first" else next_one)(client)


asyncio.run(main())
