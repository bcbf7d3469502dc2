/** Calls of tools, and the questions about them: steps that ask for an answer. */

import type { Batch } from "./batch";
import { completion } from "./content";
import { InvalidArgumentError } from "./errors";
import type { Trace } from "./hooks";
import { json } from "./json";
import { ApprovalAt, ToolCallAt, ToolSettledAt } from "./layout";
import { Shown } from "./shown";

/** What takes an answer; false: it came too late and changes nothing. */
export interface Answers {
  answer(call: number, word: string, value: string | null, trace?: Trace): boolean;
}

/** A call of a tool, with the means to answer it. */
abstract class Call extends Shown {
  readonly #answers: Answers;
  readonly #call: number;
  readonly toolUseId: string;
  readonly name: string;
  /** The arguments, exactly as the model wrote them (or narrowed by an approval). */
  readonly inputJson: string;
  /** The same for every attempt at this call, in every process: hand it to whatever must not happen twice. */
  readonly idempotencyKey: string;
  /** A program that had the session before may have run this call already, and nothing says how far it came. */
  readonly mayHaveRun: boolean;

  /** @internal */
  constructor(batch: Batch, at: number, answers: Answers) {
    super();
    this.#answers = answers;
    this.#call = batch.number(at + ToolCallAt.call) ?? 0;
    this.toolUseId = batch.slice(at + ToolCallAt.tool_use_id);
    this.name = batch.slice(at + ToolCallAt.name);
    this.inputJson = batch.slice(at + ToolCallAt.input);
    this.idempotencyKey = batch.slice(at + ToolCallAt.idempotency_key);
    this.mayHaveRun = batch.word(at + ToolCallAt.may_have_run) === 1;
  }

  /** The arguments, parsed anew each time they are read. */
  get input(): any {
    return JSON.parse(this.inputJson);
  }

  /** Names the question. @internal */
  get call(): number {
    return this.#call;
  }

  /** False: too late, the call already had its result. */
  protected answer(word: string, value: string | null): boolean {
    return this.#answers.answer(this.#call, word, value);
  }

  protected fields(): object {
    const { toolUseId, name, input, idempotencyKey, mayHaveRun } = this;
    return { toolUseId, name, input, idempotencyKey, mayHaveRun };
  }
}

/** The model called a tool of this program. Answer it, unless `runsItself`. */
export class ToolCall extends Call {
  get kind(): "tool_call" {
    return "tool_call";
  }
  /** Whether the tool's function has been started already: the step is for display only. */
  readonly runsItself: boolean;

  /** @internal */
  constructor(batch: Batch, at: number, answers: Answers, runsItself: boolean) {
    super(batch, at, answers);
    this.runsItself = runsItself;
  }

  /**
   * Answers with the tool's result: a text as it is, `content(blocks)` as content blocks, everything else as JSON text. False
   * when the call already had its result, so that this changes nothing.
   */
  complete(result: unknown): boolean {
    return this.answer(...completion(result));
  }

  /** Answers that the tool failed; the model reads this text. */
  fail(message: string): boolean {
    return this.answer("fail", message);
  }

  protected override fields(): object {
    return { ...super.fields(), runsItself: this.runsItself };
  }
}

/** What runs this call should stop. Tools with functions are told by their signal. */
export class ToolCancel extends Shown {
  get kind(): "tool_cancel" {
    return "tool_cancel";
  }
  /** The call; undefined when it was not seen here. */
  readonly toolUseId: string | undefined;

  /** @internal */
  constructor(toolUseId: string | undefined) {
    super();
    this.toolUseId = toolUseId;
  }

  protected fields(): object {
    return { toolUseId: this.toolUseId };
  }
}

/** What became of a tool call. */
export type ToolOutcome = "done" | "failed" | "not_started" | "interrupted_may_have_run" | "timed_out_may_have_run";

/** A call has its one result; what became of it, for the program. */
export class ToolSettled extends Shown {
  get kind(): "tool_settled" {
    return "tool_settled";
  }
  readonly toolUseId: string;
  /** The tool. */
  readonly name: string;
  readonly outcome: ToolOutcome;

  /** @internal */
  constructor(batch: Batch, at: number) {
    super();
    this.toolUseId = batch.slice(at + ToolSettledAt.tool_use_id);
    this.name = batch.slice(at + ToolSettledAt.name);
    this.outcome = batch.slice(at + ToolSettledAt.outcome) as ToolOutcome;
  }

  protected fields(): object {
    return { toolUseId: this.toolUseId, name: this.name, outcome: this.outcome };
  }
}

/** What an approval handler answers: `"allow"`, narrower arguments, or why not. */
export type Decision = "allow" | { narrowed: unknown } | { deny: string };

/** Somebody has to allow this call first. The first answer counts; without one it is denied when its time is over. */
export class Approval extends Call {
  get kind(): "approval" {
    return "approval";
  }
  /** The tool is the service's own: it runs there, and only consent is asked for. */
  readonly serverSide: boolean;

  /** @internal */
  constructor(batch: Batch, at: number, answers: Answers) {
    super(batch, at, answers);
    this.serverSide = batch.word(at + ApprovalAt.server_side) === 1;
  }

  /** Lets the call run as it is. False when the question no longer mattered. */
  allow(): boolean {
    return this.answer("allow", null);
  }

  /** Lets the call run with narrower arguments. Arguments that the tool's rules do not admit are a denial. */
  allowNarrowed(input: unknown): boolean {
    return this.answer("allow_narrowed", json(input, "the arguments"));
  }

  /** Does not let the call run; the model reads the reason. */
  deny(reason: string): boolean {
    return this.answer("deny", reason);
  }

  /** Answers with a decision made elsewhere. */
  decide(decision: Decision): boolean {
    if (decision === "allow") return this.allow();
    if (typeof decision === "object" && decision !== null) {
      if ("narrowed" in decision) return this.allowNarrowed(decision.narrowed);
      if ("deny" in decision) return this.deny(decision.deny);
    }
    throw new InvalidArgumentError('a decision is "allow", { narrowed } or { deny }');
  }

  protected override fields(): object {
    return { ...super.fields(), serverSide: this.serverSide };
  }
}

/** The question no longer matters. */
export class ApprovalWithdrawn extends Shown {
  get kind(): "approval_withdrawn" {
    return "approval_withdrawn";
  }
  /** The call; undefined when it was not seen here. */
  readonly toolUseId: string | undefined;

  /** @internal */
  constructor(toolUseId: string | undefined) {
    super();
    this.toolUseId = toolUseId;
  }

  protected fields(): object {
    return { toolUseId: this.toolUseId };
  }
}

/** The name of the tool that a record calls. */
export function toolNameOf(batch: Batch, at: number): string {
  return batch.slice(at + ToolCallAt.name);
}
