/** What steps have in common: they can be printed without what people and models said in them. */

import { inspect } from "node:util";

/** Members that hold what people and models said: never in a log, so not in what is printed. */
const PAYLOADS = new Set(["payload", "json", "delta", "input", "text", "output"]);

/** The same members as they are printed. */
export function printed(fields: object): object {
  const said = (name: string, value: unknown): boolean => PAYLOADS.has(name) || (name === "message" && typeof value === "object");
  return Object.fromEntries(Object.entries(fields).map(([name, value]) => [name, said(name, value) ? new Unprinted() : value]));
}

class Unprinted {
  [inspect.custom](): string {
    return "[payload]";
  }
}

/** Shows what a step is when it is printed, without what it says; `JSON.stringify` gives all of it. */
export abstract class Shown {
  abstract readonly kind: string;

  /** What toJSON() gives, and printing without payloads. @internal */
  protected abstract fields(): object;

  toJSON(): object {
    return { kind: this.kind, ...this.fields() };
  }

  [inspect.custom](_depth: number, options: object): string {
    return `${this.constructor.name} ${inspect(printed(this.fields()), options)}`;
  }
}
