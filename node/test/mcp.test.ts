import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { inspect, promisify } from "node:util";
import { Client, InvalidArgumentError, TransportError, UsageError, mcp, tool, type McpOptions, type Session } from "@broca/sdk";
import { sleep, withService } from "./service";

const service = withService();
const words = [process.execPath, join(__dirname, "mcp-server.js")];
const local = tool({ name: "local", description: "Is here.", run: () => "from here" });

function notesFile(): string {
  return join(mkdtempSync(join(tmpdir(), "broca-mcp-")), "notes");
}

function notesIn(file: string): string[] {
  try {
    return readFileSync(file, "utf8").trim().split("\n");
  } catch {
    return [];
  }
}

/** Waits until a server has written this note. */
async function noted(file: string, note: string): Promise<void> {
  for (let i = 0; i < 1500; i++) {
    if (notesIn(file).includes(note)) return;
    await sleep(20);
  }
  assert.fail(`${note} is not in ${notesIn(file)}`);
}

/** Waits until the server that writes these notes is gone. */
async function gone(file: string): Promise<void> {
  const pid = Number(notesIn(file).reverse().find((line) => line.startsWith("began"))?.split(" ")[1]);
  for (let i = 0; i < 1500; i++) {
    try {
      process.kill(pid, 0);
    } catch {
      return;
    }
    await sleep(20);
  }
  assert.fail(`the server ${pid} is still there: ${notesIn(file)}`);
}

function client(features?: string[]): Client {
  return new Client(service.url, { key: service.key, ...(features && { features }) });
}

async function outcomes(session: Session, message: string): Promise<{ text: string; found: string[] }> {
  const found: string[] = [];
  let text = "";
  for await (const step of session.send(message)) {
    if (step.kind === "tool_settled") found.push(step.outcome);
    if (step.kind === "done") text = step.reply.text;
  }
  return { text, found };
}

async function withServer<T>(options: McpOptions, use: (session: Session, notes: string) => Promise<T>, features?: string[]): Promise<T> {
  const notes = notesFile();
  const session = await client(features).open({ tools: [local, mcp([...words, notes], options)] });
  try {
    return await use(session, notes);
  } finally {
    await session.leave();
  }
}

test("tools of a program are called beside those of this one, and it ends with the session", async () => {
  let file = "";
  await withServer({}, async (session, notes) => {
    file = notes;
    const { text } = await session.ask('echo "hello" and local');
    assert.match(text, /echo: hello/);
    assert.match(text, /from here/);
    assert.match((await session.ask("count")).text, /count/);
  });
  await gone(file);
});

test("a server over HTTP is called by its address", async () => {
  const server = spawn(words[0] as string, [words[1] as string, "http"], { stdio: ["ignore", "pipe", "inherit"] });
  try {
    const port = await new Promise<string>((resolve) => server.stdout.once("data", (data) => resolve(String(data).trim())));
    const session = await client().open({ tools: [mcp(`http://127.0.0.1:${port}/mcp`, { headers: { "X-Key": "hunter2" } })] });
    assert.match((await session.ask('echo "hello"')).text, /echo: hello/);
    await session.leave();
  } finally {
    server.kill();
  }
});

test("a tool that failed says why", async () => {
  await withServer({}, async (session) => {
    const { text, found } = await outcomes(session, "fail");
    assert.deepEqual(found, ["failed"]);
    assert.match(text, /it did not work/);
  });
});

test("an image is content where the session takes it, and words elsewhere", async () => {
  for (const features of [undefined, ["display"]]) {
    await withServer({}, async (session) => {
      await session.ask("draw");
      let result = "";
      for await (const event of session.history()) if (event.type === "tool.result") result = JSON.stringify(event.payload);
      assert.equal(result.includes("base64"), features === undefined, result);
      assert.match(result, /a cat.*image\/png/);
    }, features);
  }
});

test("names get a prefix, and lists choose among them", async () => {
  await withServer({ prefix: "t_", allow: ["echo", "fail"], deny: ["fail"] }, async (session) => {
    assert.match((await session.ask('t_echo "hello"')).text, /echo: hello/);
    assert.doesNotMatch((await session.ask("t_fail")).text, /did not work/);
  });
});

