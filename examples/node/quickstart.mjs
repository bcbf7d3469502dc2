import { readFile } from "node:fs/promises";
import { Client, tool } from "@broca/sdk";

const read = tool({
  name: "read_file",
  description: "Return the text of a file.",
  input: { type: "object", properties: { path: { type: "string" } }, required: ["path"] },
  run: ({ path }, { signal }) => readFile(path, { encoding: "utf8", signal }),
});

const url = process.env.BROCA_URL ?? "http://127.0.0.1:8080";
const client = new Client(url, { key: process.env.BROCA_CLIENT_KEY });
const session = await client.open({ tools: [read] });

for await (const step of session.send("What does read_file say about quickstart.mjs?")) {
  if (step.kind === "text_delta") process.stderr.write(step.delta);
  else if (step.kind === "tool_call") console.error(`\n[${step.name} ${step.inputJson}]`);
  else if (step.kind === "done") console.error(`\n[${step.reply.rounds} rounds]`); // step.reply.text is the whole answer
}

const reply = await session.ask("And what is 2 and 2?"); // the loop, driven for you
console.log(reply.text);
await session.close();
