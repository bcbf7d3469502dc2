/**
 * Tools of MCP servers on the program's side, brought like any other tool:
 *
 * ```ts
 * const session = await client.open({ tools: [readFile, mcp("npx -y @some/server"), mcp("https://host/mcp")] });
 * ```
 *
 * The package `@modelcontextprotocol/sdk` speaks to the servers; it is an optional peer, and loaded when a session is opened so.
 */

import type { ChildProcess } from "node:child_process";
import { basename } from "node:path";
import { inspect } from "node:util";
import { Answered } from "./content";
import { BrocaError, InvalidArgumentError, TransportError, UsageError } from "./errors";
import { calling, native } from "./native";
import type { JsonSchema } from "./schema";
import { Misfit, tool, ToolInterrupted, type Brought, type Tool, type ToolContext } from "./tools";

/** What an MCP server says of one of its tools. All of it is the server's word, and so are the hints. */
export interface McpTool {
  /** The server, by the name that it has here. */
  readonly server: string;
  /** The tool's name at the server, without a prefix. */
  readonly name: string;
  readonly description: string;
  readonly inputSchema: JsonSchema;
  /** It changes nothing. */
  readonly readOnly: boolean | undefined;
  /** It may destroy what was there. */
  readonly destructive: boolean | undefined;
  /** Calling it again changes nothing more. */
  readonly idempotent: boolean | undefined;
  /** It reaches things outside the server. */
  readonly openWorld: boolean | undefined;
}

/** What can be said about an MCP server. */
export interface McpOptions {
  /** Its name in errors, warnings and for `approval`. Default: the program's, or the host's. */
  name?: string | undefined;
  /** Put before the names of its tools. */
  prefix?: string | undefined;
  /** Names of tools, as the server has them, that alone are brought. */
  allow?: readonly string[] | undefined;
  /** Names of tools that are not brought. */
  deny?: readonly string[] | undefined;
  /** Whether opening a session fails when the server cannot be reached; otherwise the process is warned. Default: true. */
  required?: boolean | undefined;
  /** Ask before each call: `true`, or by what the server says: `(tool) => !tool.readOnly`. */
  approval?: boolean | ((tool: McpTool) => boolean) | undefined;
  /** Never run its tools beside another sequential tool. */
  sequential?: boolean | undefined;
  /** Milliseconds that one call may take; over it the server is told to stop. */
  timeoutMs?: number | undefined;
  /** Milliseconds to start, connect and list its tools. Default: 30 s. */
  connectTimeoutMs?: number | undefined;
  /** How often in a row it is started again after it has ended, at the next use and with growing pauses. Default: 5. */
  restarts?: number | undefined;
  /** Variables of a program, beside the few that programs need (`PATH`, `HOME` …). */
  env?: Record<string, string> | undefined;
  /** The folder of a program. */
  cwd?: string | undefined;
  /** Where the errors of a program go. Default: to those of this one. */
  stderr?: "inherit" | "ignore" | undefined;
  /** Headers of every request to an address, such as `Authorization`. */
  headers?: Record<string, string> | undefined;
  /** How an address is spoken to: Streamable HTTP, or the older SSE. Default: `"http"`. */
  transport?: "http" | "sse" | undefined;
}

/**
 * An MCP server whose tools a session brings. It is a description: each session that is opened with it makes a connection of its own,
 * and ends it when it is left.
 */
export class McpServer {
  /** Its name here. */
  readonly name: string;
  /** @internal */
  readonly words: readonly string[] | undefined;
  /** @internal */
  readonly url: string | undefined;
  /** @internal */
  readonly options: McpOptions;

  /** @internal */
  constructor(server: string | readonly string[], options: McpOptions) {
    if (typeof server === "string" && /^https?:\/\//i.test(server)) {
      if (!URL.canParse(server)) throw new InvalidArgumentError("the address of an MCP server cannot be read");
      this.url = server;
    } else {
      this.words = typeof server === "string" ? split(server) : [...server];
      if (!this.words[0]) throw new InvalidArgumentError("an MCP server is a command, a list of words, or an address that begins with http");
    }
    if (this.url === undefined ? options.headers !== undefined : options.env !== undefined || options.cwd !== undefined) {
      throw new InvalidArgumentError("headers are for MCP servers with an address, env and cwd for those that are programs");
    }
    this.options = options;
    this.name = options.name ?? (this.url === undefined ? basename(this.words?.[0] ?? "") : new URL(this.url).hostname);
  }

