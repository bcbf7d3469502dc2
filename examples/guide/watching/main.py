"""An observer whose stream is cut, repeats a line, and loses its service: it sees every event once and in order."""

import asyncio
import os

import broca


async def main() -> None:
    url = os.environ["BROCA_URL"]
    async with (
        broca.AsyncClient(url, os.environ["BROCA_CLIENT_KEY"]) as client,
        broca.AsyncClient(url, os.environ["BROCA_WATCH_KEY"]) as watcher,
    ):
        session = await client.open()
        await session.ask("Are you there?")

        # guide: begin
        seen = []
        killed = back = False
        observed = await watcher.observe(session.id)
        async with observed.subscribe(broca.Cursor.START) as events:  # or a cursor that was stored
            async for step in events:  # ends with the session
                if isinstance(step, broca.Event):
                    seen.append(step.id)  # the cursor just after it: store it
                    if step.type == "server.message.send" and not killed:
                        killed = True
                        print("now the service is killed")
                elif isinstance(step, broca.Status) and step.state == "connected" and killed and not back:
                    back = True
                    reply = await session.ask("And now?")
                    print("it is back:", reply.text)
                    await session.close()
        # guide: end
        log = [event.id async for event in session.events()]
        same = "the same in the same order" if seen == log else "not the same"
        print(f"seen: {len(seen)} events, in the log: {len(log)}, {same}")


asyncio.run(main())
