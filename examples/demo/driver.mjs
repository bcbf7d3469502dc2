// The driver in JavaScript of the demo: brings the tool most_frequent_word. README.md beside it tells what it says to whom.

import { readFile } from "node:fs/promises";
import { BrocaError, Client, tool } from "@broca/sdk";

const [url, sessionId, file, question] = process.argv.slice(2);

function tell(verb, text) {
  process.stdout.write(`${verb} ${text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n")}\n`);
}

const mostFrequentWord = tool({
  name: "most_frequent_word",
  description: "Tell the most frequent word of a file, the first of several, and how often it is there.",
  input: { type: "object", properties: { path: { type: "string" } }, required: ["path"] },
  async run({ path }, { signal }) {
    if (path !== file) throw new Error(`only ${file} may be read here`);
    const text = await readFile(path, { encoding: "utf8", signal });
    const punctuation = /^[!-/:-@[-`{-~]+|[!-/:-@[-`{-~]+$/g;
    const counts = new Map();
    for (const word of text.split(/[ \t\n\v\f\r]+/).map((word) => word.replace(punctuation, ""))) {
      if (word !== "") counts.set(word, (counts.get(word) ?? 0) + 1);
    }
    let most = ["there is none", 0];
    for (const entry of counts) if (entry[1] > most[1]) most = entry;
    const letters = [...most[0]];
    return `${letters.slice(0, 60).join("")}${letters.length > 60 ? "…" : ""} (${most[1]})`;
  },
});

async function drive() {
  const client = new Client(url, { key: process.env.BROCA_CLIENT_KEY });
  const session = await client.join(sessionId, { tools: [mostFrequentWord] });
  tell("joins", mostFrequentWord.name);
  tell("asks", question);
  for await (const step of session.send(question)) {
    if (step.kind === "text_delta") tell("words", step.delta);
    else if (step.kind === "tool_call") tell("runs", `${step.name} ${step.inputJson}`);
    else if (step.kind === "done") tell("reply", step.reply.text);
  }
  await session.leave();
}

try {
  await drive();
} catch (error) {
  if (!(error instanceof BrocaError)) throw error;
  console.error(`the driver in JavaScript: ${error.message}`);
  process.exitCode = 1;
}
