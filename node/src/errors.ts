/**
 * Errors: one class for each row of the table that all languages share.
 *
 * Every error says what was wrong, where, and the cure, and never a key or a payload. `code` and `kind` never change.
 */

import type { Reply } from "./reply";

/** Whether the same call may be made again; `unknown`: the other side may or may not have acted, so look first. */
export type Retry = "safe" | "unsafe" | "unknown";

/** What an error is made of. */
export interface ErrorFields {
  code: number;
  kind: string;
  message: string;
  retry: Retry;
  details?: Record<string, unknown> | undefined;
}

/** Lets `instanceof` know errors of another copy of this package, by the numbers of their classes. */
const BRAND = Symbol.for("@broca/sdk:error");

/** The classes by number. */
const classes = new Map<number, typeof BrocaError>();

/** An error of this package. */
export class BrocaError extends Error {
  /** The number of the class in the table of errors. */
  static readonly code: number = 0;
  /** Its word. */
  static readonly kind: string = "error";
  /** What it says about a retry when nothing more is known. */
  static readonly retry: Retry = "unknown";

  /** The number of the row, which never changes. */
  readonly code: number;
  /** The row as a word. */
  readonly kind: string;
  /** Whether the same call may be made again. */
  readonly retry: Retry;
  /** Details for programs: the members of a problem document or of an RPC error, for instance. */
  declare readonly details?: Readonly<Record<string, unknown>>;

  constructor(message: string, fields: Partial<ErrorFields> & { cause?: unknown } = {}) {
    super(message, "cause" in fields ? { cause: fields.cause } : undefined);
    const row = new.target as typeof BrocaError;
    this.code = fields.code ?? row.code;
    this.kind = fields.kind ?? row.kind;
    this.retry = fields.retry ?? row.retry;
    if (fields.details !== undefined) this.details = fields.details;
  }

  /** @internal */
  get [BRAND](): readonly number[] {
    return lineage(this.constructor as typeof BrocaError);
  }

  static override [Symbol.hasInstance](this: typeof BrocaError, value: unknown): boolean {
    if (typeof value !== "object" || value === null) return false;
    if (classes.get(this.code) !== this && this !== BrocaError) {
      return Function.prototype[Symbol.hasInstance].call(this, value); // a class of the application
    }
    const codes = (value as { [BRAND]?: unknown })[BRAND];
    return Array.isArray(codes) && codes.includes(this.code);
  }
}

/** The numbers of a class and of those above it. */
function lineage(of: typeof BrocaError): readonly number[] {
  const codes: number[] = [];
  for (let c = of; typeof c?.code === "number"; c = Object.getPrototypeOf(c) as typeof BrocaError) {
    codes.push(c.code);
  }
  return codes;
}

