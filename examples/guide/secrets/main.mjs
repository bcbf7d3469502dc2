// All that a program might print of a session is searched for keys and for what was said: there is none of it.

import { inspect } from "node:util";
import { Client, tool } from "@broca/sdk";

const url = process.env.BROCA_URL;
const key = process.env.BROCA_CLIENT_KEY;
const log = [];
const shown = [];

const secrets = (text) => text.split(/swordfish|bae_/).length - 1; // what was said, and the keys of this service

// guide: begin
const show = (value) => shown.push(String(value), inspect(value, { depth: 10, showHidden: true }));

const vault = tool({
  name: "vault",
  input: { type: "object", properties: { word: { type: "string" } } },
  run: ({ word }) => {
    throw new Error(`${word} is not the word`); // only the model reads this
  },
});

async function attempt(act) {
  try {
    await act();
  } catch (error) {
    show(error);
    console.log(`failed: ${error.kind}`);
  }
}

async function turn(session, message) {
  for await (const step of session.send(message)) {
    show(step);
    if (step.kind === "done") console.log(`the answer: ${step.reply.text}`);
  }
}

const client = new Client(url, { key, onLog: (record) => log.push(record.message) });
const session = await client.open({ tools: [vault] });
await attempt(() => turn(session, "Open with swordfish."));
await attempt(() => turn(session, "Tell nobody of swordfish."));
const saved = await session.save();
[client, session, saved].forEach(show);
shown.push(JSON.stringify([client, session, saved]));
await attempt(() => new Client(url, { key: "bae_of_somebody_else" }).open());

console.log(`in the log: ${log.length > 0 ? "words" : "nothing"}`);
console.log(`secrets in log, errors and debug output: ${secrets([...log, ...shown].join("\n"))}`);
console.log(`secrets in the saved session: ${secrets(saved.expose())}`); // this text is for a safe place
// guide: end
await session.close();
