// An approval that narrows, one that would widen, and one that nobody gives.

import { Client, tool } from "@broca/sdk";

const client = new Client(process.env.BROCA_URL, { key: process.env.BROCA_CLIENT_KEY });

// guide: begin
let paid = 0;
const pay = tool({
  name: "pay",
  input: { type: "object", properties: { amount: { type: "integer" } }, required: ["amount"] },
  approval: true,
  narrow: { "/amount": "at_most" },
  run: ({ amount }) => `paid ${(paid += amount)}`,
});

const session = await client.open({ tools: [pay] });
for (const allowed of [50, 5000]) {
  for await (const step of session.send("Pay the bill.")) {
    if (step.kind === "approval") {
      console.log(`asked: ${step.name} ${step.inputJson}, allowed: ${allowed}`);
      step.allowNarrowed({ amount: allowed });
    } else if (step.kind === "tool_settled") console.log(`outcome: ${step.outcome}`);
  }
}
const reply = await session.ask("Pay the bill."); // no handler, nobody looks: denied
console.log(`nobody is asked: ${reply.text}`);
console.log(`paid: ${paid}`);
// guide: end
await session.close();
