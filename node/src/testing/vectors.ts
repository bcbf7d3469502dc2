/**
 * Plays the shared vectors: holds an engine of this package and does what it is told, line by line.
 *
 *     vectors --through "node node_modules/@broca/sdk/dist/testing/vectors.js" core/vectors/reports.jsonl
 *
 * The protocol is described in core/vectors/README.md. Steps are reported from the objects that an application gets, and
 * questions are answered through them; the clock, the service and everything that is expected stay with the caller.
 */

import { readSync, writeSync } from "node:fs";
import { failureOf } from "../asking.js";
import { Batch } from "../batch.js";
import { Approval, ApprovalWithdrawn, ToolCall, ToolCancel, ToolSettled, type Answers } from "../calls.js";
import { BrocaError } from "../errors.js";
import { Event } from "../event.js";
import { Received, Sending, type Trace } from "../hooks.js";
import {
  ABSENT, ApprovalWithdrawnAt, BusyAt, CloseAt, ConnectAt, FinishedAt, Kind, ReadyAt, ResolveAt, SendingAt, StartTlsAt,
  TimerAt, ToolCancelAt, WriteAt,
} from "../layout.js";
import { calling, native, type Engine } from "../native.js";
import { Done, Reply } from "../reply.js";
import { DisplayReset, Gap, Notification, ReasoningDelta, Status, TextDelta, ToolInputDelta, Warning, type Step } from "../steps.js";
import { presentOther } from "../turn.js";
import { ChatStream } from "./chat.js";

type Value = string | number | boolean | Uint8Array | undefined | null;

/** A value as a word of the protocol. */
function word(value: Value): string {
  if (value === undefined || value === null) return "-";
  if (typeof value === "number" || typeof value === "boolean") return String(Number(value));
  return `x${Buffer.from(value as string).toString("hex")}`;
}

function line(start: string, fields: Record<string, Value>): string {
  return [start, ...Object.entries(fields).map(([name, value]) => `${name}=${word(value)}`)].join(" ");
}

function bytes(given: string): Buffer | undefined {
  if (given === "-") return undefined;
  if (!given.startsWith("x")) throw new Error("bytes begin with x");
  return Buffer.from(given.slice(1), "hex");
}

function text(given: string): string | undefined {
  return bytes(given)?.toString();
}

function error(of: unknown): string {
  if (!(of instanceof BrocaError)) throw of;
  return line("error", errorFields(of));
}

function errorFields({ code, kind, message, retry, details }: BrocaError): Record<string, Value> {
  return { code, kind, message, retry, details: details === undefined ? undefined : JSON.stringify(details) };
}

