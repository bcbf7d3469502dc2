/** A session service of the test's own. */

import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { findBinary } from "./binary.js";
import { Process, ServerError } from "./process.js";
import { Proxy, type ProxyStatus } from "./proxy.js";

/** A script of the built-in model: the path of a file of it, its content, or the list of its rules alone. */
export type Script = string | { rules: readonly unknown[]; [member: string]: unknown } | readonly unknown[];

/** How a service is started. */
export interface ServerOptions {
  /** What the built-in model says; without it, it follows its own rules. */
  script?: Script | undefined;
  /** Another model in its place, as with `broca serve --model`. */
  model?: string | undefined;
  /** Names of further client keys, one for each driver that shares a session with another. */
  keys?: readonly string[] | undefined;
  /**
   * The path of the `broca` command; without it the environment variable `BROCA_BINARY`, the package `@broca/server`
   * and `PATH` are asked, in this order.
   */
  binary?: string | undefined;
  /** Whole seconds that a turn waits for the results of tools. */
  turnTimeoutSeconds?: number | undefined;
  /** More options of `broca serve`. */
  options?: readonly string[] | undefined;
  /** More of its environment. Variables of this process that begin with `BROCA_` or `BAE_` are not handed on. */
  env?: Readonly<Record<string, string>> | undefined;
  /** Milliseconds that the start may take; 30,000 by default. */
  startTimeoutMs?: number | undefined;
}

/** For how many connections or responses a knob holds; null for all until {@link Server.heal}. */
export interface Counted {
  count?: number | null | undefined;
}

/** {@link Server.drop} */
export interface DropOptions extends Counted {
  /** With a reset, which is the default, or an orderly end. */
  how?: "reset" | "close" | undefined;
}

/** {@link Server.delay} */
export interface DelayOptions extends Counted {
  /** For both directions. */
  ms?: number | undefined;
  /** From the client to the service, in its place. */
  upMs?: number | undefined;
  /** From the service to the client, in its place. */
  downMs?: number | undefined;
}

/** {@link Server.stall} */
export interface StallOptions extends Counted {
  /** After so many lines of a stream. */
  afterLines?: number | undefined;
  /** After so many bytes of the body of a response. */
  afterBytes?: number | undefined;
  /** Only for the answer to a request that contains this text, such as `session.sendMessage`. */
  request?: string | undefined;
}

/** {@link Server.cut} */
export interface CutOptions extends StallOptions {
  /** With a reset in place of an orderly end; what was sent just before may be lost with it. */
  reset?: boolean | undefined;
}

/** {@link Server.buffer} */
export interface BufferOptions extends Counted {
  /** Only for the answer to a request that contains this text, such as `session.sendMessage`. */
  request?: string | undefined;
}

/** {@link Server.duplicate} */
export interface DuplicateOptions extends Counted {
  /** Counted from 1; the first by default. */
  line?: number | undefined;
  /** Only for the answer to a request that contains this text, such as `session.sendMessage`. */
  request?: string | undefined;
}

/** Folders of services that run, to be deleted when this process ends before they do. */
const folders = new Set<string>();

/**
 * A `broca serve` with a database and keys of its own, behind a proxy that breaks connections on demand.
 *
 * ```ts
 * await using server = await Server.start({ script: [{ then: { text: "Hello." } }] });
 * const client = new Client(server.url, { key: server.key });
 * await server.cut({ afterLines: 2 }); // the next stream breaks off after two lines
 * await server.restart(); // killed, and started again with what it had kept
 * ```
 *
 * Nothing outlives the test process: the service and the proxy end when their standard input does, and the system closes
 * that however the process ends. They do not keep it alive either. The temporary folder is deleted by {@link stop} and at
 * the end of the process, so only a process that is killed leaves one behind.
 *
 * Knobs say how often they hold: `count: 1` for the next connection or response, `count: null` for all until
 * {@link heal}. {@link drop} and {@link delay} concern connections. {@link cut}, {@link duplicate},
 * {@link buffer} and {@link stall} concern responses, on whichever connection, and what counts lines concerns only streams (NDJSON). Each knob holds when its
 * promise is fulfilled.
 */
export class Server implements AsyncDisposable {
  readonly #options: ServerOptions;
  readonly #binary: string;
  readonly #folder: string;
  readonly #env: NodeJS.ProcessEnv;
  readonly #keys: Record<string, string> = {};
  #service: Process | undefined;
  #proxy: Proxy | undefined;
  #directUrl = "";
  #key = "";
  #watchKey = "";

