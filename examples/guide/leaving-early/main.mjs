// Two loops are left early, one on purpose and one by an error: their turns end, and the next message can start.

import { Client } from "@broca/sdk";

const client = new Client(process.env.BROCA_URL, { key: process.env.BROCA_CLIENT_KEY });

// guide: begin
async function firstWord(session) {
  for await (const step of session.send("Tell me a story.")) {
    if (step.kind === "text_delta") return step.delta.trim(); // leaves the loop, and with it the turn
  }
}

async function stumble(session) {
  for await (const step of session.send("Tell me a story.")) {
    if (step.kind === "text_delta") throw new Error("the display is broken");
  }
}

const session = await client.open();
console.log(`the first word: ${await firstWord(session)}`);
console.log("the turn is quiet");
try {
  await stumble(session);
} catch (error) {
  console.log(`left by an error: ${error.message}`);
}
const reply = await session.ask("Are you there?");
console.log(`the next answer: ${reply.text}`);
// guide: end

let cancelled = 0;
for await (const event of session.history()) if (event.type === "session.turn.cancelled") cancelled += 1;
console.log(`in the log: ${cancelled} turns that were cancelled`);
await session.close();
