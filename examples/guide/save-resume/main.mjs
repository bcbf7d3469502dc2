// A program dies between two results; the next one takes its turn up, and nothing is done twice.

import { readFileSync, writeFileSync } from "node:fs";
import { Client, tool } from "@broca/sdk";

const client = new Client(process.env.BROCA_URL, { key: process.env.BROCA_CLIENT_KEY });

// guide: begin
const price = tool({
  name: "price",
  description: "Look the price up.",
  run: () => "12 crowns",
});
const pay = tool({ name: "pay", description: "Pay." }); // without `run`: its calls are steps

async function first() {
  const session = await client.open({ tools: [price, pay] });
  for await (const step of session.send("Pay what it costs.")) {
    if (step.kind === "tool_call" && step.name === "pay") {
      writeFileSync("bank", step.idempotencyKey);
      console.log("pay: the bank has it"); // and this program dies before it answers the call
    } else if (step.kind === "tool_settled") {
      console.log(`${step.name}: ${step.outcome}`);
      const saved = await session.save(); // it holds the key of the session
      writeFileSync("session.json", saved.expose(), { mode: 0o600 });
      console.log("saved; now this program and the service are killed");
      process.exit(0);
    }
  }
}

async function next() {
  const session = await client.attach(readFileSync("session.json", "utf8"), { tools: [price, pay] });
  const turn = session.resume();
  if (turn === undefined) return; // no turn was left: send a message, as ever
  for await (const step of turn) {
    if (step.kind === "tool_call" && step.mayHaveRun) { // not `price`: its result was saved
      console.log(`${step.name} may have run`);
      if (step.idempotencyKey === readFileSync("bank", "utf8")) step.complete("paid before");
      else step.fail("nothing was paid");
    } else if (step.kind === "done") console.log(`the model: ${step.reply.text}`);
  }
}
// guide: end

await (process.argv[2] === "first" ? first() : next());
