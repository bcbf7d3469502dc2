//! One connection as every shell in Rust sees it: what waits to be written, TLS if any, and the socket's
//! answers in the engine's words. It decides nothing.
//!
//! The socket is lent for each call, because a shell may reach it in different ways: with a task to
//! wake, or at once and without waiting.

use crate::engine::CloseReason;
use bytes::{Buf, Bytes, BytesMut};
use rustls::ClientConnection;
use std::collections::VecDeque;
use std::io::{self, BufRead, IoSlice, Write};

/// A stream socket that never waits: what cannot be done now is [`io::ErrorKind::WouldBlock`].
pub trait Socket {
    /// Reads into the spare room of `into`; 0 at the end of the stream.
    fn read(&mut self, into: &mut BytesMut) -> io::Result<usize>;

    /// Writes the first bytes of `slices`.
    fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize>;
}

/// What one attempt to read has brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// Bytes for the engine.
    Data(Bytes),
    /// Something moved below the engine; try again.
    Progress,
    /// Nothing for now.
    Blocked,
    /// The connection is gone. Asked again, the answer stays the same.
    Closed(CloseReason),
}

/// The state of one open connection.
#[derive(Debug, Default)]
pub struct Wire {
    tls: Option<Tls>,
    queue: VecDeque<Bytes>,
    /// Bytes that TLS has taken and the socket not yet.
    in_tls: usize,
    write_failed: Option<CloseReason>,
    closed: Option<CloseReason>,
}

#[derive(Debug)]
struct Tls {
    connection: Box<ClientConnection>,
    announced: bool,
}

/// Slices handed to one write call.
const SLICES: usize = 64;

impl Wire {
    /// A connection without TLS.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Speaks TLS from here on. Nothing may be waiting to be written.
    pub fn start_tls(&mut self, connection: ClientConnection) {
        self.tls = Some(Tls { connection: Box::new(connection), announced: false });
    }

    /// Whether the TLS handshake has been completed; true once.
    pub fn take_secured(&mut self) -> bool {
        let Some(tls) = self.tls.as_mut().filter(|tls| !tls.announced) else { return false };
        tls.announced = !tls.connection.is_handshaking();
        tls.announced
    }

    /// Queues bytes behind all earlier ones.
    pub fn push(&mut self, bytes: Bytes) {
        if self.write_failed.is_none() && !bytes.is_empty() {
            self.queue.push_back(bytes);
        }
    }

