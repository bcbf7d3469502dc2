/** Clients and sessions. */

import { inspect } from "node:util";
import { ask, unexpected } from "./asking";
import { sentOf, type Plain, type Sent } from "./content";
import { InvalidArgumentError, UsageError } from "./errors";
import { info, metadataOf, sessions, type SessionInfo, type SessionsOptions, type UpdateOptions } from "./info";
import { hasServers, Servers } from "./mcp";
import { setupOf, withOptions, type Approvals, type ClientOptions } from "./options";
import { Wanted, type OutputOptions } from "./output";
import { History, Subscription, type HistoryOptions, type SubscribeOptions } from "./reading";
import type { Reply } from "./reply";
import { SavedSession } from "./saved";
import type { ArgumentsOf, JsonSchema, StandardSchema } from "./schema";
import { Shell, type Setup } from "./shell";
import { ToolSet, type Brought, type Tool } from "./tools";
import { Turn, TurnCore, type Handlers, type SendOptions, type TurnSetup } from "./turn";

/** What a session is opened with. */
export interface SessionOptions extends Handlers {
  /** Tools of this program, and MCP servers whose tools are brought ({@link mcp}): those are connected before the session is opened. */
  tools?: readonly Brought[] | undefined;
  /** Gives up opening. */
  signal?: AbortSignal | undefined;
}

/** What a new session is opened with. */
export interface OpenOptions extends SessionOptions {
  /** What is kept with it from the beginning, an object; see {@link Session.update}. */
  metadata?: Readonly<Record<string, unknown>> | undefined;
  /** Which tools of the service a person is asked for before they run; in place of the client's option. */
  approvals?: Approvals | undefined;
}

/** Gives up a request. */
export interface RequestOptions {
  signal?: AbortSignal | undefined;
}

/** What a service is and can do. */
export interface Meta {
  version: string;
  apiVersions: string[];
  /** Features beyond the plain contract. */
  features: string[];
  /** Limits, such as `turnTimeoutMs`; undefined on a plain service. */
  limits: Record<string, number> | undefined;
}

/** A service and a key: where sessions come from. It holds no connection of its own. */
export class Client {
  readonly #setup: Setup;

