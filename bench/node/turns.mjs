// Whole turns with one tool call: `node turns.mjs CONTENDER ADDRESS`.
//
// A message, an answer that pauses for the tool `add`, its result, the final text. Two events come with
// each answer; everybody reads them.

import { Meter, amount } from './meter.mjs';

const RPC = '/api/v1/sessions/ses_1/rpc';
const HEADERS = { 'content-type': 'application/json', authorization: 'Bearer bae_ses_1' };
const TURNS = amount('TURNS');
const WARM_UP = Math.max(Math.floor(TURNS / 10), 1);

/** Runs turns one after another and measures all but the first tenth. */
async function drive(turn) {
  const meter = new Meter();
  for (let number = 0; number < WARM_UP + TURNS; number++) {
    if (number === WARM_UP) meter.start();
    const began = performance.now();
    const answer = await turn();
    meter.single(began);
    if (answer !== '42') throw new Error('a turn went wrong');
  }
  meter.report(TURNS);
}

// ---- Broca ----------------------------------------------------------------------------------------

/** A tool with a function, `ask` for the whole turn. */
async function brocaTurns(address) {
  const { Client, tool } = await import('@broca/sdk');
  const number = { type: 'integer' };
  const client = new Client(address, { key: 'bae_bench' });
  const session = await client.open({
    tools: [
      tool({
        name: 'add',
        description: 'Adds two numbers.',
        input: { type: 'object', properties: { a: number, b: number }, required: ['a', 'b'] },
        run: ({ a, b }) => String(a + b),
      }),
    ],
  });
  await drive(async () => (await session.ask('add 2 and 40')).text);
}

// ---- by hand --------------------------------------------------------------------------------------

const add = ({ a, b }) => a + b;

function message(content) {
  const params = { message: { role: 'user', content } };
  return JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'session.sendMessage', params });
}

/** What a turn has come to: the next body to send, or the answer. */
class Turn {
  body = message('add 2 and 40');
  answer = '';
  events = 0;

  /** What to send now; what comes next depends on the lines that answer it. */
  nextBody() {
    const body = this.body;
    this.body = null;
    return body;
  }

  /** Takes a line of an answer; runs the tool if it asks for it. */
  line(text) {
    const said = JSON.parse(text);
    if (!('id' in said)) {
      this.events++;
      return;
    }
    const block = said.result.message.content[0];
    if (block.type === 'tool_use') {
      const output = String(add(block.input));
      this.body = message([{ type: 'tool_result', tool_use_id: block.id, content: output }]);
    } else {
      this.answer = block.text;
    }
  }
}

/** A turn over anything that posts a body and gives the answer's chunks. */
function over(post) {
  return async () => {
    const turn = new Turn();
    while (turn.body) {
      const decoder = new TextDecoder();
      let rest = '';
      for await (const chunk of await post(turn.nextBody())) {
        const text = rest + decoder.decode(chunk, { stream: true });
        let from = 0;
        for (let to; (to = text.indexOf('\n', from)) >= 0; from = to + 1) turn.line(text.slice(from, to));
        rest = text.slice(from);
      }
    }
    return turn.answer;
  };
}

async function fetchTurns(address) {
  const url = address + RPC;
  await drive(over(async (body) => (await fetch(url, { method: 'POST', headers: HEADERS, body })).body));
}

async function undiciTurns(address) {
  const url = address + RPC;
  const { request } = await import('undici');
  await drive(over(async (body) => (await request(url, { method: 'POST', headers: HEADERS, body })).body));
}

const contenders = { broca: brocaTurns, fetch: fetchTurns, undici: undiciTurns };
const [name, address] = process.argv.slice(2);
await contenders[name](address);
