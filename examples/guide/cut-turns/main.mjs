// A stream is cut, and its turn goes on; the service is killed, and the error says what is not known.

import { Client } from "@broca/sdk";

const client = new Client(process.env.BROCA_URL, { key: process.env.BROCA_CLIENT_KEY });

// guide: begin
async function count(session, message) {
  let broke = false;
  let words = false;
  for await (const step of session.send(message)) {
    if (step.kind === "event") console.log(`event: ${step.type}`);
    else if (step.kind === "text_delta" && message === "Count slowly." && !words) {
      words = true;
      console.log("now the service is killed");
    } else if (step.kind === "status" && step.state === "reconnecting" && !broke) {
      broke = true;
      console.log("the connection broke");
    } else if (step.kind === "done") console.log(`the answer: ${step.reply.text}`);
  }
}

const session = await client.open();
await count(session, "Count.");
try {
  await count(session, "Count slowly.");
} catch (error) {
  console.log(`${error.kind}, again? ${error.retry}`);
}
const reply = await session.ask("Are you there?");
console.log(`the next answer: ${reply.text}`);
// guide: end
await session.close();