function said(step: Step): string {
  const say = (kind: string, fields: Record<string, Value>): string => line(`step ${kind}`, fields);
  if (step instanceof Event) {
    const { id, type, sessionId, clientKeyId, createdAt, payloadJson, json } = step;
    return say("event", {
      id, event_type: type, session_id: sessionId, client_key_id: clientKeyId, created_at: createdAt,
      payload: payloadJson, raw: json,
    });
  }
  if (step instanceof Notification) return say("notification", { method: step.method, raw: step.json });
  if (step instanceof TextDelta) return say("delta", { delta_kind: 0, link: step.messageId, text: step.delta });
  if (step instanceof ReasoningDelta) return say("delta", { delta_kind: 1, link: step.messageId, text: step.delta });
  if (step instanceof ToolInputDelta) return say("delta", { delta_kind: 2, link: step.toolUseId, text: step.delta });
  if (step instanceof DisplayReset) return say("delta", { delta_kind: 3, link: undefined, text: "" });
  if (step instanceof Gap) {
    const lost = ["deltas", "line", "cursor", "unseen"].indexOf(step.reason);
    return say("gap", { lost, count: step.count, limit: step.limit, cursor: step.cursor, after: step.after });
  }
  if (step instanceof ToolCall || step instanceof Approval) {
    const { call, toolUseId, name, inputJson, idempotencyKey, mayHaveRun } = step;
    return say(step.kind, { call, tool_use_id: toolUseId, name, input: inputJson, idempotency_key: idempotencyKey, may_have_run: mayHaveRun, ...(step instanceof Approval && { server_side: step.serverSide }) });
  }
  if (step instanceof ToolCancel || step instanceof ApprovalWithdrawn) return say(step.kind, { tool_use_id: step.toolUseId });
  if (step instanceof ToolSettled) return say("tool_settled", { tool_use_id: step.toolUseId, outcome: step.outcome, name: step.name });
  if (step instanceof Status) {
    const { state, delayMs, errorKind, why, position, waiting } = step;
    return say("status", { state, delay_ms: delayMs, error_kind: errorKind, why, position, waiting });
  }
  if (step instanceof Warning) return say("warning", { class: step.category, message: step.message });
  if (step instanceof Received) return say("received", { round: step.round, message: step.messageJson });
  if (step instanceof Done) {
    const { text, messageJson, usage, rounds, events, toolCalls, session } = step.reply;
    const counted = usage === undefined ? undefined : JSON.stringify({ input_tokens: usage.inputTokens, output_tokens: usage.outputTokens });
    const { inputTokens, outputTokens } = session;
    const spent = { rounds: session.rounds, input_tokens: inputTokens, output_tokens: outputTokens, tool_calls: session.toolCalls };
    return say("done", {
      text, message: messageJson, usage: counted, rounds, events: `[${events.map((e) => e.json).join(",")}]`,
      tool_calls: toolCalls, session: JSON.stringify(spent),
    });
  }
  throw new Error(`there is no line for a step of kind ${(step as Step).kind}`);
}

/** One engine, and the questions that it asked. */
class Child implements Answers {
  readonly #table = new Uint32Array(1024);
  #engine: Engine | undefined;
  #chat: ChatStream | undefined;
  #asked = new Map<number, ToolCall | Approval | Sending>();
  #names = new Map<number, string>();
  #now = 0;

