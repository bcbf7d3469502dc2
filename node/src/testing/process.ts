/** A process of the `broca` command that never outlives this one. */

import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import type { Socket } from "node:net";

/** What it says is kept for error messages up to so many characters. */
const KEPT = 64 * 1024;

/** The service or its proxy could not be started, has ended, or refused a command. */
export class ServerError extends Error {
  override name = "ServerError";
}

/** A line of JSON. */
export type Line = Record<string, unknown>;

interface Waiter {
  resolve(line: Line): void;
  reject(error: Error): void;
}

/**
 * `broca …` with lines of JSON on its output.
 *
 * It is started with a pipe as standard input and told to end with it. The write end of the pipe lives in this process
 * alone, so the system closes it however this process ends, `kill -9` included, on every platform. It keeps this process
 * alive only while an answer of it is waited for.
 */
export class Process {
  readonly #title: string;
  readonly #child: ChildProcessWithoutNullStreams;
  readonly #lines: Line[] = [];
  readonly #waiters: Waiter[] = [];
  readonly #closed: Promise<void>;
  #ending = "";
  #said = "";

  /** @param title what error messages call it, such as `the service` */
  constructor(binary: string, args: readonly string[], env: NodeJS.ProcessEnv, title: string) {
    this.#title = title;
    // Ctrl-C at the terminal is for the tests; the service goes with them.
    const detached = process.platform !== "win32";
    this.#child = spawn(binary, args, { env, detached, stdio: "pipe", windowsHide: true });
    this.#closed = new Promise((resolve) => {
      this.#child.once("close", (status, signal) => {
        this.#end(`ended with ${signal ?? `status ${status}`}`);
        resolve();
      });
      // Without a process there is no other event.
      this.#child.once("error", (error) => {
        this.#end(`cannot be started: ${error.message}`);
        resolve();
      });
    });
    // A process that has ended is told by its end.
    this.#child.stdin.on("error", () => {});
    let pending = "";
    this.#child.stdout.setEncoding("utf8").on("data", (text: string) => {
      this.#keep(text);
      const lines = (pending + text).split("\n");
      pending = lines.pop() ?? "";
      for (const line of lines) this.#take(line);
    });
    this.#child.stderr.setEncoding("utf8").on("data", (text: string) => this.#keep(text));
    this.#hold(false);
  }

  /** The process id; 0 when it could not be started. */
  get pid(): number {
    return this.#child.pid ?? 0;
  }

  /** What it printed lately on either stream. */
  get said(): string {
    return this.#said;
  }

  /**
   * The line that tells where it listens.
   *
   * @throws ServerError when it does not start, with all that it said
   */
  async listening(timeoutMs: number): Promise<Line> {
    const ready = await this.line(timeoutMs);
    if (ready["type"] === "listening") return ready;
    await this.end(5_000);
    throw this.error("did not start");
  }

  /**
   * The next line of its output.
   *
   * @throws ServerError when it ends or stays silent instead
   */
  async line(timeoutMs: number): Promise<Line> {
    const line = this.#lines.shift();
    if (line) return line;
    if (this.#ending) throw this.error(this.#ending);
    this.#hold(true);
    let timer: NodeJS.Timeout | undefined;
    try {
      return await new Promise<Line>((resolve, reject) => {
        const waiter = { resolve, reject };
        this.#waiters.push(waiter);
        timer = setTimeout(() => {
          this.#waiters.splice(this.#waiters.indexOf(waiter), 1);
          reject(this.error(`did not answer within ${timeoutMs} ms`));
        }, timeoutMs);
      });
    } finally {
      clearTimeout(timer);
      if (this.#waiters.length === 0) this.#hold(false);
    }
  }

  /** Hands it a line of input. */
  write(line: string): void {
    if (this.#ending) throw this.error(this.#ending);
    this.#child.stdin.write(`${line}\n`);
  }

  /** An error about it, with all that it said. */
  error(what: string): ServerError {
    const said = this.#said.trimEnd();
    return new ServerError(`${this.#title} ${what}${said ? `; it said:\n${said}` : ""}`);
  }

  /** Ends it at once, as a loss of power would. */
  async kill(): Promise<void> {
    this.#hold(true);
    this.#child.kill("SIGKILL");
    await this.#closed;
  }

  /** Asks it to end, and ends it when that takes longer. */
  async end(timeoutMs: number): Promise<void> {
    this.#hold(true);
    this.#child.stdin.end();
    const timer = setTimeout(() => this.#child.kill("SIGKILL"), timeoutMs);
    await this.#closed;
    clearTimeout(timer);
  }

  #take(text: string): void {
    if (text === "") return;
    let line: unknown;
    try {
      line = JSON.parse(text);
    } catch {
      line = undefined;
    }
    const waiter = this.#waiters.shift();
    if (typeof line !== "object" || line === null) {
      waiter?.reject(this.error("printed a line that is no JSON object"));
    } else if (waiter) {
      waiter.resolve(line as Line);
    } else {
      this.#lines.push(line as Line);
    }
  }

  #end(how: string): void {
    this.#ending ||= how;
    for (const waiter of this.#waiters.splice(0)) waiter.reject(this.error(this.#ending));
  }

  #keep(text: string): void {
    this.#said = (this.#said + text).slice(-KEPT);
  }

  /** Keeps this process alive for it, or not. */
  #hold(held: boolean): void {
    const { stdin, stdout, stderr } = this.#child;
    for (const part of [this.#child, stdin as Socket, stdout as unknown as Socket, stderr as unknown as Socket]) {
      if (held) part.ref();
      else part.unref();
    }
  }
}
