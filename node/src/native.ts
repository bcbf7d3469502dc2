/**
 * Finds and loads the native part.
 *
 * It lies in the package of its platform (`@broca/linux-x64-gnu`, …), which npm installs beside this one, or as
 * `broca.<platform>.node` in this package. `BROCA_NODE_ADDON` names another file.
 */

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { VersionMismatchError, InternalError, thrown } from "./errors";
import { LAYOUT_VERSION } from "./layout";

/** A batch as it comes: its text, and its table with offsets in UTF-16 units. */
export type RawBatch = [text: string, words: Uint32Array];

/** One engine; see bindings/node/src/engine.rs. Inputs return what effects() would. */
export interface Engine {
  command(command: string, now: number, traceparent?: string | null, tracestate?: string | null): number;
  cancel(op: number, now: number): number;
  answer(call: number, word: string, value: string | null, now: number, traceparent?: string | null, tracestate?: string | null): boolean;
  resolved(req: number, addresses: string[] | null, why: string | null, now: number): number;
  connected(conn: number, now: number): number;
  tlsStarted(conn: number, now: number): number;
  data(conn: number, buffer: Uint8Array, size: number, now: number): number;
  written(conn: number, size: number, now: number): number;
  closed(conn: number, why: string, now: number): number;
  timeout(now: number): number;
  wall(ms: number): void;
  effects(): number;
  effectText(): Buffer;
  steps(op: number, maxBytes: number): RawBatch | null;
  logs(): RawBatch | null;
}

/** What the native part exports. */
export interface Native {
  version(): string;
  layoutVersion(): number;
  mediaBlock(data: Uint8Array, isFile: boolean, mediaType?: string, name?: string, title?: string): string;
  imageAt(url: string): string;
  mcpAnswer(result: string): [word: string, value: string];
  errorTable(): [code: number, kind: string, name: string, parent: number | null, retry: string][];
  Engine: {
    new (options: string, seedLow: number, seedHigh: number, wallMs: number, table: Uint32Array): Engine;
    eventsOf(json: string): RawBatch;
  };
}

/** The native part. */
export const native: Native = load();

/** Calls the native part; what it throws becomes an error of this package. */
export function calling<T>(call: () => T): T {
  try {
    return call();
  } catch (error) {
    throw thrown(error);
  }
}

function load(): Native {
  const target = platform();
  const named = process.env["BROCA_NODE_ADDON"];
  const file = named ?? join(__dirname, "..", `broca.${target}.node`);
  const failures: string[] = [];
  let found: { native: Native; from: string } | undefined;
  try {
    found = { native: require(file) as Native, from: file };
  } catch (error) {
    failures.push(`${file}: ${reason(error)}`);
  }
  if (found === undefined && named === undefined) {
    try {
      found = { native: requireOf(target), from: `@broca/${target}` };
    } catch (error) {
      failures.push(`@broca/${target}: ${reason(error)}`);
    }
  }
  if (found === undefined) {
    const runtime = `Node ${process.version}, module ABI ${process.versions.modules}, Node-API ${process.versions["napi"] ?? "unknown"}`;
    throw new InternalError(
      `the native part of @broca/sdk for ${target} (${runtime}) cannot be loaded. Tried: ${failures.join("; ")}. ` +
        "Install without --omit=optional and on the platform that runs the program.",
    );
  }
  check(found.native, found.from);
  return found.native;
}

/** Says in one sentence when two versions met. */
function check(found: Native, from: string): void {
  const wanted = (require("../package.json") as { version: string }).version; // a literal name: a bundle holds it, too
  const version = found.version();
  if (version !== wanted || found.layoutVersion() !== LAYOUT_VERSION) {
    throw new VersionMismatchError(
      `@broca/sdk ${wanted} (layout ${LAYOUT_VERSION}) met the native part ${version} (layout ${found.layoutVersion()}) in ${from}; install both at the same version`,
    );
  }
}

function platform(): string {
  const { platform, arch } = process;
  if (platform === "linux") return `linux-${arch}-${isMusl() ? "musl" : "gnu"}`;
  if (platform === "win32") return `win32-${arch}-msvc`;
  return `${platform}-${arch}`;
}

/** musl's `ldd` is a script that names it; where there is none, the process report knows, slowly. */
function isMusl(): boolean {
  try {
    return readFileSync("/usr/bin/ldd", "latin1").includes("musl");
  } catch {
    // no such file: ask further
  }
  const report = process.report?.getReport() as { header?: { glibcVersionRuntime?: string } } | undefined;
  return report !== undefined && report.header?.glibcVersionRuntime === undefined;
}

/** Literal names, so that bundlers see them; within `try`, so that they pass over those that are not installed. */
function requireOf(target: string): Native {
  try {
    switch (target) {
      case "linux-x64-gnu":
        return require("@broca/linux-x64-gnu") as Native;
      case "linux-x64-musl":
        return require("@broca/linux-x64-musl") as Native;
      case "linux-arm64-gnu":
        return require("@broca/linux-arm64-gnu") as Native;
      case "linux-arm64-musl":
        return require("@broca/linux-arm64-musl") as Native;
      case "darwin-x64":
        return require("@broca/darwin-x64") as Native;
      case "darwin-arm64":
        return require("@broca/darwin-arm64") as Native;
      case "win32-x64-msvc":
        return require("@broca/win32-x64-msvc") as Native;
      case "win32-arm64-msvc":
        return require("@broca/win32-arm64-msvc") as Native;
      default:
    }
  } catch (cause) {
    throw new Error(reason(cause), { cause });
  }
  throw new Error("there is no package for this platform");
}

function reason(error: unknown): string {
  return String(error instanceof Error ? error.message : error).split("\n", 1)[0] ?? "";
}
