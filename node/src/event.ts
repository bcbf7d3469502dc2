/** Events: what a session has logged. */

import { Batch } from "./batch";
import { EventAt } from "./layout";
import { calling, native } from "./native";
import { Shown } from "./shown";

/** Something the session logged. Its id is the cursor after it. Types of the future come too. */
export class Event extends Shown {
  readonly #batch: Batch;
  readonly #at: number;

  /** @internal */
  constructor(batch: Batch, at: number) {
    super();
    this.#batch = batch;
    this.#at = at;
  }

  get kind(): "event" {
    return "event";
  }
  get id(): string {
    return this.#batch.slice(this.#at + EventAt.id);
  }
  get type(): string {
    return this.#batch.slice(this.#at + EventAt.event_type);
  }
  get sessionId(): string {
    return this.#batch.slice(this.#at + EventAt.session_id);
  }
  get clientKeyId(): string | undefined {
    return this.#batch.maybe(this.#at + EventAt.client_key_id);
  }
  /** When, as the service writes it: RFC 3339. */
  get createdAt(): string {
    return this.#batch.slice(this.#at + EventAt.created_at);
  }
  /** What happened, parsed anew each time it is read. */
  get payload(): Record<string, any> {
    return JSON.parse(this.payloadJson) as Record<string, any>;
  }
  /** The payload as it came. */
  get payloadJson(): string {
    return this.#batch.slice(this.#at + EventAt.payload);
  }
  /** The whole event as it came. */
  get json(): string {
    return this.#batch.slice(this.#at + EventAt.raw);
  }

  protected fields(): object {
    const { id, type, sessionId, clientKeyId, createdAt, payload } = this;
    return { id, type, sessionId, clientKeyId, createdAt, payload };
  }
}

/** The records of a batch that holds nothing but events. */
export function eventsIn(batch: Batch): Event[] {
  const events: Event[] = [];
  for (let at = 0; at < batch.words.length; at = batch.after(at)) events.push(new Event(batch, at));
  return events;
}

/** The events of a JSON array; one that cannot be read is left out. */
export function eventsOf(array: string): Event[] {
  return eventsIn(new Batch(calling(() => native.Engine.eventsOf(array))));
}
