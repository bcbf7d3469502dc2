"""A display that is slow: words come while the model speaks, some are left out, and no event is."""

import asyncio
import os

import broca


async def main() -> None:
    url, key = os.environ["BROCA_URL"], os.environ["BROCA_CLIENT_KEY"]
    # guide: begin
    async with broca.AsyncClient(url, key, delta_buffer_bytes=64 * 1024) as client:
        session = await client.open()
        words = gaps = 0
        async with session.send("Tell me everything.") as turn:
            async for step in turn:
                if isinstance(step, broca.TextDelta):
                    words += 1
                    if words == 1:
                        print("the first words are here")
                        await asyncio.sleep(1)  # a slow display; the event loop goes on
                elif isinstance(step, broca.Gap):
                    gaps += 1
                    if gaps == 1:
                        print("some words were not shown")
                elif isinstance(step, broca.Event):
                    print("event:", step.type)
                elif isinstance(step, broca.Done):
                    print("the whole answer has", len(step.reply.text), "characters")
        # guide: end
        await session.close()


asyncio.run(main())
