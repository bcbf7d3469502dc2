// An approval that narrows: the model may delete what a person has marked as old, and nothing else.

import { Client, tool } from "@broca/sdk";

const deleteFiles = tool({
  name: "delete_files",
  description: "Delete files.",
  input: {
    type: "object",
    properties: { paths: { type: "array", items: { type: "string" } } },
    required: ["paths"],
  },
  approval: true,
  narrow: { "/paths": "remove_elements" },
  run: ({ paths }) => `deleted ${paths.join(" and ")}`, // a real one would delete them
});

const url = process.env.BROCA_URL ?? "http://127.0.0.1:8080";
const client = new Client(url, { key: process.env.BROCA_CLIENT_KEY });
const session = await client.open({ tools: [deleteFiles] });

for await (const step of session.send('Please delete_files {"paths": ["old.txt", "thesis.txt"]}')) {
  if (step.kind === "approval") {
    console.log(`asked: ${step.name} ${step.inputJson}`);
    const paths = step.input.paths.filter((path) => path.startsWith("old"));
    console.log(`allowed: ${paths.join(" and ")}`);
    step.allowNarrowed({ paths });
  } else if (step.kind === "done") console.log(step.reply.text);
}
await session.close();
