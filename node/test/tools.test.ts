import assert from "node:assert/strict";
import { AsyncLocalStorage } from "node:async_hooks";
import { test } from "node:test";
import { Client, InvalidArgumentError, content, tool, type Tool, type ToolContext } from "@broca/sdk";
import { z } from "zod";
import { calling, madeUp, saying, sleep, withService, type Call } from "./service";

const service = withService({
  rules: [
    { when: { after_tools: true }, then: { text: "done" } },
    { when: { contains: "two" }, then: { tool_calls: [{ name: "slow", input: { n: 1 } }, { name: "slow", input: { n: 2 } }] } },
    { when: { contains: "rm" }, then: { tool_calls: [{ name: "rm", input: { paths: ["a", "b"] } }] } },
  ],
});

/** What a made-up service gets as the result of one call. */
async function resultOf(of: Tool, input: object): Promise<{ content: unknown; is_error?: boolean }> {
  let result: any;
  const fake = await madeUp((call: Call) => {
    const said = call.params.message.content;
    if (typeof said === "string") return call.result(calling(of.name, input));
    result = said[0];
    call.result(saying("ok"));
  });
  const session = await new Client(fake.url, { key: "k" }).open({ tools: [of] });
  await session.ask("go");
  await session.leave();
  await fake.stop();
  return { content: result.content, ...(result.is_error === true ? { is_error: true } : {}) };
}

test("a text goes as it is, everything else as JSON text, blocks as content", async () => {
  assert.deepEqual(await resultOf(tool({ name: "t", run: () => 'a "text"' }), {}), { content: 'a "text"' });
  assert.deepEqual(await resultOf(tool({ name: "t", run: async () => ({ n: [1, null] }) }), {}), { content: '{"n":[1,null]}' });
  assert.deepEqual(await resultOf(tool({ name: "t", run: () => undefined }), {}), { content: "null" });
  const blocks = [{ type: "text", text: "block" }];
  assert.deepEqual(await resultOf(tool({ name: "t", run: () => content(...blocks) }), {}), { content: blocks });
});

test("what a tool throws is a failed call of its type and message", async () => {
  const failing = (error: unknown): Promise<unknown> => resultOf(tool({ name: "t", run: () => { throw error; } }), {});
  assert.deepEqual(await failing(new TypeError("bad")), { content: "TypeError: bad", is_error: true });
  class Mine extends Error {}
  assert.deepEqual(await failing(new Mine("own")), { content: "Mine: own", is_error: true });
  assert.deepEqual(await failing("text"), { content: "Error: text", is_error: true });
  assert.deepEqual(await failing(null), { content: "Error: null", is_error: true });
  const rejecting = tool({ name: "t", run: () => Promise.reject(new RangeError("far")) });
  assert.deepEqual(await resultOf(rejecting, {}), { content: "RangeError: far", is_error: true });
  const strange = await resultOf(tool({ name: "t", run: () => content(5 as never) }), {});
  assert.ok(strange.is_error === true && /^InvalidArgumentError: .*content blocks/.test(String(strange.content)), JSON.stringify(strange));
  const cyclic: Record<string, unknown> = {};
  cyclic["self"] = cyclic;
  assert.deepEqual(await resultOf(tool({ name: "t", run: () => cyclic }), {}), {
    content: "InvalidArgumentError: the result cannot be written as JSON",
    is_error: true,
  });
});

test("a Standard Schema validator checks the arguments, types them and writes the schema", async () => {
  const validated = tool({
    name: "t",
    input: z.object({ path: z.string(), limit: z.number().default(3) }),
    run: ({ path, limit }) => `${path.toUpperCase()} ${limit.toFixed(1)}`, // types follow from the validator
  });
  assert.deepEqual(validated.inputSchema.type, "object");
  assert.deepEqual(validated.inputSchema.required, ["path"]);
  assert.deepEqual(await resultOf(validated, { path: "a" }), { content: "A 3.0" });
  const { content, is_error } = await resultOf(validated, { path: 7 });
  assert.equal(is_error, true);
  assert.match(String(content), /^the arguments do not fit: at `path`: /);
});

test("a validator that cannot write its schema needs one beside it", () => {
  const old = { "~standard": { version: 1, vendor: "old", validate: (value: unknown) => ({ value: value as { a: number } }) } } as const;
  assert.throws(() => tool({ name: "t", input: old, run: ({ a }) => a + 1 }), (error: Error) => error instanceof InvalidArgumentError && error.message.includes("inputSchema"));
  assert.equal(tool({ name: "t", input: old, inputSchema: { type: "object" } }).inputSchema.type, "object");
});

test("the types of the arguments follow from a literal JSON Schema", async () => {
  const typed = tool({
    name: "t",
    input: {
      type: "object",
      properties: { names: { type: "array", items: { type: "string" } }, mode: { enum: ["a", "b"] }, n: { type: "integer" } },
      required: ["names", "mode"],
    },
    run: ({ names, mode, n }) => {
      const first: string = names[0] ?? "";
      const word: "a" | "b" = mode;
      const number: number | undefined = n;
      return `${first} ${word} ${number}`;
    },
  });
  assert.deepEqual(await resultOf(typed, { names: ["x"], mode: "b" }), { content: "x b undefined" });
});

