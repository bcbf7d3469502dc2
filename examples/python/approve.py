"""An approval that narrows: the model may delete what a person has marked as old, and nothing else."""

import asyncio
import os

import broca


@broca.tool(approval=True, narrow={"/paths": "remove_elements"})
def delete_files(paths: list[str]) -> str:
    """Delete files."""
    return f"deleted {' and '.join(paths)}"  # a real one would delete them


async def main() -> None:
    url = os.environ.get("BROCA_URL", "http://127.0.0.1:8080")
    async with broca.AsyncClient(url, os.environ["BROCA_CLIENT_KEY"]) as client:
        session = await client.open(tools=[delete_files])

        async with session.send('Please delete_files {"paths": ["old.txt", "thesis.txt"]}') as turn:
            async for step in turn:
                if isinstance(step, broca.Approval):
                    print("asked:", step.name, step.input_json)
                    paths = [path for path in step.input["paths"] if path.startswith("old")]
                    print("allowed:", " and ".join(paths))
                    step.allow_narrowed({"paths": paths})
                elif isinstance(step, broca.Done):
                    print(step.reply.text)
        await session.close()


asyncio.run(main())
