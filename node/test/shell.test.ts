/** Sockets: what peers, proxies and certificates do to a connection. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";
import net, { type AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import tls from "node:tls";
import { Worker } from "node:worker_threads";
import { ApiError, Client, ConnectError, IoError, TlsError, TransportError } from "@broca/sdk";
import { HOME, madeUp, saying, type Call } from "./service";

/** A server of this function for each connection; nothing here keeps the process. */
async function listening(server: net.Server): Promise<number> {
  server.on("connection", (socket) => socket.unref());
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  server.unref();
  return (server.address() as AddressInfo).port;
}

/** A certificate for `localhost` and 127.0.0.1, made for these tests. */
function certificate(): { key: string; cert: string } | undefined {
  const folder = mkdtempSync(join(tmpdir(), "broca-cert-"));
  try {
    execFileSync(
      "openssl",
      ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost",
       "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", join(folder, "key"), "-out", join(folder, "cert")],
      { stdio: "ignore" },
    );
    return { key: readFileSync(join(folder, "key"), "utf8"), cert: readFileSync(join(folder, "cert"), "utf8") };
  } catch {
    return undefined;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

const made = certificate();
const pair = made ?? { key: "", cert: "" };
const skip = made === undefined ? "openssl is missing" : false;

/** TLS in front of a service. */
async function behindTls(url: string, options: tls.TlsOptions = {}): Promise<number> {
  const port = Number(new URL(url).port);
  const server = tls.createServer({ ...pair, ALPNProtocols: ["http/1.1"], ...options }, (socket) => {
    const inner = net.connect(port, "127.0.0.1").unref();
    socket.pipe(inner).pipe(socket);
    socket.on("error", () => inner.destroy());
    inner.on("error", () => socket.destroy());
  });
  server.on("tlsClientError", () => {});
  return listening(server);
}

test("TLS with a trusted certificate, by name and by address", { skip }, async () => {
  const names: unknown[] = [];
  const fake = await madeUp((call: Call) => call.result(saying("ok".repeat(50_000))));
  const port = await behindTls(fake.url, { SNICallback: (name, done) => { names.push(name); done(null); } });
  for (const host of ["localhost", "127.0.0.1"]) {
    const session = await new Client(`https://${host}:${port}`, { key: "k", tls: { ca: pair.cert } }).open();
    assert.equal((await session.ask("x".repeat(300_000))).text.length, 100_000);
    await session.close();
  }
  assert.deepEqual(names, ["localhost"], "an address is no server name");
  await fake.stop();
});

test("a certificate that nobody trusts, or for another host, is a TlsError", { skip }, async () => {
  const fake = await madeUp(() => {});
  const port = await behindTls(fake.url);
  await assert.rejects(new Client(`https://localhost:${port}`, { key: "k" }).open(), (error: Error) => error instanceof TlsError && /not trusted/.test(error.message));
  const other = { ca: pair.cert, checkServerIdentity: (_: string, cert: tls.PeerCertificate) => tls.checkServerIdentity("example.org", cert) };
  await assert.rejects(new Client(`https://localhost:${port}`, { key: "k", tls: other }).open(), (error: Error) => error instanceof TlsError && /another host/.test(error.message));
  await fake.stop();
});

test("a peer that speaks no TLS is a TlsError", async () => {
  const port = await listening(net.createServer((socket) => socket.end("SSH-2.0-no\r\n")));
  await assert.rejects(new Client(`https://127.0.0.1:${port}`, { key: "k" }).open(), TlsError);
  const closing = await listening(net.createServer((socket) => socket.destroy()));
  await assert.rejects(new Client(`https://127.0.0.1:${closing}`, { key: "k" }).open(), (error) => error instanceof TlsError || error instanceof TransportError);
});

test("TLS options that cannot be used are an error of the connection", async () => {
  const port = await listening(net.createServer(() => {}));
  const client = new Client(`https://127.0.0.1:${port}`, { key: "k", tls: { ca: "-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----" } });
  await assert.rejects(client.open(), TransportError);
});

test("a tunnel through a proxy, plain inside of it and with TLS", { skip }, async () => {
  const tunnels: string[] = [];
  const proxy = http.createServer();
  proxy.on("connect", (request, socket) => {
    tunnels.push(request.url ?? "");
    const inner = net.connect(Number(request.url?.split(":")[1]), "127.0.0.1", () => {
      socket.write("HTTP/1.1 200 Connection established\r\n\r\n");
      inner.pipe(socket).pipe(inner);
    }).unref();
    inner.on("error", () => socket.destroy());
    socket.on("error", () => inner.destroy());
  });
  const proxyPort = await listening(proxy);
  const fake = await madeUp((call: Call) => call.result(saying("through")));
  const port = await behindTls(fake.url);
  // A loopback name is never asked for through a proxy: this one is resolved by the proxy alone.
  const client = new Client(`https://broca.test:${port}`, {
    key: "k",
    environment: { https_proxy: `http://127.0.0.1:${proxyPort}` },
    tls: { ca: pair.cert, checkServerIdentity: (_: string, cert: tls.PeerCertificate) => tls.checkServerIdentity("localhost", cert) },
  });
  const session = await client.open();
  assert.equal((await session.ask("x")).text, "through");
  assert.ok(tunnels.length >= 1 && tunnels.every((name) => name === `broca.test:${port}`));
  await session.leave();
  await fake.stop();
});

test("an early refusal is heard although the request could not be written to its end", async () => {
  const small = (socket: net.Socket, value: object): void => {
    const body = JSON.stringify(value);
    socket.write(`HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`);
  };
  const port = await listening(
    net.createServer((socket) => {
      socket.on("error", () => {});
      socket.on("data", (bytes) => {
        const text = bytes.toString("latin1");
        if (text.startsWith("GET")) return small(socket, { version: "0.1.0", api_versions: ["v1"] });
        if (text.includes("POST /api/v1/sessions ")) return small(socket, { session_id: "ses_1", session_key: "k", profile: {} });
        if (text.includes("registerDriver")) return small(socket, { jsonrpc: "2.0", id: JSON.parse(text.slice(text.indexOf("{"))).id, result: { registered: true } });
        socket.pause();
        const problem = JSON.stringify({ type: "too_large", title: "Too large", status: 413, detail: "less, please" });
        socket.write(`HTTP/1.1 413 Payload Too Large\r\ncontent-type: application/problem+json\r\nconnection: close\r\ncontent-length: ${problem.length}\r\n\r\n${problem}`);
        setTimeout(() => socket.resetAndDestroy(), 20);
        return undefined;
      });
    }),
  );
  for (let i = 0; i < 5; i++) {
    const session = await new Client(`http://127.0.0.1:${port}`, { key: "k" }).open();
    await assert.rejects(session.ask("x".repeat(12_000_000)), (error: Error) => error instanceof ApiError && error.status === 413);
    await session.leave();
  }
});

test("what the peer said before a write failed is read all the same", async () => {
  const { Connection } = createRequire(__filename)(join(HOME, "node_modules", "@broca", "sdk", "dist", "socket.js")) as {
    Connection: new (...words: unknown[]) => { write(bytes: Uint8Array): void };
  };
  // The peer is a thread of its own: this one sleeps while the peer speaks and resets.
  const peer = new Worker(
    `const { parentPort } = require("node:worker_threads");
     const server = require("node:net").createServer((socket) => {
       socket.on("error", () => {});
       socket.write("last words", () => setTimeout(() => socket.resetAndDestroy(), 20));
       server.close();
     }).listen(0, "127.0.0.1", () => parentPort.postMessage(server.address().port));`,
    { eval: true },
  );
  const port = await new Promise<number>((resolve) => peer.once("message", resolve));
  let heard = "";
  const why = await new Promise<string>((resolve) => {
    const connection = new Connection(1, "127.0.0.1", port, undefined, {}, {
      connected: () => {
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 200);
        connection.write(Buffer.from("too late"));
        connection.write(Buffer.from("even later"));
      },
      data: (_: number, buffer: Buffer, size: number) => (heard += buffer.toString("latin1", 0, size)),
      written: () => {},
      closed: (_: number, reason: string) => resolve(reason),
    });
    keep = setInterval(() => {}, 1_000);
  });
  clearInterval(keep);
  assert.deepEqual([heard, why], ["last words", "reset"]);
});

