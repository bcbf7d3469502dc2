/** The session service for tests: started, broken and healed, with nothing but node:http as a client. */

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { Agent, type IncomingMessage, request } from "node:http";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, afterEach, before, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { BinaryNotFoundError, Server, ServerError, VersionMismatchError } from "@broca/sdk/testing";

const PACKAGE = dirname(require.resolve("@broca/sdk/package.json"));
const VERSION = (JSON.parse(readFileSync(join(PACKAGE, "package.json"), "utf8")) as { version: string }).version;
const TESTING = require.resolve("@broca/sdk/testing");

type Json = Record<string, unknown>;

/** Sends a request; the response as soon as its head is there. */
async function send(
  url: string,
  path: string,
  { key, body, agent }: { key?: string; body?: unknown; agent?: Agent } = {},
): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    const headers: Record<string, string> = { "content-type": "application/json" };
    if (key !== undefined) headers["authorization"] = `Bearer ${key}`;
    const method = body === undefined ? "GET" : "POST";
    // Without an agent of its own each request makes a connection.
    const options = { method, headers, agent: agent ?? new Agent({ keepAlive: false }) };
    request(`${url}${path}`, options, resolve).on("error", reject).end(body === undefined ? "" : JSON.stringify(body));
  });
}

async function whole(response: IncomingMessage): Promise<string> {
  let text = "";
  for await (const piece of response.setEncoding("utf8")) text += String(piece);
  return text;
}

async function meta(url: string): Promise<Json> {
  return JSON.parse(await whole(await send(url, "/api/v1/meta"))) as Json;
}

/** A plain client of one session, on a connection that it keeps. */
class Driver implements Disposable {
  readonly #url: string;
  readonly #agent = new Agent({ keepAlive: true, maxSockets: 1 });
  #id = "";
  #key = "";

  private constructor(url: string) {
    this.#url = url;
  }

