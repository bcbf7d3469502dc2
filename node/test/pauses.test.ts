import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, tool } from "@broca/sdk";
import { calling, madeUp, saying } from "./service";

test("a pause is held while a tool runs, and not when that is off", async () => {
  for (const holdMs of [undefined, 0]) {
    let asked = 0;
    let finish = (): void => {};
    const fake = await madeUp((call) => {
      if (call.method === "session.hold") {
        asked += 1;
        finish();
        return call.result({ held: true, expires_in_ms: 120_000 });
      }
      call.result(typeof call.params.message.content === "string" ? calling("slow", {}) : saying("done"));
    }, ["cancel", "hold"]);
    const slow = tool({
      name: "slow",
      run: (_, { signal }) =>
        new Promise((resolve) => {
          finish = () => resolve("held");
          signal.addEventListener("abort", () => resolve("stopped"));
        }),
    });
    const session = await new Client(fake.url, { key: "k", pauseMs: 2_200, holdMs }).open({ tools: [slow] });
    const outcomes: string[] = [];
    for await (const step of session.send("go")) if (step.kind === "tool_settled") outcomes.push(step.outcome);
    assert.deepEqual([outcomes, asked > 0], holdMs === 0 ? [["timed_out_may_have_run"], false] : [["done"], true]);
    await session.leave();
    await fake.stop();
  }
});
