"""All that a program might print of a session is searched for keys and for what was said: there is none of it."""

import asyncio
import io
import logging
import os

import broca

log, shown = io.StringIO(), io.StringIO()


def secrets(text: str) -> int:
    return text.count("swordfish") + text.count("bae_")  # what was said, and the keys of this service


# guide: begin
@broca.tool
async def vault(word: str) -> str:
    """Opens the vault."""
    raise ValueError(f"{word} is not the word")  # only the model reads this


async def show(session: broca.AsyncSession, message: str) -> None:
    try:
        async with session.send(message) as turn:
            async for step in turn:
                print(step, repr(step), file=shown)
                if isinstance(step, broca.Done):
                    print("the answer:", step.reply.text)
    except broca.BrocaError as error:
        print(error, repr(error), error.details, file=shown)
        print("failed:", error.kind)


async def main() -> None:
    logging.basicConfig(stream=log, level=logging.DEBUG)
    url, key = os.environ["BROCA_URL"], os.environ["BROCA_CLIENT_KEY"]
    async with broca.AsyncClient(url, key) as client:
        session = await client.open(tools=[vault])
        await show(session, "Open with swordfish.")
        await show(session, "Tell nobody of swordfish.")
        saved = session.save()
        print(repr(client), repr(session), repr(saved), file=shown)
        await session.close()
    try:
        async with broca.AsyncClient(url, "bae_of_somebody_else") as client:
            await client.open()
    except broca.BrocaError as error:
        print(error, repr(error), error.details, file=shown)
        print("failed:", error.kind)

    print("in the log:", "words" if "broca" in log.getvalue() else "nothing")
    print("secrets in log, errors and debug output:", secrets(log.getvalue() + shown.getvalue()))
    print("secrets in the saved session:", secrets(saved.json))  # this text is for a safe place
    # guide: end


asyncio.run(main())
