// Consumers of a stream of events: `node events.mjs CONTENDER ADDRESS`.
//
// Each subscribes to a session and reads three fields of every event. The connection is there before the
// clock starts: everybody has asked something on it.

import http from 'node:http';
import readline from 'node:readline';
import { Readable } from 'node:stream';
import { Meter, amount } from './meter.mjs';

const META = '/api/v1/meta';
const RPC = '/api/v1/sessions/ses_1/rpc';
const SUBSCRIBE = '{"jsonrpc":"2.0","id":1,"method":"session.subscribe","params":{}}';
const HEADERS = { 'content-type': 'application/json', authorization: 'Bearer bae_ses_1' };

// The stream ends with the event that the session is closed.
const EVENTS = amount('EVENTS') + 1;

let events = 0;
let seen = 0;
let done = false;

function take(message) {
  const event = message.params;
  if (event === undefined) {
    done = 'id' in message;
    return;
  }
  events++;
  seen += event.id.length + event.event_type.length + event.created_at.length;
}

/** Prints the figures of a stream that came whole. */
function report(meter) {
  if (events !== EVENTS || seen === 0 || !done) {
    throw new Error(`the stream was not complete: ${events} of ${EVENTS} events, done=${done}`);
  }
  meter.report(events);
}

/** Our package: a loop over a subscription. */
async function broca(address) {
  const { Client } = await import('@broca/sdk');
  const client = new Client(address, { key: 'bae_bench' });
  const session = await client.observe('ses_1');
  const meter = new Meter();
  for await (const step of session.subscribe()) {
    if (step.kind !== 'event') continue;
    events++;
    seen += step.id.length + step.createdAt.length;
    done = step.type === 'session.close';
  }
  report(meter);
}

/** node:http; each buffer is decoded once and cut into lines: the quickest by hand. */
async function byHand(address) {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  const ask = (method, path, body) =>
    new Promise((resolve, reject) => {
      const request = http.request(address + path, { method, agent, headers: HEADERS }, resolve);
      request.on('error', reject);
      request.end(body);
    });
  const meta = await ask('GET', META);
  await new Promise((resolve) => meta.on('end', resolve).resume());
  const meter = new Meter();
  const answer = await ask('POST', RPC, SUBSCRIBE);
  let rest = null;
  await new Promise((resolve, reject) => {
    answer.on('data', (buffer) => {
      if (rest) buffer = Buffer.concat([rest, buffer]);
      const whole = buffer.lastIndexOf(10) + 1;
      rest = whole < buffer.length ? buffer.subarray(whole) : null;
      const text = buffer.toString('utf8', 0, whole);
      for (let from = 0, to; (to = text.indexOf('\n', from)) >= 0; from = to + 1) {
        take(JSON.parse(text.slice(from, to)));
      }
    });
    answer.on('end', resolve).on('error', reject);
  });
  report(meter);
}

/** fetch, lines from node:readline: what the documentation suggests. */
async function fetchReadline(address) {
  await (await fetch(address + META)).text();
  const meter = new Meter();
  const answer = await fetch(address + RPC, { method: 'POST', headers: HEADERS, body: SUBSCRIBE });
  const lines = readline.createInterface({ input: Readable.fromWeb(answer.body), crlfDelay: Infinity });
  for await (const line of lines) take(JSON.parse(line));
  report(meter);
}

const contenders = { broca, http: byHand, fetch: fetchReadline };
const [name, address] = process.argv.slice(2);
await contenders[name](address);
