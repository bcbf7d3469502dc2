"""An approval that narrows, one that would widen, and one that nobody gives."""

import asyncio
import os

import broca

paid = 0


# guide: begin
@broca.tool(approval=True, narrow={"/amount": "at_most"})
def pay(amount: int) -> str:
    """Pay an amount."""
    global paid
    paid += amount
    return f"paid {amount}"


async def main() -> None:
    async with broca.AsyncClient(os.environ["BROCA_URL"], os.environ["BROCA_CLIENT_KEY"]) as client:
        session = await client.open(tools=[pay])
        for allowed in [50, 5000]:
            async with session.send("Pay the bill.") as turn:
                async for step in turn:
                    if isinstance(step, broca.Approval):
                        print(f"asked: {step.name} {step.input_json}, allowed: {allowed}")
                        step.allow_narrowed({"amount": allowed})
                    elif isinstance(step, broca.ToolSettled):
                        print("outcome:", step.outcome)
        reply = await session.ask("Pay the bill.")  # no handler, nobody looks: denied
        print("nobody is asked:", reply.text)
        print("paid:", paid)
        # guide: end
        await session.close()


asyncio.run(main())
