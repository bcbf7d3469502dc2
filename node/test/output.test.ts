import assert from "node:assert/strict";
import { test } from "node:test";
import { inspect } from "node:util";
import { Client, InvalidArgumentError, OutputInvalidError, type JsonSchema, type Message, type Session } from "@broca/sdk";
import { z } from "zod";
import { madeUp, saying } from "./service";

const CITY = z.object({ city: z.string(), population: z.number().min(1).default(1) });

/** Lets a session speak with a model that gives these answers; what it was told is in `told`. */
async function withAnswers<T>(answers: readonly string[], speak: (session: Session) => Promise<T>): Promise<{ came: T; told: string[] }> {
  const told: string[] = [];
  const fake = await madeUp((call) => {
    const { content } = call.params.message as Message;
    told.push(typeof content === "string" ? content : content.map((block) => block["text"]).join("|"));
    const usage = { input_tokens: told.length, output_tokens: 10 };
    call.result({ ...saying(answers[told.length - 1] ?? "nothing more"), usage });
  });
  const session = await new Client(fake.url, { key: "k" }).open();
  try {
    return { came: await speak(session), told };
  } finally {
    await session.leave();
    await fake.stop();
  }
}

test("a validator's schema is told, and the answer comes as its value", async () => {
  const { came, told } = await withAnswers(['{"city":"Oslo"}'], async (session) => {
    const reply = await session.ask("Which city?", { output: CITY });
    const city: string = reply.output.city; // the types follow from the validator
    const population: number = reply.output.population;
    return { city, population, text: reply.text };
  });
  assert.deepEqual(came, { city: "Oslo", population: 1, text: '{"city":"Oslo"}' });
  assert.equal(told.length, 1);
  assert.ok(told[0]?.startsWith("Which city?\n\n"));
  assert.ok(told[0]?.includes('"population"'), told[0]);
});

test("the types of the output follow from a literal JSON Schema", async () => {
  const { came } = await withAnswers(['{"names":["a"],"mode":"b"}'], async (session) => {
    const { output } = await session.ask("?", {
      output: {
        type: "object",
        properties: { names: { type: "array", items: { type: "string" } }, mode: { enum: ["a", "b"] } },
        required: ["names", "mode"],
      },
    });
    const first: string | undefined = output.names[0];
    const mode: "a" | "b" = output.mode;
    return [first, mode];
  });
  assert.deepEqual(came, ["a", "b"]);
});

test("a reply has no output when none was asked for", async () => {
  const { came, told } = await withAnswers(["hi"], async (session) => {
    const { output }: { output: undefined } = await session.ask("?");
    return output;
  });
  assert.equal(came, undefined);
  assert.deepEqual(told, ["?"]);
});

test("the value may stand in a code block; of several the last that is JSON counts", async () => {
  for (const answer of [
    '```json\n{"city":"Oslo"}\n```',
    'Here it is:\r\n\r\n```\r\n{"city":"Oslo"}\r\n```\r\nAnything else?',
    '~~~~json\n{"city":\n"Oslo"}\n~~~~',
    'First ```x``` and then\n```json\n{"city":"Rome"}\n```\nNo:\n````\n{"city":"Oslo"}\n````',
    '  {"city":"Oslo"}\n',
    '```json\n{"city":"Oslo"}',
    '```json\n{"city":"Oslo"}\n```\nUse it so:\n```js\nuse(city);\n```',
  ]) {
    const { came, told } = await withAnswers([answer], (session) => session.ask("?", { output: CITY }));
    assert.equal(came.output.city, "Oslo", answer);
    assert.equal(told.length, 1, answer);
  }
});

test("an answer that does not fit is sent back once with its faults", async () => {
  const { came, told } = await withAnswers(['{"city":7}', '{"city":"Oslo"}'], (session) => session.ask("?", { output: CITY }));
  assert.equal(came.output.city, "Oslo");
  assert.equal(told.length, 2);
  assert.match(told[1] ?? "", /- at `city`: /);
  assert.ok(told[1]?.includes('"population"'), "the schema is told again");
  assert.deepEqual([came.rounds, came.session.rounds, came.text], [2, 2, '{"city":"Oslo"}']);
});

test("an answer that is no JSON is sent back with the place in it", async () => {
  for (const [answer, fault] of [["Oslo", /- it is not JSON alone: .*'O'/], ['Sure:\n```json\n{"city":Oslo}\n```', /- it is not JSON alone: .*Oslo/]] as const) {
    const { told } = await withAnswers([answer, '{"city":"Oslo"}'], (session) => session.ask("?", { output: CITY }));
    assert.match(told[1] ?? "", fault);
  }
});

