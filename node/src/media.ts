/**
 * Images and files in messages and in results of tools.
 *
 * ```ts
 * await session.ask(["What is this?", await Image.open("cat.png")]);
 * ```
 */

import { readFile } from "node:fs/promises";
import { inspect } from "node:util";
import type { ContentBlock } from "./content";
import { calling, native } from "./native";

/** Lets `instanceof` know images and files of another copy of this package. */
const MEDIA = Symbol.for("@broca/sdk:media");

/** What images and files have in common: they are content blocks. */
abstract class Media implements ContentBlock {
  [member: string]: unknown;
  readonly type: string;

  /** @internal */
  constructor(json: string) {
    const block = JSON.parse(json) as ContentBlock;
    this.type = block.type;
    Object.assign(this, block);
    Object.defineProperty(this, MEDIA, { value: true });
  }

  /** What they hold is the user's: only the kind is shown. */
  [inspect.custom](): string {
    return this.constructor.name;
  }
}

/** An image. Its media type is what its bytes show, or the one that is given. */
export class Image extends Media {
  /** Throws InvalidArgumentError when nobody can tell what the bytes are. */
  constructor(data: Uint8Array, options: { mediaType?: string | undefined; name?: string | undefined } = {}) {
    super(block(data, false, options.mediaType, options.name));
  }

  /** The image in this file. */
  static async open(path: string, options: { mediaType?: string | undefined } = {}): Promise<Image> {
    return new Image(await readFile(path), { ...options, name: path });
  }

  /** An image that the model's provider fetches by itself. */
  static at(url: string): ContentBlock {
    return JSON.parse(calling(() => native.imageAt(url))) as ContentBlock;
  }
}

/** What is known about a file. */
export interface FileOptions {
  mediaType?: string | undefined;
  /** What the model calls it. */
  title?: string | undefined;
  /** The name of the file, which tells its media type where the bytes do not. */
  name?: string | undefined;
}

/** A file: text travels as text, everything else as bytes with a media type. */
export class File extends Media {
  /** Throws InvalidArgumentError when nobody can tell what the bytes are. */
  constructor(data: Uint8Array | string, options: FileOptions = {}) {
    const bytes = typeof data === "string" ? Buffer.from(data) : data;
    const mediaType = options.mediaType ?? (typeof data === "string" ? "text/plain" : undefined);
    super(block(bytes, true, mediaType, options.name, options.title));
  }

  /** This file. Its title is its name, if there is no other. */
  static async open(path: string, options: Omit<FileOptions, "name"> = {}): Promise<File> {
    return new File(await readFile(path), { ...options, name: path });
  }
}

/** Whether something is an image or a file. */
export function isMedia(value: unknown): value is ContentBlock {
  return typeof value === "object" && value !== null && (value as { [MEDIA]?: unknown })[MEDIA] === true;
}

function block(data: Uint8Array, isFile: boolean, mediaType?: string, name?: string, title?: string): string {
  return calling(() => native.mediaBlock(data, isFile, mediaType, name, title));
}
