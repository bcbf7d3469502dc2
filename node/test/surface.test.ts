import assert from "node:assert/strict";
import { test } from "node:test";
import { inspect } from "node:util";
import { Client, Event, History, InvalidArgumentError, Session, Turn, UnauthorizedError, tool, type Step } from "@broca/sdk";
import { eventLine, madeUp, saying, sleep, withService } from "./service";

const service = withService();
const client = (): Client => new Client(service.url, { key: service.key });

const readFile = tool({
  name: "read_file",
  description: "Return the text of a file.",
  input: { type: "object", properties: { path: { type: "string" } }, required: ["path"] },
  run: ({ path }) => `contents of ${path}`,
});

async function all<T>(steps: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const step of steps) found.push(step);
  return found;
}

test("a turn with a tool comes step by step and ends with its reply", async () => {
  const session = await client().open({ tools: [readFile] });
  const steps = await all(session.send("What does read_file say about main.py?"));
  const kinds = steps.map((step) => step.kind);
  for (const kind of ["status", "event", "text_delta", "tool_input_delta", "tool_call", "tool_settled"] as const) {
    assert.ok(kinds.includes(kind), kind);
  }
  const call = steps.find((step) => step.kind === "tool_call");
  assert.deepEqual([call?.name, call?.input, call?.runsItself], ["read_file", { path: "main.py" }, true]);
  const settled = steps.find((step) => step.kind === "tool_settled");
  assert.deepEqual([settled?.toolUseId, settled?.outcome], [call?.toolUseId, "done"]);
  const last = steps.at(-1);
  assert.ok(last?.kind === "done");
  assert.match(last.reply.text, /contents of main\.py/);
  assert.equal(last.reply.rounds, 2);
  assert.ok((last.reply.usage?.inputTokens ?? 0) > 0);
  assert.ok(last.reply.events.some((event) => event.type === "tool.result"));
  assert.equal(steps.filter((step) => step.kind === "text_delta").map((step) => step.delta).join("").includes("contents of"), true);
  await session.close();
});

test("ask drives a turn to its reply", async () => {
  const session = await client().open({ tools: [readFile] });
  const reply = await session.ask("What does read_file say about a.txt?");
  assert.match(reply.text, /contents of a\.txt/);
  assert.equal(reply.message.role, "assistant");
  await session.close();
});

test("a session says what it is", async () => {
  const session = await client().open();
  assert.match(session.id, /^ses_/);
  assert.ok(session.features.includes("cancel"));
  assert.equal(typeof session.profile.id, "string");
  assert.ok((session.meta.limits?.["turnTimeoutMs"] ?? 0) > 0);
  assert.equal((await session.participants()).length, 1);
  assert.equal(inspect(session), `Session(${session.id})`);
  const meta = await client().meta();
  assert.ok(meta.apiVersions.includes("v1"));
  await session.close();
});

test("the log comes page by page or event by event", async () => {
  const session = await client().open({ tools: [readFile] });
  await session.ask("hello");
  const history = session.history({ limit: 2 });
  assert.ok(history instanceof History);
  const first = await history;
  assert.equal(first.events.length, 2);
  const second = await session.history({ limit: 2, cursor: first.next });
  const events = await all(session.history({ limit: 3 }));
  assert.deepEqual(events.slice(0, 4).map((event) => event.id), [...first.events, ...second.events].map((event) => event.id));
  assert.ok(events.length > 4 && events.every((event) => event.sessionId === session.id && !Number.isNaN(Date.parse(event.createdAt))));
  await session.close();
});

test("a subscription brings every event once, live and from a stored cursor, and ends with the session", async () => {
  const session = await client().open();
  const observer = await client().observe(session.id);
  const live = observer.subscribe({ from: "" });
  const seen: Event[] = [];
  const watching = (async () => {
    for await (const step of live) if (step.kind === "event") seen.push(step);
  })();
  await session.ask("hello");
  const logged = await all(session.history());
  await session.close();
  await watching;
  assert.deepEqual(seen.slice(0, logged.length).map((event) => event.id), logged.map((event) => event.id));
  assert.equal(new Set(seen.map((event) => event.id)).size, seen.length);
  assert.equal(live.cursor, seen.at(-1)?.id);
  const later = await all(observer.subscribe({ from: seen[1]?.id }));
  assert.deepEqual(later.filter((step) => step.kind === "event").map((event) => event.id), seen.slice(2).map((event) => event.id));
  await observer.leave();
});

