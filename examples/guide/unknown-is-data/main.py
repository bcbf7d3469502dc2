"""The service is newer than this program: what the library does not know comes as data, and the turn goes on."""

import asyncio
import os

import broca


async def main() -> None:
    async with broca.AsyncClient(os.environ["BROCA_URL"], os.environ["BROCA_CLIENT_KEY"]) as client:
        session = await client.open()
        # guide: begin
        async with session.send("How is the weather?") as turn:
            async for step in turn:
                if isinstance(step, broca.Notification):
                    print("a notification:", step.method)  # the whole line: step.json
                elif isinstance(step, broca.Event) and step.type == "weather.changed":
                    print("an event:", step.payload_json)
                elif isinstance(step, broca.Done):
                    print("the answer:", step.reply.text)
                    print("the message:", step.reply.message_json)
                # else: also a step of a kind that is new to this program
        # guide: end
        await session.close()


asyncio.run(main())
