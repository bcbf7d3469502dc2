/**
 * Take part in agent sessions.
 *
 * ```ts
 * import { Client, tool } from "@broca/sdk";
 *
 * const readFile = tool({
 *   name: "read_file",
 *   description: "Return the text of a file.",
 *   input: { type: "object", properties: { path: { type: "string" } }, required: ["path"] },
 *   run: ({ path }, { signal }) => fs.promises.readFile(path, { encoding: "utf8", signal }),
 * });
 *
 * const client = new Client("http://127.0.0.1:8080", { key });
 * const session = await client.open({ tools: [readFile] });
 * for await (const step of session.send("What does read_file say about main.py?")) {
 *   if (step.kind === "text_delta") process.stdout.write(step.delta);
 *   if (step.kind === "approval") step.allow();
 * }
 * const reply = await session.ask("And in one line?"); // the loop, driven for you
 * ```
 *
 * @packageDocumentation
 */

export { Client, Session, type Meta, type OpenOptions, type RequestOptions, type SessionOptions } from "./session";
export type { SessionInfo, SessionsOptions, TurnInfo, UpdateOptions } from "./info";
export type { Approvals, ClientOptions } from "./options";
export type { LogRecord } from "./shell";
export { Turn, type Handlers, type SendOptions } from "./turn";
export { History, Subscription, type HistoryOptions, type Page, type SubscribeOptions } from "./reading";
export { mcp, type McpOptions, type McpServer, type McpTool } from "./mcp";
export { File, Image, type FileOptions } from "./media";
export { tool, ToolInterrupted, type Brought, type NarrowRule, type Tool, type ToolContext, type ToolOptions } from "./tools";
export type { ArgumentsOf, FromSchema, JsonSchema, StandardResult, StandardSchema } from "./schema";
export type { OutputOptions } from "./output";
export { SavedSession } from "./saved";
export { Content, content, type ContentBlock, type Message, type Sent } from "./content";
export { Event } from "./event";
export { Approval, ApprovalWithdrawn, ToolCall, ToolCancel, ToolSettled, type Decision, type ToolOutcome } from "./calls";
export { Received, Sending, type Trace } from "./hooks";
export { Done, Reply, type Spent, type Usage } from "./reply";
export {
  DisplayReset,
  Gap,
  Notification,
  ReasoningDelta,
  Status,
  TextDelta,
  ToolInputDelta,
  Warning,
  type Step,
} from "./steps";
export {
  ApiError,
  ApprovalDeniedError,
  BrocaError,
  CancelledError,
  ClosedError,
  ConnectError,
  DriverNotRegisteredError,
  ForkedError,
  HandshakeError,
  HookError,
  InternalError,
  InvalidArgumentError,
  InvalidParamsError,
  IoError,
  LaggedError,
  LimitError,
  LineTooLongError,
  LoopLimitError,
  MalformedError,
  NotBrocaError,
  NotOfferedError,
  OutputInvalidError,
  PanicError,
  ProtocolError,
  ProvidersFailedError,
  RpcError,
  SessionClosedError,
  StreamEndedEarlyError,
  TimeoutError,
  TlsError,
  ToolError,
  ToolNotAllowedError,
  ToolTimeoutError,
  TransportError,
  TurnInProgressError,
  UnauthorizedError,
  UnknownToolError,
  UnsupportedVersionError,
  UsageError,
  VersionMismatchError,
  type Retry,
} from "./errors";