  /** Arguments, addresses, headers and the environment may hold keys. */
  [inspect.custom](): string {
    return `McpServer(${this.name})`;
  }
}

/** The tools of an MCP server, for `tools`: a command line, a list of words, or an address. Throws InvalidArgumentError for what is no server. */
export function mcp(server: string | readonly string[], options: McpOptions = {}): McpServer {
  return new McpServer(server, options);
}

/** What a session brings, as long as MCP servers are among it. @internal */
export class Servers {
  #brought: readonly Brought[];
  readonly #connections = new Map<McpServer, Connection>();
  /** A server has told of other tools since `tools` was called. */
  changed = false;

  constructor(brought: readonly Brought[]) {
    this.#brought = brought;
  }

  /** Connects to every server at once and lists their tools. */
  async connect(signal?: AbortSignal): Promise<void> {
    const servers = this.#brought.filter((each) => each instanceof McpServer);
    servers.forEach((server, place) => {
      const isAlone = servers.filter((other) => other.name === server.name).length === 1;
      const label = isAlone ? server.name : `${server.name} #${place + 1}`;
      this.#connections.set(server, new Connection(server, label, () => (this.changed = true)));
    });
    const outcomes = await Promise.allSettled([...this.#connections.values()].map((connection) => connection.start(signal)));
    for (const [place, [server, connection]] of [...this.#connections].entries()) {
      const outcome = outcomes[place];
      if (outcome?.status !== "rejected") continue;
      if (server.options.required !== false || !(outcome.reason instanceof TransportError)) {
        await this.close();
        throw outcome.reason;
      }
      process.emitWarning(`${outcome.reason.message}; its tools are left out`, "BrocaWarning");
      await connection.close();
      this.#connections.delete(server);
    }
  }

  /** All tools as they are now. Throws InvalidArgumentError for a name that two of them have. */
  tools(): Tool[] {
    this.changed = false;
    const owners = new Map<string, string>();
    return this.#brought.flatMap((each) => {
      const found = each instanceof McpServer ? (this.#connections.get(each)?.brought() ?? []) : [each];
      const owner = each instanceof McpServer ? `the MCP server "${this.#connections.get(each)?.label}"` : "this program";
      for (const { name } of found) {
        const other = owners.get(name);
        if (other !== undefined) {
          throw new InvalidArgumentError(`the tool "${name}" comes from ${other} and from ${owner}: give a prefix, or leave one out with deny`);
        }
        owners.set(name, owner);
      }
      return found;
    });
  }

  /** All tools, with these in the place of the program's own. */
  withOwn(own: readonly Tool[]): Tool[] {
    this.#brought = [...own, ...this.#brought.filter((each) => each instanceof McpServer)];
    return this.tools();
  }

  /** Ends every connection, and waits until they are gone, within bounds. */
  async close(): Promise<void> {
    await Promise.all([...this.#connections.values()].map((connection) => connection.close()));
  }
}

/** Whether a session brings MCP servers. @internal */
export function hasServers(brought: readonly Brought[]): boolean {
  return brought.some((each) => each instanceof McpServer);
}

const CONNECT_MS = 30_000;
const RESTARTS = 5;
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10_000;
/** Pages of a list of tools; one that is longer does not end. */
const PAGES = 1000;
/** The longest time that a timer takes: the time of a call is the session's to keep. */
const NEVER_MS = 2 ** 31 - 1;
const CONNECTION_CLOSED = -32000;

/** One MCP server of one session. */
class Connection {
  #client: any;
  #child: ChildProcess | undefined;
  #beginning: Promise<void> | undefined;
  #listing: Promise<void> | undefined;
  #tools: McpTool[] = [];
  #failures = 0;
  #served = false;
  #notBefore = 0;
  #closed = false;

  constructor(
    readonly server: McpServer,
    readonly label: string,
    readonly changed: () => void,
  ) {}

  /** Connects and lists the tools. */
  async start(signal?: AbortSignal): Promise<void> {
    const limit = this.server.options.connectTimeoutMs ?? CONNECT_MS;
    const late = new AbortController();
    const timer = setTimeout(() => late.abort(), limit);
    const give = (): void => late.abort(signal?.reason);
    signal?.addEventListener("abort", give);
    if (signal?.aborted === true) give();
    try {
      await this.#begin(late.signal);
    } catch (error) {
      const client = this.#client;
      this.#client = undefined;
      await this.#end(client);
      if (error instanceof BrocaError) throw error;
      if (signal?.aborted === true) throw signal.reason;
      if (late.signal.aborted) throw new TransportError(`the MCP server "${this.label}" was not ready within ${limit} ms`);
      throw new TransportError(`the MCP server "${this.label}" cannot be used: ${why(error)}`);
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", give);
    }
  }

  /** Its tools that are brought. */
  brought(): Tool[] {
    const { prefix = "", allow, deny = [], approval = false, sequential, timeoutMs } = this.server.options;
    const missing = (allow ?? []).filter((name) => !this.#tools.some((each) => each.name === name));
    if (missing.length > 0) process.emitWarning(`the MCP server "${this.label}" has no tool ${missing.join(", ")}`, "BrocaWarning");
    const chosen = this.#tools.filter(({ name }) => !deny.includes(name) && (allow === undefined || allow.includes(name)));
    return chosen.map((each) =>
      tool({
        name: prefix + each.name,
        description: each.description,
        input: each.inputSchema,
        sequential,
        timeoutMs,
        approval: typeof approval === "function" ? approval(each) : approval,
        run: (args: unknown, context: ToolContext) => this.#call(each.name, args, context.signal),
      }),
    );
  }

  async close(): Promise<void> {
    this.#closed = true;
    const client = this.#client;
    this.#client = undefined;
    await this.#end(client);
  }

  async #call(name: string, args: unknown, signal: AbortSignal): Promise<Answered> {
    const client = await this.#living();
    let result: object;
    try {
      result = await client.callTool({ name, arguments: args }, undefined, { signal, timeout: NEVER_MS });
    } catch (error) {
      if (signal.aborted) throw error;
      if ((error as { code?: unknown }).code === CONNECTION_CLOSED || this.#client !== client) {
        this.#died(client);
        throw new ToolInterrupted(`The MCP server "${this.label}" ended during the call. It may have run, in whole or in part.`);
      }
      throw new Misfit(`the MCP server "${this.label}" refused the call: ${why(error)}`);
    }
    this.#served = true;
    await this.#listing;
    return new Answered(...calling(() => native.mcpAnswer(JSON.stringify(result))));
  }

  /** The client of the connection under way, or of a new one. */
  async #living(): Promise<any> {
    while (this.#client === undefined) {
      if (this.#closed) throw new Misfit(`the MCP server "${this.label}" was left with its session`);
      this.#beginning ??= this.#again().finally(() => (this.#beginning = undefined));
      await this.#beginning;
    }
    return this.#client;
  }

  async #again(): Promise<void> {
    if (this.#failures > (this.server.options.restarts ?? RESTARTS)) {
      throw new Misfit(`the MCP server "${this.label}" has ended ${this.#failures} times in a row and is not started again`);
    }
    const pause = this.#notBefore - performance.now();
    if (pause > 0) await new Promise((resume) => setTimeout(resume, pause));
    try {
      await this.start();
    } catch (error) {
      this.#failed();
      throw new Misfit(`${why(error)}; the call did not run`);
    }
  }

  async #begin(signal: AbortSignal): Promise<void> {
    const sdk = await load();
    const client = new sdk.Client({ name: "broca", version: native.version() }, { capabilities: {} });
    this.#client = client;
    this.#served = false;
    client.setNotificationHandler(sdk.ToolListChangedNotificationSchema, () => {
      this.#listing = this.#list(client).catch((error: unknown) => {
        process.emitWarning(`the MCP server "${this.label}" did not list its tools again: ${why(error)}`, "BrocaWarning");
      });
    });
    const transport = this.#transport(sdk);
    const gone = new Promise<never>((_, reject) => {
      const fail = (): void => reject(new Error("it was not ready in time"));
      signal.addEventListener("abort", fail, { once: true });
      if (signal.aborted) fail();
    });
    gone.catch(() => undefined);
    await Promise.race([client.connect(transport, { timeout: NEVER_MS }), gone]);
    await Promise.race([this.#list(client, signal), gone]);
    client.onclose = () => this.#died(client);
    if (this.#client !== client) throw new Error("it ended at once");
    // The session keeps the process alive while a call is under way, and nothing else does.
    this.#child = (transport as { _process?: ChildProcess })._process;
    for (const part of [this.#child, this.#child?.stdin, this.#child?.stdout]) (part as { unref?(): void } | undefined)?.unref?.();
  }

  #transport(sdk: Sdk): any {
    const { options, url, words } = this.server;
    if (url === undefined) {
      const [command = "", ...args] = words ?? [];
      const { env, cwd, stderr = "inherit" } = options;
      return new sdk.StdioClientTransport({ command, args, stderr, ...(env && { env }), ...(cwd !== undefined && { cwd }) });
    }
    const requestInit = { headers: options.headers ?? {} };
    const Chosen = options.transport === "sse" ? sdk.SSEClientTransport : sdk.StreamableHTTPClientTransport;
    return new Chosen(new URL(url), { requestInit });
  }

  async #list(client: any, signal?: AbortSignal): Promise<void> {
    const found: McpTool[] = [];
    let cursor: string | undefined;
    for (let page = 0; ; page++) {
      if (page === PAGES) throw new Error(`its list of tools does not end after ${PAGES} pages`);
      const listed = await client.listTools(cursor === undefined ? {} : { cursor }, { timeout: NEVER_MS, ...(signal && { signal }) });
      for (const { name, description, inputSchema, annotations: hints } of listed.tools) {
        found.push({
          server: this.label,
          name,
          description: description ?? "",
          inputSchema,
          readOnly: hints?.readOnlyHint,
          destructive: hints?.destructiveHint,
          idempotent: hints?.idempotentHint,
          openWorld: hints?.openWorldHint,
        });
      }
      cursor = listed.nextCursor;
      if (cursor === undefined) break;
    }
    if (JSON.stringify(found) !== JSON.stringify(this.#tools)) {
      this.#tools = found;
      this.changed();
    }
  }

  #died(client: any): void {
    if (this.#client !== client) return;
    this.#client = undefined;
    if (this.#served) this.#failures = 0;
    this.#failed();
    void this.#end(client);
  }

  #failed(): void {
    const pause = this.#served ? 0 : Math.min(FIRST_PAUSE_MS * 2 ** this.#failures, LONGEST_PAUSE_MS);
    this.#failures += 1;
    this.#notBefore = performance.now() + pause;
  }

  async #end(client: any): Promise<void> {
    // Until it is gone, the process waits for it: not longer than the package does, which ends it by force.
    this.#child?.ref();
    this.#child = undefined;
    try {
      await client?.close();
    } catch {
      // It is gone already.
    }
  }
}

/** What is used of the package. */
interface Sdk {
  Client: new (info: object, options: object) => any;
  StdioClientTransport: new (options: object) => any;
  StreamableHTTPClientTransport: new (url: URL, options: object) => any;
  SSEClientTransport: new (url: URL, options: object) => any;
  ToolListChangedNotificationSchema: unknown;
}

async function load(): Promise<Sdk> {
  const from = (part: string): any => require(`@modelcontextprotocol/sdk/${part}`);
  try {
    return { ...from("client/index.js"), ...from("client/stdio.js"), ...from("client/streamableHttp.js"), ...from("client/sse.js"), ...from("types.js") };
  } catch (cause) {
    throw new UsageError("tools of MCP servers need the package @modelcontextprotocol/sdk, version 1: npm install @modelcontextprotocol/sdk", { cause });
  }
}

/** What an error says that cannot hold a key: addresses and arguments may. */
function why(error: unknown): string {
  const { code, message, cause } = error as { code?: unknown; message?: unknown; cause?: { code?: unknown } };
  if (typeof code === "string") return code;
  if (typeof cause?.code === "string") return cause.code;
  if (error instanceof BrocaError || error instanceof Misfit || typeof code === "number") return String(message).replace(/https?:\/\/\S+/g, "…");
  return error instanceof Error ? error.name : "an error";
}

/** The words of a command line: blanks part them, quotes hold them together. */
function split(line: string): string[] {
  const words: string[] = [];
  for (const match of line.matchAll(/(?:[^\s"']|"[^"]*"|'[^']*')+/g)) {
    words.push(match[0].replace(/"([^"]*)"|'([^']*)'/g, (_, double?: string, single?: string) => double ?? single ?? ""));
  }
  if ((line.replace(/"[^"]*"|'[^']*'/g, "").match(/["']/) ?? []).length > 0) {
    throw new InvalidArgumentError("the command of an MCP server cannot be read: a quote is not closed");
  }
  return words;
}
