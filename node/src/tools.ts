/**
 * Tools: what the model is told about a function of this program, and what runs when it is called.
 *
 * Whatever happens, a call gets exactly one answer: what the function returns, or the text of what it threw.
 */

import type { Batch } from "./batch";
import type { Answers } from "./calls";
import { completion } from "./content";
import { InvalidArgumentError } from "./errors";
import { ToolCallAt } from "./layout";
import type { McpServer } from "./mcp";
import { isValidator, validate, written, type ArgumentsOf, type JsonSchema, type StandardSchema } from "./schema";

/** How an approval may narrow the arguments at a JSON pointer. */
export type NarrowRule = "remove_elements" | "at_most" | "at_least" | "path_within" | "one_of_prefix";

/** What a tool's function may want to know about its call. */
export interface ToolContext {
  /** Raised when the call no longer counts: its turn was cancelled, or its time is over. */
  readonly signal: AbortSignal;
  /** The same for every attempt at this call, in every process: hand it to whatever must not happen twice. */
  readonly idempotencyKey: string;
  /** A program that had the session before may have run this call already, and nothing says how far it came. */
  readonly mayHaveRun: boolean;
  /** The call's id in the conversation. */
  readonly toolUseId: string;
  /** The arguments exactly as the model wrote them. */
  readonly inputJson: string;
}

/** What tool() is told. */
export interface ToolOptions<S extends JsonSchema | StandardSchema> {
  name: string;
  description?: string | undefined;
  /** The arguments: a JSON Schema of an object, or a Standard Schema validator. */
  input?: S | undefined;
  /** The JSON Schema, for a validator that cannot write its own. */
  inputSchema?: JsonSchema | undefined;
  /** Never runs beside another sequential tool. */
  sequential?: boolean | undefined;
  /** A call that takes longer is answered as timed out, and told to stop. */
  timeoutMs?: number | undefined;
  /** Ask before each call. */
  approval?: boolean | undefined;
  /** What an approval may narrow, by JSON pointer. */
  narrow?: Record<string, NarrowRule> | undefined;
  /**
   * What runs. A text goes to the model as it is, `content(…)` as content blocks, everything else as JSON text. Left out, each
   * call is a step for the application to answer.
   */
  run?: ((args: ArgumentsOf<S>, context: ToolContext) => unknown) | undefined;
}

/** A tool of this program. */
export interface Tool {
  readonly name: string;
  readonly description: string | undefined;
  readonly inputSchema: JsonSchema;
  /** Undefined: the application answers each call itself. @internal */
  readonly run: ((args: never, context: ToolContext) => unknown) | undefined;
  /** @internal */
  readonly validator: StandardSchema | undefined;
  /** What the engine has to know. @internal */
  readonly declared: object;
}

/** Makes a tool. Throws InvalidArgumentError when its schema cannot be had or is none of an object. */
export function tool<const S extends JsonSchema | StandardSchema = { readonly type: "object" }>(options: ToolOptions<S>): Tool {
  const { name, description, input, sequential, timeoutMs, approval, narrow, run } = options;
  const validator = isValidator(input) ? input : undefined;
  const inputSchema = options.inputSchema ?? (validator === undefined ? (input as JsonSchema | undefined) : written(validator, `the tool "${name}"`, "inputSchema")) ?? NO_ARGUMENTS;
  if (typeof inputSchema !== "object" || ("type" in inputSchema && inputSchema.type !== "object")) {
    throw new InvalidArgumentError(`the tool "${name}": its arguments must be an object; give a JSON Schema of type "object"`);
  }
  const declared = {
    name,
    description,
    input_schema: inputSchema,
    sequential,
    timeout_ms: timeoutMs,
    approval,
    narrow,
  };
  return { name, description, inputSchema, run: run as Tool["run"], validator, declared };
}

const NO_ARGUMENTS: JsonSchema = { type: "object", properties: {} };

/** What a session brings: a tool, or an MCP server whose tools they are. */
export type Brought = Tool | McpServer;

