/** What goes wrong with native modules elsewhere, as named tests. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, PanicError, tool } from "@broca/sdk";
import { calling, eventLine, madeUp, run, saying, sleep } from "./service";

/** Turns hang, and subscriptions bring one event. */
const hanging = (): ReturnType<typeof madeUp> => madeUp((call) => call.line(eventLine(1)));

const OPEN = (url: string): string => `
  import { Client, tool } from "@broca/sdk";
  const session = await new Client("${url}", { key: "k" }).open();
`;

test("exit_with_inflight: a program that exits in the middle of a turn just ends", async () => {
  const fake = await hanging();
  const { code, signal, err } = await run(`${OPEN(fake.url)}
    for (let i = 0; i < 20; i++) session.ask("x").catch(() => {});
    session.subscribe({ from: "" }).next();
    setTimeout(() => process.exit(3), 50);`);
  assert.deepEqual([code, signal, err], [3, null, ""]);
  await fake.stop();
});

test("the process ends when the work ends, with its connections still open", async () => {
  const fake = await madeUp((call) => call.result(saying("ok")));
  const { code, out, ms, err } = await run(`${OPEN(fake.url)}
    console.log((await session.ask("x")).text);`);
  assert.deepEqual([code, out], [0, "ok\n"], err);
  assert.ok(ms < 5_000, `${ms} ms, although idle connections live for a minute`);
  await fake.stop();
});

test("the process does not end before the work ends", async () => {
  const fake = await madeUp((call) => {
    if (call.method === "session.sendMessage") setTimeout(() => call.result(saying("late")), 400);
    else setTimeout(() => call.line(eventLine(7)), 400);
  });
  const asked = await run(`${OPEN(fake.url)} console.log((await session.ask("x")).text);`);
  assert.deepEqual([asked.code, asked.out], [0, "late\n"], asked.err);
  const watched = await run(`${OPEN(fake.url)}
    for await (const step of session.subscribe()) if (step.kind === "event") { console.log(step.id); break; }`);
  assert.deepEqual([watched.code, watched.out], [0, "evt_7\n"], watched.err);
  await fake.stop();
});

test("a tool that waits for nothing of Node keeps the process alive until its time is over", async () => {
  const fake = await madeUp((call) => {
    call.result(typeof call.params.message.content === "string" ? calling("t", {}) : saying("over"));
  });
  const { code, out, err } = await run(`
    import { Client, tool } from "@broca/sdk";
    const never = tool({ name: "t", timeoutMs: 300, run: () => new Promise(() => {}) });
    const session = await new Client("${fake.url}", { key: "k" }).open({ tools: [never] });
    console.log((await session.ask("x")).text);`);
  assert.deepEqual([code, out], [0, "over\n"], err);
  await fake.stop();
});

test("an idle session does not hold the process, a failed turn that nobody looked at does not end it", async () => {
  const fake = await madeUp((call) => {
    call.line({ jsonrpc: "2.0", id: call.id, error: { code: -32603, message: "down" } });
    call.response.end();
  });
  const { code, out, err } = await run(`${OPEN(fake.url)}
    session.send("nobody waits for this");
    await new Promise((resolve) => setTimeout(resolve, 200));
    console.log("alive");`);
  assert.deepEqual([code, out, err], [0, "alive\n", ""]);
  await fake.stop();
});

test("callback_throws: whatever handlers throw, nothing is unhandled", async () => {
  const fake = await madeUp((call) => {
    call.result(typeof call.params.message.content === "string" ? calling("t", {}) : saying("ok"));
  });
  const { code, out, err } = await run(`
    import { Client, tool } from "@broca/sdk";
    const throwing = tool({ name: "t", run: () => { throw null; } });
    const late = tool({ name: "u", approval: true, run: async () => { throw undefined; } });
    const session = await new Client("${fake.url}", { key: "k" }).open({
      tools: [throwing, late],
      onApproval: () => Promise.reject(1),
      onSending: async () => { await 0; },
      onReceived: () => { throw new Error("from onReceived"); },
    });
    console.log((await session.ask("x")).text);
    const refusing = await new Client("${fake.url}", { key: "k" }).open({ onSending: () => { throw new TypeError("no"); } });
    console.log(await refusing.ask("x").catch((error) => error.name + " " + error.message));`);
  assert.equal(code, 0, err);
  assert.match(out, /^ok\nHookError .*TypeError: no/);
  assert.match(err, /onReceived handler threw Error: from onReceived/);
  await fake.stop();
});

test("an approval handler that throws or does not decide denies, and is heard of", async () => {
  const results: string[] = [];
  const fake = await madeUp((call) => {
    const said = call.params.message.content;
    if (typeof said !== "string") results.push(JSON.stringify(said));
    call.result(typeof said === "string" ? calling("t", {}) : saying("ok"));
  });
  const { code, out, err } = await run(`
    import { Client, tool } from "@broca/sdk";
    const t = tool({ name: "t", approval: true, run: () => "it ran" });
    for (const onApproval of [() => { throw new RangeError("mine"); }, () => true, () => {}]) {
      const session = await new Client("${fake.url}", { key: "k" }).open({ tools: [t], onApproval });
      console.log((await session.ask("x")).text);
    }`);
  assert.deepEqual([code, out], [0, "ok\nok\nok\n"], err);
  assert.match(err, /onApproval handler failed: RangeError: mine/);
  assert.match(err, /onApproval handler failed: .*a decision is "allow"/);
  assert.equal(results.length, 3);
  for (const result of results) assert.match(result, /denied/);
  assert.match(results[2] as string, /did not decide/);
  await fake.stop();
});

