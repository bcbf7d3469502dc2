/** What the application may see of each message before it leaves, and of each answer. */

import type { Batch } from "./batch";
import type { Answers } from "./calls";
import type { Message } from "./content";
import { json } from "./json";
import { ReceivedAt, SendingAt } from "./layout";
import { Shown } from "./shown";

/** Trace headers of the application's own tracing. */
export interface Trace {
  traceparent?: string | undefined;
  tracestate?: string | undefined;
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
