/** The steps of one operation as an async iterator, taken in batches and handed out one by one. */

import type { Batch } from "./batch";
import { aborted, failureOf } from "./asking";
import { type BrocaError } from "./errors";
import { Kind } from "./layout";
import type { Reader, Shell } from "./shell";
import type { Step } from "./steps";

/** Steps handed out in a row before the event loop gets a turn. */
const BURST = 256;

type Result = IteratorResult<Step, undefined>;

interface Waiter {
  resolve(result: Result | Promise<Result>): void;
  reject(error: unknown): void;
}

/**
 * An operation's steps. Those that wait in the batch in hand come without suspending; the rest stays in the
 * engine, which applies its bounds.
 */
export abstract class Stream implements Reader {
  protected readonly shell: Shell;
  /** 0 when the call itself was refused. */
  #op = 0;
  #batch: Batch | undefined;
  #at = 0;
  #waiters: Waiter[] = [];
  #burst = 0;
  #yielding = false;
  /** The engine has said that steps wait, and none were taken since. */
  #announced = false;
  #pulling = false;
  /** Nothing follows; next() says what the operation failed with, once. */
  #over = false;
  #failure: { error: unknown } | undefined;
  #told = false;
  #signal: AbortSignal | undefined;
  readonly #abort = (): void => this.cancel();
  /** Steps are thrown away. */
  #left = false;
  #ends: (() => void)[] = [];
  /** What a left operation failed with, if not by being left. */
  protected failedBefore: unknown;

  constructor(shell: Shell) {
    this.shell = shell;
  }

  /** Begins; what is wrong with the call itself is its first and only outcome. */
  protected begin(signal: AbortSignal | undefined, begin: (reader: Reader) => void): void {
    try {
      signal?.throwIfAborted();
      this.#signal = signal;
      begin(this);
    } catch (error) {
      this.#over = true;
      this.#failure = { error };
    }
  }

  begun(op: number): void {
    this.#op = op;
    this.#signal?.addEventListener("abort", this.#abort, { once: true });
  }

  get isOver(): boolean {
    return this.#over;
  }