  static async open(server: Server, { url = server.url, key = server.key } = {}): Promise<Driver> {
    const driver = new Driver(url);
    const body = { client_version: "t/1", tools: [] };
    const response = await send(url, "/api/v1/sessions", { key, body, agent: driver.#agent });
    const opened = JSON.parse(await whole(response)) as { session_id: string; session_key: string };
    driver.#id = opened.session_id;
    driver.#key = opened.session_key;
    await driver.say("session.registerDriver", {});
    return driver;
  }

  /** The same client of the same session on a connection of its own. */
  beside(): Driver {
    const driver = new Driver(this.#url);
    driver.#id = this.#id;
    driver.#key = this.#key;
    return driver;
  }

  [Symbol.dispose](): void {
    this.#agent.destroy();
  }

  /** The answer as its bytes come. */
  async ask(method: string, params: unknown): Promise<IncomingMessage> {
    const body = { jsonrpc: "2.0", id: 1, method, params };
    return send(this.#url, `/api/v1/sessions/${this.#id}/rpc`, { key: this.#key, body, agent: this.#agent });
  }

  async say(method: string, params: unknown): Promise<Json[]> {
    return lines(await whole(await this.ask(method, params)));
  }

  async message(content: string): Promise<Json[]> {
    return this.say("session.sendMessage", { message: { role: "user", content } });
  }
}

function lines(text: string): Json[] {
  return text.split("\n").filter((line) => line !== "").map((line) => JSON.parse(line) as Json);
}

/** The answer in the terminal line. */
function answer(all: Json[]): string {
  const { result } = all.at(-1) as { result: { message: { content: { type: string; text: string }[] } } };
  return result.message.content.filter(({ type }) => type === "text").map(({ text }) => text).join("");
}

/** Whether there is such a process that has not ended. */
function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
  } catch {
    return false;
  }
  const state = `/proc/${pid}/stat`;
  return !existsSync(state) || !readFileSync(state, "utf8").includes(") Z ");
}

async function until(holds: () => boolean): Promise<void> {
  const end = Date.now() + 20_000;
  while (!holds()) {
    assert.ok(Date.now() < end, "it never came to pass");
    await sleep(10);
  }
}

const withCode = (code: string) => (error: unknown) => (error as NodeJS.ErrnoException).code === code;
const message = (content: string) => ({ message: { role: "user", content } });

describe("a server for tests", () => {
  let server: Server;
  before(async () => {
    server = await Server.start({ script: [{ then: { text: "one two" } }] });
  });
  afterEach(async () => server.heal());
  after(async () => server.stop());

  it("answers as its script says, through the proxy and beside it", async () => {
    assert.notEqual(server.url, server.directUrl);
    for (const url of [server.url, server.directUrl]) {
      assert.equal((await meta(url))["version"], VERSION);
      using driver = await Driver.open(server, { url });
      assert.equal(answer(await driver.message("hello")), "one two");
    }
  });

  it("keeps sessions, keys and port over a restart", async () => {
    using driver = await Driver.open(server);
    await driver.message("hello");
    const kept = () => [server.url, server.directUrl, server.key, server.watchKey];
    const [before, pid] = [kept(), server.pid];
    await server.restart();
    assert.deepEqual(kept(), before);
    assert.notEqual(server.pid, pid);
    assert.ok(!isRunning(pid));
    assert.equal(answer(await driver.message("again")), "one two");
  });

  it("is refused by the system while it is down", async () => {
    const restarting = server.restart({ downMs: 300 });
    await sleep(100);
    await assert.rejects(meta(server.url), withCode("ECONNREFUSED"));
    await restarting;
    await meta(server.url);
  });

  it("resets or closes the connections that shall be dropped", async () => {
    await server.drop();
    await assert.rejects(meta(server.url), withCode("ECONNRESET"));
    await server.drop({ count: 2, how: "close" });
    for (const _ of [1, 2]) await assert.rejects(meta(server.url));
    await meta(server.url);
    await server.drop({ count: null });
    for (const _ of [1, 2, 3]) await assert.rejects(meta(server.url), withCode("ECONNRESET"));
    await meta(server.directUrl);
    await server.heal();
    await meta(server.url);
  });

  it("gives its port up until all is healed", async () => {
    await server.refuse();
    await assert.rejects(meta(server.url), withCode("ECONNREFUSED"));
    await server.heal();
    await meta(server.url);
  });

  it("holds bytes back on open connections too", async () => {
    using driver = await Driver.open(server);
    await server.delay({ upMs: 50, downMs: 100 });
    const begun = performance.now();
    assert.equal(answer(await driver.message("hello")), "one two");
    assert.ok(performance.now() - begun >= 149);
  });

  it("cuts the next stream after so many lines, and no later one", async () => {
    using driver = await Driver.open(server);
    assert.ok((await driver.message("hello")).length > 2);
    await server.cut({ afterLines: 2 });
    const response = await driver.ask("session.sendMessage", message("x"));
    let text = "";
    await assert.rejects(async () => {
      for await (const piece of response.setEncoding("utf8")) text += String(piece);
    }, withCode("ECONNRESET"));
    assert.equal(lines(text).length, 2);
    assert.equal((await server.status()).planned, 0);
    assert.equal(answer(await driver.message("again")), "one two");
  });

  it("lets a fault wait for the request that it names", async () => {
    await server.cut({ afterBytes: 10, request: "session.sendMessage", reset: true });
    await meta(server.url);
    using driver = await Driver.open(server);
    assert.equal((await server.status()).planned, 1);
    await assert.rejects(driver.message("hello"), withCode("ECONNRESET"));
    assert.equal((await server.status()).planned, 0);
  });

  it("repeats a line inside a whole stream", async () => {
    using driver = await Driver.open(server);
    const usual = await driver.message("hello");
    await server.duplicate({ line: 2 });
    const got = await driver.message("hello");
    assert.equal(got.length, usual.length + 1);
    assert.deepEqual(got[1], got[2]);
    assert.equal(answer(await driver.message("again")), "one two");
  });

  it("holds a stream back while it goes on, until all is healed", async () => {
    using driver = await Driver.open(server);
    using watching = driver.beside();
    await server.buffer({ request: "session.subscribe" });
    const asked = watching.ask("session.subscribe", { since_event_id: "" });
    while ((await server.status()).planned > 0) await sleep(5);
    assert.equal(answer(await driver.message("hello")), "one two");
    assert.equal(await Promise.race([asked, sleep(100, "held back")]), "held back");
    await server.heal();
    await driver.message("again");
    assert.equal((await asked).statusCode, 200);
  });

  it("hands a buffered answer on when it has ended", async () => {
    using driver = await Driver.open(server);
    await server.buffer();
    assert.equal(answer(await driver.message("hello")), "one two");
    assert.equal((await server.status()).planned, 0);
  });

  it("falls silent after a line until all is healed", async () => {
    using driver = await Driver.open(server);
    await server.stall({ afterLines: 1 });
    const asked = driver.message("hello");
    assert.equal(await Promise.race([asked, sleep(150, "silent")]), "silent");
    assert.equal((await server.status()).planned, 0);
    await server.heal();
    assert.equal(answer(await asked), "one two");
  });

  it("silences and resets what is open at once", async () => {
    using driver = await Driver.open(server);
    await server.stall();
    const asked = driver.message("hello");
    asked.catch(() => {});
    assert.equal(await Promise.race([asked, sleep(100, "silent")]), "silent");
    assert.equal(await server.reset(), 1);
    await assert.rejects(asked, withCode("ECONNRESET"));
  });

  it("lets what is skipped pass before what is planned after it", async () => {
    await server.skip({ connections: 2 });
    await server.drop();
    await meta(server.url);
    await meta(server.url);
    await assert.rejects(meta(server.url), withCode("ECONNRESET"));
  });

  it("tells what cannot be meant and changes nothing", async () => {
    await assert.rejects(server.cut({}), /afterLines or afterBytes/);
    await assert.rejects(server.stall({ count: 3 }), /need afterLines/);
    await assert.rejects(server.duplicate({ line: 0 }), /counted from 1/);
    await assert.rejects(server.drop({ count: 0 }), (error) => error instanceof ServerError);
    await meta(server.url);
  });
});

describe("starting and stopping", () => {
  let folder: string;
  before(() => {
    folder = mkdtempSync(join(tmpdir(), "testing-server-"));
  });
  after(() => rmSync(folder, { recursive: true, force: true }));

  it("takes a script as an object or a file", async () => {
    const file = join(folder, "script.json");
    const script = { rules: [{ then: { text: "said" } }] };
    writeFileSync(file, JSON.stringify(script));
    for (const given of [script, file]) {
      await using server = await Server.start({ script: given });
      using driver = await Driver.open(server);
      assert.equal(answer(await driver.message("hello")), "said");
    }
    await assert.rejects(Server.start({ script: file, model: "scripted" }), TypeError);
  });

  it("shows what the service said when it does not start", async () => {
    const starting = Server.start({ script: [{ then: { txt: "hello" } }] });
    await assert.rejects(starting, /the service did not start; it said:\n.*line 1, column/);
  });

  it("makes keys that are drivers of their own", async () => {
    await using server = await Server.start({ keys: ["ann", "bob"] });
    const keys = [server.key, server.watchKey, ...Object.values(server.keys)];
    assert.equal(new Set(keys).size, 4);
    using driver = await Driver.open(server, { key: server.keys["bob"] ?? "" });
    assert.ok((await driver.message("hello")).length > 0);
  });

  it("leaves nothing behind, and may be stopped twice", async () => {
    const server = await Server.start();
    const { pid, url } = server;
    await server.stop();
    await server.stop();
    assert.ok(!isRunning(pid));
    await assert.rejects(meta(url), withCode("ECONNREFUSED"));
    assert.throws(() => server.url, /does not run/);
  });

  it("keeps variables of this process from the service", async () => {
    process.env["BROCA_DB_PATH"] = "/nowhere/broca.db";
    try {
      await using server = await Server.start();
      await meta(server.url);
    } finally {
      delete process.env["BROCA_DB_PATH"];
    }
  });

  for (const [how, then, status] of [
    ["is killed", "process.kill(process.pid, 'SIGKILL')", "SIGKILL"],
    ["ends", "process.exit(3)", 3],
    ["has nothing more to do", "", 0],
  ] as const) {
    it(`does not outlive a test process that ${how}`, async () => {
      const code = `const { Server } = require(${JSON.stringify(TESTING)});
        Server.start().then((server) => require("node:fs").writeSync(1, String(server.pid))).then(() => { ${then} });`;
      // The folder of a service whose test was killed is left behind.
      const child = spawn(process.execPath, ["-e", code], { env: { ...process.env, TMPDIR: folder } });
      let output = "";
      child.stdout.setEncoding("utf8").on("data", (text: string) => (output += text));
      const ended = await new Promise((resolve) => {
        child.on("close", (code, signal) => resolve(signal ?? code));
      });
      assert.equal(ended, status);
      assert.ok(Number(output) > 0);
      await until(() => !isRunning(Number(output)));
    });
  }
});

describe("finding the broca command", () => {
  let folder: string;
  const { PATH, BROCA_BINARY } = process.env;
  before(() => {
    folder = mkdtempSync(join(tmpdir(), "testing-server-"));
  });
  afterEach(() => {
    process.env["PATH"] = PATH;
    if (BROCA_BINARY === undefined) delete process.env["BROCA_BINARY"];
    else process.env["BROCA_BINARY"] = BROCA_BINARY;
  });
  after(() => rmSync(folder, { recursive: true, force: true }));

  /** A program that says it is broca of this version. */
  function program(name: string, says: string): string {
    mkdirSync(join(folder, name), { recursive: true });
    const file = join(folder, name, "broca");
    writeFileSync(file, `#!/bin/sh\necho ${says}\n`);
    chmodSync(file, 0o755);
    return file;
  }

  it("refuses another version with a sentence that names both and the file", async () => {
    const binary = program("other", "broca 9.8.7");
    await assert.rejects(Server.start({ binary }), (error) => {
      assert.ok(error instanceof VersionMismatchError);
      for (const part of [binary, "9.8.7", VERSION, "npm install"]) assert.ok(error.message.includes(part));
      return true;
    });
  });

  it("tells a program that is not broca", async () => {
    await assert.rejects(Server.start({ binary: program("hello", "hello") }), /is not the broca command/);
  });

  it("asks the places in order, and no other when one was named", async () => {
    // Each place holds a program of another version, which says which one was asked.
    process.env["BROCA_BINARY"] = program("variable", "broca 2.0.0");
    process.env["PATH"] = dirname(program("path", "broca 4.0.0"));
    await assert.rejects(Server.start({ binary: program("given", "broca 1.0.0") }), /is broca 1\.0\.0/);
    await assert.rejects(Server.start(), /is broca 2\.0\.0/);
    process.env["BROCA_BINARY"] = join(folder, "nothing");
    await assert.rejects(Server.start(), BinaryNotFoundError);
  });

  const hasPackage = existsSync(join(PACKAGE, "node_modules", "@broca", "server"));
  it("finds the package from where the tests run, then PATH, and tells the cure", { skip: hasPackage }, () => {
    const told = (project: string, path: string) => {
      const code = `require(${JSON.stringify(TESTING)}).Server.start().catch((error) => console.log(error.message));`;
      const options = { cwd: join(folder, project), env: { PATH: join(folder, path) }, encoding: "utf8" } as const;
      return execFileSync(process.execPath, ["-e", code], options);
    };
    program("path", "broca 4.0.0");
    const packaged = join(folder, "project", "node_modules", "@broca", "server");
    mkdirSync(packaged, { recursive: true });
    const binary = JSON.stringify(program("package", "broca 3.0.0"));
    writeFileSync(join(packaged, "index.js"), `exports.binaryPath = () => ${binary};`);
    assert.match(told("project", "path"), /is broca 3\.0\.0/);
    assert.match(told(".", "path"), /is broca 4\.0\.0/);
    assert.match(told(".", "project"), /no broca command: npm install/);
  });
});
