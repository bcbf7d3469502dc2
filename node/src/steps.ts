/**
 * Steps: what a turn or a subscription brings, one after the other.
 *
 * Each step has a `kind` to switch on. Steps look into the batch that they came in and decode a field when it is read;
 * JSON is on offer as text too, where integers above 2⁵³ survive.
 */

import { inspect } from "node:util";
import { Batch } from "./batch";
import { InvalidArgumentError } from "./errors";
import { json } from "./json";
import {
  ApprovalAt, DeltaAt, DoneAt, EventAt, GapAt, NotificationAt, ReceivedAt, SendingAt, StatusAt, ToolCallAt,
  ToolSettledAt, WarningAt,
} from "./layout";
import { calling, native } from "./native";

/** One step of a turn or a subscription. */
export type Step =
  | Event
  | Notification
  | TextDelta
  | ReasoningDelta
  | ToolInputDelta
  | DisplayReset
  | Gap
  | ToolCall
  | ToolCancel
  | ToolSettled
  | Approval
  | ApprovalWithdrawn
  | Status
  | Warning
  | Sending
  | Received
  | Done;

/** A message of a conversation. */
export interface Message {
  role: string;
  content: string | ContentBlock[];
}

/** A block of a message's content. Types that are not known here are there too. */
export interface ContentBlock {
  type: string;
  [member: string]: unknown;
}

/** Trace headers of the application's own tracing. */
export interface Trace {
  traceparent?: string | undefined;
  tracestate?: string | undefined;
}

/** What takes an answer; false: it came too late and changes nothing. */
export interface Answers {
  answer(call: number, word: string, value: string | null, trace?: Trace): boolean;
}

/** Members that hold what people and models said: never in a log, so not in what is printed. */
const PAYLOADS = new Set(["payload", "json", "delta", "input", "text"]);

/** The same members as they are printed. */
function printed(fields: object): object {
  const said = (name: string, value: unknown): boolean => PAYLOADS.has(name) || (name === "message" && typeof value === "object");
  return Object.fromEntries(Object.entries(fields).map(([name, value]) => [name, said(name, value) ? new Unprinted() : value]));
}

class Unprinted {
  [inspect.custom](): string {
    return "[payload]";
  }
}

/** Shows what a step is when it is printed, without what it says; `JSON.stringify` gives all of it. */
abstract class Shown {
  abstract readonly kind: string;

  /** What toJSON() gives, and printing without payloads. @internal */
  protected abstract fields(): object;

  toJSON(): object {
    return { kind: this.kind, ...this.fields() };
  }

  [inspect.custom](_depth: number, options: object): string {
    return `${this.constructor.name} ${inspect(printed(this.fields()), options)}`;
  }
}

/** Something the session logged. Its id is the cursor after it. Types of the future come too. */
export class Event extends Shown {
  readonly #batch: Batch;
  readonly #at: number;

  /** @internal */
  constructor(batch: Batch, at: number) {
    super();
    this.#batch = batch;
    this.#at = at;
  }

  get kind(): "event" {
    return "event";
  }
  get id(): string {
    return this.#batch.slice(this.#at + EventAt.id);
  }
  get type(): string {
    return this.#batch.slice(this.#at + EventAt.event_type);
  }
  get sessionId(): string {
    return this.#batch.slice(this.#at + EventAt.session_id);
  }
  get clientKeyId(): string | undefined {
    return this.#batch.maybe(this.#at + EventAt.client_key_id);
  }
  /** When, as the service writes it: RFC 3339. */
  get createdAt(): string {
    return this.#batch.slice(this.#at + EventAt.created_at);
  }
  /** What happened, parsed anew each time it is read. */
  get payload(): Record<string, any> {
    return JSON.parse(this.payloadJson) as Record<string, any>;
  }
  /** The payload as it came. */
  get payloadJson(): string {
    return this.#batch.slice(this.#at + EventAt.payload);
  }
  /** The whole event as it came. */
  get json(): string {
    return this.#batch.slice(this.#at + EventAt.raw);
  }

  protected fields(): object {
    const { id, type, sessionId, clientKeyId, createdAt, payload } = this;
    return { id, type, sessionId, clientKeyId, createdAt, payload };
  }
}

