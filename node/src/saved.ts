/** A session as a value that outlives its program. */

import { inspect } from "node:util";

/**
 * A saved session: what another program needs to go on with it, in any language.
 *
 * It holds the session's key and results of tools. Printing it and writing it as JSON show which session it is and nothing else;
 * `expose()` gives the text to keep, where keys are kept.
 */
export class SavedSession {
  /** The session's id. */
  readonly sessionId: string;
  readonly #text: string;

  /** @internal */
  constructor(sessionId: string, text: string) {
    this.sessionId = sessionId;
    this.#text = text;
  }

  /** The text, a JSON object, for {@link Client.attach} here or elsewhere. **It is a secret.** */
  expose(): string {
    return this.#text;
  }

  toString(): string {
    return `SavedSession(${this.sessionId})`;
  }

  toJSON(): object {
    return { sessionId: this.sessionId };
  }

  [inspect.custom](): string {
    return this.toString();
  }
}