  /**
   * A client of the service at `url`: `http://host:port` or `https://…`, with a path prefix if it has one.
   *
   * Throws InvalidArgumentError for a URL or a value that cannot be used.
   */
  constructor(url: string, options: ClientOptions) {
    this.#setup = setupOf(url, options);
    new Shell(this.#setup); // what is wrong with the options shows here, not at the first session
  }

  /** Opens a session. Metadata needs a service that keeps it; elsewhere opening fails with a NotOfferedError. */
  async open(options: OpenOptions = {}): Promise<Session> {
    return this.#start({ open: options.metadata === undefined ? null : metadataOf(options.metadata) }, options);
  }

  /** Joins a session as a driver. */
  join(sessionId: string, options: SessionOptions = {}): Promise<Session> {
    return this.#start({ join: sessionId }, options);
  }

  /** Joins a session to watch it, without registering. */
  observe(sessionId: string, options: RequestOptions = {}): Promise<Session> {
    return this.#start({ observe: sessionId }, options);
  }

  /**
   * Goes on with a session that a program of any language has saved: what {@link Session.save} gave, or its text. Tools that are
   * given are declared; left out, those that were declared stay. A turn that was left open waits for {@link Session.resume}.
   */
  attach(saved: SavedSession | string, options: SessionOptions = {}): Promise<Session> {
    const text = typeof saved === "object" && saved !== null && "expose" in saved ? saved.expose() : saved;
    if (typeof text !== "string") return Promise.reject(new InvalidArgumentError("attach needs a saved session, or its text"));
    return this.#start({ attach: text }, options);
  }

  /**
   * The sessions that this client's key has opened or joined, the newest first, page by page. Throws a NotOfferedError where the
   * service does not list them.
   */
  async *sessions(options: SessionsOptions = {}): AsyncGenerator<SessionInfo, undefined, undefined> {
    const shell = new Shell(this.#setup);
    try {
      return yield* sessions(shell, options);
    } finally {
      shell.retire();
    }
  }

  /** What the service is and can do. */
  async meta(options: RequestOptions = {}): Promise<Meta> {
    const shell = new Shell(this.#setup);
    try {
      return await meta(shell, options);
    } finally {
      shell.retire();
    }
  }

  async #start(way: Way, options: OpenOptions): Promise<Session> {
    const { signal } = options;
    const brought = options.tools ?? [];
    let servers: Servers | undefined;
    if (hasServers(brought)) {
      servers = new Servers(brought);
      await servers.connect(signal);
    }
    try {
      return await this.#opened(way, options, servers, new ToolSet(servers === undefined ? (brought as Tool[]) : servers.tools()));
    } catch (error) {
      await servers?.close();
      throw error;
    }
  }

  async #opened(way: Way, options: OpenOptions, servers: Servers | undefined, tools: ToolSet): Promise<Session> {
    const { signal, onApproval, onSending, onReceived, approvals } = options;
    const hooked = onSending !== undefined || onReceived !== undefined;
    const shell = new Shell(withOptions(this.#setup, { ...(hooked && { hooks: true }), ...(approvals && { approvals }) }));
    const command =
      "open" in way
        ? { open: { tools: tools.declared, metadata: way.open } }
        : "join" in way
          ? { join: { session_id: way.join, tools: tools.declared } }
          : "attach" in way
            ? { attach: { saved: way.attach, tools: tools.declared } }
            : { observe: { session_id: way.observe } };
    try {
      const { value } = await ask(shell, command, signal);
      return new Session(shell, value as Opened, tools, { onApproval, onSending, onReceived }, servers);
    } catch (error) {
      shell.retire();
      throw error;
    }
  }
}

type Way = { open: object | null } | { join: string } | { observe: string } | { attach: string };

/** Ends the MCP servers of sessions that were dropped. */
const dropped = new FinalizationRegistry((servers: Servers) => void servers.close());

interface Opened {
  session_id: string;
  profile: unknown;
  features: string[];
  meta: object;
  /** A turn that another program has left waits to be taken up. */
  pending: boolean;
}

/** A session. */
export class Session {
  readonly #shell: Shell;
  readonly #setup: TurnSetup;
  readonly #servers: Servers | undefined;
  #pending: boolean;
  /** The session's id. */
  readonly id: string;
  /** The profile as the service shows it. */
  readonly profile: any;
  /** The features in force. */
  readonly features: readonly string[];
  /** What the service is and can do. */
  readonly meta: Meta;

  /** @internal */
  constructor(shell: Shell, opened: Opened, tools: ToolSet, handlers: Handlers, servers?: Servers) {
    this.#shell = shell;
    this.#servers = servers;
    if (servers !== undefined) dropped.register(this, servers, this);
    this.#setup = { tools, handlers, turns: new Set() };
    this.#pending = opened.pending;
    this.id = opened.session_id;
    this.profile = opened.profile;
    this.features = opened.features;
    this.meta = metaOf(opened.meta);
  }

  /**
   * Starts a turn, with a text, a list of texts, images, files and blocks, or a message. Turns of one session run one after the other. What is wrong with the call itself is thrown by the
   * turn's first step.
   */
  send(message: Sent, options: SendOptions = {}): Turn {
    return new Turn(this.#begin(message, options));
  }

  /**
   * Sends a message and drives the turn to its reply; see {@link Turn.reply}.
   *
   * With `output`, a JSON Schema or a Standard Schema validator, the model is told to answer with JSON that fits it, and the reply has
   * the value as its `output`. An answer that does not fit is sent back once with what is wrong with it; see {@link OutputOptions}.
   */
  ask<const S extends JsonSchema | StandardSchema>(message: Sent, options: OutputOptions<S>): Promise<Reply<ArgumentsOf<S>>>;
  ask(message: Sent, options?: SendOptions): Promise<Reply>;
  ask(message: Sent, options: SendOptions & Partial<OutputOptions<any>> = {}): Promise<Reply<any>> {
    if (options.output === undefined) return this.#begin(message, options).reply();
    return this.#askFor(sentOf(message), options as OutputOptions<any>);
  }

  /**
   * Takes up the turn that another program has left; undefined when none waits. It shows the events that were not taken there, and
   * asks again for the results that are missing, with `mayHaveRun`. A message that is sent instead gives that turn up.
   */
  resume(options: SendOptions = {}): Turn | undefined {
    if (!this.#pending) return undefined;
    return new Turn(this.#turn({ resume: {} }, options));
  }

  /**
   * Saves the session, at any time, also in the middle of a turn: {@link Client.attach} of another process or language goes on with
   * it. What is saved holds the session's key and results of tools: keep it where keys are kept.
   */
  async save({ signal }: RequestOptions = {}): Promise<SavedSession> {
    const { json } = await ask(this.#shell, { save: {} }, signal);
    if (json === undefined) throw unexpected("saving the session");
    return new SavedSession(this.id, json);
  }

  /** Watches the session. */
  subscribe(options: SubscribeOptions = {}): Subscription {
    return new Subscription(this.#shell, options);
  }

  /** The session's log: `await` gives one page, `for await` every event from there to the end. */
  history(options: HistoryOptions = {}): History {
    return new History(this.#shell, options);
  }

  /** The client keys that drive the session. */
  async participants({ signal }: RequestOptions = {}): Promise<string[]> {
    const { value } = await ask(this.#shell, { participants: {} }, signal);
    if (!Array.isArray(value?.drivers)) throw unexpected("asking for the participants");
    return value.drivers as string[];
  }

  /**
   * How the session stands, also after its end: its state and turn, its drivers, how far its log has come, and what is kept with
   * it. Throws a NotOfferedError where the service does not tell.
   */
  async info({ signal }: RequestOptions = {}): Promise<SessionInfo> {
    return info(this.#shell, { info: {} }, signal);
  }

  /**
   * Changes what is kept with the session, as a JSON merge patch: what it names is replaced, `null` takes a member away. Gives how
   * the session stands then. Throws a NotOfferedError where the service keeps none.
   */
  async update(metadata: Readonly<Record<string, unknown>>, { version, signal }: UpdateOptions = {}): Promise<SessionInfo> {
    return info(this.#shell, { update: { metadata: metadataOf(metadata), version: version ?? null } }, signal);
  }

  /** Replaces this client's tools, from the next turn on; those of MCP servers stay beside them. The old tools stay when it fails. */
  async updateTools(tools: readonly Tool[], { signal }: RequestOptions = {}): Promise<void> {
    if (hasServers(tools)) throw new UsageError("an MCP server is brought when a session is opened, joined or attached to");
    const next = new ToolSet(this.#servers === undefined ? tools : this.#servers.withOwn(tools));
    await ask(this.#shell, { update_tools: { tools: next.declared } }, signal);
    this.#setup.tools = next;
  }

  /** Asks every turn of this session to end; each ends with a CancelledError. {@link Turn.cancel} also waits. */
  cancel(): void {
    for (const turn of this.#setup.turns) turn.cancel();
  }

  /** Closes the session for everybody. One that is closed already is no error. */
  async close({ signal }: RequestOptions = {}): Promise<void> {
    await ask(this.#shell, { close: {} }, signal);
    this.#shell.retire();
    await this.#leaveServers();
  }

  /**
   * Leaves the session without closing it: cancels this program's turns, waits until they are quiet, and lets go of the
   * connections as soon as nothing else is under way. `await using` does this.
   */
  async leave(): Promise<void> {
    await Promise.all([...this.#setup.turns].map((turn) => turn.leave()));
    this.#shell.retire();
    await this.#leaveServers();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.leave();
  }

  [inspect.custom](): string {
    return `Session(${this.id})`;
  }

  #begin(message: Sent, options: SendOptions): TurnCore {
    this.#followServers();
    return this.#turn({ send: { message: sentOf(message) } }, options);
  }

  /** Declares the tools anew when an MCP server has told of other ones. The turn that follows waits for that. */
  #followServers(): void {
    if (this.#servers?.changed !== true) return;
    const stay = (error: unknown): void =>
      process.emitWarning(`the tools of an MCP server have changed, and the old ones stay: ${String(error)}`, "BrocaWarning");
    try {
      const next = new ToolSet(this.#servers.tools(), this.#setup.tools);
      ask(this.#shell, { update_tools: { tools: next.declared } }).catch(stay);
      this.#setup.tools = next;
    } catch (error) {
      stay(error);
    }
  }

  async #leaveServers(): Promise<void> {
    if (this.#servers === undefined) return;
    dropped.unregister(this);
    await this.#servers.close();
  }

  #turn(command: { send: { message: Plain } } | { resume: object }, options: SendOptions): TurnCore {
    const core = new TurnCore(this.#shell, { ...this.#setup, turns: this.#setup.turns }, command, options);
    if (!core.isOver) this.#pending = false;
    return core;
  }

  async #askFor(message: Plain, options: OutputOptions<any>): Promise<Reply<unknown>> {
    const wanted = new Wanted(options);
    let asking = wanted.told(message);
    let before: Reply | undefined;
    for (let repairs = wanted.repairs; ; repairs--) {
      const last = await this.#begin(asking, options).reply();
      const reply = before === undefined ? last : last.after(before);
      const looked = await wanted.look(reply.text);
      if (looked.faults === undefined) return reply.withOutput(looked.value);
      if (repairs === 0) throw wanted.unfit(looked.faults.length, reply);
      asking = wanted.repair(looked.faults);
      before = reply;
    }
  }
}

async function meta(shell: Shell, { signal }: RequestOptions): Promise<Meta> {
  return metaOf((await ask(shell, { meta: {} }, signal)).value as object);
}

function metaOf(words: object): Meta {
  const { version, api_versions, features, limits } = words as {
    version: string;
    api_versions: string[];
    features: string[];
    limits?: Record<string, number>;
  };
  const camel = (name: string): string => name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
  const named = limits && Object.fromEntries(Object.entries(limits).map(([name, value]) => [camel(name), value]));
  return { version, apiVersions: api_versions, features, limits: named };
}
