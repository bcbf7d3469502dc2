/** Reading a session: subscriptions, and its log page by page. */

import { ask, unexpected } from "./asking";
import type { Batch } from "./batch";
import { Event } from "./event";
import { strictJson } from "./json";
import { GapAt, Kind } from "./layout";
import type { Shell } from "./shell";
import type { Step } from "./steps";
import { Stream } from "./stream";
import { dropped, presentOther } from "./turn";

/** Where a subscription begins, and what ends it. */
export interface SubscribeOptions {
  /** After this cursor; "" is the start of the log. Left out: with what happens from now on. */
  from?: string | undefined;
  /** Ends the subscription; its loop throws the signal's reason. */
  signal?: AbortSignal | undefined;
}

/**
 * A session's events as they happen: an async iterable that outlives its connections and ends with the session.
 *
 * Every event comes once and in order; what cannot be had is a visible gap. A loop that is left early ends it.
 */
export class Subscription implements AsyncIterableIterator<Step, undefined, undefined> {
  readonly #core: Watch;

  /** @internal */
  constructor(shell: Shell, options: SubscribeOptions) {
    this.#core = new Watch(shell, options);
    if (!this.#core.isOver) dropped.register(this, this.#core, this.#core);
  }

  /**
   * Just after the last event handed out: store it to go on from there, in this process or another. Undefined before the
   * first event of a subscription that began with what happens from now on.
   */
  get cursor(): string | undefined {
    return this.#core.cursor;
  }

  /** The next step. */
  next(): Promise<IteratorResult<Step, undefined>> {
    return this.#core.next();
  }

  /** Ends the subscription. */
  async return(): Promise<IteratorResult<Step, undefined>> {
    await this.#core.dismiss();
    return { value: undefined, done: true };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#core.dismiss();
  }
}

class Watch extends Stream {
  protected readonly readsAhead = false;
  #cursor: string | undefined;
  /** The event whose id is the cursor, until somebody asks. */
  #last: Event | undefined;

  constructor(shell: Shell, { from, signal }: SubscribeOptions) {
    super(shell);
    this.#cursor = from;
    this.begin(signal, (reader) => shell.command(strictJson({ subscribe: { from: from ?? null } }, "the call"), reader));
  }

  get cursor(): string | undefined {
    if (this.#last !== undefined) {
      this.#cursor = this.#last.id;
      this.#last = undefined;
    }
    return this.#cursor;
  }

  protected seen(): void {}

  protected present(batch: Batch, at: number): Step | undefined {
    const kind = batch.kind(at);
    if (kind === Kind.event) {
      this.#last = new Event(batch, at);
      return this.#last;
    }
    if (kind === Kind.gap && batch.word(at + GapAt.lost) === CURSOR_LOST) {
      // The service forgot the cursor and begins again at the start of its log.
      this.#last = undefined;
      this.#cursor = "";
    }
    return presentOther(batch, at);
  }

  protected unattended(): void {}

  protected ended(): void {
    dropped.unregister(this);
  }
}

const CURSOR_LOST = 2;

/** A page of the log. */
export interface Page {
  /** Oldest first. */
  events: Event[];
  /** Where the next page begins; undefined at the end. */
  next: string | undefined;
}

/** Which page of the log. */
export interface HistoryOptions {
  /** The `next` of the page before; left out: the start of the log. */
  cursor?: string | undefined;
  /** At most this many events; the service's default otherwise. */
  limit?: number | undefined;
  signal?: AbortSignal | undefined;
}

/** Reads a page. */
export async function page(shell: Shell, { cursor, limit, signal }: HistoryOptions): Promise<Page> {
  const { events, value } = await ask(shell, { history: { cursor: cursor ?? null, limit: limit ?? null } }, signal);
  if (typeof value !== "object" || value === null || !("next" in value)) throw unexpected("reading the history");
  return { events, next: (value as { next: string | null }).next ?? undefined };
}

/**
 * The session's log: await it for one page, or loop over it for all events from there to the end.
 */
export class History implements PromiseLike<Page>, AsyncIterable<Event> {
  readonly #shell: Shell;
  readonly #options: HistoryOptions;
  #first: Promise<Page> | undefined;

  /** @internal */
  constructor(shell: Shell, options: HistoryOptions) {
    this.#shell = shell;
    this.#options = options;
  }

  then<A = Page, B = never>(
    fulfilled?: ((page: Page) => A | PromiseLike<A>) | null,
    rejected?: ((error: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    this.#first ??= page(this.#shell, this.#options);
    return this.#first.then(fulfilled, rejected);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Event, undefined, undefined> {
    for (let options: HistoryOptions = this.#options; ; ) {
      const { events, next } = await page(this.#shell, options);
      yield* events;
      if (next === undefined) return undefined;
      options = { ...options, cursor: next };
    }
  }
}
