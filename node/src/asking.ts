/** Operations that come to one answer: opening, a page of the log, closing … */

import type { Batch } from "./batch";
import { BrocaError, InternalError, errorOf, type Retry } from "./errors";
import { strictJson } from "./json";
import { FailedAt, FinishedAt, Kind } from "./layout";
import type { Reader, Shell } from "./shell";
import { Event } from "./event";

/** What an operation came to. */
export interface Answer {
  /** The events that stood before it. */
  events: Event[];
  /** The outcome's value. */
  value: any;
  /** The same as it came. */
  json: string | undefined;
}

/** Runs an operation to its end. Aborted by the signal, it rejects with the signal's reason. */
export function ask(shell: Shell, command: object, signal?: AbortSignal): Promise<Answer> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    new Asking(shell, command, signal, resolve, reject);
  });
}

class Asking implements Reader {
  readonly #shell: Shell;
  #op = 0;
  readonly #signal: AbortSignal | undefined;
  readonly #resolve: (answer: Answer) => void;
  readonly #reject: (error: unknown) => void;
  readonly #abort = (): void => this.#shell.cancel(this.#op);
  readonly #events: Event[] = [];

  constructor(
    shell: Shell,
    command: object,
    signal: AbortSignal | undefined,
    resolve: (answer: Answer) => void,
    reject: (error: unknown) => void,
  ) {
    this.#shell = shell;
    this.#signal = signal;
    this.#resolve = resolve;
    this.#reject = reject;
    shell.command(strictJson(command, "the call"), this);
  }

  begun(op: number): void {
    this.#op = op;
    this.#signal?.addEventListener("abort", this.#abort, { once: true });
  }

  wake(): void {
    for (let batch = this.#shell.steps(this.#op); batch !== undefined; batch = this.#shell.steps(this.#op)) {
      for (let at = 0; at < batch.words.length; at = batch.after(at)) {
        const kind = batch.kind(at);
        if (kind === Kind.event) this.#events.push(new Event(batch, at));
        else if (kind === Kind.finished) {
          const json = batch.maybe(at + FinishedAt.value);
          this.#settle();
          this.#resolve({ events: this.#events, value: json === undefined ? undefined : JSON.parse(json), json });
        } else if (kind === Kind.failed) {
          const error = failureOf(batch, at);
          this.#settle();
          this.#reject(aborted(error, this.#signal) ? this.#signal?.reason : error);
        }
      }
    }
  }

  broken(error: Error): void {
    this.#settle();
    this.#reject(error);
  }

  #settle(): void {
    this.#shell.forget(this.#op);
    this.#signal?.removeEventListener("abort", this.#abort);
  }
}

/** Whether the operation ended as it did because of the signal. */
export function aborted(error: BrocaError, signal: AbortSignal | undefined): boolean {
  return signal?.aborted === true && error.kind === "cancelled";
}

/** The error of a record that ends an operation. */
export function failureOf(batch: Batch, at: number): BrocaError {
  const details = batch.maybe(at + FailedAt.details);
  return errorOf({
    code: batch.word(at + FailedAt.code) | 0,
    kind: batch.slice(at + FailedAt.kind),
    message: batch.slice(at + FailedAt.message),
    retry: batch.slice(at + FailedAt.retry) as Retry,
    details: details === undefined ? undefined : (JSON.parse(details) as Record<string, unknown>),
  });
}

export function unexpected(doing: string): InternalError {
  return new InternalError(`${doing} came to the outcome of something else`);
}