test("an answer that never fits is an error of the table without what the model wrote", async () => {
  const answers = ['{"city":7}', '{"secret":"hunter2"}', '{"city":"Oslo"}'];
  for (const repairs of [undefined, 0, 1]) {
    const { came, told } = await withAnswers(answers, (session) => session.ask("?", { output: CITY, repairs }).catch((error: unknown) => error));
    assert.ok(came instanceof OutputInvalidError);
    assert.deepEqual([came.code, came.retry, came.details], [-343, "unsafe", { faults: 1, repairs: repairs ?? 1 }]);
    assert.ok(!`${inspect(came)}${JSON.stringify(came)}`.includes("hunter2"));
    // The program can look at it, with what it took.
    const rounds = (repairs ?? 1) + 1;
    assert.deepEqual([came.reply?.text, came.reply?.rounds], [answers[rounds - 1], rounds]);
    assert.equal(told.length, (repairs ?? 1) + 1);
  }
  const { came } = await withAnswers(answers, (session) => session.ask("?", { output: CITY, repairs: 2 }));
  assert.equal(came.output.city, "Oslo");
});

test("faults are told in measure", async () => {
  const many = JSON.stringify(Array.from({ length: 40 }, () => "\ud83d\ude00".repeat(400)));
  const output = z.array(z.string().refine(() => false, { error: (issue) => String(issue.input) }));
  const { told } = await withAnswers([many], (session) => session.ask("?", { output, outputSchema: { type: "array" } }).catch(() => undefined));
  assert.equal(told[1]?.split("\n- ").length, 18);
  assert.match(told[1] ?? "", /- and 24 more\n/);
  assert.ok((told[1]?.length ?? Infinity) < 16 * 700);
});

test("a nesting that nobody wants to look into is a fault", async () => {
  const deep = "[".repeat(100_000) + "]".repeat(100_000);
  const { told } = await withAnswers([deep, "[[]]"], async (session) => {
    const { output } = await session.ask("?", { output: { $defs: { list: { type: "array", items: { $ref: "#/$defs/list" } } }, $ref: "#/$defs/list" } as JsonSchema });
    assert.deepEqual(output, [[]]);
  });
  assert.match(told[1] ?? "", /nested deeper than 256 levels/);
});

test("messages with content keep it", async () => {
  const { told } = await withAnswers(["1", "2", "3"], async (session) => {
    const output = { type: "integer" } as const;
    const one: number = (await session.ask({ role: "user", content: "a" }, { output })).output;
    const two: number = (await session.ask({ role: "user", content: [{ type: "text", text: "b" }] }, { output })).output;
    const three: number = (await session.ask(["c", { type: "text", text: "d" }], { output })).output;
    assert.deepEqual([one, two, three], [1, 2, 3]);
  });
  assert.match(told[0] ?? "", /^a\n\nAnswer with/);
  assert.match(told[1] ?? "", /^b\|Answer with/);
  assert.match(told[2] ?? "", /^c\|d\|Answer with/);
  for (const wrong of [5, {}, { content: 5 }] as never[]) {
    const { came, told } = await withAnswers(["1"], (session) => session.ask(wrong, { output: { type: "integer" } }).catch((error: unknown) => error));
    assert.ok(came instanceof InvalidArgumentError, String(came));
    assert.deepEqual(told, []);
  }
});

test("the signal ends it between two turns", async () => {
  const controller = new AbortController();
  const output = z.string().refine(() => {
    controller.abort(new Error("enough"));
    return false;
  });
  const { came, told } = await withAnswers(['"a"', '"b"'], (session) =>
    session.ask("?", { output, signal: controller.signal }).catch((error: unknown) => (error as Error).message),
  );
  assert.equal(came, "enough");
  assert.equal(told.length, 1);
});

