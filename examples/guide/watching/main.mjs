// An observer whose stream is cut, repeats a line, and loses its service: it sees every event once and in order.

import { isDeepStrictEqual } from "node:util";
import { Client } from "@broca/sdk";

const url = process.env.BROCA_URL;
const client = new Client(url, { key: process.env.BROCA_CLIENT_KEY });
const watcher = new Client(url, { key: process.env.BROCA_WATCH_KEY });
const session = await client.open();
await session.ask("Are you there?");

// guide: begin
const seen = [];
let killed = false;
let back = false;
const observed = await watcher.observe(session.id);
for await (const step of observed.subscribe({ from: "" })) { // or a cursor that was stored; ends with the session
  if (step.kind === "event") {
    seen.push(step.id); // the cursor just after it: store it
    if (step.type === "server.message.send" && !killed) {
      killed = true;
      console.log("now the service is killed");
    }
  } else if (step.kind === "status" && step.state === "connected" && killed && !back) {
    back = true;
    const reply = await session.ask("And now?");
    console.log(`it is back: ${reply.text}`);
    await session.close();
  }
}
// guide: end

const log = [];
for await (const event of session.history()) log.push(event.id);
const same = isDeepStrictEqual(seen, log) ? "the same in the same order" : "not the same";
console.log(`seen: ${seen.length} events, in the log: ${log.length}, ${same}`);
