//! A TCP proxy on 127.0.0.1 that misbehaves on demand, for tests against real servers.
//!
//! [`ChaosProxy`] sits between a client and a server. Faults come from a plan of the test: one for
//! each new connection, or one for all connections that are open now. Threads of the standard
//! library carry the bytes; all of them end when the proxy is dropped.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a thread that waits looks whether it shall end.
const LOOK: Duration = Duration::from_millis(20);

/// What happens to one connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fault {
    /// Close it as soon as it is there.
    pub refuse: bool,
    /// Hold each piece from the server back for this long.
    pub delay: Duration,
    /// Cut it after this many bytes from the server.
    pub cut_after: Option<u64>,
    /// Fall silent after this many bytes from the server, and stay connected.
    pub stall_after: Option<u64>,
    /// Hand the bytes of the server on in pieces of at most this size; 0 for as they come.
    pub piece: usize,
}

/// A proxy for one server.
#[derive(Debug)]
pub struct ChaosProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    target: Mutex<SocketAddr>,
    /// Faults for the next connections, in order; then `always`.
    next: Mutex<VecDeque<Fault>>,
    always: Mutex<Fault>,
    open: Mutex<Vec<Arc<Link>>>,
    ended: AtomicBool,
    /// Connections are refused, as if the server were being restarted.
    down: AtomicBool,
    connections: AtomicU64,
    bytes: AtomicU64,
}

/// The two sides of one connection.
#[derive(Debug)]
struct Link {
    client: TcpStream,
    server: TcpStream,
    stalled: AtomicBool,
    cut: AtomicBool,
    /// Directions that still carry bytes.
    alive: AtomicU64,
}

impl ChaosProxy {
    /// A proxy to `target` that does no harm yet.
    ///
    /// # Errors
    /// When no port can be opened.
    pub fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            next: Mutex::default(),
            always: Mutex::default(),
            open: Mutex::default(),
            ended: AtomicBool::new(false),
            down: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("chaos-proxy".to_owned());
        let listener = thread.spawn(move || theirs.accept(&listener))?;
        Ok(Self { address, shared, listener: Some(listener) })
    }

    /// Where clients connect.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The base address for clients.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sends connections from now on to another server: the same one, restarted elsewhere.
    pub fn retarget(&self, target: SocketAddr) {
        *lock(&self.shared.target) = target;
    }

    /// The fault of the next connection for which none is planned yet.
    pub fn plan(&self, fault: Fault) {
        lock(&self.shared.next).push_back(fault);
    }

    /// The fault of every connection without a planned one.
    pub fn always(&self, fault: Fault) {
        *lock(&self.shared.always) = fault;
    }

    /// Cuts every connection that is open; returns how many.
    pub fn cut_all(&self) -> usize {
        let links = std::mem::take(&mut *lock(&self.shared.open));
        links.iter().filter(|link| link.cut()).count()
    }

    /// Silences every connection that is open, in both directions, until it is cut.
    pub fn stall_all(&self) {
        for link in lock(&self.shared.open).iter() {
            link.stalled.store(true, Ordering::SeqCst);
        }
    }

    /// Refuses connections, or takes them again. Those that are open stay.
    pub fn set_down(&self, down: bool) {
        self.shared.down.store(down, Ordering::SeqCst);
    }

    /// A restart of the server as its clients see it: everything is cut, and for `pause` nobody answers.
    pub fn restart(&self, pause: Duration) {
        self.set_down(true);
        self.cut_all();
        std::thread::sleep(pause);
        self.set_down(false);
    }

    /// Connections so far, refused ones included.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Bytes of the server that were handed on so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::SeqCst)
    }
}

impl Drop for ChaosProxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.cut_all();
        if let Some(listener) = self.listener.take() {
            // A thread that panicked has ended as well.
            let _ = listener.join();
        }
        self.cut_all();
    }
}

