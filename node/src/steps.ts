/**
 * Steps: what a turn or a subscription brings, one after the other.
 *
 * Each step has a `kind` to switch on. Steps look into the batch that they came in and decode a field when it is read;
 * JSON is on offer as text too, where integers above 2⁵³ survive.
 */

import type { Batch } from "./batch";
import type { Approval, ApprovalWithdrawn, ToolCall, ToolCancel, ToolSettled } from "./calls";
import type { Event } from "./event";
import type { Received, Sending } from "./hooks";
import { DeltaAt, GapAt, NotificationAt, StatusAt, WarningAt } from "./layout";
import type { Done } from "./reply";
import { Shown } from "./shown";

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
 * maxLineBytes), `cursor` (`cursor` is unknown to the service and its log begins again), `unseen` (events, nobody knows how
 * many: whatever happened while the stream was away, or what a slow program had left in the log and the log could not be had),
 * or a word of a newer version.
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

/**
 * Where the operation stands: `queued`, with its place as `why` where the service tells it; `sent`; `connected`; or
 * `reconnecting` with the delay in milliseconds until the next try, the kind of error that ended the stream before, and why.
 */
export class Status extends Shown {
  get kind(): "status" {
    return "status";
  }
  readonly state: "queued" | "sent" | "connected" | "reconnecting" | "";
  readonly delayMs: number | undefined;
  readonly errorKind: string | undefined;
  readonly why: string | undefined;
  /** Its place at the service, where that is told; 1 goes next. */
  readonly position: number | undefined;
  /** How many calls wait there, this one included. */
  readonly waiting: number | undefined;

  /** @internal */
  constructor(batch: Batch, at: number) {
    super();
    this.state = batch.slice(at + StatusAt.state) as Status["state"];
    this.delayMs = batch.number(at + StatusAt.delay_ms);
    this.errorKind = batch.maybe(at + StatusAt.error_kind);
    this.why = batch.maybe(at + StatusAt.why);
    this.position = batch.number(at + StatusAt.position);
    this.waiting = batch.number(at + StatusAt.waiting);
  }

  protected fields(): object {
    const { state, delayMs, errorKind, why, position, waiting } = this;
    return { state, delayMs, errorKind, why, position, waiting };
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