/** The call itself was wrong: wrong order, wrong object. */
export class UsageError extends BrocaError {
  static override readonly code: number = -1;
  static override readonly kind: string = "usage";
  static override readonly retry: Retry = "unsafe";
}
/** An argument cannot be used as given. */
export class InvalidArgumentError extends BrocaError {
  static override readonly code: number = -2;
  static override readonly kind: string = "invalid_argument";
  static override readonly retry: Retry = "unsafe";
}
/** The client or session was closed before the call. */
export class ClosedError extends BrocaError {
  static override readonly code: number = -3;
  static override readonly kind: string = "closed";
  static override readonly retry: Retry = "unsafe";
}
/** The client was made before a fork and used after it. */
export class ForkedError extends BrocaError {
  static override readonly code: number = -4;
  static override readonly kind: string = "forked";
  static override readonly retry: Retry = "unsafe";
}
/** The connection failed. */
export class TransportError extends BrocaError {
  static override readonly code: number = -100;
  static override readonly kind: string = "transport";
}
/** No connection could be made: nothing was sent. */
export class ConnectError extends TransportError {
  static override readonly code: number = -101;
  static override readonly kind: string = "connect";
  static override readonly retry: Retry = "safe";
}
/** TLS could not be agreed or the certificate was refused: nothing was sent. */
export class TlsError extends TransportError {
  static override readonly code: number = -102;
  static override readonly kind: string = "tls";
  static override readonly retry: Retry = "unsafe";
}
/** The connection broke while in use. */
export class IoError extends TransportError {
  static override readonly code: number = -103;
  static override readonly kind: string = "io";
}
/** The peer did not answer in time. */
export class TimeoutError extends BrocaError {
  static override readonly code: number = -110;
  static override readonly kind: string = "timeout";
}
/** The stream ended without its terminal line. */
export class StreamEndedEarlyError extends BrocaError {
  static override readonly code: number = -120;
  static override readonly kind: string = "stream_ended_early";
}
/** The terminal line was longer than the limit. */
export class LineTooLongError extends BrocaError {
  static override readonly code: number = -121;
  static override readonly kind: string = "line_too_long";
}
/** The service dropped this reader because it fell behind. */
export class LaggedError extends BrocaError {
  static override readonly code: number = -122;
  static override readonly kind: string = "lagged";
}
/** The peer broke the protocol. */
export class ProtocolError extends BrocaError {
  static override readonly code: number = -200;
  static override readonly kind: string = "protocol";
  static override readonly retry: Retry = "unsafe";
}
/** Bytes that are not what the protocol says. */
export class MalformedError extends ProtocolError {
  static override readonly code: number = -201;
  static override readonly kind: string = "malformed";
}
/** The peer speaks a version this program does not. */
export class UnsupportedVersionError extends ProtocolError {
  static override readonly code: number = -202;
  static override readonly kind: string = "unsupported_version";
}
/** A bound of this program was exceeded; the message names it. */
export class LimitError extends ProtocolError {
  static override readonly code: number = -203;
  static override readonly kind: string = "limit";
}
/** The opening exchange failed. */
export class HandshakeError extends ProtocolError {
  static override readonly code: number = -204;
  static override readonly kind: string = "handshake";
}
/** What answered is not a session service. */
export class NotBrocaError extends ProtocolError {
  static override readonly code: number = -205;
  static override readonly kind: string = "not_broca";
}
/** The service does not offer what this call needs, or this client does not ask for it. */
export class NotOfferedError extends ProtocolError {
  static override readonly code: number = -206;
  static override readonly kind: string = "not_offered";
}
/** The service answered a REST call with a problem document. */
export class ApiError extends BrocaError {
  static override readonly code: number = -300;
  static override readonly kind: string = "api";
  static override readonly retry: Retry = "unsafe";

  /** The HTTP status. */
  get status(): number | undefined {
    return detail(this, "status", "number");
  }
  /** The problem's type. */
  get type(): string | undefined {
    return detail(this, "type", "string");
  }
  /** The problem's title. */
  get title(): string | undefined {
    return detail(this, "title", "string");
  }
  /** What the service says about this occurrence. */
  get detail(): string | undefined {
    return detail(this, "detail", "string");
  }
}
/** The key was refused. */
export class UnauthorizedError extends ApiError {
  static override readonly code: number = -301;
  static override readonly kind: string = "unauthorized";
}
/** The session is closed or in error. */
export class SessionClosedError extends ApiError {
  static override readonly code: number = -302;
  static override readonly kind: string = "session_closed";
}
/** The profile does not allow a declared tool. */
export class ToolNotAllowedError extends ApiError {
  static override readonly code: number = -303;
  static override readonly kind: string = "tool_not_allowed";
}
/** The service answered with a JSON-RPC error. */
export class RpcError extends BrocaError {
  static override readonly code: number = -320;
  static override readonly kind: string = "rpc";
  static override readonly retry: Retry = "unsafe";

  /** The number of the JSON-RPC error. */
  get rpcCode(): number | undefined {
    return detail(this, "code", "number");
  }
}
/** The caller has not registered as a driver. */
export class DriverNotRegisteredError extends RpcError {
  static override readonly code: number = -321;
  static override readonly kind: string = "driver_not_registered";
  static override readonly retry: Retry = "safe";
}
/** A paused turn stands in the way. */
export class TurnInProgressError extends RpcError {
  static override readonly code: number = -322;
  static override readonly kind: string = "turn_in_progress";
  static override readonly retry: Retry = "safe";
}
/** The parameters were refused. */
export class InvalidParamsError extends RpcError {
  static override readonly code: number = -323;
  static override readonly kind: string = "invalid_params";
}
/** Every model provider failed; `details` is the event that says so. */
export class ProvidersFailedError extends BrocaError {
  static override readonly code: number = -340;
  static override readonly kind: string = "providers_failed";
  static override readonly retry: Retry = "safe";
}
/** The turn reached the service's limit of model rounds. */
export class LoopLimitError extends BrocaError {
  static override readonly code: number = -341;
  static override readonly kind: string = "loop_limit";
  static override readonly retry: Retry = "unsafe";
}
/** The model's answer does not fit the output that was asked for, also after it was told so. */
export class OutputInvalidError extends BrocaError {
  static override readonly code: number = -343;
  static override readonly kind: string = "output_invalid";
  static override readonly retry: Retry = "unsafe";
  readonly #reply: Reply | undefined;

