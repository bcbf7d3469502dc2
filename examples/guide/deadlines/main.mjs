// A tool takes longer than the service waits: its pause is held, or the call is over in time.

import { setTimeout as sleep } from "node:timers/promises";
import { Client, tool } from "@broca/sdk";

const url = process.env.BROCA_URL;
const key = process.env.BROCA_CLIENT_KEY;

// guide: begin
const ponder = tool({
  name: "ponder",
  run: async (_, { signal }) => {
    await sleep(4000, undefined, { signal }); // and the service waits for three seconds
    return "42";
  },
});

async function ask(how, options) {
  const client = new Client(url, { key, ...options });
  const session = await client.open({ tools: [ponder] });
  for await (const step of session.send("Ponder it.")) {
    if (step.kind === "tool_settled") process.stdout.write(`${how}: ${step.outcome}`);
    else if (step.kind === "done") console.log(`, and the model says: ${step.reply.text}`);
  }
  await session.close();
}

await ask("not held", { holdMs: 0 });
await ask("held", {});
// guide: end
