/** What can be set about a client. */

import type { ConnectionOptions } from "node:tls";
import { InvalidArgumentError } from "./errors";
import { strictJson } from "./json";
import type { LogRecord, Setup } from "./shell";

/** How one client behaves. Times are milliseconds, sizes bytes; what is left out has its default. */
export interface ClientOptions {
  /** The client key. */
  key: string;
  /** A version text of the application, shown in the session's log. */
  clientVersion?: string;
  /** The `User-Agent` header. Default `broca/VERSION`. */
  userAgent?: string;
  /** Features to ask for where the service has them. Default: all. */
  features?: readonly string[];
  /** The longest line of a stream. Default 16 MiB. */
  maxLineBytes?: number;
  /** The largest answer of a REST call. Default 64 MiB. */
  maxAnswerBytes?: number;
  /** Time to find the host's addresses and to connect. Default 10 s. */
  connectTimeoutMs?: number;
  /** Time from the request to the head of its answer. Default 30 s. */
  headTimeoutMs?: number;
  /** Time for a whole REST call. Default 60 s. */
  restTimeoutMs?: number;
  /** Silence on a stream after which it counts as dead. Default: never, silence is normal. */
  silenceTimeoutMs?: number;
  /** Time for an answer to a cancel before the stream is dropped. Default 5 s. */
  cancelTimeoutMs?: number;
  /** Delay before the next address is tried beside the first. Default 250 ms. */
  eyeballsDelayMs?: number;
  /** A message is not sent on a connection that was idle for longer. Default 4 s. */
  idleReuseMs?: number;
  /** An idle connection is closed after this time. Default 60 s. */
  idleCloseMs?: number;
  /** Connections at once; one more is always there for cancelling. Default 6. */
  maxConnections?: number;
  /** Bytes of steps that wait for the application before display pieces are dropped, with a gap. Default 1 MiB. */
  deltaBufferBytes?: number;
  /** Bytes of steps that wait for the application before the socket is left unread. Default 64 MiB. */
  stepBufferBytes?: number;
  /** Tools that run at once. */
  concurrentTools?: number;
  /** How long a paused turn waits for its results, where the service does not say. Default 120 s. */
  pauseMs?: number;
  /** How long a tool that is told to stop may take. Default 2 s. */
  cancelGraceMs?: number;
  /** Bytes of results that are kept until the service has taken them. */
  resultsBytes?: number;
  /** The first delay before a lost subscription is taken up again. */
  reconnectFirstDelayMs?: number;
  /** The longest such delay. */
  reconnectMaxDelayMs?: number;
  /** Failures in a row after which a subscription gives up. Default: never. */
  reconnectMaxFailures?: number;
  /** Show each message before it leaves and each answer, as steps. Default off; handlers switch it on. */
  hooks?: boolean;
  /** Time for the answer to a `sending` step. Default 30 s. */
  hookTimeoutMs?: number;
  /** Whom TLS trusts and what it shows: options of `tls.connect`, such as `ca`. */
  tls?: ConnectionOptions;
  /** Proxy variables (`https_proxy`, `no_proxy` …) to obey; default those of process.env; false: none. */
  environment?: Record<string, string | undefined> | false;
  /** Gets log records: never keys, never payloads. */
  onLog?: (record: LogRecord) => void;
}

/** Variables that have to do with proxies. */
const PROXY_VARIABLES = ["http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD"];

/** The options as the engine reads them. */
export function setupOf(url: string, options: ClientOptions): Setup {
  if (typeof options !== "object" || options === null) {
    throw new InvalidArgumentError("a client needs options with a key: new Client(url, { key })");
  }
  const { key, tls, environment, onLog, ...rest } = options;
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
  return { options: strictJson(named, "the options"), tls: tls ?? {}, log: onLog };
}

/** The same setup with the engine's hooks on. */
export function withHooks(setup: Setup): Setup {
  return { ...setup, options: JSON.stringify({ ...(JSON.parse(setup.options) as object), hooks: true }) };
}