  constructor(message: string, fields: Partial<ErrorFields> & { cause?: unknown; reply?: Reply } = {}) {
    super(message, fields);
    this.#reply = fields.reply;
  }

  /** The last reply, counting every turn. What the model wrote is in its `text`, and nothing that prints the error shows it. */
  get reply(): Reply | undefined {
    return this.#reply;
  }
}
/** A tool failed. */
export class ToolError extends BrocaError {
  static override readonly code: number = -400;
  static override readonly kind: string = "tool";
  static override readonly retry: Retry = "unsafe";
}
/** The model asked for a tool that nobody registered. */
export class UnknownToolError extends ToolError {
  static override readonly code: number = -401;
  static override readonly kind: string = "unknown_tool";
}
/** A tool did not finish before its deadline. */
export class ToolTimeoutError extends ToolError {
  static override readonly code: number = -402;
  static override readonly kind: string = "tool_timeout";
  static override readonly retry: Retry = "unknown";
}
/** A hook of the application failed. */
export class HookError extends BrocaError {
  static override readonly code: number = -410;
  static override readonly kind: string = "hook";
  static override readonly retry: Retry = "unsafe";
}
/** A person or a rule refused the call. */
export class ApprovalDeniedError extends BrocaError {
  static override readonly code: number = -411;
  static override readonly kind: string = "approval_denied";
  static override readonly retry: Retry = "unsafe";
}
/** The application cancelled the operation. */
export class CancelledError extends BrocaError {
  static override readonly code: number = -500;
  static override readonly kind: string = "cancelled";
  static override readonly retry: Retry = "safe";
}
/** A fault of this library. */
export class InternalError extends BrocaError {
  static override readonly code: number = -900;
  static override readonly kind: string = "internal";
}
/** A panic was caught at a boundary. */
export class PanicError extends BrocaError {
  static override readonly code: number = -901;
  static override readonly kind: string = "panic";
}
/** Two parts of Broca of different versions met. */
export class VersionMismatchError extends BrocaError {
  static override readonly code: number = -902;
  static override readonly kind: string = "version_mismatch";
  static override readonly retry: Retry = "unsafe";
}

// The names are keys here, because a bundler may rename the classes themselves.
for (const [name, row] of Object.entries({
  UsageError, InvalidArgumentError, ClosedError, ForkedError, TransportError, ConnectError, TlsError, IoError,
  TimeoutError, StreamEndedEarlyError, LineTooLongError, LaggedError, ProtocolError, MalformedError,
  UnsupportedVersionError, LimitError, HandshakeError, NotBrocaError, NotOfferedError, ApiError, UnauthorizedError,
  SessionClosedError, ToolNotAllowedError, RpcError, DriverNotRegisteredError, TurnInProgressError,
  InvalidParamsError, ProvidersFailedError, LoopLimitError, OutputInvalidError, ToolError, UnknownToolError, ToolTimeoutError,
  HookError, ApprovalDeniedError, CancelledError, InternalError, PanicError, VersionMismatchError,
})) {
  Object.defineProperty(row.prototype, "name", { value: name, configurable: true, writable: true });
  classes.set(row.code, row);
}
Object.defineProperty(BrocaError.prototype, "name", { value: "BrocaError", configurable: true, writable: true });

/** The error of these fields, as the class of its number. */
export function errorOf(fields: ErrorFields): BrocaError {
  const row = classes.get(fields.code) ?? BrocaError; // a row of a newer native part
  return new row(fields.message, fields);
}

/** What a call of the native part threw, as an error of this package. */
export function thrown(error: unknown): unknown {
  if (!(error instanceof Error)) return error;
  const { code } = error as { code?: unknown };
  // An argument that is no text, for instance: Node-API refuses it before the native part is called.
  if (typeof code === "string" && /^(InvalidArg|\w+Expected)$/.test(code)) return new InvalidArgumentError(error.message, { cause: error });
  if (code !== "Broca") return error;
  return errorOf(JSON.parse(error.message) as ErrorFields);
}

function detail<T>(error: BrocaError, name: string, type: "number" | "string"): T | undefined {
  const value = error.details?.[name];
  return typeof value === type ? (value as T) : undefined;
}
