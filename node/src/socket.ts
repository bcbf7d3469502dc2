/** Sockets: what Node reports about one, in the engine's words. It decides nothing. */

import net from "node:net";
import tls from "node:tls";

/** What a connection is told; numbers are those of the engine. */
export interface Ears {
  connected(conn: number): void;
  tlsStarted(conn: number): void;
  data(conn: number, buffer: Uint8Array, size: number): void;
  written(conn: number, size: number): void;
  /** Once at most, and never after close(). */
  closed(conn: number, why: CloseReason): void;
}

/** Why a connection is gone. */
export type CloseReason =
  | "eof"
  | "unclean_eof"
  | "reset"
  | "timed_out"
  | "refused"
  | "unreachable"
  | "tls_cert"
  | "tls_host"
  | "tls_other"
  | "local";

/** Every read of every socket goes here; whoever hears of it copies at once. */
const ROOM = Buffer.allocUnsafeSlow(64 * 1024);

/** Bytes written that are reported at once: the engine hands out several times as many before it waits for that. */
const WORTH_SAYING = 64 * 1024;

/** Unsent bytes of a closed connection have so long to leave, in milliseconds. */
const LINGER_MS = 1_000;

/** One connection. */
export class Connection {
  readonly #conn: number;
  readonly #ears: Ears;
  readonly #tls: tls.ConnectionOptions;
  #socket: net.Socket;
  /** Bytes that were written, and not reported yet. */
  #unsaid = 0;
  /** The socket holds more than its mark, and says when it has drained. */
  #full = false;
  #paused = false;
  #handshaking = false;
  #secured = false;
  #writeFailed: CloseReason | undefined;
  /** Bytes have come since somebody looked. */
  #heard = false;
  #over = false;

