// The service is newer than this program: what the library does not know comes as data, and the turn goes on.

import { Client } from "@broca/sdk";

const client = new Client(process.env.BROCA_URL, { key: process.env.BROCA_CLIENT_KEY });
const session = await client.open();

// guide: begin
for await (const step of session.send("How is the weather?")) {
  switch (step.kind) {
    case "notification":
      console.log(`a notification: ${step.method}`); // the whole line: step.json
      break;
    case "event":
      if (step.type === "weather.changed") console.log(`an event: ${step.payloadJson}`);
      break;
    case "done":
      console.log(`the answer: ${step.reply.text}`);
      console.log(`the message: ${step.reply.messageJson}`);
      break;
    default: // also steps of a kind that is new to this program
  }
}
// guide: end
await session.close();
