/** What can be set about a client. */

import type { ConnectionOptions } from "node:tls";
import { InvalidArgumentError } from "./errors";
import { strictJson } from "./json";
import type { LogRecord, Setup } from "./shell";
import type { NarrowRule } from "./tools";

/** Which tools of the service a person is asked for before they run. */
export interface Approvals {
  /** Their names, or `"*"` for all. */
  ask: "*" | readonly string[];
  /** What an approval may narrow, by tool and JSON pointer; without a rule an argument stays as it is. */
  narrow?: Readonly<Record<string, Readonly<Record<string, NarrowRule>>>> | undefined;
}

/** How one client behaves. Times are milliseconds, sizes bytes; what is left out has its default. */
export interface ClientOptions {
  /** The client key. */
  key: string;
  /** A version text of the application, shown in the session's log. */
  clientVersion?: string | undefined;
  /** The `User-Agent` header. Default `broca/VERSION`. */
  userAgent?: string | undefined;
  /** Features to ask for where the service has them. Default: all. */
  features?: readonly string[] | undefined;
  /** The longest line of a stream. Default 16 MiB. */
  maxLineBytes?: number | undefined;
  /** The largest answer of a REST call. Default 64 MiB. */
  maxAnswerBytes?: number | undefined;
  /** Time to find the host's addresses and to connect. Default 10 s. */
  connectTimeoutMs?: number | undefined;
  /** Time from the request to the head of its answer. Default 30 s. */
  headTimeoutMs?: number | undefined;
  /** Time for a whole REST call. Default 60 s. */
  restTimeoutMs?: number | undefined;
  /** Silence on a stream after which it counts as dead. Default: never, silence is normal. */
  silenceTimeoutMs?: number | undefined;
  /**
   * Signs of life of a service that gives them that must be missing on a stream before it counts as dead, unless
   * `silenceTimeoutMs` says when; 0: never. Default 3.
   */
  silenceIntervals?: number | undefined;
  /** Bytes of the events of one request that are kept for the reply where the service does not send them twice. Default 64 MiB. */
  replyBytes?: number | undefined;
  /**
   * A turn whose stream broke is looked for in the session's log. Without news in it for this time it is given up, and its
   * outcome is unknown; 0: it is not looked for. Default 120 s.
   */
  recoveryTimeoutMs?: number | undefined;
  /**
   * As long as the service cannot be reached for that, it is tried again for at most this time; and for as long without news for
   * events that a slow program has left in the log (`stepBufferBytes`). Default 10 s.
   */
  reachTimeoutMs?: number | undefined;
  /** What the log holds already of such a turn must begin to come within this time once it is read. Default 2 s. */
  replayTimeoutMs?: number | undefined;
  /** Time for an answer to a cancel before the stream is dropped. Default 5 s. */
  cancelTimeoutMs?: number | undefined;
  /** A turn that another program left and that still runs is given up after this time without an event. Default 5 min. */
  resumeWaitMs?: number | undefined;
  /** Delay before the next address is tried beside the first. Default 250 ms. */
  eyeballsDelayMs?: number | undefined;
  /** A message is not sent on a connection that was idle for longer. Default 4 s. */
  idleReuseMs?: number | undefined;
  /** An idle connection is closed after this time. Default 60 s. */
  idleCloseMs?: number | undefined;
  /** Connections at once; one more is always there for cancelling. Default 6. */
  maxConnections?: number | undefined;
  /** Bytes of steps that wait for the application before display pieces are dropped, with a gap. Default 1 MiB. */
  deltaBufferBytes?: number | undefined;
  /** Bytes of steps that wait for the application before events are left in the log and read from there later. Default 64 MiB. */
  stepBufferBytes?: number | undefined;
  /**
   * How long a paused turn is held at most while its tools run or a person decides, where the service can; 0: pauses are not
   * held, and what is open at the service's deadline has failed. Default 24 h.
   */
  holdMs?: number | undefined;
  /** Messages that one turn may send, those that bring results included. A turn that needs more ends with a LoopLimitError. Default: no limit. */
  turnRounds?: number | undefined;
  /** Tokens that one turn may use, as far as providers count them. Default: no limit. */
  turnTokens?: number | undefined;
  /** Calls of tools that one turn may make. Default: no limit. */
  turnToolCalls?: number | undefined;
  /** The same for all turns of a session, those of programs that had it before included. */
  sessionRounds?: number | undefined;
  sessionTokens?: number | undefined;
  sessionToolCalls?: number | undefined;
  /** Tools of one session that run at once. Default 16. */
  concurrentTools?: number | undefined;
  /** How long a paused turn waits for its results, where the service does not say. Default 120 s. */
  pauseMs?: number | undefined;
  /** How long a tool that is told to stop may take. Default 2 s. */
  cancelGraceMs?: number | undefined;
  /** Bytes of the results of one pause together, since they travel in one request; the largest make way for a word about it. Default 16 MiB. */
  resultsBytes?: number | undefined;
  /**
   * Which tools of the service a person is asked for before they run, in sessions that this client opens, where the service can
   * (feature `approve`); its operator may require more. Default: none.
   */
  approvals?: Approvals | undefined;
  /** The first delay before a lost subscription is taken up again, doubled at each failure. Default 100 ms. */
  reconnectFirstDelayMs?: number | undefined;
  /** The longest such delay. Default 10 s. */
  reconnectMaxDelayMs?: number | undefined;
  /** Failures in a row after which a subscription gives up. Default: never. */
  reconnectMaxFailures?: number | undefined;
  /** Show each message before it leaves and each answer, as steps. Default off; handlers switch it on. */
  hooks?: boolean | undefined;
  /** Time for the answer to a `sending` step. Default 30 s. */
  hookTimeoutMs?: number | undefined;
  /**
   * Microseconds in which an answer is looked for without sleeping, if the one before came within them: on the same machine
   * that is faster than to sleep and be woken, and costs no more. 0: never. Default 300.
   */
  awakeUs?: number | undefined;
  /** Whom TLS trusts and what it shows: options of `tls.connect`, such as `ca`. */
  tls?: ConnectionOptions | undefined;
  /** Proxy variables (`https_proxy`, `no_proxy` …) to obey; default those of process.env; false: none. */
  environment?: Record<string, string | undefined> | false | undefined;
  /** Gets log records: never keys, never payloads. */
  onLog?: ((record: LogRecord) => void) | undefined;
}

