// The answer to a message is cut: the message does not leave twice, and what is not known is said.

import { Client } from "@broca/sdk";

const url = process.env.BROCA_URL;
const key = process.env.BROCA_CLIENT_KEY;

// guide: begin
async function book(service, options) {
  const client = new Client(url, { key, ...options });
  const session = await client.open();
  try {
    const reply = await session.ask("Book the flight."); // the connection breaks in its answer
    console.log(`${service}: ${reply.text}`);
  } catch (error) {
    console.log(`${service}: ${error.kind}, again? ${error.retry}`);
  }
  let sent = 0;
  for await (const event of session.history()) if (event.type === "client.message.send") sent += 1;
  console.log(`  messages in the log: ${sent}`);
  await session.close();
}

// As at a service that knows no ids, and without looking into its log for what became of the message.
await book("plain service", { features: [], recoveryTimeoutMs: 0 });
await book("message ids", {});
// guide: end
