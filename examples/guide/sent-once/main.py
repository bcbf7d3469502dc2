"""The answer to a message is cut: the message does not leave twice, and what is not known is said."""

import asyncio
import os

import broca


# guide: begin
async def book(service: str, **options: object) -> None:
    async with broca.AsyncClient(os.environ["BROCA_URL"], os.environ["BROCA_CLIENT_KEY"], **options) as client:
        session = await client.open()
        try:
            reply = await session.ask("Book the flight.")  # the connection breaks in its answer
            print(f"{service}: {reply.text}")
        except broca.BrocaError as error:
            print(f"{service}: {error.kind}, again? {error.retry}")
        sent = [event async for event in session.events() if event.type == "client.message.send"]
        print("  messages in the log:", len(sent))
        await session.close()


async def main() -> None:
    # As at a service that knows no ids, and without looking into its log for what became of the message.
    await book("plain service", features=[], recovery_timeout_ms=0)
    await book("message ids")
# guide: end


asyncio.run(main())