/** A notification that this version does not know. */
export class Notification extends Shown {
  get kind(): "notification" {
    return "notification";
  }
  readonly method: string;
  /** The whole line as it came. */
  readonly json: string;

  /** @internal */
  constructor(batch: Batch, at: number) {
    super();
    this.method = batch.slice(at + NotificationAt.method);
    this.json = batch.slice(at + NotificationAt.raw);
  }

  protected fields(): object {
    return { method: this.method, json: this.json };
  }
}

abstract class Delta extends Shown {
  readonly #batch: Batch;
  readonly #at: number;

  constructor(batch: Batch, at: number) {
    super();
    this.#batch = batch;
    this.#at = at;
  }

  /** The piece. */
  get delta(): string {
    return this.#batch.slice(this.#at + DeltaAt.text);
  }
  protected get link(): string {
    return this.#batch.slice(this.#at + DeltaAt.link);
  }
}

/** A piece of the answer, as it is produced: lossy by contract, the whole message follows as an event. */
export class TextDelta extends Delta {
  get kind(): "text_delta" {
    return "text_delta";
  }
  get messageId(): string {
    return this.link;
  }

  protected fields(): object {
    return { delta: this.delta, messageId: this.messageId };
  }
}

/** A piece of the model's reasoning. */
export class ReasoningDelta extends Delta {
  get kind(): "reasoning_delta" {
    return "reasoning_delta";
  }
  get messageId(): string {
    return this.link;
  }

  protected fields(): object {
    return { delta: this.delta, messageId: this.messageId };
  }
}

/** A piece of the JSON text of a call's arguments. */
export class ToolInputDelta extends Delta {
  get kind(): "tool_input_delta" {
    return "tool_input_delta";
  }
  get toolUseId(): string {
    return this.link;
  }

  protected fields(): object {
    return { delta: this.delta, toolUseId: this.toolUseId };
  }
}

/** Everything partial shown so far is void: the attempt failed or was replaced. */
export class DisplayReset extends Shown {
  get kind(): "display_reset" {
    return "display_reset";
  }

  protected fields(): object {
    return {};
  }
}

/**
 * Something was lost. `reason`: `deltas` (`count` of them), `line` (one of `count` bytes where `limit` are allowed: raise
 * maxLineBytes), `cursor` (`cursor` is unknown to the service and its log begins again), `unseen` (whatever happened while
 * the stream was away), or a word of a newer version.
 */
export class Gap extends Shown {
  get kind(): "gap" {
    return "gap";
  }
  readonly reason: "deltas" | "line" | "cursor" | "unseen" | "unknown";
  readonly count: number | undefined;
  readonly limit: number | undefined;
  readonly cursor: string | undefined;
  /** The cursor after which it was lost. */
  readonly after: string;

  /** @internal */
  constructor(batch: Batch, at: number) {
    super();
    this.reason = (["deltas", "line", "cursor", "unseen"] as const)[batch.word(at + GapAt.lost)] ?? "unknown";
    this.count = batch.number(at + GapAt.count);
    this.limit = batch.number(at + GapAt.limit);
    this.cursor = batch.maybe(at + GapAt.cursor);
    this.after = batch.slice(at + GapAt.after);
  }

  protected fields(): object {
    const { reason, count, limit, cursor, after } = this;
    return { reason, count, limit, cursor, after };
  }
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