  /** The next step; after the last, or after an error, nothing. */
  next(): Promise<Result> {
    if (this.#waiters.length === 0) {
      if (this.#burst >= BURST) return this.#afterTheLoop();
      const step = this.#take();
      if (step !== undefined) {
        this.#burst += 1;
        return Promise.resolve({ value: step, done: false });
      }
      if (this.#over) return this.#last();
    }
    this.#burst = 0;
    return new Promise((resolve, reject) => this.#waiters.push({ resolve, reject }));
  }

  /** Asks for the end, without waiting. */
  cancel(): void {
    if (!this.#over && this.#op !== 0) this.shell.cancel(this.#op);
  }

  /** Nobody asks for steps any more: a loop that ends itself is not told what the operation failed with. */
  dismiss(): Promise<void> {
    this.#told = true;
    return this.leave();
  }

  /** Whoever waited has been told what the operation failed with; whoever asks from here on sees its end. */
  protected settled(): void {
    this.#told = true;
  }

  /** Cancels, throws away what still comes, and resolves when the operation is over. A loop that still asks is told so. */
  leave(): Promise<void> {
    if (this.#over) return Promise.resolve();
    const quiet = new Promise<void>((resolve) => this.#ends.push(resolve));
    if (!this.#left) {
      this.#left = true;
      this.cancel();
      this.drain();
    }
    return quiet;
  }

  /** Resolves when the operation is over; gives what it failed with, however often it is asked. */
  protected async end(): Promise<{ error: unknown } | undefined> {
    if (!this.#over) await new Promise<void>((resolve) => this.#ends.push(resolve));
    this.#told = true;
    return this.#failure;
  }

  protected get isLeft(): boolean {
    return this.#left;
  }

  /** Whether steps are handled as they come, and not handed out. */
  protected get isUnattended(): boolean {
    return this.#left;
  }

  wake(): void {
    this.#announced = true;
    // What is left beside the batch that is being taken is announced at once; it is taken after that batch.
    if (this.#pulling) return;
    if (this.isUnattended) {
      this.drain();
      return;
    }
    if (this.#yielding) return;
    if (this.#waiters.length > 0) this.#serve();
    else if (this.readsAhead && this.#isDry()) this.#pull();
  }

  broken(error: Error): void {
    this.#op = 0;
    this.#finish({ error });
    this.#serve();
  }

  /** Handles everything that waits, without handing it out. */
  protected drain(): void {
    for (;;) {
      const batch = this.#batch;
      if (batch === undefined || this.#at >= batch.words.length) {
        if (this.#over || !this.#pull()) break;
        continue;
      }
      const at = this.#at;
      this.#at = batch.after(at);
      if (!this.#isEnd(batch, at)) this.unattended(batch, at);
    }
    this.#serve();
  }

  /** Whether a batch is taken before somebody asks for it: its calls are started then. */
  protected abstract readonly readsAhead: boolean;
  /** Sees each record of a batch as soon as it is taken. */
  protected abstract seen(batch: Batch, at: number): void;
  /** The step of a record; undefined for one that is not to be shown. */
  protected abstract present(batch: Batch, at: number): Step | undefined;
  /** Handles a record that nobody is shown. */
  protected abstract unattended(batch: Batch, at: number): void;
  /** The operation is over. */
  protected abstract ended(): void;

  #isDry(): boolean {
    return !this.#over && (this.#batch === undefined || this.#at >= this.#batch.words.length);
  }

  #take(): Step | undefined {
    for (;;) {
      const batch = this.#batch;
      if (batch === undefined || this.#at >= batch.words.length) {
        if (this.#over || !this.#pull()) return undefined;
        continue;
      }
      const at = this.#at;
      this.#at = batch.after(at);
      if (this.#isEnd(batch, at)) return undefined;
      const step = this.present(batch, at);
      if (step !== undefined) return step;
    }
  }

  /** Takes a batch; false when none is there. */
  #pull(): boolean {
    if (this.#op === 0 || !this.#announced) return false;
    this.#announced = false;
    this.#pulling = true;
    const batch = this.shell.steps(this.#op);
    this.#pulling = false;
    if (batch === undefined) return false;
    this.#batch = batch;
    this.#at = 0;
    for (let at = 0; at < batch.words.length; at = batch.after(at)) {
      const kind = batch.kind(at);
      if (kind !== Kind.finished && kind !== Kind.failed) this.seen(batch, at);
      else if (kind === Kind.finished) this.#signal?.removeEventListener("abort", this.#abort);
    }
    return true;
  }

  /** Whether the record ends the operation. */
  #isEnd(batch: Batch, at: number): boolean {
    const kind = batch.kind(at);
    if (kind === Kind.finished) {
      this.#finish(undefined);
      return true;
    }
    if (kind !== Kind.failed) return false;
    const error: BrocaError = failureOf(batch, at);
    this.#finish({ error: aborted(error, this.#signal) ? this.#signal?.reason : error });
    return true;
  }

  #finish(failure: { error: unknown } | undefined): void {
    if (this.#over) return;
    this.#over = true;
    this.#failure = failure;
    this.#batch = undefined;
    if (this.#left && failure !== undefined && (failure.error as { kind?: unknown } | null)?.kind !== "cancelled") this.failedBefore = failure.error;
    if (this.#op !== 0) this.shell.forget(this.#op);
    this.#signal?.removeEventListener("abort", this.#abort);
    this.ended();
    for (const end of this.#ends.splice(0)) end();
  }

  /** Gives those who wait what is there. */
  #serve(): void {
    while (this.#waiters.length > 0) {
      const step = this.isUnattended ? undefined : this.#take();
      if (step === undefined && !this.#over) return;
      const waiter = this.#waiters.shift() as Waiter;
      waiter.resolve(step === undefined ? this.#last() : { value: step, done: false });
    }
  }

  /** What is said when no step follows: the error once, then the end. */
  #last(): Promise<Result> {
    const failure = this.#told ? undefined : this.#failure;
    this.#told = true;
    return failure === undefined ? Promise.resolve({ value: undefined, done: true }) : Promise.reject(failure.error);
  }

  /** Gives the event loop a turn before the next step. */
  #afterTheLoop(): Promise<Result> {
    this.#burst = 0;
    this.#yielding = true;
    return new Promise((resolve, reject) => {
      this.#waiters.push({ resolve, reject });
      setImmediate(() => {
        this.#yielding = false;
        if (this.isUnattended) this.drain();
        else this.#serve();
      });
    });
  }
}
