/**
 * What tests of programs that use Broca need: a session service of their own, and a network that breaks on demand.
 *
 * All of that is plain JavaScript over the `broca` command; no key of a model and no network is needed. `ChatStream` reads the
 * answer of a Chat Completions server, and `dist/testing/vectors.js` plays the project's shared vectors.
 */

export { BinaryNotFoundError, VersionMismatchError } from "./binary.js";
export { ChatStream, type ChatUnits } from "./chat.js";
export { ServerError } from "./process.js";
export { Proxy, type Knobs, type ProxyStatus } from "./proxy.js";
export {
  Server,
  type BufferOptions,
  type Counted,
  type CutOptions,
  type DelayOptions,
  type DropOptions,
  type DuplicateOptions,
  type Script,
  type ServerOptions,
  type StallOptions,
} from "./server.js";