  /** @internal */
  constructor(batch: Batch, at: number, answers: Answers) {
    super();
    this.#answers = answers;
    this.#call = batch.number(at + ToolCallAt.call) ?? 0;
    this.toolUseId = batch.slice(at + ToolCallAt.tool_use_id);
    this.name = batch.slice(at + ToolCallAt.name);
    this.inputJson = batch.slice(at + ToolCallAt.input);
    this.idempotencyKey = batch.slice(at + ToolCallAt.idempotency_key);
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
    const { toolUseId, name, input, idempotencyKey } = this;
    return { toolUseId, name, input, idempotencyKey };
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
  readonly outcome: ToolOutcome;

  /** @internal */
  constructor(batch: Batch, at: number) {
    super();
    this.toolUseId = batch.slice(at + ToolSettledAt.tool_use_id);
    this.outcome = batch.slice(at + ToolSettledAt.outcome) as ToolOutcome;
  }

  protected fields(): object {
    return { toolUseId: this.toolUseId, outcome: this.outcome };
  }
}

/** What an approval handler answers: `"allow"`, narrower arguments, or why not. */
export type Decision = "allow" | { narrowed: unknown } | { deny: string };

/** Somebody has to allow this call first. The first answer counts; without one it is denied when its time is over. */
export class Approval extends Call {
  get kind(): "approval" {
    return "approval";
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

/**
 * Where the operation stands: `queued`, `sent`, `connected`, or `reconnecting` with the delay in milliseconds until the next
 * try, the kind of error that ended the stream before, and why.
 */
export class Status extends Shown {
  get kind(): "status" {
    return "status";
  }
  readonly state: "queued" | "sent" | "connected" | "reconnecting" | "";
  readonly delayMs: number | undefined;
  readonly errorKind: string | undefined;
  readonly why: string | undefined;

  /** @internal */
  constructor(batch: Batch, at: number) {
    super();
    this.state = batch.slice(at + StatusAt.state) as Status["state"];
    this.delayMs = batch.number(at + StatusAt.delay_ms);
    this.errorKind = batch.maybe(at + StatusAt.error_kind);
    this.why = batch.maybe(at + StatusAt.why);
  }

  protected fields(): object {
    const { state, delayMs, errorKind, why } = this;
    return { state, delayMs, errorKind, why };
  }
}

/** Something odd that does not end the stream. */
export class Warning extends Shown {
  get kind(): "warning" {
    return "warning";
  }
  readonly category: string;
  readonly message: string;

  /** @internal */
  constructor(batch: Batch, at: number) {
    super();
    this.category = batch.slice(at + WarningAt.class);
    this.message = batch.slice(at + WarningAt.message);
  }

  protected fields(): object {
    return { category: this.category, message: this.message };
  }
}

/** The message about to leave; answer it. Only with `hooks: true` and no onSending handler. */
export class Sending extends Shown {
  get kind(): "sending" {
    return "sending";
  }
  readonly #answers: Answers;
  readonly #call: number;
  #answered = false;
  /** Which round of the turn, from 0. */
  readonly round: number;
  /** The message as JSON. */
  readonly messageJson: string;

  /** @internal */
  constructor(batch: Batch, at: number, answers: Answers) {
    super();
    this.#answers = answers;
    this.#call = batch.number(at + SendingAt.call) ?? 0;
    this.round = batch.word(at + SendingAt.round);
    this.messageJson = batch.slice(at + SendingAt.message);
  }

  /** The message, parsed anew each time it is read. Give a changed one to send(). */
  get message(): Message {
    return JSON.parse(this.messageJson) as Message;
  }

  /** Whether it was answered here. */
  get answered(): boolean {
    return this.#answered;
  }

  /** Lets the message go, or another in its place, perhaps with trace headers of its own. False when it was too late. */
  send(message?: Message | string, trace?: Trace): boolean {
    const value = message === undefined ? null : json(message, "the message");
    this.#answered = true;
    return this.#answers.answer(this.#call, "send", value, trace);
  }

  /** Does not send the message: the turn ends with a HookError of this text. */
  refuse(reason: string): boolean {
    this.#answered = true;
    return this.#answers.answer(this.#call, "refuse", reason);
  }

  protected fields(): object {
    return { round: this.round, message: this.message };
  }
}

/** The answer to a message. Only with hooks. */
export class Received extends Shown {
  get kind(): "received" {
    return "received";
  }
  /** Which round of the turn, from 0. */
  readonly round: number;
  /** The assistant's message as JSON. */
  readonly messageJson: string;

  /** @internal */
  constructor(batch: Batch, at: number) {
    super();
    this.round = batch.word(at + ReceivedAt.round);
    this.messageJson = batch.slice(at + ReceivedAt.message);
  }

  /** The assistant's message, parsed anew each time it is read. */
  get message(): Message {
    return JSON.parse(this.messageJson) as Message;
  }

  protected fields(): object {
    return { round: this.round, message: this.message };
  }
}

/** The turn is done. */
export class Done extends Shown {
  get kind(): "done" {
    return "done";
  }
  readonly reply: Reply;

  /** @internal */
  constructor(reply: Reply) {
    super();
    this.reply = reply;
  }

  protected fields(): object {
    return { reply: this.reply };
  }
}

/** Tokens of all rounds of a turn. */
export interface Usage {
  inputTokens: number;
  outputTokens: number;
}

/** What a turn came to. */
export class Reply {
  readonly #batch: Batch;
  readonly #at: number;
  #events: Event[] | undefined;

  /** @internal */
  constructor(batch: Batch, at: number) {
    this.#batch = batch;
    this.#at = at;
  }

  /** The text of the answer. */
  get text(): string {
    return this.#batch.slice(this.#at + DoneAt.text);
  }
  /** The assistant's last message, parsed anew each time it is read. */
  get message(): Message {
    return JSON.parse(this.messageJson) as Message;
  }
  /** The assistant's last message as JSON. */
  get messageJson(): string {
    return this.#batch.slice(this.#at + DoneAt.message);
  }
  /** Tokens of all rounds, when the provider counted them. */
  get usage(): Usage | undefined {
    const text = this.#batch.maybe(this.#at + DoneAt.usage);
    if (text === undefined) return undefined;
    const usage = JSON.parse(text) as { input_tokens: number; output_tokens: number };
    return { inputTokens: usage.input_tokens, outputTokens: usage.output_tokens };
  }
  /** Requests it took. */
  get rounds(): number {
    return this.#batch.word(this.#at + DoneAt.rounds);
  }
  /** The events of the turn; one that cannot be read is left out. */
  get events(): readonly Event[] {
    this.#events ??= eventsOf(this.#batch.slice(this.#at + DoneAt.events));
    return this.#events;
  }

  toJSON(): object {
    const { text, message, usage, rounds } = this;
    return { text, message, usage, rounds };
  }
  [inspect.custom](_depth: number, options: object): string {
    return `Reply ${inspect(printed(this.toJSON()), options)}`;
  }
}

/** Lets `instanceof` know contents of another copy of this package. */
const CONTENT = Symbol.for("@broca/sdk:content");

/** Content blocks as a tool's result, such as images, in place of a text. */
export class Content {
  readonly blocks: readonly ContentBlock[];

  constructor(blocks: readonly ContentBlock[]) {
    this.blocks = blocks;
  }

  /** @internal */
  get [CONTENT](): true {
    return true;
  }

  static [Symbol.hasInstance](this: unknown, value: unknown): boolean {
    if (this !== Content) return Function.prototype[Symbol.hasInstance].call(this as typeof Content, value); // a class of the application
    return typeof value === "object" && value !== null && (value as { [CONTENT]?: unknown })[CONTENT] === true;
  }
}

/** Content blocks as a tool's result. */
export function content(...blocks: ContentBlock[]): Content {
  return new Content(blocks);
}

/** The answer that a tool's result is. */
export function completion(result: unknown): [word: string, value: string] {
  if (typeof result === "string") return ["complete_text", result];
  if (result instanceof Content) return ["complete", json(result.blocks, "the content")];
  return ["complete_text", result === undefined ? "null" : json(result, "the result")];
}

/** The step of a delta record; a kind of the future is none. */
export function deltaOf(batch: Batch, at: number): Step | undefined {
  switch (batch.word(at + DeltaAt.delta_kind)) {
    case 0:
      return new TextDelta(batch, at);
    case 1:
      return new ReasoningDelta(batch, at);
    case 2:
      return new ToolInputDelta(batch, at);
    case 3:
      return new DisplayReset();
    default:
      return undefined;
  }
}

/** The name of the tool that a record calls. */
export function toolNameOf(batch: Batch, at: number): string {
  return batch.slice(at + ToolCallAt.name);
}

/** The id of the call that a question is about. */
export function toolUseIdOf(batch: Batch, at: number): string {
  return batch.slice(at + ApprovalAt.tool_use_id);
}

/** The records of a batch that holds nothing but events. */
export function eventsIn(batch: Batch): Event[] {
  const events: Event[] = [];
  for (let at = 0; at < batch.words.length; at = batch.after(at)) events.push(new Event(batch, at));
  return events;
}

function eventsOf(array: string): Event[] {
  return eventsIn(new Batch(calling(() => native.Engine.eventsOf(array))));
}