  constructor(conn: number, address: string, port: number, serverName: string | undefined, tlsOptions: tls.ConnectionOptions, ears: Ears) {
    this.#conn = conn;
    this.#ears = ears;
    this.#tls = tlsOptions;
    const socket = new net.Socket({ onread: this.#reading() } as object as net.SocketConstructorOpts);
    this.#socket = socket;
    this.#listen(socket);
    socket.unref(); // whether the process may end is the shell's to say
    socket.setNoDelay(true);
    socket.once("connect", () => {
      if (this.#over) return;
      // Reading begins right after this event, and must have begun before a write can fail.
      if (serverName === undefined) queueMicrotask(() => { if (!this.#over) this.#ears.connected(this.#conn); });
      else this.#secure(serverName, () => this.#ears.connected(this.#conn));
    });
    socket.connect({ host: address, port, autoSelectFamily: false });
  }

  startTls(serverName: string): void {
    this.#secure(serverName, () => this.#ears.tlsStarted(this.#conn));
  }

  write(bytes: Uint8Array): void {
    if (this.#over || this.#writeFailed !== undefined) return;
    this.#full = !this.#socket.write(bytes) || this.#full;
    this.#unsaid += bytes.length;
    if (this.#unsaid >= WORTH_SAYING && !this.#full) this.#sayWritten();
  }

  #sayWritten(): void {
    const size = this.#unsaid;
    this.#unsaid = 0;
    this.#ears.written(this.#conn, size);
  }

  pause(paused: boolean): void {
    this.#paused = paused;
    if (paused) this.#socket.pause();
    else this.#socket.resume();
    if (!paused && this.#writeFailed !== undefined) this.#hearOut();
  }

  /** Closes; nothing is reported any more. */
  close(abort: boolean): void {
    if (this.#over) return;
    this.#over = true;
    const socket = this.#socket;
    if (abort || socket.connecting || this.#handshaking || (socket.writableLength === 0 && !this.#secured)) {
      socket.destroy();
      return;
    }
    socket.destroySoon();
    const late = setTimeout(() => socket.destroy(), LINGER_MS).unref();
    socket.once("close", () => clearTimeout(late));
  }

  #reading(): object {
    return {
      buffer: ROOM,
      callback: (size: number, buffer: Uint8Array): boolean => {
        this.#heard = true;
        if (!this.#over) this.#ears.data(this.#conn, buffer, size);
        return true;
      },
    };
  }

  #listen(socket: net.Socket): void {
    const destroy = socket.destroy;
    socket.destroy = (error?: Error): net.Socket => {
      if (this.#over || (error as NodeJS.ErrnoException | undefined)?.syscall !== "write") return destroy.call(socket, error) as net.Socket;
      if (this.#writeFailed === undefined) {
        this.#writeFailed = reasonOf(error as NodeJS.ErrnoException);
        this.#hearOut();
      }
      return socket;
    };
    socket.on("error", (error: NodeJS.ErrnoException) => {
      this.#end(this.#handshaking && socket === this.#socket ? tlsReasonOf(error) : reasonOf(error));
    });
    socket.on("end", () => {
      // Whether close_notify came before the end is not told here: with TLS the end is taken for an unclean one.
      if (socket === this.#socket) this.#end(this.#writeFailed ?? (this.#handshaking ? "tls_other" : this.#secured ? "unclean_eof" : "eof"));
    });
    socket.on("close", () => {
      if (socket === this.#socket) this.#end(this.#writeFailed ?? (this.#handshaking ? "tls_other" : "reset"));
    });
    socket.on("drain", () => {
      this.#full = false;
      if (!this.#over && this.#unsaid > 0) this.#sayWritten();
    });
  }

  /**
   * A write has failed, so nothing more arrives here; but what the peer said before may still be there to be read. When the loop has
   * looked twice and brought nothing, the connection is over. Node itself reports no end any more after such an error.
   */
  #hearOut(quiet = 0): void {
    setImmediate(() => {
      if (this.#over || this.#paused) return;
      const heard = this.#heard;
      this.#heard = false;
      if (!heard && quiet >= 2) this.#end(this.#writeFailed ?? "reset");
      else this.#hearOut(heard ? 0 : quiet + 1);
    });
  }

  /** Wraps the open socket in TLS. */
  #secure(serverName: string, agreed: () => void): void {
    const raw = this.#socket;
    this.#handshaking = true;
    const isAddress = net.isIP(serverName) !== 0;
    let secure: tls.TLSSocket;
    try {
      secure = tls.connect({
        ...this.#tls,
        socket: raw,
        // An address has no server name in TLS; the certificate is checked against it all the same.
        ...(isAddress ? { host: serverName } : { host: serverName, servername: serverName }),
        ALPNProtocols: ["http/1.1"],
      });
    } catch {
      // Options that TLS cannot use, such as a text that is no certificate. Reported from the loop: this is inside of an effect.
      setImmediate(() => this.#end("local"));
      return;
    }
    this.#socket = secure;
    this.#listen(secure);
    secure.unref();
    // One buffer for all reads is for plain sockets only: a wrapped one never gives anything into it.
    secure.on("data", (bytes: Buffer) => {
      this.#heard = true;
      if (!this.#over) this.#ears.data(this.#conn, bytes, bytes.length);
    });
    secure.once("secureConnect", () => {
      if (this.#over) return;
      this.#handshaking = false;
      this.#secured = true;
      agreed();
    });
    if (this.#paused) secure.pause();
  }

  #end(why: CloseReason): void {
    if (this.#over) return;
    this.#over = true;
    this.#socket.destroy();
    this.#ears.closed(this.#conn, why);
  }
}

/** What a socket's error means. */
export function reasonOf(error: NodeJS.ErrnoException): CloseReason {
  switch (error.code) {
    case "ECONNREFUSED":
      return "refused";
    case "ECONNRESET":
    case "ECONNABORTED":
    case "EPIPE":
    case "ENOTCONN":
      return "reset";
    case "ETIMEDOUT":
      return "timed_out";
    case "EHOSTUNREACH":
    case "ENETUNREACH":
    case "ENETDOWN":
    case "EADDRNOTAVAIL":
    case "EAFNOSUPPORT":
      return "unreachable";
    default:
      return isOfTls(error.code) ? tlsReasonOf(error) : "local";
  }
}

/** What an error means that came while TLS was being agreed. */
export function tlsReasonOf(error: NodeJS.ErrnoException): CloseReason {
  const code = error.code ?? "";
  if (code === "ERR_TLS_CERT_ALTNAME_INVALID") return "tls_host";
  if (CERTIFICATE_FAULTS.has(code)) return "tls_cert";
  return "tls_other";
}

function isOfTls(code: string | undefined): boolean {
  return code !== undefined && (code === "EPROTO" || /^ERR_(SSL|TLS)_/.test(code) || CERTIFICATE_FAULTS.has(code));
}

/** OpenSSL's words for a certificate that is not trusted, as Node gives them. */
const CERTIFICATE_FAULTS = new Set([
  "UNABLE_TO_GET_ISSUER_CERT", "UNABLE_TO_GET_CRL", "UNABLE_TO_DECRYPT_CERT_SIGNATURE", "UNABLE_TO_DECRYPT_CRL_SIGNATURE",
  "UNABLE_TO_DECODE_ISSUER_PUBLIC_KEY", "CERT_SIGNATURE_FAILURE", "CRL_SIGNATURE_FAILURE", "CERT_NOT_YET_VALID",
  "CERT_HAS_EXPIRED", "CRL_NOT_YET_VALID", "CRL_HAS_EXPIRED", "ERROR_IN_CERT_NOT_BEFORE_FIELD", "ERROR_IN_CERT_NOT_AFTER_FIELD",
  "DEPTH_ZERO_SELF_SIGNED_CERT", "SELF_SIGNED_CERT_IN_CHAIN", "UNABLE_TO_GET_ISSUER_CERT_LOCALLY",
  "UNABLE_TO_VERIFY_LEAF_SIGNATURE", "CERT_CHAIN_TOO_LONG", "CERT_REVOKED", "INVALID_CA", "PATH_LENGTH_EXCEEDED",
  "INVALID_PURPOSE", "CERT_UNTRUSTED", "CERT_REJECTED",
]);
