// Two calls run at once, the answer to their results is cut, and neither runs again.

import assert from "node:assert";
import { Client, tool } from "@broca/sdk";

const client = new Client(process.env.BROCA_URL, { key: process.env.BROCA_CLIENT_KEY });

// guide: begin
const keys = [];
let begun;
const both = new Promise((resolve) => (begun = resolve));

const book = tool({
  name: "book",
  input: { type: "object", properties: { seat: { type: "string" } }, required: ["seat"] },
  run: async ({ seat }, { idempotencyKey }) => {
    keys.push(idempotencyKey); // for whatever must not happen twice
    if (keys.length === 2) {
      console.log("both calls run at once");
      begun();
    }
    await both; // neither goes on without the other
    return `${seat} is booked`;
  },
});

const session = await client.open({ tools: [book] });
for await (const step of session.send("Two seats, please.")) {
  if (step.kind === "status" && step.state === "reconnecting") console.log("the connection broke: reconnecting");
  else if (step.kind === "done") {
    console.log(`the model: ${step.reply.text}`);
    console.log(`${step.reply.toolCalls} calls, ${new Set(keys).size} keys, each ran once`);
  }
}
// guide: end
assert.equal(keys.length, 2);
await session.close();