test("leaving a subscription's loop ends it, and the session goes on", async () => {
  const session = await client().open();
  for await (const step of session.subscribe({ from: "" })) {
    if (step.kind === "event") break;
  }
  assert.match((await session.ask("hello")).text, /hello/);
  await session.close();
});

test("tools can be replaced from the next turn on", async () => {
  const session = await client().open();
  await session.updateTools([readFile]);
  assert.match((await session.ask("read_file b.txt")).text, /contents of b\.txt/);
  await session.close();
});

test("a second driver joins, and turns run one after the other", async () => {
  const first = await client().open();
  const second = await client().join(first.id, { tools: [readFile] });
  const [a, b] = await Promise.all([first.ask("hello"), second.ask("read_file c.txt")]);
  assert.ok(a.text.length > 0);
  assert.match(b.text, /contents of c\.txt/);
  await second.leave();
  await first.close();
});

test("a wrong key is an error of its class", async () => {
  await assert.rejects(new Client(service.url, { key: "bae_wrong" }).open(), (error) => error instanceof UnauthorizedError && error.status === 401);
});

test("options that cannot be used are refused by name, and the key is not repeated", () => {
  assert.throws(() => new Client(service.url, { key: "k", tiemoutMs: 1 } as never), /tiemout_ms/);
  assert.throws(() => new Client("nonsense", { key: "hunter2" }), (error: Error) => error instanceof InvalidArgumentError && !error.message.includes("hunter2"));
  for (const idleCloseMs of [NaN, Infinity, -1, 0.5, 7n as never]) {
    assert.throws(() => new Client(service.url, { key: "k", idleCloseMs }), InvalidArgumentError, `${idleCloseMs}`);
  }
  // The names by which the engine knows the address and the key are no second way to give them.
  for (const name of ["baseUrl", "clientKey"]) {
    assert.throws(() => new Client(service.url, { key: "k", [name]: "http://127.0.0.1:1" }), new RegExp(name));
  }
  assert.throws(() => new Client(service.url, { key: "hunter2", hooks: 7 } as never), (error: Error) => !error.message.includes("hunter2"));
});

test("steps decode what is not ASCII, wherever it stands", async () => {
  const fake = await madeUp((call) => {
    call.line(eventLine(1, "nöte😀", { text: "€ and 😀", big: 1 }));
    call.line(eventLine(2, "plain"));
    call.result(saying("é".repeat(300) + "😀 end"));
  });
  const session = await new Client(fake.url, { key: fake.key }).open();
  const steps = await all(session.send("x"));
  const events = steps.filter((step) => step.kind === "event");
  assert.deepEqual(events.map((event) => [event.id, event.type]), [["evt_1", "nöte😀"], ["evt_2", "plain"]]);
  assert.deepEqual(events[0]?.payload, { text: "€ and 😀", big: 1 });
  assert.deepEqual(JSON.parse(events[0]?.json ?? "").payload, events[0]?.payload);
  const done = steps.at(-1);
  assert.ok(done?.kind === "done" && done.reply.text === "é".repeat(300) + "😀 end");
  await session.leave();
  await fake.stop();
});

test("integers above 2^53 survive as text", async () => {
  const fake = await madeUp((call) => {
    call.response.write(`{"jsonrpc":"2.0","method":"session.event","params":{"id":"evt_1","session_id":"ses_1","event_type":"n","payload":{"n":9007199254740993},"created_at":"2026-01-02T03:04:05Z"}}\n`);
    call.result(saying("ok"));
  });
  const session = await new Client(fake.url, { key: fake.key }).open();
  const event = (await all(session.send("x"))).find((step) => step.kind === "event");
  assert.equal(event?.payloadJson, `{"n":9007199254740993}`);
  assert.equal(event?.clientKeyId, undefined);
  await session.leave();
  await fake.stop();
});

