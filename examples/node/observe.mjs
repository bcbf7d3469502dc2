// Watches a session and goes on where it ended: the cursor lies in a file.
//
//     node observe.mjs SESSION CURSOR_FILE [EVENTS]      ends with the session, or after so many events

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { Client } from "@broca/sdk";

const [sessionId, file, events] = process.argv.slice(2);
let wanted = Number(events ?? Infinity);

const url = process.env.BROCA_URL ?? "http://127.0.0.1:8080";
const client = new Client(url, { key: process.env.BROCA_CLIENT_KEY });
const session = await client.observe(sessionId);

for await (const step of session.subscribe({ from: existsSync(file) ? readFileSync(file, "utf8") : "" })) {
  if (step.kind === "event") {
    console.log(step.id, step.type);
    writeFileSync(file, step.id); // done with it: never shown again
    wanted -= 1;
    if (wanted === 0) break;
  } else if (step.kind === "gap") console.error("something is missing:", step);
}
