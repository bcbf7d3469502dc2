// One leg of a relay, as relay.py beside it: relay.mjs leave|take FILE

import { readFileSync, writeFileSync } from 'node:fs';
import { Client, tool } from '@broca/sdk';

const [leg, file] = process.argv.slice(2);
const client = new Client(process.env.BROCA_URL, { key: process.env.BROCA_CLIENT_KEY });
const tools = [tool({ name: 'quick' }), tool({ name: 'slow' })];
const said = [];

const session = leg === 'leave'
  ? await client.open({ tools })
  : await client.attach(readFileSync(file, 'utf8'), { tools });
const turn = leg === 'leave' ? session.send('use quick and slow') : session.resume();
for await (const step of turn) {
  if (step.kind === 'event') said.push(`event ${step.id}`);
  if (step.kind === 'tool_call') {
    said.push(`call ${step.name} ${step.idempotencyKey} ${Number(step.mayHaveRun)}`);
    if (leg === 'take' || step.name === 'quick') step.complete(`${step.name} by node`);
  }
  if (step.kind === 'tool_settled' && leg === 'leave') {
    writeFileSync(file, (await session.save()).expose(), { mode: 0o600 });
    console.log(said.join('\n'));
    // As a crash would: nobody is told.
    process.kill(process.pid, 'SIGKILL');
    await new Promise(() => {});
  }
  if (step.kind === 'done') said.push(`reply ${step.reply.text}`);
}
console.log(said.join('\n'));
await session.close();
