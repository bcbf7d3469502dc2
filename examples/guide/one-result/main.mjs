// One tool fails, another never answers: each call has its one result, and the turn goes on.

import { Client, tool } from "@broca/sdk";

const client = new Client(process.env.BROCA_URL, { key: process.env.BROCA_CLIENT_KEY });

// guide: begin
const broken = tool({
  name: "broken",
  run: () => {
    throw new Error("the disk is gone");
  },
});
const stuck = tool({ name: "stuck", timeoutMs: 500, run: () => new Promise(() => {}) });

const session = await client.open({ tools: [broken, stuck] });
for await (const step of session.send("Use both tools.")) {
  if (step.kind === "tool_settled") console.log(`${step.name}: ${step.outcome}`);
  else if (step.kind === "done") console.log(`the model: ${step.reply.text}`);
}
// guide: end

const results = [];
for await (const event of session.history()) {
  if (event.type === "tool.result") results.push(event.payload.tool_use_id);
}
console.log(`in the log: ${results.join(", ")}`);
await session.close();
