import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { test } from "node:test";
import { CancelledError, Client, tool } from "@broca/sdk";
import { calling, eventLine, madeUp, run, saying, sleep, withService } from "./service";

const service = withService({ rules: [{ when: { contains: "long" }, then: { pieces: [{ text: "a", delay_ms: 20 }], repeat: 1000 } }] });

/** A service that never ends a turn. */
const endless = (): ReturnType<typeof madeUp> => madeUp((call) => call.line(eventLine(1)));

test("an aborted ask rejects with the signal's reason, and the next message can start at once", async () => {
  const session = await new Client(service.url, { key: service.key }).open();
  const controller = new AbortController();
  const reason = new Error("enough");
  setTimeout(() => controller.abort(reason), 60);
  await assert.rejects(session.ask("long", { signal: controller.signal }), (error) => error === reason);
  assert.match((await session.ask("short")).text, /short/);
  await session.close();
});

test("an aborted loop throws the reason after the steps before it", async () => {
  const session = await new Client(service.url, { key: service.key }).open();
  const controller = new AbortController();
  const seen: string[] = [];
  await assert.rejects(
    async () => {
      for await (const step of session.send("long", { signal: controller.signal })) {
        seen.push(step.kind);
        if (step.kind === "text_delta") controller.abort();
      }
    },
    (error) => error === controller.signal.reason,
  );
  assert.ok(seen.includes("text_delta"));
  await session.close();
});

test("a signal that is aborted already sends nothing", async () => {
  let calls = 0;
  const fake = await madeUp((call) => {
    calls += 1;
    call.result(saying("ok"));
  });
  const client = new Client(fake.url, { key: "k" });
  const session = await client.open();
  const signal = AbortSignal.abort("never");
  const refused = (error: unknown): boolean => error === "never";
  await assert.rejects(session.ask("x", { signal }), refused);
  await assert.rejects(session.send("x", { signal }).next(), refused);
  await assert.rejects(session.subscribe({ signal }).next(), refused);
  await assert.rejects(Promise.resolve(session.history({ signal })), refused);
  await assert.rejects(client.open({ signal }), refused);
  await assert.rejects(client.meta({ signal }), refused);
  assert.equal(calls, 0);
  await session.leave();
  await fake.stop();
});

test("a loop whose turn is cancelled elsewhere is told so", async () => {
  const session = await new Client(service.url, { key: service.key }).open();
  for (const cancel of ["cancel", "leave"] as const) {
    const turn = session.send("long");
    const loop = (async () => {
      for await (const step of turn) if (step.kind === "text_delta") void (cancel === "cancel" ? turn.cancel() : session.leave());
    })();
    await assert.rejects(loop, CancelledError);
  }
});

test("a loop that ends itself, or its own turn, is not told what the turn failed with", async () => {
  const session = await new Client(service.url, { key: service.key }).open();
  for await (const step of session.send("long")) if (step.kind === "text_delta") break;
  const turn = session.send("long");
  for await (const step of turn) if (step.kind === "text_delta") await turn.cancel();
  assert.match((await session.ask("short")).text, /short/);
  await session.close();
});

test("listeners are removed when a call has settled, and onabort is never touched", async () => {
  const session = await new Client(service.url, { key: service.key }).open();
  const { signal } = new AbortController();
  const own = (): void => {};
  signal.onabort = own;
  const before = getEventListeners(signal, "abort").length;
  await session.ask("hello", { signal });
  for await (const step of session.send("hello", { signal })) void step;
  await session.history({ signal });
  await session.participants({ signal });
  for await (const step of session.subscribe({ from: "", signal })) if (step.kind === "event") break;
  assert.equal(getEventListeners(signal, "abort").length, before);
  assert.equal(signal.onabort, own);
  await session.close();
});

