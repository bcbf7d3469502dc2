import assert from "node:assert/strict";
import { test } from "node:test";
import { ApiError, Client, ClosedError, InvalidArgumentError, NotOfferedError, type SessionInfo } from "@broca/sdk";
import { madeUp, saying, withService } from "./service";

const service = withService();
const client = (): Client => new Client(service.url, { key: service.key });

test("a session tells how it stands and keeps what is said of it", async () => {
  const session = await client().open({ metadata: { title: "first", tags: { a: 1, b: 2 } } });
  const begun = await session.info();
  assert.deepEqual([begun.sessionId, begun.state, begun.closedAt, begun.compaction], [session.id, "open", undefined, "client"]);
  assert.deepEqual([begun.metadata, begun.metadataVersion], [{ title: "first", tags: { a: 1, b: 2 } }, 0]);
  assert.deepEqual(begun.drivers, [begun.createdBy]);
  assert.deepEqual(begun.turn, { status: "idle", owner: undefined, expiresInMs: undefined, waiting: 0 });
  assert.deepEqual(begun.profile, session.profile);
  await session.ask("say something");
  const then = await session.info();
  assert.ok(then.events > begun.events);
  const { events } = await session.history({ limit: 200 });
  assert.equal(events.at(-1)?.id, then.lastEventId);
  const changed = await session.update({ title: null, tags: { a: 3 } }, { version: 0 });
  assert.deepEqual([changed.metadata, changed.metadataVersion], [{ tags: { a: 3, b: 2 } }, 1]);
  const late = await session.update({ title: "late" }, { version: 0 }).catch((error: unknown) => error);
  assert.ok(late instanceof ApiError);
  assert.deepEqual([late.type, late.status], ["version_conflict", 409]);
  const observer = await client().observe(session.id);
  assert.deepEqual((await observer.info()).metadata, changed.metadata);
  await observer.leave();
  await session.close();
});

test("sessions are listed newest first, and a loop may be left", async () => {
  const opened: string[] = [];
  for (let n = 0; n < 3; n++) {
    const session = await client().open({ metadata: { n } });
    opened.unshift(session.id);
    await session.leave();
  }
  const listed: SessionInfo[] = [];
  for await (const session of client().sessions({ pageSize: 2 })) listed.push(session);
  assert.deepEqual(listed.slice(0, 3).map((session) => session.sessionId), opened);
  assert.deepEqual(listed.slice(0, 3).map((session) => session.metadata["n"]), [2, 1, 0]);
  assert.equal(new Set(listed.map((session) => session.sessionId)).size, listed.length);
  for await (const session of client().sessions()) {
    assert.equal(session.sessionId, opened[0]);
    break;
  }
});

test("a plain service is told nothing", async () => {
  const fake = await madeUp(() => assert.fail("nothing is sent"));
  const plain = new Client(fake.url, { key: "k" });
  const session = await plain.open();
  try {
    await assert.rejects(session.info(), NotOfferedError);
    await assert.rejects(session.update({ a: 1 }), NotOfferedError);
    await assert.rejects(plain.open({ metadata: { a: 1 } }), NotOfferedError);
    await assert.rejects(plain.sessions().next(), NotOfferedError);
  } finally {
    await session.leave();
    await fake.stop();
  }
});

test("metadata that is no object is refused before anything is sent, and a session that was closed takes none", async () => {
  const session = await client().open();
  for (const wrong of [[1], "text", 7, null] as unknown as Record<string, unknown>[]) {
    await assert.rejects(session.update(wrong), InvalidArgumentError);
    if (wrong !== null) await assert.rejects(client().open({ metadata: wrong }), InvalidArgumentError);
  }
  await assert.rejects(session.update({ a: NaN }), InvalidArgumentError);
  await session.close();
  await assert.rejects(session.update({ a: 1 }), ClosedError);
});

test("a call that waits is told its place in numbers", async () => {
  const fake = await madeUp((call) => {
    for (const position of [2, 1]) call.line({ jsonrpc: "2.0", method: "session.queued", params: { position, waiting: 3 } });
    call.result(saying("done"));
  }, ["queue"]);
  const session = await new Client(fake.url, { key: "k" }).open();
  const places: unknown[] = [];
  try {
    for await (const step of session.send("go")) {
      if (step.kind !== "status") continue;
      if (step.state === "queued") places.push([step.position, step.waiting, step.why]);
      else assert.deepEqual([step.position, step.waiting], [undefined, undefined]);
    }
  } finally {
    await session.leave();
    await fake.stop();
  }
  assert.deepEqual(places, [
    [2, 3, "place 2 of 3 at the service"],
    [1, 3, "place 1 of 3 at the service"],
  ]);
});
