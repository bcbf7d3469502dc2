import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { inspect } from "node:util";
import { Client, InvalidArgumentError, LoopLimitError, SavedSession, tool, type ToolContext } from "@broca/sdk";
import { run, withService } from "./service";

const service = withService({
  rules: [
    { when: { after_tools: true }, then: { text: "done" } },
    { when: { contains: "two" }, then: { tool_calls: [{ name: "slow", input: { n: 1 } }, { name: "slow", input: { n: 2 } }] } },
    { then: { text: "hello" } },
  ],
});

const client = (): Client => new Client(service.url, { key: service.key });

/** Saves a session in another process, in the middle of a turn: one of its two calls has its result. */
async function leftElsewhere(): Promise<{ text: string; keys: string[] }> {
  const folder = mkdtempSync(join(tmpdir(), "broca-saved-"));
  const file = join(folder, "session.json");
  const ran = await run(
    `import { writeFileSync } from "node:fs";
    import { Client, tool } from "@broca/sdk";
    const client = new Client(${JSON.stringify(service.url)}, { key: ${JSON.stringify(service.key)} });
    const session = await client.open({ tools: [tool({ name: "slow" })] });
    const keys = [];
    for await (const step of session.send("two")) {
      if (step.kind === "tool_call") {
        keys.push(step.idempotencyKey);
        if (step.mayHaveRun) throw new Error("nobody had it before");
        if (step.input.n === 1) step.complete("first");
      }
      if (step.kind === "tool_settled") {
        const saved = await session.save();
        writeFileSync(${JSON.stringify(file)}, saved.expose(), { mode: 0o600 });
        console.log(JSON.stringify(keys));
        process.exit(0);
      }
    }`,
  );
  assert.equal(ran.code, 0, ran.err);
  const text = readFileSync(file, "utf8");
  rmSync(folder, { recursive: true });
  return { text, keys: JSON.parse(ran.out) as string[] };
}

test("a turn goes on in another process with the results that it had", async () => {
  const left = await leftElsewhere();
  const contexts: ToolContext[] = [];
  const slow = tool({
    name: "slow",
    input: { type: "object", properties: { n: { type: "integer" } }, required: ["n"] },
    run: ({ n }, context) => {
      contexts.push(context);
      return `ran ${n}`;
    },
  });
  const session = await client().attach(left.text, { tools: [slow] });
  const turn = session.resume();
  assert.ok(turn !== undefined);
  assert.equal(session.resume(), undefined, "it is taken up once");
  const calls: [unknown, boolean, string][] = [];
  let text = "";
  for await (const step of turn) {
    if (step.kind === "tool_call") calls.push([step.input, step.mayHaveRun, step.idempotencyKey]);
    if (step.kind === "tool_settled") assert.equal(step.name, "slow");
    if (step.kind === "done") text = step.reply.text;
  }
  assert.deepEqual(calls, [[{ n: 2 }, true, left.keys[1]]]);
  assert.deepEqual(contexts.map((context) => [context.mayHaveRun, context.idempotencyKey]), [[true, left.keys[1]]]);
  assert.equal(text, "done");
  const results = [];
  for await (const event of session.history()) if (event.type === "tool.result") results.push(event.payload);
  assert.match(JSON.stringify(results), /first.*ran 2/s);
  assert.equal((await session.ask("again")).text, "hello");
  await session.close();
});

test("a message that is sent instead gives the turn up", async () => {
  const session = await client().attach((await leftElsewhere()).text, { tools: [tool({ name: "slow" })] });
  await session.ask("something else");
  assert.equal(session.resume(), undefined);
  await session.close();
});

test("a saved session shows which it is, and the key to nobody who does not ask", async () => {
  const session = await client().open();
  await session.ask("hi");
  const saved = await session.save();
  assert.ok(saved instanceof SavedSession);
  assert.equal(saved.sessionId, session.id);
  const { session_key: key } = JSON.parse(saved.expose()) as { session_key: string };
  assert.ok(key.length > 8);
  for (const shown of [inspect({ saved }), String(saved), JSON.stringify({ saved }), inspect(saved, { showHidden: true, depth: 9 })]) {
    assert.ok(shown.includes(session.id) && !shown.includes(key), shown);
  }
  await session.leave();
  const again = await client().attach(saved);
  assert.equal(again.id, session.id);
  assert.equal(again.resume(), undefined);
  const reply = await again.ask("and now?");
  assert.equal(reply.session.rounds, 2, "what was spent before counts on");
  await again.close();
});

test("what is no saved session is refused and not repeated", async () => {
  for (const wrong of ["hunter2", '{"broca_session":1,"session_key":"hunter2"}', '"hunter2"', 7 as never, null as never, Buffer.from("hunter2") as never]) {
    await assert.rejects(client().attach(wrong), (error) => error instanceof InvalidArgumentError && !inspect(error).includes("hunter2"));
  }
});

test("a reply says what its turn and the session have spent", async () => {
  const session = await client().open({ tools: [tool({ name: "slow", run: () => "ok" })] });
  const first = await session.ask("two");
  assert.deepEqual([first.rounds, first.toolCalls], [2, 2]);
  assert.deepEqual([first.session.rounds, first.session.toolCalls], [2, 2]);
  assert.equal(first.session.inputTokens, first.usage?.inputTokens);
  const second = await session.ask("hi");
  assert.deepEqual([second.toolCalls, second.session.rounds, second.session.toolCalls], [0, 3, 2]);
  assert.ok(second.session.outputTokens > first.session.outputTokens);
  await session.close();
});

test("budgets of a turn and of a session end what goes over them", async () => {
  const tools = [tool({ name: "slow", run: () => "ok" })];
  for (const options of [{ turnToolCalls: 1 }, { turnRounds: 1 }, { turnTokens: 1 }, { sessionToolCalls: 1 }, { sessionRounds: 1 }, { sessionTokens: 1 }]) {
    const session = await new Client(service.url, { key: service.key, ...options }).open({ tools });
    await assert.rejects(session.ask("two"), LoopLimitError, JSON.stringify(options));
    await session.close();
  }
});

test("every option about holding, recovery and resuming is one of the engine's", () => {
  const options = { holdMs: 0, recoveryTimeoutMs: 1, reachTimeoutMs: 1, replayTimeoutMs: 1, resumeWaitMs: 1, silenceIntervals: 0, replyBytes: 1 };
  assert.ok(new Client(service.url, { key: "k", ...options }) instanceof Client);
  assert.throws(() => new Client(service.url, { key: "k", holdMs: -1 }), InvalidArgumentError);
});
