import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { cpSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import * as broca from "@broca/sdk";
import { BrocaError, Client, ConnectError, InvalidArgumentError, TransportError, UsageError } from "@broca/sdk";
import { HOME, calling, eventLine, madeUp, run, saying } from "./service";

const PACKAGE = join(HOME, "node_modules", "@broca", "sdk");

interface Native {
  errorTable(): [number, string, string, number | null, string][];
}

test("every row of the table has its class, below the class of its parent", () => {
  const { native } = createRequire(__filename)(join(PACKAGE, "dist", "native.js")) as { native: Native };
  const rows = native.errorTable();
  assert.ok(rows.length >= 37);
  const classes = broca as unknown as Record<string, typeof BrocaError>;
  for (const [code, kind, name, parent, retry] of rows) {
    const row = classes[name];
    assert.ok(row !== undefined, `${name} is missing`);
    assert.deepEqual([row.code, row.kind, row.retry, row.name], [code, kind, retry, name]);
    const above = Object.getPrototypeOf(row) as typeof BrocaError;
    assert.equal(above.code, parent ?? 0, name);
    const error = new row("why");
    assert.deepEqual([error.code, error.kind, error.retry, error.name, error.message], [code, kind, retry, name, "why"]);
  }
  // What tools throw has no row: it is no error of the library.
  const ours = Object.entries(classes).filter(([name, value]) => value?.prototype instanceof Error && name !== "ToolInterrupted");
  assert.equal(ours.length, rows.length + 1, "a class without a row");
});

test("instanceof knows the classes of another copy of the package, and nothing else", () => {
  const folder = mkdtempSync(join(tmpdir(), "broca-copy-"));
  cpSync(PACKAGE, folder, { recursive: true });
  const other = createRequire(__filename)(join(folder, "dist", "index.js")) as typeof broca;
  assert.notEqual(other.ConnectError, ConnectError);
  const error = new other.ConnectError("why");
  assert.ok(error instanceof ConnectError && error instanceof TransportError && error instanceof BrocaError && error instanceof Error);
  assert.ok(!(error instanceof UsageError));
  assert.ok(!(new Error("why") instanceof BrocaError) && !((null as unknown) instanceof BrocaError) && !(({}) instanceof BrocaError));
  class Mine extends TransportError {}
  assert.ok(new Mine("why") instanceof Mine && new Mine("why") instanceof TransportError);
  assert.ok(!(new TransportError("why") instanceof Mine));
  assert.ok(other.content() instanceof broca.Content && !(({ blocks: [] }) instanceof broca.Content));
  rmSync(folder, { recursive: true });
});

test("a refused connection says that a retry is safe", async () => {
  const fake = await madeUp(() => {});
  await fake.stop();
  await assert.rejects(new Client(fake.url, { key: "k" }).open(), (error) => {
    assert.ok(error instanceof ConnectError);
    assert.deepEqual([error.kind, error.code, error.retry], ["connect", -101, "safe"]);
    return true;
  });
});

test("a JSON-RPC error carries its number and details", async () => {
  const fake = await madeUp((call) => {
    call.line({ jsonrpc: "2.0", id: call.id, error: { code: -32602, message: "no such thing" } });
    call.response.end();
  });
  const session = await new Client(fake.url, { key: "k" }).open();
  await assert.rejects(session.ask("x"), (error) => error instanceof broca.InvalidParamsError && error.rpcCode === -32602 && error.retry === "unsafe");
  await session.leave();
  await fake.stop();
});

test("a stream that breaks off is an error, never a success", async () => {
  const fake = await madeUp((call) => {
    call.response.write(`{"jsonrpc":"2.0","id":1,"resu`);
    call.response.end();
  });
  const session = await new Client(fake.url, { key: "k" }).open();
  await assert.rejects(session.ask("x"), broca.StreamEndedEarlyError);
  await session.leave();
  await fake.stop();
});

test("what is wrong with a call itself is thrown by the first step", async () => {
  const fake = await madeUp((call) => call.result(saying("ok")));
  const session = await new Client(fake.url, { key: "k" }).open();
  const turn = session.send(7 as never);
  await assert.rejects(turn.next(), InvalidArgumentError);
  assert.deepEqual(await turn.next(), { value: undefined, done: true });
  const circular: { self?: object } = {};
  circular.self = circular;
  for (const message of [undefined, 7n, { role: "user", content: [{ type: "x", number: 7n }] }, circular, { role: "user", content: [{ type: "x", number: NaN }] }]) {
    await assert.rejects(session.ask(message as never), InvalidArgumentError);
  }
  await assert.rejects(session.ask("x", { trace: { traceparent: 7 } as never }), InvalidArgumentError);
  assert.throws(() => broca.tool({ name: "x", input: { type: "string" } }), InvalidArgumentError);
  await assert.rejects(new Client(fake.url, { key: "k" }).open({ tools: [broca.tool({ name: "a" }), broca.tool({ name: "a" })] }), /two tools/);
  await session.leave();
  await fake.stop();
});

test("reply says what the turn failed with, however often and in whatever order it is asked", async () => {
  const fake = await madeUp((call) => call.response.end());
  const session = await new Client(fake.url, { key: "k", cancelTimeoutMs: 50 }).open();
  const turn = session.send("x");
  for (const outcome of await Promise.allSettled([turn.reply(), turn.reply()])) {
    assert.ok(outcome.status === "rejected" && outcome.reason instanceof broca.StreamEndedEarlyError);
  }
  await assert.rejects(turn.reply(), broca.StreamEndedEarlyError);
  assert.deepEqual(await turn.next(), { value: undefined, done: true });
  const looped = session.send("x");
  await assert.rejects(async () => { for await (const _ of looped); }, broca.StreamEndedEarlyError);
  await assert.rejects(looped.reply(), broca.StreamEndedEarlyError);
  await session.leave();
  await fake.stop();

  const hanging = await madeUp((call) => call.line(eventLine(1)));
  const left = (await new Client(hanging.url, { key: "k", cancelTimeoutMs: 50 }).open()).send("x");
  for await (const _ of left) break;
  await assert.rejects(left.reply(), broca.CancelledError);
  await hanging.stop();
});

test("an error of a panic is a PanicError, and only its session is lost", async () => {
  const addon = process.env["BROCA_TEST_ADDON"];
  assert.ok(addon !== undefined, "BROCA_TEST_ADDON must name an addon built with the feature testing; scripts/node-test.sh sets it");
  const { code, out, err } = await run(
    `
    import { createRequire } from "node:module";
    const { native } = createRequire(import.meta.url)("${PACKAGE}/dist/native.js");
    const { Client, PanicError, IoError } = createRequire(import.meta.url)("@broca/sdk");
    const { thrown } = createRequire(import.meta.url)("${PACKAGE}/dist/errors.js");
    const options = JSON.stringify({ base_url: "http://127.0.0.1:1", client_key: "k" });
    const engine = new native.Engine(options, 1, 2, Date.now(), new Uint32Array(64));
    const caught = (call) => { try { call(); } catch (error) { return thrown(error); } };
    console.log(caught(() => engine.testThrow(-103)) instanceof IoError, caught(() => engine.testThrow(-103)).details.test);
    console.log(caught(() => engine.testPanicOutside()) instanceof PanicError);
    console.log(caught(() => engine.testPanic()) instanceof PanicError);
    console.log(caught(() => engine.effects()).kind);
    new native.Engine(options, 1, 2, Date.now(), new Uint32Array(64)).effects();
    // A panic while a turn runs: the turn fails, other sessions go on.
    native.Engine.prototype.data = native.Engine.prototype.testPanic;
    await new Client("http://127.0.0.1:" + process.env.PORT, { key: "k" }).open().catch((error) => console.log(error instanceof PanicError, error.kind));
    `,
    { env: { BROCA_NODE_ADDON: addon, PORT: await port() } },
  );
  assert.equal(out, "true details\ntrue\ntrue\npanic\ntrue panic\n", err);
  assert.equal(code, 0, err);
});

test("results of a paused turn are sent once", async () => {
  const bodies: string[] = [];
  const fake = await madeUp((call) => {
    bodies.push(JSON.stringify(call.params.message.content));
    call.result(bodies.length === 1 ? calling("add", { a: 1, b: 2 }) : saying("3"));
  });
  const add = broca.tool({ name: "add", run: ({ a, b }: any) => String(a + b) });
  const session = await new Client(fake.url, { key: "k" }).open({ tools: [add] });
  assert.equal((await session.ask("x")).text, "3");
  assert.equal(bodies.length, 2);
  assert.match(bodies[1] ?? "", /"tool_result".*"3"/);
  await session.leave();
  await fake.stop();
});

let listening: Awaited<ReturnType<typeof madeUp>> | undefined;
async function port(): Promise<string> {
  listening = await madeUp(() => {});
  return new URL(listening.url).port;
}
test.after(() => listening?.stop());