/** A schema, values that fit it, and values that do not. */
const SCHEMAS: [schema: JsonSchema, fitting: unknown[], others: unknown[]][] = [
  [{ type: ["string", "null"] }, ["a", null], [1, {}]],
  [{ type: "integer" }, [1, -3, 1.0], [1.5, "1"]],
  [{ type: "number" }, [1, 1.5], [null, true]],
  [{ type: "boolean" }, [true], [0]],
  [{ const: { a: [1], b: null } }, [{ b: null, a: [1] }], [{ a: [1] }, { a: [2], b: null }]],
  [{ enum: ["a", 2] }, ["a", 2], ["b", "2"]],
  [{ minLength: 2, maxLength: 3 }, ["ab", "\ud83d\ude00\ud83d\ude00\ud83d\ude00", 1], ["\ud83d\ude00", "abcd"]],
  [{ pattern: "^\\p{L}+$" }, ["äb"], ["a1"]],
  [{ minimum: 1, exclusiveMaximum: 3 }, [1, 2.9, "x"], [0, 3]],
  [{ exclusiveMinimum: 1, maximum: 3 }, [1.1, 3], [1, 4]],
  [{ multipleOf: 0.1 }, [0.3, 7, 0], [0.35]],
  [{ type: "array", items: { type: "integer" }, minItems: 1, maxItems: 2 }, [[1], [1, 2]], [[], [1, 2, 3], ["a"]]],
  [{ uniqueItems: true }, [[1, "1", { a: 1 }, { a: 2 }]], [[{ a: 1, b: 2 }, { b: 2, a: 1 }]]],
  [{ prefixItems: [{ type: "string" }], items: false }, [["a"], []], [["a", 1], [1]]],
  [{ required: ["a"], properties: { a: { type: "string" } } }, [{ a: "x", b: 1 }, "no object"], [{}, { a: 1 }]],
  [{ properties: { a: {} }, patternProperties: { "^x": { type: "integer" } }, additionalProperties: false }, [{ a: 1, x1: 2 }], [{ b: 1 }, { x: "a" }]],
  [{ additionalProperties: { type: "integer" } }, [{ b: 1 }], [{ toString: "a" }]],
  [{ propertyNames: { maxLength: 1 }, minProperties: 1, maxProperties: 2 }, [{ a: 1 }], [{}, { ab: 1 }, { a: 1, b: 2, c: 3 }]],
  [{ required: ["toString"] }, [{ toString: 1 }], [{}]],
  [{ anyOf: [{ type: "string" }, { minimum: 5 }] }, ["a", 6], [4]],
  [{ oneOf: [{ minimum: 1 }, { maximum: 3 }] }, [0, 4], [2]],
  [{ allOf: [{ minimum: 1 }, { maximum: 3 }] }, [2], [0, 4]],
  [{ not: { type: "null" } }, [1], [null]],
  [{ if: { type: "string" }, then: { minLength: 2 }, else: { minimum: 2 } }, ["ab", 3], ["a", 1]],
  [{ $defs: { "a/b": { type: "string" } }, items: { $ref: "#/$defs/a~1b" } }, [["x"]], [[1]]],
  [{ type: "object", properties: { next: { $ref: "#" } }, additionalProperties: false }, [{ next: { next: {} } }], [{ next: { nixt: {} } }]],
  [{ title: "t", description: "d", default: 1, format: "date", examples: [] }, ["anything"], []],
];

test("a JSON Schema is checked word for word", async () => {
  for (const [schema, fitting, others] of SCHEMAS) {
    const values = [...fitting, ...others];
    const { came } = await withAnswers(values.map((value) => JSON.stringify(value)), async (session) => {
      const fits: boolean[] = [];
      for (const value of values) {
        const output: unknown = await session.ask("?", { output: schema, repairs: 0 }).then((reply) => reply.output, (error: unknown) => error);
        fits.push(!(output instanceof OutputInvalidError));
        if (!(output instanceof OutputInvalidError)) assert.deepEqual(output, value);
      }
      return fits;
    });
    assert.deepEqual(came, [...fitting.map(() => true), ...others.map(() => false)], JSON.stringify(schema));
  }
});

test("the faults of a JSON Schema name their places", async () => {
  const output = { type: "object", properties: { "a/b": { type: "array", items: { type: "integer" } } }, required: ["c"] } as const;
  const { told } = await withAnswers(['{"a/b":[1,"x"]}', "{}"], (session) => session.ask("?", { output }).catch(() => undefined));
  assert.match(told[1] ?? "", /- at `\/a~1b\/1`: must be of the type integer\n/);
  assert.match(told[1] ?? "", /- the member "c" is missing\n/);
});

test("a schema that could not be kept to is refused before anything is sent", async () => {
  for (const [schema, why] of [
    [{ type: "array", contains: {} }, /"contains" is not checked/],
    [{ properties: { a: { dependentRequired: {} } } }, /at "\/properties\/a"/],
    [{ $ref: "https://example.com/schema" }, /within the schema/],
    [{ $ref: "#/$defs/none" }, /leads nowhere/],
    [{ pattern: "(" }, /no regular expression/],
    [{ properties: [] }, /does not hold schemas/],
    [5, /must be a JSON Schema/],
  ] as [JsonSchema, RegExp][]) {
    const { came, told } = await withAnswers([], (session) => session.ask("?", { output: schema }).catch((error: unknown) => error));
    assert.ok(came instanceof InvalidArgumentError && why.test(came.message), String(came));
    assert.deepEqual(told, []);
  }
  const circle = { $ref: "#" } as JsonSchema;
  const { came } = await withAnswers(["1"], (session) => session.ask("?", { output: circle }).catch((error: unknown) => error));
  assert.ok(came instanceof InvalidArgumentError && came.message.includes("circle"), String(came));
  const old = { "~standard": { version: 1, vendor: "old", validate: (value: unknown) => ({ value }) } } as const;
  const none = await withAnswers([], (session) => session.ask("?", { output: old }).catch((error: unknown) => error));
  assert.ok(none.came instanceof InvalidArgumentError && none.came.message.includes("outputSchema"));
  const given = await withAnswers(["[1]"], (session) => session.ask("?", { output: old, outputSchema: { type: "array" } }));
  assert.deepEqual(given.came.output, [1]);
});
