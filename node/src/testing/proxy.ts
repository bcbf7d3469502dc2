/** A proxy that breaks the network on demand: `broca proxy`, driven by lines of JSON. */

import { type Line, Process } from "./process.js";

const ANSWER_TIMEOUT_MS = 30_000;

/** What a proxy has seen. */
export interface ProxyStatus {
  /** Connections so far, refused ones included. */
  connections: number;
  /** Connections that are open now. */
  open: number;
  /** Faults that were planned for single connections or responses and have not come to pass. */
  planned: number;
  /** Bytes of the service that were handed on so far. */
  bytes: number;
}

/** Knobs by the names of the vocabulary; what is undefined is left out. */
export type Knobs = Record<string, string | number | boolean | undefined>;

/** A proxy before a service. The vocabulary is described in the guide on testing. */
export class Proxy implements AsyncDisposable {
  /** Where clients connect. */
  readonly url: string;
  readonly #process: Process;
  #lastId = 0;
  #turn: Promise<unknown> = Promise.resolve();

  private constructor(process: Process, url: string) {
    this.#process = process;
    this.url = url;
  }

  /**
   * Starts one on a free port of 127.0.0.1.
   *
   * @param binary the path of the `broca` command
   * @param upstream `HOST:PORT` of the service
   * @throws ServerError when it cannot be started
   */
  static async start(
    binary: string,
    upstream: string,
    env: NodeJS.ProcessEnv = process.env,
    timeoutMs = 30_000,
  ): Promise<Proxy> {
    const child = new Process(binary, ["proxy", "--upstream", upstream], env, "the proxy");
    try {
      const ready = await child.listening(timeoutMs);
      return new Proxy(child, String(ready["url"]));
    } catch (error) {
      await child.kill();
      throw error;
    }
  }

  /** The id of its process. */
  get pid(): number {
    return this.#process.pid;
  }

  /**
   * Carries out one command of the vocabulary, such as `{ next: { cut_after_lines: 3 } }`, and returns its answer.
   *
   * @throws ServerError when the proxy refuses the command or has ended
   */
  async command(members: Line): Promise<Line> {
    const asked = this.#turn.then(() => this.#ask(members));
    // A command that failed must not fail the next one.
    this.#turn = asked.catch(() => {});
    return asked;
  }

  /** Sets knobs for the next `count` connections or responses; with null for all until healed. */
  async plan(knobs: Knobs, count: number | null): Promise<void> {
    await this.command(count === null ? { all: knobs } : { next: knobs, count });
  }

  /** Gives the port up, so that connections are refused, or listens again. */
  async listen(listening: boolean): Promise<void> {
    await this.command({ listen: listening });
  }

  /** Resets every connection that is open; returns how many. */
  async reset(): Promise<number> {
    return Number((await this.command({ reset: true }))["connections"]);
  }

  /** Silences every connection that is open until it is reset or healed; returns how many. */
  async stall(): Promise<number> {
    return Number((await this.command({ stall: true }))["connections"]);
  }

  /** Forgets every plan, lets silent connections go on, and listens. */
  async heal(): Promise<void> {
    await this.command({ heal: true });
  }

  /** What it has seen. */
  async status(): Promise<ProxyStatus> {
    const answer = await this.command({ status: true });
    const number = (name: keyof ProxyStatus) => Number(answer[name]);
    return {
      connections: number("connections"),
      open: number("open"),
      planned: number("planned"),
      bytes: number("bytes"),
    };
  }

  /** Ends it and every connection through it. Calling it again does nothing. */
  async stop(timeoutMs = 5_000): Promise<void> {
    await this.#process.end(timeoutMs);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }

  async #ask(members: Line): Promise<Line> {
    this.#lastId += 1;
    const id = this.#lastId;
    this.#process.write(JSON.stringify({ id, ...members }));
    const answer = await this.#process.line(ANSWER_TIMEOUT_MS);
    if (answer["id"] !== id || answer["error"] !== undefined) {
      throw this.#process.error(`refused a command: ${String(answer["error"] ?? "another id")}`);
    }
    return answer;
  }
}