test("two tools of one name are refused with both owners, and what was connected is gone again", async () => {
  const notes = notesFile();
  const echo = tool({ name: "echo", run: () => "" });
  await assert.rejects(client().open({ tools: [echo, mcp([...words, notes])] }), (error: unknown) => {
    assert.ok(error instanceof InvalidArgumentError);
    return /"echo" comes from this program and from the MCP server/.test(error.message);
  });
  await gone(notes);
  await assert.rejects(client().open({ tools: [mcp(words, { name: "two" }), mcp(words, { name: "two" })] }), /#1.*#2/);
});

test("a server that cannot be had is named, or left out", async () => {
  const nowhere = ["/nowhere/at-all", "--key=hunter2"];
  await assert.rejects(client().open({ tools: [mcp(nowhere)] }), (error: unknown) => {
    assert.ok(error instanceof TransportError);
    assert.doesNotMatch(error.message, /hunter2/);
    return /"at-all" cannot be used: ENOENT/.test(error.message);
  });
  const session = await client().open({ tools: [local, mcp(nowhere, { required: false })] });
  assert.match((await session.ask("local")).text, /from here/);
  await session.leave();
  const silent = [process.execPath, "-e", "setInterval(() => {}, 1000)"];
  await assert.rejects(client().open({ tools: [mcp(silent, { connectTimeoutMs: 300 })] }), /not ready within 300 ms/);
  await assert.rejects(client().open({ tools: [mcp(silent)], signal: AbortSignal.abort(new Error("given up")) }), /given up/);
});

test("tools that a server gets later are there at the next message", async () => {
  await withServer({}, async (session) => {
    await session.ask("grow");
    assert.match((await session.ask("extra_0")).text, /extra_0 ran/);
  });
});

test("a server that ends in a call may have run it, and is started again", async () => {
  await withServer({}, async (session, notes) => {
    const { text, found } = await outcomes(session, "die");
    assert.deepEqual(found, ["interrupted_may_have_run"]);
    assert.match(text, /may have run/);
    assert.match((await session.ask('echo "hello"')).text, /echo: hello/);
    assert.equal(notesIn(notes).filter((line) => line.startsWith("began")).length, 2);
  });
});

test("a server that ends again and again is given up", async () => {
  await withServer({ restarts: 0 }, async (session) => {
    await outcomes(session, "die");
    const { text, found } = await outcomes(session, "count");
    assert.deepEqual(found, ["failed"]);
    assert.match(text, /not started again/);
  });
});

test("a call that no longer counts, or takes too long, is cancelled at the server", async () => {
  await withServer({}, async (session, notes) => {
    for await (const step of session.send("sleep")) {
      if (step.kind !== "tool_call") continue;
      await noted(notes, "call sleep");
      break;
    }
    await noted(notes, "sleep was told to stop");
  });
  await withServer({ timeoutMs: 300 }, async (session, notes) => {
    assert.deepEqual((await outcomes(session, "sleep")).found, ["timed_out_may_have_run"]);
    await noted(notes, "sleep was told to stop");
  });
});

test("consent is asked for by what the server says of a tool", async () => {
  const asked: string[] = [];
  const session = await client().open({
    tools: [mcp(words, { approval: (each) => each.readOnly !== true })],
    onApproval: (approval) => {
      asked.push(approval.name);
      return "allow";
    },
  });
  await session.ask('echo "hello"');
  await session.ask("count");
  await session.leave();
  assert.deepEqual(asked, ["count"]);
});

test("a program sees few variables, and those that were given", async () => {
  process.env["SECRET_OF_THE_PROGRAM"] = "hunter2";
  await withServer({ env: { GIVEN: "1" } }, async (session) => {
    const { text } = await session.ask("environment");
    assert.match(text, /GIVEN.*PATH/);
    assert.doesNotMatch(text, /SECRET_OF_THE_PROGRAM/);
  });
});

test("a session with a server that is never left does not keep the process alive", async () => {
  const notes = notesFile();
  const program = `const { Client, mcp } = require("@broca/sdk");
    new Client(${JSON.stringify(service.url)}, { key: ${JSON.stringify(service.key)} })
      .open({ tools: [mcp(${JSON.stringify([...words, notes])})] })
      .then((session) => session.ask('echo "hello"')).then((reply) => console.log(reply.text));`;
  const { stdout } = await promisify(execFile)(process.execPath, ["-e", program], { cwd: __dirname, timeout: 60_000 });
  assert.match(stdout, /echo: hello/);
  await gone(notes);
});

test("the tools of a server stay when the others are replaced", async () => {
  await withServer({}, async (session) => {
    await session.updateTools([tool({ name: "other", run: () => "from there" })]);
    const { text } = await session.ask('echo "hello" and other');
    assert.match(text, /echo: hello/);
    assert.match(text, /from there/);
    await assert.rejects(session.updateTools([mcp(words)] as never), UsageError);
  });
});

test("what cannot be a server is refused at once, and shows no key", () => {
  for (const wrong of ["", [], 'a "b']) assert.throws(() => mcp(wrong), InvalidArgumentError);
  assert.throws(() => mcp("x", { headers: {} }), InvalidArgumentError);
  assert.equal(inspect(mcp("https://key@host/secret?key=hunter2")), "McpServer(host)");
});