    /// Whether [`Wire::flush`] has something to do.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        let tls = || self.tls.as_ref().is_some_and(|tls| tls.connection.wants_write());
        self.write_failed.is_none() && (!self.queue.is_empty() || tls())
    }

    /// Writes what the socket takes, and says how many of the engine's bytes have left. An error ends only the
    /// writing: what the peer has said can still be read, and reading finds the end.
    pub fn flush(&mut self, socket: &mut impl Socket) -> usize {
        if self.write_failed.is_some() {
            return 0;
        }
        let outcome = match self.tls {
            None => self.flush_plain(socket),
            Some(_) => self.flush_tls(socket),
        };
        match outcome {
            Ok(written) => written,
            Err(error) => {
                self.write_failed = Some(close_reason(&error));
                self.queue.clear();
                0
            }
        }
    }

    /// Reads once.
    pub fn read(&mut self, socket: &mut impl Socket, room: &mut ReadBuffer) -> Found {
        if let Some(why) = self.closed {
            return Found::Closed(why);
        }
        match room.read(socket) {
            Ok(bytes) if bytes.is_empty() => {
                let why = self.end_of_stream();
                self.close(why)
            }
            Ok(bytes) if self.tls.is_none() => Found::Data(bytes),
            Ok(bytes) => self.decrypt(&bytes, socket),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => Found::Blocked,
                io::ErrorKind::Interrupted => Found::Progress,
                _ => self.close(close_reason(&error)),
            },
        }
    }

    /// Says goodbye in TLS and writes what the socket takes at once. The rest is dropped with the socket.
    pub fn finish(&mut self, socket: &mut impl Socket) {
        if let Some(tls) = &mut self.tls {
            tls.connection.send_close_notify();
        }
        self.flush(socket);
    }

    fn close(&mut self, why: CloseReason) -> Found {
        self.closed = Some(why);
        Found::Closed(why)
    }

    fn end_of_stream(&self) -> CloseReason {
        match &self.tls {
            // A peer that went away in the middle of the handshake does not speak TLS with us.
            Some(tls) if tls.connection.is_handshaking() => CloseReason::TlsOther,
            Some(_) => CloseReason::UncleanEof,
            // After a failed write a reset may look like an end: the system reports it only once.
            None => self.write_failed.unwrap_or(CloseReason::Eof),
        }
    }

    fn flush_plain(&mut self, socket: &mut impl Socket) -> io::Result<usize> {
        let mut total = 0;
        while !self.queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut used = 0;
            for (slice, bytes) in slices.iter_mut().zip(&self.queue) {
                *slice = IoSlice::new(bytes);
                used += 1;
            }
            match socket.write(&slices[..used]) {
                Ok(0) => return Err(io::ErrorKind::BrokenPipe.into()),
                Ok(n) => {
                    total += n;
                    advance(&mut self.queue, n);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(total)
    }

    fn flush_tls(&mut self, socket: &mut impl Socket) -> io::Result<usize> {
        let Some(Tls { connection, .. }) = &mut self.tls else { return Ok(0) };
        let mut total = 0;
        loop {
            let mut taken = 0;
            while let Some(bytes) = self.queue.front() {
                let n = connection.writer().write(bytes)?;
                if n == 0 {
                    break; // rustls holds as much as it may
                }
                taken += n;
                advance(&mut self.queue, n);
            }
            self.in_tls += taken;
            while connection.wants_write() {
                match connection.write_tls(&mut Outward(socket)) {
                    Ok(0) => return Err(io::ErrorKind::BrokenPipe.into()),
                    Ok(_) => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(total),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            total += std::mem::take(&mut self.in_tls);
            if taken == 0 {
                return Ok(total);
            }
        }
    }

    fn decrypt(&mut self, mut cipher: &[u8], socket: &mut impl Socket) -> Found {
        let mut plain = BytesMut::new();
        let outcome = match &mut self.tls {
            Some(tls) => unwrap_records(&mut tls.connection, &mut cipher, &mut plain),
            None => Ok(false),
        };
        match outcome {
            Ok(false) => {}
            Ok(true) => self.closed = Some(CloseReason::Eof),
            Err(error) => {
                self.closed = Some(tls_reason(&error));
                // The alert that tells the peer why. Best effort: the connection is over.
                self.flush(socket);
            }
        }
        match self.closed {
            _ if !plain.is_empty() => Found::Data(plain.freeze()),
            Some(why) => Found::Closed(why),
            None => Found::Progress,
        }
    }
}

/// Feeds `cipher` to TLS and collects the plain bytes; true after the peer's close_notify.
fn unwrap_records(
    connection: &mut ClientConnection,
    cipher: &mut &[u8],
    plain: &mut BytesMut,
) -> Result<bool, rustls::Error> {
    let general = |e: io::Error| rustls::Error::General(e.to_string());
    while !cipher.is_empty() {
        connection.read_tls(cipher).map_err(general)?;
        let state = connection.process_new_packets()?;
        let mut reader = connection.reader();
        while let Ok(chunk) = reader.fill_buf() {
            if chunk.is_empty() {
                break;
            }
            plain.extend_from_slice(chunk);
            let n = chunk.len();
            reader.consume(n);
        }
        if state.peer_has_closed() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn advance(queue: &mut VecDeque<Bytes>, mut n: usize) {
    while let Some(front) = queue.front_mut().filter(|_| n > 0) {
        if n < front.len() {
            front.advance(n);
            return;
        }
        n -= front.len();
        queue.pop_front();
    }
}

/// A socket as rustls wants to write to it.
struct Outward<'a, S>(&'a mut S);

impl<S: Socket> Write for Outward<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where a shell reads to: one block for many reads, larger while reads fill it. Full blocks are used
/// again once nothing of them is held any more, so that a long stream stays in warm memory.
#[derive(Debug)]
pub struct ReadBuffer {
    bytes: BytesMut,
    used: VecDeque<BytesMut>,
    block: usize,
}

impl ReadBuffer {
    /// A block is at first this large …
    const SMALLEST: usize = 8 * 1024;
    /// … and at most this.
    const LARGEST: usize = 64 * 1024;
    /// Full blocks that are kept to be used again.
    const KEPT: usize = 3;

    /// A buffer that holds no memory yet.
    #[must_use]
    pub fn new() -> Self {
        Self { bytes: BytesMut::new(), used: VecDeque::new(), block: Self::SMALLEST }
    }

    /// Reads once; no bytes at the end of the stream.
    fn read(&mut self, socket: &mut impl Socket) -> io::Result<Bytes> {
        if self.bytes.capacity() < self.block / 4 {
            self.renew();
        }
        let room = self.bytes.capacity();
        let n = socket.read(&mut self.bytes)?;
        if n >= room {
            self.block = (self.block * 4).min(Self::LARGEST);
        }
        Ok(self.bytes.split().freeze())
    }

    /// Takes a block that nobody holds, or a new one. Small ones are not worth keeping.
    fn renew(&mut self) {
        let full = std::mem::take(&mut self.bytes);
        if self.block == Self::LARGEST {
            self.used.push_back(full);
        }
        let free = self.used.iter_mut().position(|used| used.try_reclaim(Self::LARGEST));
        match free.and_then(|i| self.used.remove(i)) {
            Some(block) => self.bytes = block,
            None => {
                // The oldest is held by somebody who keeps what was in it.
                if self.used.len() > Self::KEPT {
                    self.used.pop_front();
                }
                self.bytes.reserve(self.block);
            }
        }
    }
}

impl Default for ReadBuffer {
    fn default() -> Self {
        Self::new()
    }
}

/// What an error of the socket means.
pub fn close_reason(error: &io::Error) -> CloseReason {
    use io::ErrorKind as Kind;
    if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        return tls_reason(tls);
    }
    match error.kind() {
        Kind::ConnectionRefused => CloseReason::Refused,
        Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe => CloseReason::Reset,
        Kind::NotConnected => CloseReason::Reset,
        Kind::TimedOut => CloseReason::TimedOut,
        Kind::UnexpectedEof => CloseReason::UncleanEof,
        // Without IPv6 on this machine, an IPv6 address cannot be reached: "not available" or, as
        // no kind of its own, "address family not supported".
        Kind::HostUnreachable
        | Kind::NetworkUnreachable
        | Kind::NetworkDown
        | Kind::AddrNotAvailable => CloseReason::Unreachable,
        _ if is_unsupported_family(error) => CloseReason::Unreachable,
        _ => CloseReason::Local,
    }
}

fn is_unsupported_family(error: &io::Error) -> bool {
    let number = if cfg!(target_os = "linux") {
        97
    } else if cfg!(windows) {
        10_047
    } else {
        47 // the BSDs and macOS
    };
    error.raw_os_error() == Some(number)
}

fn tls_reason(error: &rustls::Error) -> CloseReason {
    use rustls::{CertificateError as Fault, Error};
    match error {
        Error::InvalidCertificate(
            Fault::NotValidForName | Fault::NotValidForNameContext { .. },
        ) => CloseReason::TlsHost,
        Error::InvalidCertificate(_) | Error::NoCertificatesPresented => CloseReason::TlsCert,
        _ => CloseReason::TlsOther,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket that takes and gives what the test says.
    #[derive(Default)]
    struct Script {
        incoming: VecDeque<io::Result<&'static [u8]>>,
        takes: VecDeque<io::Result<usize>>,
        out: Vec<u8>,
        calls: usize,
    }

    impl Socket for Script {
        fn read(&mut self, into: &mut BytesMut) -> io::Result<usize> {
            let bytes = self
                .incoming
                .pop_front()
                .unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))?;
            into.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            self.calls += 1;
            let most = self.takes.pop_front().unwrap_or(Ok(usize::MAX))?;
            let all: Vec<u8> = slices.iter().flat_map(|s| s.iter().copied()).collect();
            let n = all.len().min(most);
            self.out.extend_from_slice(&all[..n]);
            Ok(n)
        }
    }

    #[test]
    fn writes_that_wait_leave_in_one_call_and_in_order() {
        let (mut wire, mut socket) = (Wire::new(), Script::default());
        for part in ["one ", "two ", "three"] {
            wire.push(Bytes::from_static(part.as_bytes()));
        }
        assert_eq!(wire.flush(&mut socket), 13);
        assert_eq!((socket.calls, &socket.out[..]), (1, &b"one two three"[..]));
        assert!(!wire.wants_write());
    }

    #[test]
    fn a_partial_write_goes_on_where_it_stopped() {
        let (mut wire, mut socket) = (Wire::new(), Script::default());
        socket.takes.extend([Ok(6), Err(io::ErrorKind::WouldBlock.into())]);
        wire.push(Bytes::from_static(b"one "));
        wire.push(Bytes::from_static(b"two "));
        assert_eq!(wire.flush(&mut socket), 6);
        assert!(wire.wants_write());
        assert_eq!(wire.flush(&mut socket), 2);
        assert_eq!(socket.out, b"one two ");
    }

    #[test]
    fn a_write_error_ends_the_writing_and_reading_goes_on() {
        let (mut wire, mut socket, mut room) = (Wire::new(), Script::default(), ReadBuffer::new());
        socket.takes.push_back(Err(io::ErrorKind::BrokenPipe.into()));
        socket.incoming.extend([Ok(&b"HTTP/1.1 413"[..]), Ok(&b""[..])]);
        wire.push(Bytes::from_static(b"body"));
        assert_eq!(wire.flush(&mut socket), 0);
        wire.push(Bytes::from_static(b"more"));
        assert!(!wire.wants_write());
        let answer = Bytes::from_static(b"HTTP/1.1 413");
        assert_eq!(wire.read(&mut socket, &mut room), Found::Data(answer));
        assert_eq!(wire.read(&mut socket, &mut room), Found::Closed(CloseReason::Reset));
        assert_eq!(wire.read(&mut socket, &mut room), Found::Closed(CloseReason::Reset));
    }

    #[test]
    fn errors_of_the_system_have_their_words() {
        use io::ErrorKind as Kind;
        let cases = [
            (Kind::ConnectionRefused, CloseReason::Refused),
            (Kind::ConnectionReset, CloseReason::Reset),
            (Kind::TimedOut, CloseReason::TimedOut),
            (Kind::HostUnreachable, CloseReason::Unreachable),
            (Kind::PermissionDenied, CloseReason::Local),
        ];
        for (kind, why) in cases {
            assert_eq!(close_reason(&kind.into()), why);
        }
        #[cfg(target_os = "linux")]
        for (number, why) in [(24, CloseReason::Local), (97, CloseReason::Unreachable)] {
            assert_eq!(close_reason(&io::Error::from_raw_os_error(number)), why);
        }
    }

    #[test]
    fn blocks_grow_while_reads_fill_them() {
        struct Flood;
        impl Socket for Flood {
            fn read(&mut self, into: &mut BytesMut) -> io::Result<usize> {
                let n = into.capacity();
                into.resize(n, b'x');
                Ok(n)
            }
            fn write(&mut self, _: &[IoSlice<'_>]) -> io::Result<usize> {
                Ok(0)
            }
        }
        let (mut wire, mut room) = (Wire::new(), ReadBuffer::new());
        let mut sizes = Vec::new();
        for _ in 0..20 {
            let Found::Data(bytes) = wire.read(&mut Flood, &mut room) else { panic!() };
            sizes.push(bytes.len());
        }
        assert!(sizes[0] >= 8 * 1024 && sizes[4] >= 64 * 1024, "{sizes:?}");
        // Whoever keeps a small event keeps its block.
        assert!(sizes.iter().all(|size| *size <= ReadBuffer::LARGEST), "{sizes:?}");
    }
}