let keep: NodeJS.Timeout | undefined;

test("a message of many megabytes arrives whole", async () => {
  let length = 0;
  const fake = await madeUp((call: Call) => {
    length = call.params.message.content.length;
    call.result(saying("ok"));
  });
  const session = await new Client(fake.url, { key: "k" }).open();
  await session.ask("é".repeat(4_000_000));
  assert.equal(length, 4_000_000);
  await session.leave();
  await fake.stop();
});

test("answers are looked for awake or asleep, as it is set", async () => {
  const fake = await madeUp((call: Call) => call.result(saying("ok")));
  for (const awakeUs of [0, 300, 1_000_000]) {
    const session = await new Client(fake.url, { key: "k", awakeUs }).open();
    for (let turn = 0; turn < 5; turn++) assert.equal((await session.ask("x")).text, "ok");
    await session.leave();
  }
  for (const awakeUs of [-1, 1_000_001, NaN, "1" as never]) {
    assert.throws(() => new Client(fake.url, { key: "k", awakeUs }), { name: "InvalidArgumentError", message: /awakeUs must be a number from 0/ });
  }
  await fake.stop();
});

test("a reset in the middle of an answer is an IoError or an early end, never a success", async () => {
  const fake = await madeUp((call: Call) => {
    call.response.write("{");
    setTimeout(() => call.response.socket?.resetAndDestroy(), 20);
  });
  const session = await new Client(fake.url, { key: "k", recoveryTimeoutMs: 0 }).open();
  await assert.rejects(session.ask("x"), (error: Error) => error instanceof IoError || error.name === "StreamEndedEarlyError");
  await session.leave();
  await fake.stop();
});

