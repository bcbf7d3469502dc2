import assert from "node:assert/strict";
import { test } from "node:test";
import { Approval, Client, InvalidArgumentError, type Approvals, type Event } from "@broca/sdk";
import { withService } from "./service";

const service = withService({
  rules: [
    { when: { after_tools: true }, then: { text: "done" } },
    { then: { tool_calls: [{ name: "clock", input: { timezone: "U" } }] } },
  ],
});

const client = (approvals?: Approvals): Client => new Client(service.url, { key: service.key, approvals });
const ASKED: Approvals = { ask: ["clock"], narrow: { clock: { "/timezone": "one_of_prefix" } } };

/** What the log says: the decision, and the result that the model was given. */
function told(events: readonly Event[]): string {
  const of = (type: string): any[] => events.filter((event) => event.type === type).map((event) => event.payload);
  const [resolved, results] = [of("session.approval.resolved"), of("tool.result")];
  assert.deepEqual([resolved.length, results.length], [1, 1]);
  return `${resolved[0].decision}: ${results[0].content[0].text}`;
}

test("a person is asked before the service runs its tool", async () => {
  const ways: [(question: Approval) => boolean, string][] = [
    [(question) => question.allow(), "allow: this clock knows only UTC"],
    [(question) => question.allowNarrowed({ timezone: "UTC" }), "allow_narrowed: 2"],
    [(question) => question.allowNarrowed({ timezone: "GMT" }), "deny: The call was denied and not run: narrowing_widens"],
    [(question) => question.deny("not now"), "deny: The call was denied and not run: not now"],
  ];
  for (const [answer, expected] of ways) {
    const session = await client().open({ approvals: ASKED });
    const events: Event[] = [];
    let questions = 0;
    for await (const step of session.send("what time is it")) {
      if (step.kind === "event") events.push(step);
      if (step.kind === "approval") {
        questions += 1;
        assert.deepEqual([step.name, step.input, step.serverSide], ["clock", { timezone: "U" }, true]);
        assert.equal(answer(step), true);
        assert.equal(step.allow(), false, "it is asked once");
      }
    }
    assert.equal(questions, 1);
    assert.ok(told(events).startsWith(expected), told(events));
    await session.close();
  }
});

test("a handler decides where nobody sees the steps, and without one the answer is no", async () => {
  const asking = client({ ask: "*" });
  let session = await asking.open({ onApproval: (question) => (question.serverSide ? "allow" : undefined) });
  assert.match(told((await session.ask("what time is it")).events), /^allow: /);
  await session.close();
  session = await asking.open();
  assert.match(told((await session.ask("what time is it")).events), /nobody to ask/);
  await session.close();
});

test("a cancelled turn takes its question back", async () => {
  const session = await client().open({ approvals: ASKED });
  const turn = session.send("what time is it");
  for await (const step of turn) {
    if (step.kind !== "approval") continue;
    await turn.cancel();
    assert.equal(step.allow(), false);
    break;
  }
  await session.close();
});

test("what cannot be asked for is refused by name", async () => {
  await assert.rejects(client().open({ approvals: { ask: ["clok"] } }), /clok/);
  await assert.rejects(async () => client().open({ approvals: { ask: "clock" as "*" } }), InvalidArgumentError);
  assert.throws(() => client({ ask: "clock" as "*" }), InvalidArgumentError);
});
