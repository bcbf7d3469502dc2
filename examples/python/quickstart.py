import asyncio
import os
import sys

import broca


@broca.tool
def read_file(path: str) -> str:
    """Return the text of a file."""
    return open(path).read()


async def main() -> None:
    url = os.environ.get("BROCA_URL", "http://127.0.0.1:8080")
    async with broca.AsyncClient(url, os.environ["BROCA_CLIENT_KEY"]) as client:
        session = await client.open(tools=[read_file])

        async with session.send("What does read_file say about quickstart.py?") as turn:
            async for step in turn:
                if isinstance(step, broca.TextDelta):
                    print(step.delta, end="", flush=True, file=sys.stderr)
                elif isinstance(step, broca.ToolCall):
                    print(f"\n[{step.name} {step.input_json}]", file=sys.stderr)
                elif isinstance(step, broca.Done):
                    print(f"\n[{step.reply.rounds} rounds]", file=sys.stderr)  # step.reply.text is the whole answer

        reply = await session.ask("And what is 2 and 2?")  # the loop, driven for you
        print(reply.text)
        await session.close()


asyncio.run(main())
