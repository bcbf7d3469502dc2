/** Batches of records, read where they lie: one text, and one table of words (see layout.ts). */

import { ABSENT, Kind } from "./layout";
import type { RawBatch } from "./native";

/** A batch. Records are named by the word at which they begin. */
export class Batch {
  readonly text: string;
  readonly words: Uint32Array;

  constructor(raw: RawBatch) {
    this.text = raw[0];
    this.words = raw[1];
  }

  /** The kind of the record at this word. */
  kind(at: number): Kind {
    return this.words[at] as number as Kind;
  }

  /** The word at which the next record begins. */
  after(at: number): number {
    return at + (this.words[at + 1] as number);
  }

  /** A field of one word. */
  word(field: number): number {
    return this.words[field] as number;
  }

  /** A text or JSON field; "" when it is absent. */
  slice(field: number): string {
    const from = this.words[field] as number;
    return from === ABSENT ? "" : this.text.slice(from, from + (this.words[field + 1] as number));
  }

  /** A text or JSON field; undefined when it is absent. */
  maybe(field: number): string | undefined {
    return this.words[field] === ABSENT ? undefined : this.slice(field);
  }

  /** A number; undefined when it is absent. */
  number(field: number): number | undefined {
    const low = this.words[field] as number;
    const high = this.words[field + 1] as number;
    return low === ABSENT && high === ABSENT ? undefined : high * 0x1_0000_0000 + low;
  }
}
