"""Watches a session and goes on where it ended: the cursor lies in a file.

Usage: observe.py SESSION CURSOR_FILE [EVENTS]; ends with the session, or after so many events.
"""

import asyncio
import os
import sys
from pathlib import Path

import broca


def stored(file: Path) -> broca.Cursor:
    return broca.Cursor(file.read_text()) if file.exists() else broca.Cursor.START


def store(file: Path, event: broca.Event) -> None:
    """Says that this event is done with: it is never shown again."""
    file.write_text(event.id)


async def main(session_id: str, file: Path, wanted: int) -> None:
    url = os.environ.get("BROCA_URL", "http://127.0.0.1:8080")
    async with broca.AsyncClient(url, os.environ["BROCA_CLIENT_KEY"]) as client:
        session = await client.observe(session_id)
        async with session.subscribe(stored(file)) as events:
            async for step in events:
                if isinstance(step, broca.Event):
                    print(step.id, step.type)
                    store(file, step)
                    wanted -= 1
                    if wanted == 0:
                        break
                elif isinstance(step, broca.Gap):
                    print("something is missing:", step, file=sys.stderr)


asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else -1))