test("printing a step shows what it is and nothing of what it says", async () => {
  const fake = await madeUp((call) => {
    call.line(eventLine(1));
    call.result(saying("ok"));
  });
  const session = await new Client(fake.url, { key: fake.key }).open();
  const event = (await all(session.send("x"))).find((step) => step.kind === "event") as Step;
  assert.match(inspect(event), /Event \{\s+id: 'evt_1'/);
  assert.match(inspect(event), /payload: \[payload\]/);
  assert.equal(JSON.parse(JSON.stringify(event)).kind, "event");
  await session.leave();
  await fake.stop();
});

test("a loop over many steps gives the event loop its turns", async () => {
  const fake = await madeUp((call) => {
    const lines = Array.from({ length: 5_000 }, (_, n) => JSON.stringify(eventLine(n)) + "\n").join("");
    call.response.write(lines);
    call.result(saying("ok"));
  });
  const session = await new Client(fake.url, { key: fake.key }).open();
  let turns = 0;
  const count = (): void => {
    turns += 1;
    immediate = setImmediate(count);
  };
  let immediate = setImmediate(count);
  const turn = session.send("x");
  await turn.next();
  await sleep(200); // all of it has come
  turns = 0;
  let events = 0;
  for await (const step of turn) events += step.kind === "event" ? 1 : 0;
  clearImmediate(immediate);
  assert.ok(events >= 4_999, `${events} events`);
  assert.ok(turns >= 10, `${turns} turns of the loop`);
  await session.leave();
  await fake.stop();
});

test("an application that is slow gets a gap for display pieces and every event", async () => {
  const fake = await madeUp((call) => {
    for (let n = 0; n < 200; n++) {
      call.line({ jsonrpc: "2.0", method: "session.display", params: { type: "text_delta", message_id: "m", delta: "x".repeat(500) } });
      call.line(eventLine(n));
    }
    call.result(saying("ok"));
  }, ["display"]);
  const session = await new Client(fake.url, { key: fake.key, deltaBufferBytes: 10_000 }).open();
  const turn = session.send("x");
  await turn.next();
  await sleep(200);
  const steps = await all(turn);
  const gaps = steps.filter((step) => step.kind === "gap");
  assert.ok(gaps.length > 0 && gaps.every((gap) => gap.reason === "deltas"));
  assert.equal(gaps.reduce((sum, gap) => sum + (gap.count ?? 0), 0) + steps.filter((step) => step.kind === "text_delta").length, 200);
  assert.equal(steps.filter((step) => step.kind === "event").length, 200);
  await session.leave();
  await fake.stop();
});

test("several callers of next() are served in order", async () => {
  const fake = await madeUp((call) => {
    setTimeout(() => {
      call.line(eventLine(1));
      call.line(eventLine(2));
      call.result(saying("ok"));
    }, 50);
  });
  const session = await new Client(fake.url, { key: fake.key }).open();
  const turn: Turn = session.send("x");
  const kinds = await Promise.all(Array.from({ length: 6 }, () => turn.next()));
  assert.deepEqual(
    kinds.map(({ value, done }) => (done === true ? "end" : value?.kind === "event" ? value.id : value?.kind)),
    ["status", "evt_1", "evt_2", "done", "end", "end"],
  );
  await session.leave();
  await fake.stop();
});

test("handlers see each message and each answer", async () => {
  const asked: unknown[] = [];
  const fake = await madeUp((call) => {
    const { content } = call.params.message as { content: unknown };
    asked.push(content);
    call.result(saying("ok"));
  });
  const received: string[] = [];
  const session = await new Client(fake.url, { key: fake.key }).open({
    onSending: async (sending) => {
      await sleep(1);
      sending.send(`${String(sending.message.content)} and more`);
    },
    onReceived: ({ round, message }) => received.push(`${round} ${message.role}`),
  });
  assert.ok(session instanceof Session);
  await session.ask("hello");
  assert.deepEqual(asked, ["hello and more"]);
  assert.deepEqual(received, ["0 assistant"]);
  await session.leave();
  await fake.stop();
});

test("with hooks and no handler, sending is a step to answer", async () => {
  const fake = await madeUp((call) => call.result(saying("ok")));
  const session = await new Client(fake.url, { key: fake.key, hooks: true }).open();
  const seen: string[] = [];
  for await (const step of session.send("hello")) {
    seen.push(step.kind);
    if (step.kind === "sending") assert.equal(step.send(), true);
  }
  assert.deepEqual(seen.filter((kind) => kind !== "status"), ["sending", "received", "done"]);
  assert.equal((await session.ask("again")).text, "ok");
  await session.leave();
  await fake.stop();
});

test("trace headers reach the service", async () => {
  const headers: unknown[] = [];
  const fake = await madeUp((call) => {
    headers.push(call.response.req.headers["traceparent"]);
    call.result(saying("ok"));
  });
  const session = await new Client(fake.url, { key: fake.key }).open();
  await session.ask("hello", { trace: { traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" } });
  assert.deepEqual(headers, ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]);
  await session.leave();
  await fake.stop();
});

test("log records reach the application's log", async () => {
  const fake = await madeUp((call) => call.result(saying("ok")));
  await fake.stop();
  const records: string[] = [];
  const client = new Client(fake.url, { key: fake.key, onLog: (record) => records.push(`${record.level} ${record.message}`) });
  await assert.rejects(client.open());
  await sleep(1);
  assert.ok(records.every((record) => !record.includes(fake.key)));
});

