import assert from "node:assert/strict";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { inspect } from "node:util";
import { Client, File, Image, InvalidArgumentError, LimitError, tool, type Session } from "@broca/sdk";
import { withService } from "./service";

const service = withService();
const PNG = Buffer.from("\x89PNG\r\n\x1a\n", "latin1");

async function said(session: Session, type: string): Promise<any[]> {
  const found: any[] = [];
  for await (const event of session.history()) if (event.type === type) found.push(event.payload);
  return found;
}

test("a message holds texts, images and files", async () => {
  const folder = mkdtempSync(join(tmpdir(), "broca-media-"));
  writeFileSync(join(folder, "cat.png"), PNG);
  writeFileSync(join(folder, "notes.md"), "# Notes");
  const session = await new Client(service.url, { key: service.key }).open();
  const parts = [await Image.open(join(folder, "cat.png")), Image.at("https://example.com/x.png"), await File.open(join(folder, "notes.md"))];
  await session.ask(["What is this?", ...parts, new File("words", { title: "said" })]);
  const [sent] = await said(session, "client.message.send");
  const { content } = sent;
  assert.deepEqual(content.map((block: any) => block.type), ["text", "image", "image", "document", "document"]);
  assert.deepEqual(content[1].source, { type: "base64", media_type: "image/png", data: "iVBORw0KGgo=" });
  assert.equal(content[3].title, "notes.md");
  assert.equal(content[4].source.data, "words");
  await session.leave();
});

test("a tool gives an image, or a list with one; a session of text gets words", async () => {
  const draw = tool({ name: "draw", run: () => new Image(PNG) });
  const show = tool({ name: "show", run: () => ["a cat", new Image(PNG)] });
  for (const features of [undefined, ["display"]]) {
    const session = await new Client(service.url, { key: service.key, ...(features && { features }) }).open({ tools: [draw, show] });
    await session.ask("draw and show");
    const results = (await said(session, "tool.result")).map((payload) => JSON.stringify(payload));
    assert.equal(results.length, 2);
    for (const result of results) assert.equal(result.includes("base64"), features === undefined, result);
    await session.leave();
  }
});

test("a message that the session cannot take is refused before anything leaves", async () => {
  const text = await new Client(service.url, { key: service.key, features: ["display"] }).open();
  await assert.rejects(text.ask([new Image(PNG)]), (error: unknown) => error instanceof InvalidArgumentError && /takes text only/.test(error.message));
  const session = await new Client(service.url, { key: service.key }).open();
  const large = new Image(Buffer.concat([PNG, Buffer.alloc(13 * 1024 * 1024)]));
  await assert.rejects(session.ask([large]), (error: unknown) => error instanceof LimitError && /max_request_bytes/.test(error.message));
  for (const each of [text, session]) {
    assert.deepEqual(await said(each, "client.message.send"), []);
    await each.leave();
  }
});

test("what nobody can tell is refused with the cure", () => {
  assert.throws(() => new Image(Buffer.from("words")), /give it/);
  assert.throws(() => new File(Buffer.alloc(0)), /no bytes/);
  assert.throws(() => Image.at("file:///etc/passwd"), InvalidArgumentError);
  assert.equal((new Image(Buffer.from("?"), { mediaType: "image/x-odd" })["source"] as any).media_type, "image/x-odd");
  assert.equal(inspect(new File("hunter2")), "File");
});
