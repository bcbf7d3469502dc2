"""Two calls run at once, the answer to their results is cut, and neither runs again."""

import asyncio
import os

import broca


async def main() -> None:
    # guide: begin
    keys = []
    both = asyncio.Event()

    @broca.tool
    async def book(seat: str, context: broca.ToolContext) -> str:
        """Book a seat."""
        keys.append(context.idempotency_key)  # for whatever must not happen twice
        if len(keys) == 2:
            print("both calls run at once")
            both.set()
        await both.wait()  # neither goes on without the other
        return f"{seat} is booked"

    async with broca.AsyncClient(os.environ["BROCA_URL"], os.environ["BROCA_CLIENT_KEY"]) as client:
        session = await client.open(tools=[book])
        async with session.send("Two seats, please.") as turn:
            async for step in turn:
                if isinstance(step, broca.Status) and step.state == "reconnecting":
                    print("the connection broke: reconnecting")
                elif isinstance(step, broca.Done):
                    print("the model:", step.reply.text)
                    print(f"{step.reply.tool_calls} calls, {len(set(keys))} keys, each ran once")
        # guide: end
        assert len(keys) == 2
        await session.close()


asyncio.run(main())
