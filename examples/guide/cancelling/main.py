"""A turn is cancelled while a tool ignores it: it gets quiet all the same, and the next message can start."""

import asyncio
import os

import broca

over = asyncio.Event()


# guide: begin
@broca.tool
async def obedient() -> None:
    """Works until it is told to stop."""
    await asyncio.Future()


@broca.tool
async def deaf() -> None:
    """Works on, whatever it is told."""
    while not over.is_set():
        try:
            await over.wait()
        except asyncio.CancelledError:
            pass


async def main() -> None:
    url, key = os.environ["BROCA_URL"], os.environ["BROCA_CLIENT_KEY"]
    async with broca.AsyncClient(url, key, cancel_grace_ms=500) as client:
        session = await client.open(tools=[obedient, deaf])
        calls = 0
        async with session.send("Go to work.") as turn:
            async for step in turn:
                calls += isinstance(step, broca.ToolCall)
                if calls == 2:
                    print("both tools work: cancelling")
                    await turn.cancel()
                    print("the turn is quiet")
                    break
        reply = await session.ask("Are you there?")
        print("the next message:", reply.text)
        # guide: end
        results = [event async for event in session.events() if event.type == "tool.result"]
        print("in the log:", len(results), "results")
        await session.close()
        over.set()


asyncio.run(main())