test("a name that does not exist is a ConnectError", async () => {
  await assert.rejects(new Client("http://nobody.invalid:1", { key: "k", environment: false }).open(), ConnectError);
});

test("a subscription is taken up again after its connection was lost", async () => {
  let calls = 0;
  const fake = await madeUp((call: Call) => {
    calls += 1;
    const { from_event_id, cursor } = call.params;
    void from_event_id;
    void cursor;
    call.line({ jsonrpc: "2.0", method: "session.event", params: { id: `evt_${calls}`, session_id: "ses_1", event_type: "n", payload: {}, created_at: "2026-01-02T03:04:05Z" } });
    if (calls < 3) setTimeout(() => call.response.socket?.destroy(), 10);
  });
  const session = await new Client(fake.url, { key: "k", reconnectFirstDelayMs: 5, reconnectMaxDelayMs: 10 }).observe("ses_1");
  const ids: string[] = [];
  for await (const step of session.subscribe({ from: "" })) {
    if (step.kind === "event") ids.push(step.id);
    if (ids.length === 3) break;
  }
  assert.deepEqual(ids, ["evt_1", "evt_2", "evt_3"]);
  await session.leave();
  await fake.stop();
});

test("connections are let go when a session is closed or left", async () => {
  const fake = await madeUp((call: Call) => call.result(saying("ok")));
  for (const way of ["close", "leave"] as const) {
    const session = await new Client(fake.url, { key: "k" }).open();
    await session.ask("x");
    assert.ok((await fake.connections()) > 0);
    await session[way]();
    for (let i = 0; i < 100 && (await fake.connections()) > 0; i++) await new Promise((resolve) => setTimeout(resolve, 10));
    assert.equal(await fake.connections(), 0, way);
  }
  await fake.stop();
});