/** The tools of a session, by name. */
export class ToolSet {
  readonly #tools = new Map<string, Tool>();
  readonly #before: ReadonlyMap<string, Tool> = new Map();
  /** For the engine. */
  readonly declared: readonly object[];

  /** `before`: the set that this one replaces, should the service refuse it. */
  constructor(tools: readonly Tool[], before?: ToolSet) {
    if (before !== undefined) this.#before = new Map([...before.#before, ...before.#tools]);
    for (const each of tools) {
      if (!each.name) throw new InvalidArgumentError("a tool needs a name");
      if (this.#tools.has(each.name)) throw new InvalidArgumentError(`the tool "${each.name}": two tools have this name`);
      this.#tools.set(each.name, each);
    }
    this.declared = tools.map((each) => each.declared);
  }

  get isEmpty(): boolean {
    return this.#tools.size === 0;
  }

  /** The tool of this name, if a function answers its calls. */
  runnable(name: string): Tool | undefined {
    const found = this.#tools.get(name) ?? this.#before.get(name);
    return found?.run === undefined ? undefined : found;
  }
}

/** A call under way. */
export class Running implements ToolContext {
  readonly toolUseId: string;
  readonly idempotencyKey: string;
  readonly mayHaveRun: boolean;
  readonly inputJson: string;
  readonly #call: number;
  readonly #answers: Answers;
  #stopped = false;
  #controller: AbortController | undefined;

  constructor(batch: Batch, at: number, answers: Answers) {
    this.#call = batch.number(at + ToolCallAt.call) ?? 0;
    this.toolUseId = batch.slice(at + ToolCallAt.tool_use_id);
    this.idempotencyKey = batch.slice(at + ToolCallAt.idempotency_key);
    this.mayHaveRun = batch.word(at + ToolCallAt.may_have_run) === 1;
    this.inputJson = batch.slice(at + ToolCallAt.input);
    this.#answers = answers;
  }

  /** Made when it is asked for: most tools never look. */
  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController();
      if (this.#stopped) this.#controller.abort();
    }
    return this.#controller.signal;
  }

  /** Tells the function to stop. */
  stop(): void {
    this.#stopped = true;
    this.#controller?.abort();
  }

  /** Runs the function and answers the call. Never throws or rejects. */
  async run(of: Tool): Promise<void> {
    let word: string;
    let value: string;
    try {
      let args: unknown = JSON.parse(this.inputJson);
      if (of.validator !== undefined) args = await validated(of.validator, args);
      [word, value] = completion(await (of.run as (args: unknown, context: ToolContext) => unknown)(args, this));
    } catch (error) {
      [word, value] = [error instanceof ToolInterrupted ? "interrupted" : "fail", failureText(error)];
    }
    try {
      this.#answers.answer(this.#call, word, value);
    } catch (error) {
      // Content that is no content, for instance: the call still gets its one answer.
      this.#answers.answer(this.#call, "fail", failureText(error));
    }
  }
}

/** What the model reads of an error: its type and its message. */
export function failureText(error: unknown): string {
  try {
    if (error instanceof Misfit || error instanceof ToolInterrupted) return error.message;
    if (!(error instanceof Error)) return `Error: ${String(error)}`;
    const name = error.name === "Error" ? error.constructor?.name : error.name;
    return `${name || "Error"}: ${error.message}`;
  } catch {
    return "Error: the tool threw something that cannot be shown";
  }
}

/**
 * Thrown in a tool that does its work elsewhere: it was lost before it ended, and may have run. The message is what the model
 * reads.
 */
export class ToolInterrupted extends Error {
  override readonly name = "ToolInterrupted";
}

/** What failed elsewhere; the text is for the model, without the name of a class. @internal */
export class Misfit extends Error {}

async function validated(validator: StandardSchema, args: unknown): Promise<unknown> {
  const result = await validate(validator, args);
  if (result.faults === undefined) return result.value;
  throw new Misfit(`the arguments do not fit: ${result.faults.join("; ")}`);
}
