/**
 * The shell of one engine: it owns sockets and clock and carries effects out. It decides nothing.
 *
 * Inputs go to the native engine and come back as effects in one shared table (layout.ts). Whoever waits for steps of an
 * operation is woken after the effects were carried out, so nothing of the application runs between them.
 */

import { randomBytes } from "node:crypto";
import { lookup } from "node:dns";
import type { ConnectionOptions } from "node:tls";
import { Batch } from "./batch";
import { thrown } from "./errors";
import { ABSENT, BusyAt, CloseAt, ConnectAt, Kind, LogAt, LogDroppedAt, PauseReadAt, ReadyAt, ResolveAt, ResumeReadAt, StartTlsAt, TimerAt, WriteAt } from "./layout";
import { calling, native, type Engine } from "./native";
import { Connection, type CloseReason, type Ears } from "./socket";
import type { Answers } from "./calls";
import type { Trace } from "./hooks";

/** Somebody who takes the steps of one operation. */
export interface Reader {
  /** The operation has this number. */
  begun(op: number): void;
  /** Steps wait. Must not throw. */
  wake(): void;
  /** Nothing comes any more: the engine has failed. */
  broken(error: Error): void;
}

/** A line for the application's log: never keys, never payloads. */
export interface LogRecord {
  level: "debug" | "info" | "warning";
  message: string;
}

/** What a shell is made of. */
export interface Setup {
  /** Options of the engine as JSON. */
  options: string;
  tls: ConnectionOptions;
  log: ((record: LogRecord) => void) | undefined;
  /** How long an answer is looked for without sleeping, in milliseconds. */
  awakeMs: number;
}

/** Where engines lay their effects: one for all, because it is read before anything else happens. */
const TABLE = new Uint32Array(1024);

/** The longest time that a timer of Node can be set to. */
const LONGEST_MS = 0x7fff_ffff;

/** Bytes of steps in one batch, about. */
const BATCH_BYTES = 256 * 1024;

/** Keeps the process alive while any engine works: a promise alone does not, and sockets and timers here do not. */
const keeper = {
  busy: 0,
  timer: undefined as NodeJS.Timeout | undefined,
  change(by: 1 | -1): void {
    this.busy += by;
    if (this.busy > 0 && by > 0) (this.timer ??= setInterval(() => {}, LONGEST_MS)).ref();
    else if (this.busy === 0) this.timer?.unref();
  },
};

/** Keeps the loop from sleeping while something to be called waits: it only looks what has come. One for all sessions. */
const vigil = {
  until: 0,
  looking: false,
  stayAwake(until: number): void {
    this.until = until;
    if (this.looking) return;
    this.looking = true;
    setImmediate(look);
  },
};

function look(): void {
  if (now() < vigil.until) setImmediate(look);
  else vigil.looking = false;
}

/** The milliseconds of a clock that never goes back. */
function now(): number {
  return performance.now();
}

export class Shell implements Answers, Ears {
  readonly #engine: Engine;
  readonly #setup: Setup;
  readonly #connections = new Map<number, Connection>();
  readonly #readers = new Map<number, Reader>();
  /** Operations whose steps wait, until the effects in hand are carried out. */
  #ready: number[] = [];
  /** Inputs that came up while effects were carried out. */
  #inputs: (() => number)[] = [];
  #performing = false;
  #waking = false;
  #busy = false;
  /** When the engine wants to be told the time, and when the timer will go off. */
  #due = Infinity;
  #armed = Infinity;
  #timer: NodeJS.Timeout | undefined;
  #failure: Error | undefined;
  /** When the last request left; 0 when its answer has begun to come. */
  #asked = 0;
  /** The last answer came so soon that it would not have paid to sleep. */
  #quick = false;
  /** Sockets are let go as soon as nothing is under way. */
  #retired = false;