test("calls of one answer run at once, each with its key and its id", async () => {
  const contexts: ToolContext[] = [];
  let together = 0;
  let most = 0;
  const slow = tool({
    name: "slow",
    input: { type: "object", properties: { n: { type: "integer" } }, required: ["n"] },
    run: async ({ n }, context) => {
      contexts.push(context);
      most = Math.max(most, ++together);
      await sleep(30);
      together -= 1;
      return String(n);
    },
  });
  const session = await new Client(service.url, { key: service.key }).open({ tools: [slow] });
  assert.equal((await session.ask("two")).text, "done");
  assert.equal(most, 2);
  assert.equal(new Set(contexts.map((context) => context.idempotencyKey)).size, 2);
  assert.ok(contexts.every((context) => context.idempotencyKey.endsWith(context.toolUseId) && !context.signal.aborted));
  assert.deepEqual(JSON.parse(contexts[0]?.inputJson ?? ""), { n: 1 });
  await session.close();
});

test("a sequential tool never runs beside itself", async () => {
  let together = 0;
  let most = 0;
  const slow = tool({
    name: "slow",
    sequential: true,
    run: async () => {
      most = Math.max(most, ++together);
      await sleep(20);
      together -= 1;
    },
  });
  const session = await new Client(service.url, { key: service.key }).open({ tools: [slow] });
  await session.ask("two");
  assert.equal(most, 1);
  await session.close();
});

test("a tool over its time is told to stop, and the turn goes on", async () => {
  const stopped: boolean[] = [];
  const slow = tool({
    name: "slow",
    timeoutMs: 30,
    run: (_, { signal }) =>
      new Promise((resolve) => signal.addEventListener("abort", () => resolve(stopped.push(signal.aborted)))),
  });
  const session = await new Client(service.url, { key: service.key }).open({ tools: [slow] });
  const outcomes: string[] = [];
  for await (const step of session.send("two")) if (step.kind === "tool_settled") outcomes.push(step.outcome);
  assert.deepEqual(outcomes, ["timed_out_may_have_run", "timed_out_may_have_run"]);
  assert.deepEqual(stopped, [true, true]);
  await session.close();
});

test("tools run in the async context of send, handlers too", async () => {
  const storage = new AsyncLocalStorage<string>();
  const seen: (string | undefined)[] = [];
  const slow = tool({ name: "slow", run: async () => { await sleep(1); seen.push(storage.getStore()); } });
  const session = await new Client(service.url, { key: service.key }).open({
    tools: [slow],
    onSending: () => void seen.push(storage.getStore()),
  });
  await storage.run("mine", () => session.ask("two"));
  const turn = storage.run("other", () => session.send("two"));
  await turn.reply(); // from outside of the context
  assert.deepEqual(seen, ["mine", "mine", "mine", "mine", "other", "other", "other", "other"]);
  await session.close();
});

test("approvals allow, narrow and deny", async () => {
  const ran: unknown[] = [];
  const rm = tool({
    name: "rm",
    input: { type: "object", properties: { paths: { type: "array", items: { type: "string" } } }, required: ["paths"] },
    approval: true,
    narrow: { "/paths": "remove_elements" },
    run: ({ paths }) => void ran.push(paths),
  });
  const session = await new Client(service.url, { key: service.key }).open({ tools: [rm] });
  for await (const step of session.send("rm")) if (step.kind === "approval") assert.equal(step.allow(), true);
  for await (const step of session.send("rm")) if (step.kind === "approval") step.allowNarrowed({ paths: ["b"] });
  const outcomes: string[] = [];
  for await (const step of session.send("rm")) {
    if (step.kind === "approval") step.deny("not today");
    if (step.kind === "tool_settled") outcomes.push(step.outcome);
  }
  assert.deepEqual(ran, [["a", "b"], ["b"]]);
  assert.deepEqual(outcomes, ["not_started"]);
  await session.ask("rm"); // nobody to ask: denied
  assert.equal(ran.length, 2);
  await session.close();
});

test("an approval handler decides where nobody sees the steps", async () => {
  let ran = 0;
  const rm = tool({ name: "rm", approval: true, run: () => void (ran += 1) });
  const decisions: (() => any)[] = [
    () => "allow",
    async () => ({ deny: "no" }),
    () => { throw new Error("oops"); },
    () => undefined,
  ];
  const session = await new Client(service.url, { key: service.key }).open({
    tools: [rm],
    onApproval: (approval) => {
      assert.deepEqual(approval.input, { paths: ["a", "b"] });
      return (decisions.shift() as () => any)();
    },
  });
  for (let i = 0; i < 4; i++) assert.equal((await session.ask("rm")).text, "done");
  assert.equal(ran, 1);
  await session.close();
});

test("a tool without a function is the application's to answer; ask fails it", async () => {
  const manual = tool({ name: "slow", description: "By hand." });
  const session = await new Client(service.url, { key: service.key }).open({ tools: [manual] });
  const answers: boolean[] = [];
  for await (const step of session.send("two")) {
    if (step.kind !== "tool_call") continue;
    assert.equal(step.runsItself, false);
    answers.push(step.input.n === 1 ? step.complete({ done: true }) : step.fail("no"), step.complete("again"));
  }
  assert.deepEqual(answers, [true, false, true, false]);
  assert.equal((await session.ask("two")).text, "done");
  await session.close();
});
