/** Typed output: the model is told a JSON Schema, and its answer is looked at before anybody gets it. */

import type { Message, Plain } from "./content";
import { InvalidArgumentError, OutputInvalidError } from "./errors";
import { json } from "./json";
import { JsonChecker } from "./json-schema";
import type { Reply } from "./reply";
import { isValidator, validate, written, type JsonSchema, type Looked, type StandardSchema } from "./schema";
import type { SendOptions } from "./turn";

/** How a message is sent whose answer is to be a value. */
export interface OutputOptions<S extends JsonSchema | StandardSchema> extends SendOptions {
  /**
   * What the answer must fit: a JSON Schema, or a Standard Schema validator (zod, valibot, arktype …). Of a JSON Schema, keywords
   * that cannot be checked here are refused.
   */
  output: S;
  /** The JSON Schema that the model is told, for a validator that cannot write its own. */
  outputSchema?: JsonSchema | undefined;
  /** How often an answer that does not fit is sent back with what is wrong with it. Default 1. */
  repairs?: number | undefined;
}

/** An answer that is nested deeper is refused before anything looks into it. */
const DEEPEST = 256;

/** So many faults are told to the model, and so many characters of each. */
const FAULTS = 16;
const FAULT_CHARACTERS = 300;

/** An output that was asked for. */
export class Wanted {
  readonly #look: (value: unknown) => Looked | Promise<Looked>;
  readonly #rule: string;
  readonly repairs: number;

  /** Throws InvalidArgumentError for a schema that cannot be used. */
  constructor({ output, outputSchema, repairs = 1 }: OutputOptions<JsonSchema | StandardSchema>) {
    if ((typeof output !== "object" && typeof output !== "function") || output === null) {
      throw new InvalidArgumentError("the output must be a JSON Schema or a Standard Schema validator");
    }
    if (!Number.isSafeInteger(repairs) || repairs < 0) throw new InvalidArgumentError("repairs must be a whole number from 0 on");
    let schema: JsonSchema;
    if (isValidator(output)) {
      schema = outputSchema ?? written(output, "the output", "outputSchema");
      this.#look = (value) => validate(output, value);
    } else {
      schema = outputSchema ?? output;
      const checker = new JsonChecker(output);
      this.#look = (value) => checker.look(value);
    }
    this.#rule = `Answer with one JSON value and nothing else. It must fit this JSON Schema:\n${json(schema, "the schema of the output")}`;
    this.repairs = repairs;
  }

  /** The message with what the model has to know about its answer. */
  told(message: Plain): Plain {
    if (Array.isArray(message)) return [...message, { type: "text", text: this.#rule }];
    if (typeof message === "string") return `${message}\n\n${this.#rule}`;
    const { content } = (message as Message | null) ?? {};
    if (typeof content === "string") return { ...message, content: `${content}\n\n${this.#rule}` };
    if (!Array.isArray(content)) throw new InvalidArgumentError("a message is a text, or an object with content: a text or an array of blocks");
    return { ...message, content: [...content, { type: "text", text: this.#rule }] };
  }

  /** The value in an answer, or what is wrong with it. */
  async look(text: string): Promise<Looked> {
    const parsed = valueIn(text);
    return parsed.faults === undefined ? await this.#look(parsed.value) : parsed;
  }

  /** What the model is told about an answer that does not fit. */
  repair(faults: readonly string[]): string {
    const told = faults.slice(0, FAULTS).map((fault) => `- ${[...fault].slice(0, FAULT_CHARACTERS).join("").replace(/\p{Surrogate}/gu, "\ufffd")}`);
    if (faults.length > FAULTS) told.push(`- and ${faults.length - FAULTS} more`);
    return `Your answer cannot be used as it is:\n${told.join("\n")}\n\nAnswer again. ${this.#rule}`;
  }

  /** The error when no answer fits. It says nothing of what the model wrote; its reply and the session's log do. */
  unfit(faults: number, reply: Reply): OutputInvalidError {
    const again = this.repairs === 0 ? "" : `, also after it was told what was wrong with it (repairs: ${this.repairs})`;
    return new OutputInvalidError(
      `the model's answer does not fit the output that was asked for${again}; its last one has ${faults} ${faults === 1 ? "fault" : "faults"}. ` +
        "The session's log has the answers; a simpler schema, more repairs or another model may help.",
      { details: { faults, repairs: this.repairs }, reply },
    );
  }
}

/** The JSON value of an answer: all of it, or the last code block in it that is JSON. */
function valueIn(text: string): Looked {
  const blocks = blocksOf(text);
  const meant = blocks.at(-1) ?? text;
  let fault = "";
  for (const candidate of [...blocks, text].reverse()) {
    try {
      const value: unknown = JSON.parse(candidate);
      return isDeep(candidate) ? { faults: [`it is nested deeper than ${DEEPEST} levels`] } : { value };
    } catch (error) {
      if (candidate === meant) fault = `it is not JSON alone: ${(error as Error).message}`;
    }
  }
  return { faults: [fault] };
}

/** The insides of the code blocks of a text; of one that is not closed, all that follows. */
function blocksOf(text: string): string[] {
  const blocks: string[] = [];
  let fence: string | undefined;
  let lines: string[] = [];
  for (const line of text.split("\n")) {
    const trimmed = line.trim();
    const mark = /^(?:`{3,}|~{3,})/.exec(trimmed)?.[0];
    if (fence === undefined) {
      fence = mark;
      lines = [];
    } else if (mark === trimmed && mark.startsWith(fence)) {
      blocks.push(lines.join("\n"));
      fence = undefined;
    } else lines.push(line);
  }
  if (fence !== undefined) blocks.push(lines.join("\n"));
  return blocks;
}

/** Whether the JSON is nested too deep. */
function isDeep(text: string): boolean {
  let depth = 0;
  let quoted = false;
  for (let i = 0; i < text.length; i++) {
    const character = text[i];
    if (quoted) {
      if (character === "\\") i++;
      else if (character === '"') quoted = false;
    } else if (character === '"') quoted = true;
    else if (character === "{" || character === "[") {
      if (++depth > DEEPEST) return true;
    } else if (character === "}" || character === "]") depth--;
  }
  return false;
}
