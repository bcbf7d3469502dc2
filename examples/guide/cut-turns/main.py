"""A stream is cut, and its turn goes on; the service is killed, and the error says what is not known."""

import asyncio
import os

import broca


# guide: begin
async def count(session: broca.AsyncSession, message: str) -> None:
    broke = words = False
    async with session.send(message) as turn:
        async for step in turn:
            if isinstance(step, broca.Event):
                print("event:", step.type)
            elif isinstance(step, broca.TextDelta) and message == "Count slowly." and not words:
                words = True
                print("now the service is killed")
            elif isinstance(step, broca.Status) and step.state == "reconnecting" and not broke:
                broke = True
                print("the connection broke")
            elif isinstance(step, broca.Done):
                print("the answer:", step.reply.text)


async def main() -> None:
    async with broca.AsyncClient(os.environ["BROCA_URL"], os.environ["BROCA_CLIENT_KEY"]) as client:
        session = await client.open()
        await count(session, "Count.")
        try:
            await count(session, "Count slowly.")
        except broca.BrocaError as error:
            print(f"{error.kind}, again? {error.retry}")
        reply = await session.ask("Are you there?")
        print("the next answer:", reply.text)
        # guide: end
        await session.close()


asyncio.run(main())
