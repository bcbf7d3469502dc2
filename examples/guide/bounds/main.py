"""An answer that is longer than this program allows: the errors name limit and cure, and the session goes on."""

import asyncio
import os

import broca


async def main() -> None:
    url, key = os.environ["BROCA_URL"], os.environ["BROCA_CLIENT_KEY"]
    # guide: begin
    small = {"max_line_bytes": 64 * 1024, "max_answer_bytes": 64 * 1024, "recovery_timeout_ms": 0}
    async with broca.AsyncClient(url, key, **small) as client:
        session = await client.open()
        gaps = 0
        try:
            async with session.send("Tell me everything.") as turn:
                async for step in turn:
                    if isinstance(step, broca.Gap) and step.reason == "line":
                        gaps += 1
                        if gaps == 1:
                            print("a line was passed over: the limit is", step.limit)
        except broca.LineTooLongError as error:
            print(f"{error.kind}: {error.message.partition(', ')[2]}")  # before: how long the line was
        try:
            await session.history()
        except broca.LimitError as error:
            print(f"{error.kind}: {error}")
        reply = await session.ask("Are you there?")
        print("the next answer:", reply.text)
        # guide: end
        await session.close()


asyncio.run(main())
