"""One tool fails, another never answers: each call has its one result, and the turn goes on."""

import asyncio
import os

import broca


# guide: begin
@broca.tool
def broken() -> str:
    """Fails."""
    raise OSError("the disk is gone")


@broca.tool(timeout=0.5)
async def stuck() -> str:
    """Never answers."""
    return await asyncio.Future()
# guide: end


async def main() -> None:
    async with broca.AsyncClient(os.environ["BROCA_URL"], os.environ["BROCA_CLIENT_KEY"]) as client:
        # guide: begin
        session = await client.open(tools=[broken, stuck])
        async with session.send("Use both tools.") as turn:
            async for step in turn:
                if isinstance(step, broca.ToolSettled):
                    print(f"{step.name}: {step.outcome}")
                elif isinstance(step, broca.Done):
                    print("the model:", step.reply.text)
        # guide: end
        results = [event.payload["tool_use_id"] async for event in session.events() if event.type == "tool.result"]
        print("in the log:", ", ".join(results))
        await session.close()


asyncio.run(main())