test("opening, reading and watching can be given up", async () => {
  const hanging = await madeUp(() => {});
  const client = new Client(hanging.url, { key: "k" });
  const session = await client.open();
  for (const begin of [
    (signal: AbortSignal) => Promise.resolve(session.updateTools([], { signal })),
    (signal: AbortSignal) => session.subscribe({ signal }).next().then(() => session.subscribe({ signal }).next()),
  ]) {
    const controller = new AbortController();
    setTimeout(() => controller.abort("given up"), 20);
    await assert.rejects(begin(controller.signal), (error) => error === "given up");
  }
  await session.leave();
  await hanging.stop();
});

test("cancel waits until the turn is quiet, and a turn that is over is no error", async () => {
  const session = await new Client(service.url, { key: service.key }).open();
  const turn = session.send("long");
  for (let step = await turn.next(); step.value?.kind !== "text_delta"; step = await turn.next()) assert.ok(step.done !== true);
  await turn.cancel();
  await turn.cancel();
  assert.deepEqual(await turn.next(), { value: undefined, done: true });
  const over = session.send("short");
  for await (const step of over) void step;
  await over.cancel();
  await session.close();
});

test("the session cancels every turn", async () => {
  const session = await new Client(service.url, { key: service.key }).open();
  const turns = [session.ask("long"), session.ask("long")];
  await sleep(50);
  session.cancel();
  for (const turn of await Promise.allSettled(turns)) {
    assert.ok(turn.status === "rejected" && turn.reason instanceof CancelledError);
  }
  await session.close();
});

test("leaving a loop early cancels the turn and waits", async () => {
  const session = await new Client(service.url, { key: service.key }).open();
  for await (const step of session.send("long")) if (step.kind === "text_delta") break;
  const text = await session.ask("short");
  assert.match(text.text, /short/);
  {
    const turn = session.send("long");
    for (let step = await turn.next(); step.value?.kind !== "text_delta"; step = await turn.next()) assert.ok(step.done !== true);
    await turn[Symbol.asyncDispose]();
  }
  assert.equal((await session.history({ limit: 200 })).events.filter((event) => event.type === "session.turn.cancelled").length, 2);
  await session.close();
});

test("a tool gets its signal when its turn is cancelled, and one that ignores it is abandoned", async () => {
  const fake = await madeUp((call) => {
    if (call.method === "session.cancel") return call.result({ cancelled: true, was: "paused" });
    call.result(calling("slow", {}));
  }, ["cancel"]);
  const aborted: unknown[] = [];
  let begun: () => void = () => {};
  const running = new Promise<void>((resolve) => (begun = resolve));
  const slow = tool({
    name: "slow",
    run: (_, { signal }) => {
      begun();
      signal.addEventListener("abort", () => aborted.push(signal.aborted));
      return new Promise(() => {}); // never answers
    },
  });
  const session = await new Client(fake.url, { key: "k", cancelGraceMs: 50 }).open({ tools: [slow] });
  const turn = session.send("go");
  await turn.next();
  const told = assert.rejects(async () => {
    for await (const step of turn) void step;
  }, CancelledError);
  await running;
  await turn.cancel();
  await told;
  assert.deepEqual(aborted, [true]);
  await session.leave();
  await fake.stop();
});

test("a turn that is dropped is cancelled when it is collected, with a warning", async () => {
  const fake = await endless();
  const { code, out, err } = await run(
    `
    import { Client } from "@broca/sdk";
    const session = await new Client("${fake.url}", { key: "k", cancelTimeoutMs: 50, cancelGraceMs: 50 }).open();
    await (async () => { const turn = session.send("x"); await turn.next(); })();
    let warned = 0;
    process.on("warning", (warning) => { warned += /dropped/.test(warning.message) ? 1 : 0; });
    const until = Date.now() + 5000;
    while (warned === 0 && Date.now() < until) { globalThis.gc(); await new Promise((resolve) => setTimeout(resolve, 10)); }
    console.log("warned", warned);
    `,
    { flags: ["--expose-gc"] },
  );
  assert.equal(out, "warned 1\n", err);
  assert.equal(code, 0, err);
  await fake.stop();
});
