// A display that is slow: words come while the model speaks, some are left out, and no event is.

import { setTimeout as sleep } from "node:timers/promises";
import { Client } from "@broca/sdk";

const url = process.env.BROCA_URL;
const key = process.env.BROCA_CLIENT_KEY;

// guide: begin
const client = new Client(url, { key, deltaBufferBytes: 64 * 1024 });
const session = await client.open();
let words = 0;
let gaps = 0;
for await (const step of session.send("Tell me everything.")) {
  if (step.kind === "text_delta" && words++ === 0) {
    console.log("the first words are here");
    await sleep(1000); // a slow display; the event loop goes on
  } else if (step.kind === "gap" && gaps++ === 0) console.log("some words were not shown");
  else if (step.kind === "event") console.log(`event: ${step.type}`);
  else if (step.kind === "done") console.log(`the whole answer has ${step.reply.text.length} characters`);
}
// guide: end
await session.close();
