"""One connection of the synchronous shell: a socket that never waits, perhaps TLS, and what waits to be written.

TLS runs between two memory buffers, as in asyncio: it can begin inside a tunnel, reading goes on when writing has
failed, and a clean end can be told from a cut one.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections import deque
from typing import Any, Union

from . import _core as core

CONNECTING, SECURING, OPEN = range(3)
"""The stages of a connection."""

BLOCKED, PROGRESS, CLOSED = -1, 0, -2
"""What a read that brought no bytes has brought: nothing for now, something below the engine, or the end."""

_BEGUN = (0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY, errno.EINTR)
# Buffers handed to one write call.
_BUFFERS = 64

Piece = Union[bytes, memoryview]


class _Tls:
    """TLS over memory."""

    __slots__ = ("handshaking", "incoming", "object", "outgoing", "taken", "unsent")

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.object = context.wrap_bio(self.incoming, self.outgoing, server_hostname=server_name)
        self.handshaking = True
        self.unsent: memoryview | None = None
        self.taken = 0
        """Bytes of the engine that TLS has taken and the socket not yet."""


class Wire:
    """The state of one connection."""

    __slots__ = (
        "_buffered",
        "_queue",
        "_socket",
        "_write_failed",
        "conn",
        "fd",
        "paused",
        "readable",
        "server_name",
        "stage",
        "tls",
        "tunnel",
        "unfinished",
        "unsaid",
        "watched",
        "why",
    )

    def __init__(self, conn: int, server_name: str | None) -> None:
        self.conn = conn
        self.server_name = server_name
        self.stage = CONNECTING
        self.fd = -1
        self.tls: _Tls | None = None
        self.tunnel = False
        self.paused = False
        self.readable = False
        self.unfinished = False
        """`flush` has something to do."""
        self.unsaid = 0
        """Bytes that have left, and the engine was not told yet."""
        self.watched = 0
        """What the system is asked about it now."""
        self.why = ""
        """Why it is gone, once a read has found it so."""
        self._socket: socket.socket | None = None
        self._queue: deque[Piece] = deque()
        self._write_failed = ""
        self._buffered = False

    def __del__(self) -> None:
        # An interrupt (Ctrl-C comes anywhere) may lose it before anybody else knows of it.
        if hasattr(self, "_socket"):
            self.drop()

    def connect(self, address: str, port: int) -> OSError | None:
        """Begins to connect; the fault when that is not possible."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            number = self._socket.connect_ex((address, port))
        except OSError as fault:
            return fault
        if number not in _BEGUN:
            return OSError(number, errno.errorcode.get(number, "connect"))
        self.fd = self._socket.fileno()
        return None

    def connected(self) -> bool:
        """Whether the system has connected. Raises OSError when it could not."""
        link = self._open_socket()
        number = link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            raise OSError(number, errno.errorcode.get(number, "connect"))
        try:
            link.getpeername()
        except OSError as fault:
            if fault.errno == errno.ENOTCONN:
                return False
            raise
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stage = OPEN
        return True

    def start_tls(self, context: ssl.SSLContext, server_name: str, tunnel: bool) -> None:
        """Speaks TLS from here on. Nothing may be waiting to be written."""
        self.tls = _Tls(context, server_name)
        self.tunnel = tunnel
        self.stage = SECURING
        try:
            self.tls.object.do_handshake()
        except ssl.SSLWantReadError:
            pass
        self.unfinished = self.tls.outgoing.pending > 0

    def secured(self) -> bool:
        """Whether the handshake has just been completed; true once."""
        if self.tls is None or self.tls.handshaking:
            return False
        self.stage = OPEN
        return True

    def push(self, data: bytes) -> bool:
        """Queues bytes behind all earlier ones; whether there is something to flush."""
        if self._write_failed or not data:
            return False
        self._queue.append(data)
        self.unfinished = True
        return True

    def flush(self) -> int:
        """Writes what the socket takes, and says how many of the engine's bytes have left.

        A fault ends only the writing: what the peer has said can still be read, and reading finds the end.
        """
        tls = self.tls
        try:
            if tls is None:
                size = self._flush_plain()
                self.unfinished = bool(self._queue)
            else:
                size = self._flush_tls(tls)
                self.unfinished = bool(self._queue) or tls.unsent is not None or tls.outgoing.pending > 0
        except OSError as fault:
            self._write_failed = core.close_reason(fault)
            self._queue.clear()
            self.unfinished = False
            return 0
        return size

    def read(self, buffer: bytearray) -> int:
        """Reads once: the number of bytes, or what came instead."""
        if self.why:
            return CLOSED
        try:
            size = self._open_socket().recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return BLOCKED
        except OSError as fault:
            self.why = core.close_reason(fault)
            return CLOSED
        if size == 0:
            self.why = self._end()
            return CLOSED
        if size < len(buffer):
            # That was all; the system says when there is more.
            self.readable = False
        return size

    def read_tls(self, buffer: bytearray, plain: bytearray) -> int:
        """Reads once to `buffer` and decrypts to `plain`: the number of plain bytes, or what came instead."""
        tls = self.tls
        if tls is None:
            raise OSError(errno.ENOTCONN, "no TLS")
        if not self._buffered:
            size = self.read(buffer)
            if size < 0:
                return size
            tls.incoming.write(memoryview(buffer)[:size])
        return self._decrypt(tls, plain)

    def finish(self) -> None:
        """Says goodbye in TLS, writes what the socket takes at once, and closes."""
        tls = self.tls
        if tls is not None and not tls.handshaking and not self._write_failed:
            self.flush()
            try:
                tls.object.unwrap()
            except (ssl.SSLError, OSError):
                # It has been written, and the answer is not waited for.
                pass
        if self.stage != CONNECTING:
            self.flush()
        self.drop()

    def drop(self) -> None:
        """Closes."""
        if self._socket is not None:
            self._socket.close()

    def _open_socket(self) -> socket.socket:
        if self._socket is None:
            raise OSError(errno.ENOTCONN, "not connected")
        return self._socket

    def _end(self) -> str:
        if self.tls is not None:
            # A peer that went away in the middle of the handshake does not speak TLS with us.
            return "tls_other" if self.tls.handshaking else core.close_reason(None, tls=True)
        # After a failed write a reset may look like an end: the system reports it only once.
        return self._write_failed or core.close_reason(None)

    def _flush_plain(self) -> int:
        queue, link = self._queue, self._open_socket()
        if len(queue) == 1 and type(queue[0]) is bytes:
            # What nearly every request is: one piece that the socket takes whole.
            try:
                total = link.send(queue[0])
            except (BlockingIOError, InterruptedError):
                return 0
            if total == len(queue[0]):
                queue.clear()
                return total
            _advance(queue, total)
        else:
            total = 0
        while queue:
            try:
                if len(queue) == 1 or not hasattr(link, "sendmsg"):
                    size = link.send(queue[0])
                else:
                    size = link.sendmsg([queue[n] for n in range(min(len(queue), _BUFFERS))])
            except (BlockingIOError, InterruptedError):
                break
            total += size
            _advance(queue, size)
        return total

    def _flush_tls(self, tls: _Tls) -> int:
        link = self._open_socket()
        total = 0
        while True:
            if not tls.handshaking:
                while self._queue:
                    try:
                        size = tls.object.write(self._queue[0])
                    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                        break
                    tls.taken += size
                    _advance(self._queue, size)
            if tls.unsent is None:
                if not tls.outgoing.pending:
                    return total
                tls.unsent = memoryview(tls.outgoing.read())
            while tls.unsent is not None:
                try:
                    size = link.send(tls.unsent)
                except (BlockingIOError, InterruptedError):
                    return total
                tls.unsent = tls.unsent[size:] if size < len(tls.unsent) else None
            if not tls.outgoing.pending:
                total += tls.taken
                tls.taken = 0

    def _decrypt(self, tls: _Tls, plain: bytearray) -> int:
        self._buffered = False
        size = 0
        try:
            if tls.handshaking:
                tls.object.do_handshake()
                tls.handshaking = False
            room = memoryview(plain)
            while size < len(room):
                came: Any = tls.object.read(len(room) - size, room[size:])
                if not came:
                    # The peer has said goodbye.
                    self.why = "eof"
                    break
                size += came
            else:
                self._buffered = self.readable = True
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLError, ssl.CertificateError) as fault:
            self.why = core.close_reason(fault)
        if tls.outgoing.pending:
            # The handshake goes on, or the peer is told why it has failed.
            self.flush()
        if size:
            if self.why:
                self.readable = True
            return size
        return CLOSED if self.why else PROGRESS


def _advance(queue: deque[Piece], size: int) -> None:
    while queue:
        front = queue[0]
        if size < len(front):
            if size:
                queue[0] = memoryview(front)[size:]
            return
        size -= len(front)
        queue.popleft()
