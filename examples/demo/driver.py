"""The driver in Python of the demo: brings the tool longest_word. README.md beside it tells what it says to whom."""

import asyncio
import os
import re
import string
import sys

import broca


def tell(verb: str, text: str) -> None:
    print(verb, text.replace("\\", "\\\\").replace("\n", "\\n"), flush=True)


async def drive(url: str, session_id: str, file: str, question: str) -> None:
    @broca.tool
    def longest_word(path: str) -> str:
        """Tell the longest word of a file, the first of several."""
        if path != file:
            raise PermissionError(f"only {file} may be read here")
        with open(path, encoding="utf-8", newline="") as text:
            words = [word.strip(string.punctuation) for word in re.split(r"[ \t\n\v\f\r]+", text.read())]
        longest = max(words, key=len)
        return longest[:60] + "…" * (len(longest) > 60) or "there is none"

    async with broca.AsyncClient(url, os.environ["BROCA_CLIENT_KEY"]) as client:
        session = await client.join(session_id, tools=[longest_word])
        tell("joins", longest_word.name)
        tell("asks", question)
        async with session.send(question) as turn:
            async for step in turn:
                if isinstance(step, broca.TextDelta):
                    tell("words", step.delta)
                elif isinstance(step, broca.ToolCall):
                    tell("runs", f"{step.name} {step.input_json}")
                elif isinstance(step, broca.Done):
                    tell("reply", step.reply.text)


if __name__ == "__main__":
    try:
        asyncio.run(drive(*sys.argv[1:5]))
    except broca.BrocaError as error:
        sys.exit(f"the driver in Python: {error}")