  /** Throws InvalidArgumentError for options that cannot be used. */
  constructor(setup: Setup) {
    this.#setup = setup;
    const seed = randomBytes(8);
    this.#engine = calling(
      () => new native.Engine(setup.options, seed.readUInt32LE(0), seed.readUInt32LE(4), Date.now(), TABLE),
    );
  }

  /** Begins an operation; throws for one that cannot be. */
  command(json: string, reader: Reader, trace?: Trace): void {
    if (this.#failure !== undefined) throw this.#failure;
    const op = calling(() => this.#engine.command(json, now(), trace?.traceparent ?? null, trace?.tracestate ?? null));
    reader.begun(op);
    this.#readers.set(op, reader);
    this.#retired = false;
    this.#input(() => this.#engine.effects());
  }

  /** Asks an operation to end; it still finishes. */
  cancel(op: number): void {
    this.#input(() => this.#engine.cancel(op, now()));
  }

  answer(call: number, word: string, value: string | null, trace?: Trace): boolean {
    if (this.#failure !== undefined) return false;
    const accepted = calling(() => this.#engine.answer(call, word, value, now(), trace?.traceparent ?? null, trace?.tracestate ?? null));
    this.#input(() => this.#engine.effects());
    return accepted;
  }

  /** Takes steps of an operation that wait. */
  steps(op: number): Batch | undefined {
    if (this.#failure !== undefined) return undefined;
    try {
      const raw = this.#engine.steps(op, BATCH_BYTES);
      this.#input(() => this.#engine.effects());
      return raw === null ? undefined : new Batch(raw);
    } catch (error) {
      this.#break(error);
      return undefined;
    }
  }

  /** The operation's end was taken. */
  forget(op: number): void {
    this.#readers.delete(op);
  }

  /** Lets go of the sockets as soon as nothing is under way. */
  retire(): void {
    this.#retired = true;
    if (!this.#busy) this.#letGo();
  }

  // What sockets say.

  connected(conn: number): void {
    this.#input(() => this.#engine.connected(conn, now()));
  }

  tlsStarted(conn: number): void {
    this.#input(() => this.#engine.tlsStarted(conn, now()));
  }

  data(conn: number, buffer: Uint8Array, size: number): void {
    if (this.#failure !== undefined) return;
    let effects: number;
    const time = now();
    if (this.#asked > 0) {
      this.#quick = time - this.#asked < this.#setup.awakeMs;
      this.#asked = vigil.until = 0;
    }
    try {
      effects = this.#engine.data(conn, buffer, size, time);
    } catch (error) {
      this.#break(error);
      return;
    }
    if (effects !== 0) this.#perform(effects);
  }

  written(conn: number, size: number): void {
    this.#input(() => this.#engine.written(conn, size, now()));
  }

  closed(conn: number, why: CloseReason): void {
    this.#connections.delete(conn);
    this.#input(() => this.#engine.closed(conn, why, now()));
  }

  /** Gives the engine an input and carries out what follows; later, if effects are being carried out. */
  #input(give: () => number): void {
    if (this.#failure !== undefined) return;
    if (this.#performing) {
      this.#inputs.push(give);
      return;
    }
    let effects: number;
    try {
      effects = give();
    } catch (error) {
      this.#break(error);
      return;
    }
    if (effects !== 0) this.#perform(effects);
  }

  #perform(effects: number): void {
    this.#performing = true;
    try {
      while (effects !== 0) {
        if (effects > 0) this.#carryOut(TABLE, effects, undefined);
        else this.#carryOut(TABLE.slice(0, -effects), -effects, this.#engine.effectText());
        effects = this.#engine.effects();
        while (effects === 0 && this.#inputs.length > 0) effects = (this.#inputs.shift() as () => number)();
      }
    } catch (error) {
      this.#break(error);
    } finally {
      this.#performing = false;
    }
    if (this.#setup.log !== undefined) this.#showLogs(this.#setup.log);
    this.#wakeReaders();
  }

  #wakeReaders(): void {
    if (this.#waking) return;
    this.#waking = true;
    try {
      for (let i = 0; i < this.#ready.length; i++) this.#readers.get(this.#ready[i] as number)?.wake();
    } finally {
      this.#ready.length = 0;
      this.#waking = false;
    }
  }

  #carryOut(words: Uint32Array, count: number, text: Buffer | undefined): void {
    const number = (field: number): number => (words[field + 1] as number) * 0x1_0000_0000 + (words[field] as number);
    const bytes = (field: number): Buffer => {
      const from = words[field] as number;
      return (text as Buffer).subarray(from, from + (words[field + 1] as number));
    };
    for (let at = 0; at < count; at += words[at + 1] as number) {
      switch (words[at] as number as Kind) {
        case Kind.ready:
          this.#ready.push(number(at + ReadyAt.op));
          break;
        case Kind.timer: {
          const none = words[at + TimerAt.at] === ABSENT && words[at + TimerAt.at + 1] === ABSENT;
          this.#due = none ? Infinity : number(at + TimerAt.at);
          this.#arm();
          break;
        }
        case Kind.write:
          this.#asked = now();
          this.#connections.get(number(at + WriteAt.conn))?.write(bytes(at + WriteAt.bytes));
          if (this.#quick) vigil.stayAwake(this.#asked + this.#setup.awakeMs);
          break;
        case Kind.busy:
          this.#setBusy(words[at + BusyAt.busy] === 1);
          break;
        case Kind.resolve:
          this.#resolve(number(at + ResolveAt.req), bytes(at + ResolveAt.host).toString());
          break;
        case Kind.connect: {
          const conn = number(at + ConnectAt.conn);
          const serverName = words[at + ConnectAt.server_name] === ABSENT ? undefined : bytes(at + ConnectAt.server_name).toString();
          const address = bytes(at + ConnectAt.address).toString();
          const port = words[at + ConnectAt.port] as number;
          this.#connections.set(conn, new Connection(conn, address, port, serverName, this.#setup.tls, this));
          break;
        }
        case Kind.start_tls:
          this.#connections.get(number(at + StartTlsAt.conn))?.startTls(bytes(at + StartTlsAt.server_name).toString());
          break;
        case Kind.pause_read:
          this.#connections.get(number(at + PauseReadAt.conn))?.pause(true);
          break;
        case Kind.resume_read:
          this.#connections.get(number(at + ResumeReadAt.conn))?.pause(false);
          break;
        case Kind.close: {
          const conn = number(at + CloseAt.conn);
          this.#connections.get(conn)?.close(words[at + CloseAt.abort] === 1);
          this.#connections.delete(conn);
          break;
        }
        default: // a kind of a newer engine: skipped, as the layout says
      }
    }
  }

  #resolve(req: number, host: string): void {
    lookup(host, { all: true }, (error, addresses) => {
      const found = error === null ? addresses.map((each) => each.address) : null;
      this.#input(() => this.#engine.resolved(req, found, error?.message ?? null, now()));
    });
  }

  /** Of a later time the timer finds out by itself when it goes off. */
  #arm(): void {
    if (this.#due >= this.#armed) return;
    clearTimeout(this.#timer);
    this.#armed = this.#due;
    const wait = Math.min(Math.max(Math.ceil(this.#due - now()), 1), LONGEST_MS);
    this.#timer = setTimeout(() => this.#goOff(), wait).unref();
  }

  #goOff(): void {
    this.#armed = Infinity;
    this.#timer = undefined;
    const time = now();
    if (this.#due <= time) this.#input(() => this.#engine.timeout(time));
    this.#arm();
  }

  #setBusy(busy: boolean): void {
    if (busy === this.#busy) return;
    this.#busy = busy;
    keeper.change(busy ? 1 : -1);
    if (!busy && this.#retired) this.#letGo();
  }

  #letGo(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#armed = Infinity;
    this.#due = Infinity;
    for (const [conn, connection] of [...this.#connections]) {
      connection.close(false);
      this.closed(conn, "eof");
    }
  }

  /** The engine has failed: everything that waits for it fails with it. */
  #break(error: unknown): void {
    const failure = thrown(error) as Error;
    this.#failure = failure;
    this.#inputs = [];
    this.#setBusy(false);
    clearTimeout(this.#timer);
    for (const connection of this.#connections.values()) connection.close(true);
    this.#connections.clear();
    const readers = [...this.#readers.values()];
    this.#readers.clear();
    for (const reader of readers) reader.broken(failure);
  }

  #showLogs(log: (record: LogRecord) => void): void {
    const raw = this.#engine.logs();
    if (raw === null) return;
    const batch = new Batch(raw);
    for (let at = 0; at < batch.words.length; at = batch.after(at)) {
      const record: LogRecord =
        batch.kind(at) === Kind.log_dropped
          ? { level: "warning", message: `${batch.number(at + LogDroppedAt.count) ?? 0} log records were dropped` }
          : { level: (["debug", "info", "warning"] as const)[batch.word(at + LogAt.level)] ?? "warning", message: batch.slice(at + LogAt.message) };
      // Not from inside: a handler that throws is the application's own uncaught error, not a fault of the session.
      queueMicrotask(() => log(record));
    }
  }
}