/** Variables that have to do with proxies. */
const PROXY_VARIABLES = ["http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD"];

/** How long an answer is looked for without sleeping, in microseconds. */
const AWAKE_US = 300;

/** The options as the engine reads them. */
export function setupOf(url: string, options: ClientOptions): Setup {
  if (typeof options !== "object" || options === null) {
    throw new InvalidArgumentError("a client needs options with a key: new Client(url, { key })");
  }
  const { key, tls, environment, onLog, awakeUs = AWAKE_US, ...rest } = options;
  if (typeof key !== "string") {
    throw new InvalidArgumentError("the key is missing: new Client(url, { key }); is the variable set that it comes from?");
  }
  if (typeof awakeUs !== "number" || !(awakeUs >= 0 && awakeUs <= 1_000_000)) {
    throw new InvalidArgumentError("awakeUs must be a number from 0 to 1,000,000");
  }
  const named: Record<string, unknown> = { base_url: url, client_key: key };
  for (const [name, value] of Object.entries(rest)) {
    if (/[^a-zA-Z]/.test(name) || name === "baseUrl" || name === "clientKey") throw new InvalidArgumentError(`there is no option "${name}"`);
    if (value !== undefined) named[name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)] = value;
  }
  const variables = environment === false ? {} : (environment ?? process.env);
  const proxies = PROXY_VARIABLES.flatMap((name) => {
    const value = variables[name];
    return value === undefined ? [] : [[name, value] as const];
  });
  named["environment"] = Object.fromEntries(proxies);
  return { options: strictJson(named, "the options"), tls: tls ?? {}, log: onLog, awakeMs: awakeUs / 1000 };
}

/** The same setup with other options of the engine. */
export function withOptions(setup: Setup, changed: { hooks?: true; approvals?: Approvals }): Setup {
  if (Object.keys(changed).length === 0) return setup;
  return { ...setup, options: strictJson({ ...(JSON.parse(setup.options) as object), ...changed }, "the options") };
}
