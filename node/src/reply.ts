/** What a turn came to, and what it cost. */

import { inspect } from "node:util";
import type { Batch } from "./batch";
import type { Message } from "./content";
import { eventsOf, type Event } from "./event";
import { DoneAt } from "./layout";
import { Shown, printed } from "./shown";

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

/** What all turns of a session have spent together, those of programs that had it before included. */
export interface Spent {
  /** Messages to the service that were answered. */
  rounds: number;
  inputTokens: number;
  outputTokens: number;
  /** Calls of this client's tools. */
  toolCalls: number;
}

/** What a turn came to. One with a typed output counts the turns in which the answer was asked for again, too. */
export class Reply<Output = undefined> {
  readonly #batch: Batch;
  readonly #at: number;
  /** What was answered before it to the same question, and did not fit. */
  readonly #before: Reply<unknown> | undefined;
  #events: readonly Event[] | undefined;
  /** What the answer says, as the value that was asked for with `output`; undefined when none was. */
  readonly output: Output;

  /** @internal */
  constructor(batch: Batch, at: number, output: Output, before?: Reply<unknown>) {
    this.#batch = batch;
    this.#at = at;
    this.#before = before;
    this.output = output;
  }

  /** The same reply with its typed output. @internal */
  withOutput<T>(output: T): Reply<T> {
    return new Reply(this.#batch, this.#at, output, this.#before);
  }

  /** The same reply, which counts the turns of an earlier one, too. @internal */
  after(before: Reply<unknown>): Reply<Output> {
    return new Reply(this.#batch, this.#at, this.output, before);
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
    const before = this.#before?.usage;
    if (text === undefined) return before;
    const usage = JSON.parse(text) as { input_tokens: number; output_tokens: number };
    return { inputTokens: usage.input_tokens + (before?.inputTokens ?? 0), outputTokens: usage.output_tokens + (before?.outputTokens ?? 0) };
  }
  /** Requests it took. */
  get rounds(): number {
    return this.#batch.word(this.#at + DoneAt.rounds) + (this.#before?.rounds ?? 0);
  }
  /** Calls of this client's tools in this turn. */
  get toolCalls(): number {
    return this.#batch.word(this.#at + DoneAt.tool_calls) + (this.#before?.toolCalls ?? 0);
  }
  /** What all turns of the session have spent, this one included. */
  get session(): Spent {
    const spent = JSON.parse(this.#batch.slice(this.#at + DoneAt.session)) as { rounds: number; input_tokens: number; output_tokens: number; tool_calls: number };
    return { rounds: spent.rounds, inputTokens: spent.input_tokens, outputTokens: spent.output_tokens, toolCalls: spent.tool_calls };
  }
  /** The events of the turn; one that cannot be read is left out. */
  get events(): readonly Event[] {
    this.#events ??= [...(this.#before?.events ?? []), ...eventsOf(this.#batch.slice(this.#at + DoneAt.events))];
    return this.#events;
  }

  toJSON(): object {
    const { text, message, usage, rounds, toolCalls, session, output } = this;
    return { text, message, usage, rounds, toolCalls, session, ...(output === undefined ? {} : { output }) };
  }
  [inspect.custom](_depth: number, options: object): string {
    return `Reply ${inspect(printed(this.toJSON()), options)}`;
  }
}
