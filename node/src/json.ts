/** Values of the application as JSON text. */

import { InvalidArgumentError } from "./errors";

/** A value as JSON text, as JSON.stringify writes it; throws InvalidArgumentError for one that cannot be written. */
export function json(value: unknown, what: string): string {
  return stringify(value, what);
}

/** The same for options and commands, where a number that JSON has no word for is refused: it would be written as null, and mean the default. */
export function strictJson(value: unknown, what: string): string {
  return stringify(value, what, (name, member) => {
    if (typeof member === "number" && !Number.isFinite(member)) {
      throw new InvalidArgumentError(`${what} cannot be used: "${name}" is ${member}; leave it out for its default`);
    }
    return member;
  });
}

function stringify(value: unknown, what: string, replace?: (name: string, member: unknown) => unknown): string {
  let text: string | undefined;
  try {
    text = JSON.stringify(value, replace);
  } catch (cause) {
    if (cause instanceof InvalidArgumentError) throw cause;
    throw new InvalidArgumentError(`${what} cannot be written as JSON`, { cause });
  }
  if (text === undefined) throw new InvalidArgumentError(`${what} cannot be written as JSON: it is ${typeof value}`);
  return text;
}
