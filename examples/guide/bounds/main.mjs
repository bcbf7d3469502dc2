// An answer that is longer than this program allows: the errors name limit and cure, and the session goes on.

import { Client } from "@broca/sdk";

const url = process.env.BROCA_URL;
const key = process.env.BROCA_CLIENT_KEY;

// guide: begin
const client = new Client(url, { key, maxLineBytes: 64 * 1024, maxAnswerBytes: 64 * 1024, recoveryTimeoutMs: 0 });
const session = await client.open();
let gaps = 0;
try {
  for await (const step of session.send("Tell me everything.")) {
    if (step.kind !== "gap" || step.reason !== "line") continue;
    gaps += 1;
    if (gaps === 1) console.log(`a line was passed over: the limit is ${step.limit}`);
  }
} catch (error) {
  console.log(`${error.kind}: ${error.message.split(", ")[1]}`); // before: how long the line was
}
try {
  await session.history();
} catch (error) {
  console.log(`${error.kind}: ${error.message}`);
}
const reply = await session.ask("Are you there?");
console.log(`the next answer: ${reply.text}`);
// guide: end
await session.close();
