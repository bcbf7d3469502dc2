//! Ends the wait of whoever waits for the sockets.

use socket2::Socket;
use std::io::{self, Read, Write};

/// Two sockets: what is written to one makes the other readable.
pub(crate) struct Waker {
    inside: Socket,
    outside: Socket,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        let (inside, outside) = pair()?;
        inside.set_nonblocking(true)?;
        outside.set_nonblocking(true)?;
        Ok(Self { inside, outside })
    }

    /// The socket to wait for.
    pub(crate) fn socket(&self) -> &Socket {
        &self.inside
    }

    /// Makes it readable. From any thread.
    pub(crate) fn wake(&self) {
        // A full pipe wakes as well as one more byte; nothing else can go wrong with a socket pair.
        let _woken = (&self.outside).write(&[1]);
    }

    /// Takes out what has woken it.
    pub(crate) fn drain(&self) {
        let mut bytes = [0; 64];
        while (&self.inside).read(&mut bytes).is_ok_and(|n| n == bytes.len()) {}
    }
}

#[cfg(unix)]
fn pair() -> io::Result<(Socket, Socket)> {
    use std::os::fd::OwnedFd;
    let (inside, outside) = std::os::unix::net::UnixStream::pair()?;
    Ok((OwnedFd::from(inside).into(), OwnedFd::from(outside).into()))
}

/// Where there are no socket pairs: two datagram sockets of the loopback interface that hear only each other.
#[cfg(not(unix))]
fn pair() -> io::Result<(Socket, Socket)> {
    let inside = std::net::UdpSocket::bind(("127.0.0.1", 0))?;
    let outside = std::net::UdpSocket::bind(("127.0.0.1", 0))?;
    inside.connect(outside.local_addr()?)?;
    outside.connect(inside.local_addr()?)?;
    Ok((inside.into(), outside.into()))
}