test("callback_reenters: a tool may use its own session and others", async () => {
  const fake = await madeUp((call) => {
    const said = call.params.message.content;
    call.result(said === "outer" ? calling("t", {}) : saying(typeof said === "string" ? said : "inner was asked"));
  });
  const client = new Client(fake.url, { key: "k" });
  const other = await client.open();
  const t = tool({
    name: "t",
    run: async () => {
      const queued = session.ask("after"); // waits behind the turn that this call belongs to
      void queued.catch(() => {});
      return (await other.ask("inner")).text;
    },
  });
  const session = await client.open({ tools: [t] });
  assert.equal((await session.ask("outer")).text, "inner was asked");
  await session.leave();
  await other.leave();
  await fake.stop();
});

test("cancel_twice: cancelling again, from everywhere, changes nothing", async () => {
  const fake = await hanging();
  const session = await new Client(fake.url, { key: "k", cancelTimeoutMs: 50 }).open();
  const turn = session.send("x");
  await turn.next();
  session.cancel();
  session.cancel();
  await Promise.all([turn.cancel(), turn.cancel(), turn.return(), turn[Symbol.asyncDispose]()]);
  session.cancel();
  await turn.cancel();
  await session.leave();
  await session.leave();
  await fake.stop();
});

test("late_completion_after_close: a tool that answers after its session was closed changes nothing", async () => {
  const fake = await madeUp((call) => call.result(calling("t", {})));
  let finish: (text: string) => void = () => {};
  const t = tool({ name: "t", run: () => new Promise<string>((resolve) => (finish = resolve)) });
  const session = await new Client(fake.url, { key: "k" }).open({ tools: [t] });
  const asked = session.ask("x");
  await sleep(50);
  const closed = session.close();
  await assert.rejects(asked, (error: Error) => error.name === "ClosedError");
  await closed;
  finish("too late");
  await sleep(10);
  await fake.stop();
});

test("worker_threads_exit: workers load the addon, work, and exit or are ended", async () => {
  const fake = await madeUp((call) => (call.params.message?.content === "hang" ? call.line(eventLine(1)) : call.result(saying("ok"))));
  const { code, out, err } = await run(
    `
    import { Worker } from "node:worker_threads";
    const source = (message) => \`
      const { Client } = require("@broca/sdk");
      const { parentPort } = require("node:worker_threads");
      new Client("${fake.url}", { key: "k" }).open().then((session) => {
        parentPort.postMessage("open");
        return session.ask("\${message}");
      }).then((reply) => parentPort.postMessage(reply.text));
    \`;
    const ended = [];
    for (let i = 0; i < 12; i++) {
      const worker = new Worker(source(i % 2 ? "hang" : "x"), { eval: true });
      if (i % 2) worker.on("message", () => worker.terminate());
      ended.push(new Promise((resolve, reject) => { worker.on("exit", resolve); worker.on("error", reject); }));
    }
    console.log((await Promise.all(ended)).join(" "));`,
    { timeoutMs: 60_000 },
  );
  assert.equal(code, 0, err);
  assert.equal(out.trim(), "0 1 0 1 0 1 0 1 0 1 0 1");
  await fake.stop();
});

test("panic_is_error: see errors.test.ts; its class is there", () => {
  assert.equal(new PanicError("x").code, -901);
});

test("ten_thousand_sessions: memory, descriptors and threads stay flat", { timeout: 600_000 }, async () => {
  const total = Number(process.env["BROCA_TEST_SESSIONS"] ?? 2_000);
  const fake = await madeUp((call) => call.result(saying("ok")));
  const { code, out, err } = await run(
    `
    import { Client } from "@broca/sdk";
    import { readdirSync, readFileSync } from "node:fs";
    const client = new Client("${fake.url}", { key: "k" });
    const state = () => {
      globalThis.gc();
      const threads = process.platform === "linux" ? Number(/Threads:\\s+(\\d+)/.exec(readFileSync("/proc/self/status", "utf8"))[1]) : 0;
      const files = process.platform === "linux" ? readdirSync("/proc/self/fd").length : 0;
      return { rss: process.memoryUsage.rss(), files, threads };
    };
    const some = async (count) => {
      for (let n = 0; n < count; n += 20) {
        await Promise.all(Array.from({ length: 20 }, async (_, i) => {
          const session = await client.open();
          await session.ask("x");
          await (i % 2 ? session.close() : session.leave());
        }));
      }
      await new Promise((resolve) => setTimeout(resolve, 200));
    };
    await some(${total} / 2);
    await some(${total} / 2);
    const before = state();
    await some(${total} / 2);
    await some(${total} / 2);
    const after = state();
    console.log(JSON.stringify({ before, after }));`,
    { flags: ["--expose-gc", "--max-semi-space-size=1"], timeoutMs: 500_000 },
  );
  assert.equal(code, 0, err);
  const { before, after } = JSON.parse(out) as Record<"before" | "after", { rss: number; files: number; threads: number }>;
  assert.ok(after.files <= before.files + 8, `descriptors: ${before.files}, then ${after.files}`);
  assert.ok(after.threads <= before.threads, `threads: ${before.threads}, then ${after.threads}`);
  const grown = after.rss - before.rss;
  assert.ok(grown < 16 * 1024 * 1024, `${Math.round(grown / 1024)} KiB more after ${total} sessions`);
  await fake.stop();
});