impl Shared {
    fn accept(self: Arc<Self>, listener: &TcpListener) {
        while !self.ended.load(Ordering::SeqCst) {
            match listener.accept() {
                Ok((client, _)) => self.take(client),
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }

    /// A connection that cannot be carried on is dropped: that is what its client would see anyway.
    fn take(self: &Arc<Self>, client: TcpStream) {
        self.connections.fetch_add(1, Ordering::SeqCst);
        let fault = lock(&self.next).pop_front().unwrap_or_else(|| lock(&self.always).clone());
        if fault.refuse || self.down.load(Ordering::SeqCst) {
            return;
        }
        let target = *lock(&self.target);
        let Ok(server) = TcpStream::connect_timeout(&target, Duration::from_secs(5)) else {
            return;
        };
        for stream in [&client, &server] {
            let ready = stream.set_nonblocking(false).and_then(|()| stream.set_nodelay(true));
            if ready.and_then(|()| stream.set_read_timeout(Some(LOOK))).is_err() {
                return;
            }
        }
        let link = Arc::new(Link {
            client,
            server,
            stalled: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            alive: AtomicU64::new(2),
        });
        let mut open = lock(&self.open);
        open.retain(|link| link.alive.load(Ordering::SeqCst) > 0);
        open.push(Arc::clone(&link));
        drop(open);
        for to_client in [true, false] {
            let (shared, theirs, fault) = (Arc::clone(self), Arc::clone(&link), fault.clone());
            let thread = std::thread::Builder::new().name("chaos-link".to_owned());
            let run = move || {
                shared.carry(&theirs, to_client, &fault);
                theirs.alive.fetch_sub(1, Ordering::SeqCst);
            };
            if thread.spawn(run).is_err() {
                link.cut();
            }
        }
    }

    /// Carries one direction until it ends; its end ends both.
    fn carry(&self, link: &Link, to_client: bool, fault: &Fault) {
        let (mut from, mut to) =
            if to_client { (&link.server, &link.client) } else { (&link.client, &link.server) };
        let mut buffer = vec![0; 64 * 1024];
        let mut left = fault.cut_after.filter(|_| to_client);
        let mut until_stall = fault.stall_after.filter(|_| to_client);
        while !self.ended.load(Ordering::SeqCst) && !link.cut.load(Ordering::SeqCst) {
            if link.stalled.load(Ordering::SeqCst) {
                std::thread::sleep(LOOK);
                continue;
            }
            let size = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(size) => size,
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
                {
                    continue;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            let bound = |limit: Option<u64>| {
                limit.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX)
            };
            let keep = size.min(bound(left)).min(bound(until_stall));
            if to_client && !fault.delay.is_zero() {
                std::thread::sleep(fault.delay);
            }
            let piece = if to_client && fault.piece > 0 { fault.piece } else { buffer.len() };
            if buffer[..keep].chunks(piece).any(|part| to.write_all(part).is_err()) {
                break;
            }
            if to_client {
                self.bytes.fetch_add(keep as u64, Ordering::SeqCst);
            }
            left = left.map(|n| n.saturating_sub(keep as u64));
            until_stall = until_stall.map(|n| n.saturating_sub(keep as u64));
            if left == Some(0) {
                break;
            }
            if until_stall == Some(0) {
                link.stalled.store(true, Ordering::SeqCst);
            }
        }
        link.cut();
    }
}

impl Link {
    /// Closes both sides; whether they were open.
    fn cut(&self) -> bool {
        let open = !self.cut.swap(true, Ordering::SeqCst);
        let client = self.client.shutdown(Shutdown::Both);
        let server = self.server.shutdown(Shutdown::Both);
        open && (client.is_ok() || server.is_ok())
    }
}

/// A lock whose holder panicked still guards plain values.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// A server that answers every byte with 100 bytes.
    fn server() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                std::thread::spawn(move || {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).is_ok() {
                        if stream.write_all(&[byte[0]; 100]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        address
    }

    fn client(proxy: &ChaosProxy) -> TcpStream {
        let stream = TcpStream::connect(proxy.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    #[test]
    fn without_a_plan_bytes_pass_both_ways() {
        let proxy = ChaosProxy::start(server()).unwrap();
        let mut stream = client(&proxy);
        stream.write_all(b"ab").unwrap();
        let mut got = [0; 200];
        stream.read_exact(&mut got).unwrap();
        assert_eq!((got[0], got[199]), (b'a', b'b'));
        assert_eq!(proxy.connections(), 1);
    }

    #[test]
    fn a_planned_cut_comes_after_exactly_that_many_bytes_and_only_once() {
        let proxy = ChaosProxy::start(server()).unwrap();
        proxy.plan(Fault { cut_after: Some(150), piece: 7, ..Fault::default() });
        let mut stream = client(&proxy);
        stream.write_all(b"ab").unwrap();
        let mut got = Vec::new();
        let _ = stream.read_to_end(&mut got);
        assert_eq!(got.len(), 150);
        let mut next = client(&proxy);
        next.write_all(b"ab").unwrap();
        next.read_exact(&mut [0; 200]).unwrap();
    }

    #[test]
    fn what_is_open_can_be_cut_and_a_restart_refuses_for_a_while() {
        let proxy = ChaosProxy::start(server()).unwrap();
        let mut stream = client(&proxy);
        stream.write_all(b"a").unwrap();
        stream.read_exact(&mut [0; 100]).unwrap();
        assert_eq!(proxy.cut_all(), 1);
        assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)));
        proxy.set_down(true);
        let mut refused = client(&proxy);
        let _ = refused.write_all(b"a");
        assert!(matches!(refused.read(&mut [0; 1]), Ok(0) | Err(_)));
        proxy.restart(Duration::ZERO);
        let mut again = client(&proxy);
        again.write_all(b"a").unwrap();
        again.read_exact(&mut [0; 100]).unwrap();
    }

    #[test]
    fn a_stalled_connection_stays_open_and_silent_until_it_is_cut() {
        let proxy = ChaosProxy::start(server()).unwrap();
        proxy.plan(Fault { stall_after: Some(50), ..Fault::default() });
        let mut stream = client(&proxy);
        stream.write_all(b"a").unwrap();
        stream.read_exact(&mut [0; 50]).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let silent = stream.read(&mut [0; 1]).unwrap_err();
        assert!(matches!(silent.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut));
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        proxy.cut_all();
        assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)));
        let begun = Instant::now();
        drop(proxy);
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}
