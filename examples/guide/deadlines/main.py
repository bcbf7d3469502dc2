"""A tool takes longer than the service waits: its pause is held, or the call is over in time."""

import asyncio
import os

import broca


# guide: begin
@broca.tool
async def ponder() -> str:
    """Takes four seconds, and the service waits for three."""
    await asyncio.sleep(4)
    return "42"


async def ask(how: str, **options: int) -> None:
    async with broca.AsyncClient(os.environ["BROCA_URL"], os.environ["BROCA_CLIENT_KEY"], **options) as client:
        session = await client.open(tools=[ponder])
        async with session.send("Ponder it.") as turn:
            async for step in turn:
                if isinstance(step, broca.ToolSettled):
                    print(f"{how}: {step.outcome}", end="")
                elif isinstance(step, broca.Done):
                    print(", and the model says:", step.reply.text)
        await session.close()


async def main() -> None:
    await ask("not held", hold_ms=0)
    await ask("held")
# guide: end


asyncio.run(main())