  /** The lines that answer a request. */
  serve(request: string): string[] {
    const [verb, ...words] = request.split(" ");
    const given = (at: number): string => words[at] ?? missing();
    const number = (at: number): number => Number(given(at));
    switch (verb) {
      case "new":
        return this.#make(text(given(0)) ?? missing(), BigInt(given(1)), number(2));
      case "command":
        return this.#asking(() => {
          const op = calling(() => this.#live.command(text(given(1)) ?? missing(), number(0), text(given(2)) ?? null, text(given(3)) ?? null));
          return `op ${op}`;
        });
      case "answer":
        this.#now = number(0);
        return this.#asking(() => {
          const trace = { traceparent: text(given(4)), tracestate: text(given(5)) };
          return `accepted ${Number(this.#give(number(1), given(2), text(given(3)) ?? null, trace))}`;
        });
      case "cancel":
        return this.#input(() => this.#live.cancel(number(1), number(0)));
      case "resolved": {
        const addresses = given(2) === "-" ? words.slice(3).map((each) => text(each) ?? missing()) : null;
        return this.#input(() => this.#live.resolved(number(1), addresses, text(given(2)) ?? null, number(0)));
      }
      case "connected":
        return this.#input(() => this.#live.connected(number(1), number(0)));
      case "tls_started":
        return this.#input(() => this.#live.tlsStarted(number(1), number(0)));
      case "data": {
        const data = bytes(given(2)) ?? missing();
        return this.#input(() => this.#live.data(number(1), data, data.length, number(0)));
      }
      case "written":
        return this.#input(() => this.#live.written(number(1), number(2), number(0)));
      case "closed":
        return this.#input(() => this.#live.closed(number(1), given(2), number(0)));
      case "timeout":
        return this.#input(() => this.#live.timeout(number(0)));
      case "steps":
        return [...this.#steps(number(0), number(1)), ...this.#effects(this.#live.effects())];
      case "chat_new":
        this.#chat = new ChatStream(number(0));
        return [];
      case "chat_data":
        this.#stream.data(bytes(given(0)) ?? missing());
        return [];
      case "chat_end":
        this.#stream.end();
        return [];
      case "chat_broken":
        this.#stream.broken();
        return [];
      case "chat_take":
        return [`chat ${word(this.#stream.takeJson())}`];
      default:
        throw new Error(`there is no request "${verb}"`);
    }
  }

  /** Where the steps take their answers to. */
  answer(call: number, answer: string, value: string | null, trace?: Trace): boolean {
    return calling(() => this.#live.answer(call, answer, value, this.#now, trace?.traceparent ?? null, trace?.tracestate ?? null));
  }

  get #live(): Engine {
    return this.#engine ?? missing();
  }
  get #stream(): ChatStream {
    return this.#chat ?? missing();
  }

  #make(options: string, seed: bigint, wall: number): string[] {
    this.#asked.clear();
    this.#names.clear();
    const [low, high] = [Number(seed & 0xffff_ffffn), Number(seed >> 32n)];
    try {
      this.#engine = calling(() => new native.Engine(options, low, high, wall, this.#table));
      return [];
    } catch (cause) {
      return [error(cause)];
    }
  }

  /** An input that is answered with a line of its own. */
  #asking(give: () => string): string[] {
    let answer: string;
    try {
      answer = give();
    } catch (cause) {
      answer = error(cause);
    }
    return [answer, ...this.#effects(this.#live.effects())];
  }

  #input(give: () => number): string[] {
    try {
      return [...this.#effects(calling(give))];
    } catch (cause) {
      return [error(cause)];
    }
  }

  /** Answers as an application would; what no method of the step says in the same words, at the engine. */
  #give(call: number, answer: string, value: string | null, trace: Trace): boolean {
    const step = this.#asked.get(call);
    if (step instanceof ToolCall && answer === "complete" && value?.startsWith('"')) return step.complete(JSON.parse(value));
    if (step instanceof ToolCall && answer === "fail") return step.fail(value ?? "");
    if (step instanceof Approval && answer === "allow") return step.allow();
    if (step instanceof Approval && answer === "deny") return step.deny(value ?? "");
    if (step instanceof Sending && answer === "refuse") return step.refuse(value ?? "");
    return this.answer(call, answer, value, trace);
  }

  *#steps(op: number, maxBytes: number): Generator<string, void, void> {
    const raw = calling(() => this.#live.steps(op, maxBytes));
    let over = false;
    if (raw !== null) {
      const batch = new Batch(raw);
      for (let at = 0; at < batch.words.length; at = batch.after(at)) {
        const kind = batch.kind(at);
        over ||= kind === Kind.finished || kind === Kind.failed;
        if (kind === Kind.finished) {
          yield line("step finished", { outcome: batch.slice(at + FinishedAt.outcome), value: batch.maybe(at + FinishedAt.value) });
        } else if (kind === Kind.failed) {
          yield line("step failed", errorFields(failureOf(batch, at)));
        } else if (kind === Kind.sending) {
          const [step, call] = [new Sending(batch, at, this), batch.number(at + SendingAt.call) ?? 0];
          this.#asked.set(call, step);
          yield line("step sending", { call, round: step.round, message: step.messageJson });
        } else {
          yield said(this.#present(batch, at));
        }
      }
    }
    yield `over ${Number(over)}`;
  }

  /** The step of a record, as a turn shows it. */
  #present(batch: Batch, at: number): Step {
    switch (batch.kind(at)) {
      case Kind.tool_call:
        return this.#ask(new ToolCall(batch, at, this, false));
      case Kind.approval:
        return this.#ask(new Approval(batch, at, this));
      case Kind.tool_cancel:
        return new ToolCancel(this.#names.get(batch.number(at + ToolCancelAt.call) ?? 0));
      case Kind.approval_withdrawn:
        return new ApprovalWithdrawn(this.#names.get(batch.number(at + ApprovalWithdrawnAt.call) ?? 0));
      case Kind.done:
        return new Done(new Reply(batch, at, undefined));
      default:
        return presentOther(batch, at) ?? missing();
    }
  }

  #ask<Asked extends ToolCall | Approval>(step: Asked): Asked {
    this.#asked.set(step.call, step);
    this.#names.set(step.call, step.toolUseId);
    return step;
  }

  /** Everything that the engine wants to be done, as the table shows it (see the shell). */
  *#effects(words: number): Generator<string, void, void> {
    for (let count = words; count !== 0; count = this.#live.effects()) {
      const table = this.#table;
      const inText = count < 0 ? this.#live.effectText() : Buffer.alloc(0);
      const number = (field: number): number | undefined => {
        const [low, high] = [table[field] ?? ABSENT, table[field + 1] ?? ABSENT];
        return low === ABSENT && high === ABSENT ? undefined : high * 0x1_0000_0000 + low;
      };
      const slice = (field: number): Buffer | undefined => {
        const from = table[field] ?? ABSENT;
        return from === ABSENT ? undefined : inText.subarray(from, from + (table[field + 1] ?? 0));
      };
      for (let at = 0; at < Math.abs(count); at += table[at + 1] ?? Infinity) yield this.#effect(at, number, slice);
    }
  }

  #effect(at: number, number: (field: number) => number | undefined, slice: (field: number) => Buffer | undefined): string {
    const table = this.#table;
    switch (table[at] as number as Kind) {
      case Kind.resolve:
        return line("effect resolve", { req: number(at + ResolveAt.req), host: slice(at + ResolveAt.host) });
      case Kind.connect:
        return line("effect connect", {
          conn: number(at + ConnectAt.conn), address: slice(at + ConnectAt.address), port: table[at + ConnectAt.port],
          server_name: slice(at + ConnectAt.server_name),
        });
      case Kind.start_tls:
        return line("effect start_tls", { conn: number(at + StartTlsAt.conn), server_name: slice(at + StartTlsAt.server_name) });
      case Kind.write:
        return line("effect write", { conn: number(at + WriteAt.conn), bytes: slice(at + WriteAt.bytes) });
      case Kind.pause_read:
        return line("effect pause_read", { conn: number(at + CloseAt.conn) });
      case Kind.resume_read:
        return line("effect resume_read", { conn: number(at + CloseAt.conn) });
      case Kind.close:
        return line("effect close", { conn: number(at + CloseAt.conn), abort: table[at + CloseAt.abort] });
      case Kind.timer:
        return line("effect timer", { at: number(at + TimerAt.at) });
      case Kind.busy:
        return line("effect busy", { busy: table[at + BusyAt.busy] });
      case Kind.ready:
        return line("effect ready", { op: number(at + ReadyAt.op) });
      default:
        throw new Error(`effect ${table[at]} is not known here`);
    }
  }
}

function missing(): never {
  throw new Error("something that must be there is absent");
}

/** Answers requests until there are no more. Nothing else happens in this process, so reading may wait. */
function main(): void {
  const child = new Child();
  const piece = Buffer.alloc(256 * 1024);
  let rest: Buffer[] = [];
  for (let size = readSync(0, piece); size > 0; size = readSync(0, piece)) {
    const came = piece.subarray(0, size);
    let from = 0;
    for (let end = came.indexOf(10, from); end >= 0; end = came.indexOf(10, from)) {
      const request = Buffer.concat([...rest, came.subarray(from, end)]).toString("latin1").trimEnd();
      rest = [];
      from = end + 1;
      answer([...child.serve(request), "."]);
    }
    if (from < size) rest.push(Buffer.from(came.subarray(from)));
  }
}

function answer(lines: string[]): void {
  const whole = Buffer.from(`${lines.join("\n")}\n`, "latin1");
  for (let at = 0; at < whole.length; ) at += writeSync(1, whole, at);
}

if (require.main === module) main();
