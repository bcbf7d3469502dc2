"""Two loops are left early, one on purpose and one by an error: their turns end, and the next message can start."""

import asyncio
import os

import broca


# guide: begin
async def first_word(session: broca.AsyncSession) -> str:
    async with session.send("Tell me a story.") as turn:
        async for step in turn:
            if isinstance(step, broca.TextDelta):
                return step.delta.strip()  # leaves the loop, and `async with` the turn
    return ""


async def stumble(session: broca.AsyncSession) -> None:
    async with session.send("Tell me a story.") as turn:
        async for step in turn:
            if isinstance(step, broca.TextDelta):
                raise RuntimeError("the display is broken")


async def main() -> None:
    async with broca.AsyncClient(os.environ["BROCA_URL"], os.environ["BROCA_CLIENT_KEY"]) as client:
        session = await client.open()
        print("the first word:", await first_word(session))
        print("the turn is quiet")
        try:
            await stumble(session)
        except RuntimeError as error:
            print("left by an error:", error)
        reply = await session.ask("Are you there?")
        print("the next answer:", reply.text)
        # guide: end
        cancelled = [event async for event in session.events() if event.type == "session.turn.cancelled"]
        print("in the log:", len(cancelled), "turns that were cancelled")
        await session.close()


asyncio.run(main())