  private constructor(options: ServerOptions, binary: string, folder: string) {
    this.#options = options;
    this.#binary = binary;
    this.#folder = folder;
    const own = Object.entries(process.env).filter(([name]) => !/^(BROCA|BAE)_/i.test(name));
    this.#env = { ...Object.fromEntries(own), XDG_STATE_HOME: folder, ...options.env };
  }

  /**
   * Starts a service and waits until it listens.
   *
   * @throws ServerError when it cannot be found, is of another version or does not start, with what it printed
   */
  static async start(options: ServerOptions = {}): Promise<Server> {
    if (options.script !== undefined && options.model !== undefined) {
      throw new TypeError("script is for the built-in model: give script or model, not both");
    }
    const binary = await findBinary(options.binary);
    const folder = mkdtempSync(join(tmpdir(), "broca-test-"));
    if (folders.size === 0) process.once("exit", removeAll);
    folders.add(folder);
    const server = new Server(options, binary, folder);
    try {
      for (const name of options.keys ?? []) server.#keys[name] = await server.#makeKey(name);
      await server.#serve("127.0.0.1:0");
      const upstream = new URL(server.#directUrl).host;
      server.#proxy = await Proxy.start(binary, upstream, server.#env, server.#timeoutMs);
      return server;
    } catch (error) {
      await server.stop();
      throw error;
    }
  }

  /** Ends it, and deletes its database. Calling it again does nothing. */
  async stop(): Promise<void> {
    const [service, proxy] = [this.#service, this.#proxy];
    this.#service = this.#proxy = undefined;
    // The proxy first, so that no connection keeps the service.
    await proxy?.stop();
    await service?.end(5_000);
    remove(this.#folder);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }

  /**
   * Kills it, as a loss of power would, and starts it again with the same database, keys and port.
   *
   * Through {@link url} connections are refused in between. Planned faults stay planned.
   */
  async restart({ downMs = 0 }: { downMs?: number | undefined } = {}): Promise<void> {
    const { service, proxy } = this.#alive;
    await proxy.listen(false);
    await service.kill();
    if (downMs > 0) await sleep(downMs);
    await this.#serve(new URL(this.#directUrl).host);
    await proxy.listen(true);
  }

  /** The address for clients; it leads through the proxy, so the knobs hold. */
  get url(): string {
    return this.#alive.proxy.url;
  }

  /** The address of the service itself; the knobs do not hold. */
  get directUrl(): string {
    return this.#directUrl;
  }

  /** A client key for a driver. */
  get key(): string {
    return this.#key;
  }

  /** A second client key, for an observer: joining with a driver's key takes its tools away. */
  get watchKey(): string {
    return this.#watchKey;
  }

  /** The keys that were asked for by name. */
  get keys(): Readonly<Record<string, string>> {
    return this.#keys;
  }

  /** The process id of the service. */
  get pid(): number {
    return this.#alive.service.pid;
  }

  /** What the service printed lately, its log included. */
  get output(): string {
    return this.#alive.service.said;
  }

  /** Turns connections away as soon as they are made. */
  async drop({ count = 1, how = "reset" }: DropOptions = {}): Promise<void> {
    await this.#alive.proxy.plan({ drop: how }, count);
  }

  /** Gives the port up until {@link heal}, so that the system refuses connections. Those that are open stay. */
  async refuse(): Promise<void> {
    await this.#alive.proxy.listen(false);
  }

  /** Holds bytes back for so long in each direction; for all by default, and then on open connections too. */
  async delay({ ms = 0, upMs = ms, downMs = ms, count = null }: DelayOptions): Promise<void> {
    await this.#alive.proxy.plan({ delay_up_ms: upMs, delay_down_ms: downMs }, count);
  }

  /** Breaks the connection after so many lines of a stream, or bytes of the body of a response. */
  async cut({ afterLines, afterBytes, count = 1, request, reset = false }: CutOptions): Promise<void> {
    if ((afterLines === undefined) === (afterBytes === undefined)) {
      throw new TypeError("give afterLines or afterBytes; reset() ends what is open now");
    }
    const knobs = { cut_after_lines: afterLines, cut_after_bytes: afterBytes, request, reset };
    await this.#alive.proxy.plan(knobs, count);
  }

  /** Sends one line of a stream twice. */
  async duplicate({ line = 1, count = 1, request }: DuplicateOptions = {}): Promise<void> {
    await this.#alive.proxy.plan({ duplicate_line: line, request }, count);
  }

  /**
   * Holds a response back, its head included, until the service has ended it, as a proxy that buffers does. After {@link heal}
   * what was held back comes with the next bytes of the service.
   */
  async buffer({ count = 1, request }: BufferOptions = {}): Promise<void> {
    await this.#alive.proxy.plan({ buffer: true, request }, count);
  }

  /**
   * Falls silent and stays connected after so many lines or bytes of a response; without either at once, on every open
   * connection. What is held back comes after {@link heal}.
   */
  async stall({ afterLines, afterBytes, count = 1, request }: StallOptions = {}): Promise<void> {
    if (afterLines === undefined && afterBytes === undefined) {
      if (request !== undefined || count !== 1) {
        throw new TypeError("count and request need afterLines or afterBytes");
      }
      await this.#alive.proxy.stall();
      return;
    }
    const knobs = { stall_after_lines: afterLines, stall_after_bytes: afterBytes, request };
    await this.#alive.proxy.plan(knobs, count);
  }

  /** Lets the next ones through unharmed, before faults that are planned after this. */
  async skip({ connections = 0, responses = 0 }: { connections?: number; responses?: number }): Promise<void> {
    const { proxy } = this.#alive;
    if (connections > 0) await proxy.plan({ pass: "connection" }, connections);
    if (responses > 0) await proxy.plan({ pass: "response" }, responses);
  }

  /** Resets every connection that is open now; returns how many there were. */
  async reset(): Promise<number> {
    return this.#alive.proxy.reset();
  }

  /** Does no more harm: forgets every plan, lets silent connections go on, takes connections again. */
  async heal(): Promise<void> {
    await this.#alive.proxy.heal();
  }

  /** What the proxy has seen, such as how many planned faults have not come to pass. */
  async status(): Promise<ProxyStatus> {
    return this.#alive.proxy.status();
  }

  get #alive(): { service: Process; proxy: Proxy } {
    if (!this.#service || !this.#proxy) throw new ServerError("the server does not run: it was stopped");
    return { service: this.#service, proxy: this.#proxy };
  }

  get #timeoutMs(): number {
    return this.#options.startTimeoutMs ?? 30_000;
  }

  get #database(): string {
    return join(this.#folder, "broca.db");
  }

  /** Starts the service there and waits until it listens. */
  async #serve(address: string): Promise<void> {
    const args = ["serve", "--dev", "--json", "--addr", address, ...this.#arguments()];
    const service = new Process(this.#binary, args, this.#env, "the service");
    this.#service = service;
    const ready = await service.listening(this.#timeoutMs);
    this.#directUrl = String(ready["url"]);
    const keyFile = String(ready["key_file"]);
    this.#key = readFileSync(keyFile, "utf8").trim();
    this.#watchKey = readFileSync(join(dirname(keyFile), "watch-key"), "utf8").trim();
  }

  /** The options that each start of the service gets. */
  #arguments(): string[] {
    const { script, model, turnTimeoutSeconds, options } = this.#options;
    const args = ["--end-with-input", "--shutdown-timeout", "1", "--db", this.#database];
    if (script !== undefined) args.push("--model", `scripted:${this.#scriptFile(script)}`);
    if (model !== undefined) args.push("--model", model);
    if (turnTimeoutSeconds !== undefined) args.push("--turn-timeout", String(turnTimeoutSeconds));
    return [...args, ...(options ?? [])];
  }

  #scriptFile(script: Script): string {
    if (typeof script === "string") return resolve(script);
    const file = join(this.#folder, "script.json");
    writeFileSync(file, JSON.stringify("rules" in script ? script : { rules: script }));
    return file;
  }

  async #makeKey(name: string): Promise<string> {
    const args = ["key", "create", name, "--db", this.#database];
    const options = { env: this.#env, timeout: this.#timeoutMs };
    return new Promise((done, failed) => {
      execFile(this.#binary, args, options, (error, stdout, stderr) => {
        if (error) failed(new ServerError(`the key ${name} could not be made: ${stderr.trim() || error.message}`));
        else done(stdout.trim());
      });
    });
  }
}

function remove(folder: string): void {
  rmSync(folder, { recursive: true, force: true });
  folders.delete(folder);
  if (folders.size === 0) process.removeListener("exit", removeAll);
}

function removeAll(): void {
  for (const folder of folders) rmSync(folder, { recursive: true, force: true });
}
