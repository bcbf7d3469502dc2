//! One socket of the library's own, and what the engine is told about it.

use broca::wire::{Socket as Stream, Wire};
use bytes::BytesMut;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;

/// A number that names a socket outside: a descriptor, or a `SOCKET` on Windows.
pub(crate) type Number = isize;

/// One connection.
pub(crate) struct Link {
    pub(crate) conn: u64,
    /// Shared with whoever waits for it, so that its number stays its own until then.
    pub(crate) socket: Arc<Socket>,
    pub(crate) wire: Wire,
    pub(crate) stage: Stage,
    pub(crate) paused: bool,
    /// The system said that something can be read, or that a connect is over.
    pub(crate) marked: bool,
    /// What the program's event loop was last told to watch.
    pub(crate) told: i32,
}

/// How far a connection has come.
pub(crate) enum Stage {
    /// The system connects; then TLS, when there is a server name.
    Connecting(Option<String>),
    /// TLS is being agreed, at the start or inside a tunnel.
    Securing {
        tunnel: bool,
    },
    Open,
}

impl Link {
    /// Begins to connect.
    pub(crate) fn connect(
        conn: u64,
        address: SocketAddr,
        server_name: Option<String>,
    ) -> io::Result<Self> {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        match socket.connect(&address.into()) {
            Err(error) if !is_under_way(&error) => return Err(error),
            _ => {}
        }
        Ok(Self {
            conn,
            socket: Arc::new(socket),
            wire: Wire::new(),
            stage: Stage::Connecting(server_name),
            paused: false,
            marked: false,
            told: 0,
        })
    }

    pub(crate) fn number(&self) -> Number {
        number(&self.socket)
    }

    /// What the system says about a connect that it has finished; `None` when it has not.
    pub(crate) fn connected(&self) -> Option<io::Result<()>> {
        match self.socket.take_error() {
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => return Some(Err(error)),
        }
        match self.socket.peer_addr() {
            Ok(_) => Some(self.socket.set_tcp_nodelay(true)),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => None,
            Err(error) => Some(Err(error)),
        }
    }

    pub(crate) fn is_connecting(&self) -> bool {
        matches!(self.stage, Stage::Connecting(_))
    }

    /// Whether to look for something to read, and for room to write.
    pub(crate) fn interest(&self) -> (bool, bool) {
        if self.is_connecting() {
            return (false, true);
        }
        (!self.paused, self.wire.wants_write())
    }

    /// Says goodbye with what the socket takes at once.
    pub(crate) fn finish(&mut self) {
        self.wire.finish(&mut Plain(&self.socket));
    }
}

#[cfg(unix)]
pub(crate) fn number(socket: &Socket) -> Number {
    use std::os::fd::AsRawFd;
    socket.as_raw_fd() as Number
}

#[cfg(windows)]
pub(crate) fn number(socket: &Socket) -> Number {
    use std::os::windows::io::AsRawSocket;
    socket.as_raw_socket().cast_signed() as Number
}

#[cfg(unix)]
fn is_under_way(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error())
}

#[cfg(windows)]
fn is_under_way(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// A program in C dies of a write to a peer that is gone, unless the write says not to. (Where there is no such flag, the
/// socket itself is told when it is made.)
#[cfg(any(target_os = "linux", target_os = "android"))]
const WRITE_FLAGS: i32 = rustix::net::SendFlags::NOSIGNAL.bits().cast_signed();
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const WRITE_FLAGS: i32 = 0;

/// A socket that never waits.
pub(crate) struct Plain<'a>(pub(crate) &'a Socket);

impl Stream for Plain<'_> {
    fn read(&mut self, into: &mut BytesMut) -> io::Result<usize> {
        let n = self.0.recv(into.spare_capacity_mut())?;
        // SAFETY: the system has written the first `n` bytes of the spare room.
        unsafe { into.set_len(into.len() + n) };
        Ok(n)
    }

    fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.send_vectored_with_flags(slices, WRITE_FLAGS)
    }
}
