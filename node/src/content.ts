/** Messages and their content, and what a tool's result becomes in it. */

import { json } from "./json";

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
