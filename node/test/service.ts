/** What the tests talk to: the real service, services made up of a function, and programs in processes of their own. */

import { spawn, type ChildProcess } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";

/** A service that runs. */
export interface Service {
  url: string;
  key: string;
  stop(): Promise<void>;
}

/** The folder that the package is installed in: programs of tests run there. */
export const HOME = join(__dirname, "..");

/** Starts `broca serve`, with a script for its model if there is one. It ends with this process at the latest. */
export async function startService(script?: object): Promise<Service> {
  const program = process.env["BROCA_BINARY"];
  if (program === undefined) throw new Error("BROCA_BINARY must name the broca command; scripts/node-test.sh sets it");
  const folder = mkdtempSync(join(tmpdir(), "broca-node-"));
  const words = ["serve", "--dev", "--addr", "127.0.0.1:0", "--json", "--end-with-input", "--shutdown-timeout", "1"];
  if (script !== undefined) {
    writeFileSync(join(folder, "script.json"), JSON.stringify(script));
    words.push("--model", `scripted:${join(folder, "script.json")}`);
  }
  const child = spawn(program, words, { env: { ...process.env, XDG_STATE_HOME: folder }, stdio: ["pipe", "pipe", "inherit"] });
  const ended = new Promise<void>((resolve) => child.once("exit", () => resolve()));
  child.unref();
  for await (const line of createInterface({ input: child.stdout })) {
    const said = JSON.parse(line) as { type: string; url: string; key_file: string };
    if (said.type !== "listening") continue;
    const stop = async (): Promise<void> => {
      child.stdin.end();
      await ended;
      rmSync(folder, { recursive: true, force: true });
    };
    return { url: said.url, key: readFileSync(said.key_file, "utf8").trim(), stop };
  }
  throw new Error("the service ended before it listened");
}

/** The tests of a file share one service. */
export function withService(script?: object): { url: string; key: string } {
  const shared = { url: "", key: "" };
  let service: Service | undefined;
  test.before(async () => {
    service = await startService(script);
    Object.assign(shared, { url: service.url, key: service.key });
  });
  test.after(() => service?.stop());
  return shared;
}

/** What a made-up service does with a message or a subscription. */
export type Answering = (call: Call) => void;

/** A JSON-RPC call with a stream to answer on. */
export interface Call {
  id: unknown;
  method: string;
  params: any;
  response: http.ServerResponse;
  /** Writes a line of the stream. */
  line(value: object): void;
  /** Ends the stream with a result. */
  result(value: object): void;
}

/** A service made of a function; opening, registering and closing are answered by themselves. */
export async function madeUp(answering: Answering, features: string[] = []): Promise<Service & { connections(): Promise<number> }> {
  let sessions = 0;
  const server = http.createServer((request, response) => {
    const body: Buffer[] = [];
    request.on("data", (part: Buffer) => body.push(part));
    request.on("error", () => {});
    response.on("error", () => {});
    request.on("end", () => {
      const json = (value: object): void => {
        response.setHeader("content-type", "application/json");
        response.end(JSON.stringify(value));
      };
      const path = request.url ?? "";
      if (path.endsWith("/meta")) return json({ version: "0.1.0", api_versions: ["v1"], features });
      if (request.method === "DELETE") return json({ session_id: "ses", state: "closed" });
      if (!path.endsWith("/rpc")) {
        sessions += 1;
        return json({ session_id: `ses_${sessions}`, session_key: `bae_ses_${sessions}`, profile: { id: "pro_1", name: "main" } });
      }
      const said = JSON.parse(Buffer.concat(body).toString()) as { id: unknown; method: string; params: any };
      response.setHeader("content-type", "application/x-ndjson");
      const line = (value: object): void => void response.write(`${JSON.stringify(value)}\n`);
      const result = (value: object): void => {
        line({ jsonrpc: "2.0", id: said.id, result: value });
        response.end();
      };
      if (said.method === "session.registerDriver") return result({ registered: true });
      answering({ ...said, response, line, result });
    });
  });
  // A test that failed must not hang: nothing here keeps the process.
  server.on("connection", (socket) => socket.unref());
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  server.unref();
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}`,
    key: "bae_test",
    connections: () => new Promise((resolve, reject) => server.getConnections((error, count) => (error ? reject(error) : resolve(count)))),
    stop: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

/** A result that ends a turn with a text. */
export function saying(text: string): object {
  return { message: { role: "assistant", content: [{ type: "text", text }] }, finish_reason: "stop", events: [] };
}

/** A result that pauses a turn for a call of a tool. */
export function calling(name: string, input: object, id = "call_1"): object {
  return { message: { role: "assistant", content: [{ type: "tool_use", id, name, dispatch: "client", input }] }, finish_reason: "tool_use", events: [] };
}

/** The params of an event's line. */
export function eventLine(number: number, type = "note", payload: object = { number }): object {
  const params = { id: `evt_${number}`, session_id: "ses_1", client_key_id: "key_1", event_type: type, payload, created_at: "2026-01-02T03:04:05.678Z" };
  return { jsonrpc: "2.0", method: "session.event", params };
}

/** What a program in a process of its own came to. */
export interface Ran {
  code: number | null;
  signal: string | null;
  out: string;
  err: string;
  ms: number;
}

/** Runs an ES module that may import the package. Rejections that nobody handles end it. */
export async function run(source: string, options: { env?: Record<string, string>; flags?: string[]; commonjs?: boolean; timeoutMs?: number } = {}): Promise<Ran> {
  const folder = mkdtempSync(join(HOME, "program-"));
  const file = join(folder, options.commonjs === true ? "main.cjs" : "main.mjs");
  writeFileSync(file, source);
  const began = performance.now();
  const child: ChildProcess = spawn(process.execPath, ["--unhandled-rejections=strict", ...(options.flags ?? []), file], {
    cwd: HOME,
    env: { ...process.env, ...options.env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let out = "";
  let err = "";
  child.stdout?.on("data", (text: Buffer) => (out += text.toString()));
  child.stderr?.on("data", (text: Buffer) => (err += text.toString()));
  const late = setTimeout(() => child.kill("SIGKILL"), options.timeoutMs ?? 20_000);
  const [code, signal] = await new Promise<[number | null, string | null]>((resolve) => child.once("close", (...end) => resolve(end)));
  clearTimeout(late);
  rmSync(folder, { recursive: true, force: true });
  return { code, signal, out, err, ms: performance.now() - began };
}

/** Resolves after so many milliseconds. */
export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
