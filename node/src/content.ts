/** Messages and their content, and what a tool's result becomes in it. */

import { json } from "./json";
import { isMedia } from "./media";

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

/** Content blocks as a tool's result; a text is a block of text. */
export function content(...parts: (ContentBlock | string)[]): Content {
  return new Content(parts.map(blockOf));
}

/** What can be sent: a text, a list of texts, images, files and blocks, or a whole message. */
export type Sent = string | Message | readonly (ContentBlock | string)[];

/** What is sent, with blocks in the place of texts in a list. */
export type Plain = string | Message | ContentBlock[];

/** What is sent, plainly. */
export function sentOf(message: Sent): Plain {
  if (isMedia(message)) return [message];
  return Array.isArray(message) ? message.map(blockOf) : (message as string | Message);
}

function blockOf(part: ContentBlock | string): ContentBlock {
  return typeof part === "string" ? { type: "text", text: part } : part;
}

/** A result that is an answer already. @internal */
export class Answered {
  constructor(
    readonly word: string,
    readonly value: string,
  ) {}
}

/** The answer that a tool's result is. */
export function completion(result: unknown): [word: string, value: string] {
  if (typeof result === "string") return ["complete_text", result];
  if (result instanceof Answered) return [result.word, result.value];
  if (isMedia(result)) return ["complete", json([result], "the content")];
  if (Array.isArray(result) && result.some(isMedia)) return ["complete", json(result.map(blockOf), "the content")];
  if (result instanceof Content) return ["complete", json(result.blocks, "the content")];
  return ["complete_text", result === undefined ? "null" : json(result, "the result")];
}
