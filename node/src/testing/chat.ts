/** The answer of a model's server, read as the session service reads it. */

import { calling, native } from "../native.js";

/** What became of an answer since it was asked last. */
export interface ChatUnits {
  /** In order; `unit` names the kind of each. */
  units: ({ unit: string } & Record<string, unknown>)[];
  /** What was odd, all so far. */
  warnings: { kind: string; times: number }[];
  /** Tokens as far as the provider said. */
  usage: Record<string, number> | null;
}

interface NativeStream {
  data(bytes: Uint8Array): void;
  end(): void;
  broken(): void;
  take(): string;
}

const { ChatStream: Native } = native as unknown as { ChatStream: new (status: number) => NativeStream };

/**
 * Reads one answer of a Chat Completions server. Feed it bytes as they come, say how the body ended, and take what they
 * became. An answer of another status than 2xx becomes one unit, `error`, when it has ended.
 */
export class ChatStream {
  readonly #stream: NativeStream;

  constructor(status = 200) {
    this.#stream = calling(() => new Native(status));
  }

  /** The next bytes of the body. */
  data(bytes: Uint8Array): void {
    calling(() => this.#stream.data(bytes));
  }

  /** The body ended cleanly. */
  end(): void {
    calling(() => this.#stream.end());
  }

  /** The connection broke. */
  broken(): void {
    calling(() => this.#stream.broken());
  }

  /** What came since the last call. */
  take(): ChatUnits {
    return JSON.parse(this.takeJson()) as ChatUnits;
  }

  /** The same as text, where integers above 2⁵³ survive. */
  takeJson(): string {
    return calling(() => this.#stream.take());
  }
}
