"""One connection on a loop: what asyncio says about it, in the engine's words."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from typing import TYPE_CHECKING

from ._core import WORTH_SAYING, close_reason
from .errors import BrocaError

if TYPE_CHECKING:
    from ._async_shell import Shell


class Link(asyncio.BufferedProtocol):
    """One connection."""

    __slots__ = (
        "_buffer",
        "_engine",
        "_gone",
        "_loop",
        "_shell",
        "_tls",
        "_unsaid",
        "_view",
        "_waits",
        "conn",
        "transport",
    )

    def __init__(self, shell: Shell, conn: int) -> None:
        self._shell = shell
        self._engine = shell.engine
        self._loop = shell.loop
        self._buffer = shell.room.buffer
        self._view = shell.room.view
        self._gone: asyncio.Future[None] | None = None
        self.conn = conn
        self.transport: asyncio.Transport | None = None
        self._tls = False
        # Bytes that were written, and the engine was not told yet.
        self._unsaid = 0
        self._waits = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]
        self._tls = transport.get_extra_info("ssl_object") is not None
        _no_delay(transport)
        self._shell.connected(self)

    def secured(self, transport: asyncio.Transport) -> None:
        """TLS was started inside a tunnel."""
        self.transport = transport
        self._tls = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        shell = self._shell
        if shell.over or self.conn not in shell._links:
            return
        now = self._loop.time()
        shell.awake.heard(now)
        shell.room.sleep()
        try:
            effects = self._engine.data(self.conn, self._buffer, nbytes, int(now * 1000))
        except BrocaError as fault:
            shell._broken(fault)
        else:
            if effects is not None:
                shell.carry_out(effects)

    def eof_received(self) -> None:
        self._shell.lost(self, self._end())

    def connection_lost(self, exc: BaseException | None) -> None:
        shell = self._shell
        shell._open.discard(self)
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        if self._tls and self.transport is not None:
            # Before Python 3.11 the transport warns when nobody has closed it, although the peer has.
            self.transport.close()
        if shell._links.get(self.conn) is not self:
            return
        if exc is not None and not self._tls:
            self._read_what_is_left()
        shell.lost(self, self._end() if exc is None else close_reason(exc))

    def pause_writing(self) -> None:
        self._waits = True

    def resume_writing(self) -> None:
        self._waits = False
        if self._shell._links.get(self.conn) is self:
            self._say_written()

    def write(self, data: bytes) -> None:
        """Writes, and says so as soon as the buffer below has room and it is worth a call: the engine hands out more
        than `WORTH_SAYING` without a word. Called while effects are carried out."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        now = self._loop.time()
        transport.write(data)
        until = self._shell.awake.asked(now)
        if until > now:
            self._shell.room.stay_awake(self._loop, until)
        self._unsaid += len(data)
        if self._unsaid >= WORTH_SAYING and not self._waits:
            self._say_written()

    def _say_written(self) -> None:
        size, self._unsaid = self._unsaid, 0
        if size:
            self._shell.written(self.conn, size)

    def gone(self) -> asyncio.Future[None]:
        """Done when the socket is closed."""
        if self._gone is None:
            self._gone = self._shell.loop.create_future()
        return self._gone

    def pause(self, paused: bool) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        if paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def close(self, *, abort: bool) -> None:
        if self.transport is None:
            return
        if abort:
            self.transport.abort()
        else:
            self.transport.close()

    def _end(self) -> str:
        """What the end of the stream is: inside TLS a clean one announces itself first. Which of the two asyncio
        saw, it does not say, and it differs from loop to loop and from version to version; the TLS object knows."""
        secured = self.transport.get_extra_info("ssl_object") if self._tls and self.transport is not None else None
        if secured is None:
            return close_reason(None, tls=self._tls)
        try:
            secured.read(1)
        except ssl.SSLZeroReturnError:
            return "eof"
        except (ssl.SSLError, ValueError):
            return "unclean_eof"
        return "eof"

    def _read_what_is_left(self) -> None:
        """A failed write ends asyncio's transport, although the peer's last words (a refusal, say) may wait in the
        socket. They are read here, while the socket is still open."""
        # Other loops may have closed the descriptor already; its number could be somebody else's.
        if not type(self.transport).__module__.startswith("asyncio.") or not hasattr(os, "readv"):
            return
        sock = self.transport.get_extra_info("socket") if self.transport is not None else None
        descriptor = -1 if sock is None else sock.fileno()
        shell = self._shell
        try:
            while descriptor >= 0 and (size := os.readv(descriptor, [self._buffer])) > 0:
                shell._input(self._engine.data, self.conn, self._buffer, size, shell.now())
        except OSError:
            # Nothing more, or the reset itself: how the connection ended is known already.
            pass


def _no_delay(transport: asyncio.BaseTransport) -> None:
    sock = transport.get_extra_info("socket")
    if sock is not None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            # The peer is gone already; reading will say so.
            pass
