// A turn is cancelled while a tool ignores it: it gets quiet all the same, and the next message can start.

import { once } from "node:events";
import { Client, tool } from "@broca/sdk";

const url = process.env.BROCA_URL;
const key = process.env.BROCA_CLIENT_KEY;

// guide: begin
const obedient = tool({ name: "obedient", run: (_, { signal }) => once(signal, "abort") }); // until it is told to stop
const deaf = tool({ name: "deaf", run: () => new Promise(() => {}) }); // works on, whatever it is told

const client = new Client(url, { key, cancelGraceMs: 500 });
const session = await client.open({ tools: [obedient, deaf] });
const turn = session.send("Go to work.");
let calls = 0;
for await (const step of turn) {
  if (step.kind === "tool_call") calls += 1;
  if (calls === 2) {
    console.log("both tools work: cancelling");
    await turn.cancel(); // to leave the loop would do the same
    console.log("the turn is quiet");
    break;
  }
}
const reply = await session.ask("Are you there?");
console.log(`the next message: ${reply.text}`);
// guide: end

let results = 0;
for await (const event of session.history()) if (event.type === "tool.result") results += 1;
console.log(`in the log: ${results} results`);
await session.close();
