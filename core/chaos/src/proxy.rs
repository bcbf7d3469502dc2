//! The proxy: where it listens, what is planned, and the connections that are open.

use crate::fault::{Fault, ResponseFault};
use crate::link::{Link, Order};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc as wishes, watch};

/// How long the server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// How long a port that was given up is tried for before it counts as lost.
const LISTEN_AGAIN: Duration = Duration::from_secs(3);

/// How long a cut waits for the connections to be gone.
const GONE: Duration = Duration::from_secs(2);

/// How long a connection waits for one that is to overtake it.
const OVERTAKEN: Duration = Duration::from_millis(500);

/// A proxy for one server.
#[derive(Debug)]
pub struct ChaosProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    wishes: wishes::UnboundedSender<Wish>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread of the proxy shall do; it tells when it is done.
#[derive(Debug)]
enum Wish {
    Listen(bool, mpsc::Sender<io::Result<()>>),
    End,
}

#[derive(Debug)]
pub(crate) struct Shared {
    targets: Mutex<Vec<SocketAddr>>,
    /// Faults for the next connections, in order; then `always`.
    next: Mutex<VecDeque<Fault>>,
    always: Mutex<Fault>,
    responses: Mutex<ResponsePlan>,
    open: Mutex<Vec<Arc<Link>>>,
    /// Connections are closed as they come, as if the server were being restarted.
    down: AtomicBool,
    connections: AtomicU64,
    /// How many connections have reached the server.
    arrived: watch::Sender<u64>,
    bytes: AtomicU64,
}

/// Faults for the next responses, in order; then `always`.
#[derive(Debug, Default)]
struct ResponsePlan {
    next: VecDeque<ResponseFault>,
    always: ResponseFault,
}

impl ChaosProxy {
    /// A proxy to `target` on a free port of 127.0.0.1, that does no harm yet.
    ///
    /// # Errors
    /// When no port can be opened.
    pub fn start(target: SocketAddr) -> io::Result<Self> {
        Self::listen(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0), vec![target])
    }

    /// A proxy that listens at `address` (port 0: a free one) and connects to the first of `targets` that accepts.
    ///
    /// # Errors
    /// When the port cannot be opened, or the thread that carries the bytes cannot be started.
    pub fn listen(address: SocketAddr, targets: Vec<SocketAddr>) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            targets: Mutex::new(targets),
            next: Mutex::default(),
            always: Mutex::default(),
            responses: Mutex::default(),
            open: Mutex::default(),
            down: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            arrived: watch::Sender::new(0),
            bytes: AtomicU64::new(0),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let (wishes, heard) = wishes::unbounded_channel();
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("chaos-proxy".to_owned());
        let thread = thread.spawn(move || runtime.block_on(theirs.accept(listener, heard)))?;
        Ok(Self { address, shared, wishes, thread: Some(thread) })
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
        *lock(&self.shared.targets) = vec![target];
    }

    /// The fault of the next connection for which none is planned yet.
    pub fn plan(&self, fault: Fault) {
        lock(&self.shared.next).push_back(fault);
    }

    /// The fault of every connection without a planned one. Delays of it hold for those that are open, too.
    pub fn always(&self, fault: Fault) {
        *lock(&self.shared.always) = fault;
    }

    /// A fault for one response: the next that it is for, on whichever connection, after those planned before it.
    pub fn plan_response(&self, fault: ResponseFault) {
        lock(&self.shared.responses).next.push_back(fault);
    }

    /// The fault of every response that it is for and that has no planned one.
    pub fn always_response(&self, fault: ResponseFault) {
        lock(&self.shared.responses).always = fault;
    }

    /// Ends every connection that is open, in order; returns how many.
    pub fn cut_all(&self) -> usize {
        self.end_all(Order::Close)
    }

    /// Resets every connection that is open; returns how many. What was handed on just before may be lost with it.
    pub fn reset_all(&self) -> usize {
        self.end_all(Order::Reset)
    }

    /// Silences every connection that is open, in both directions, until it is cut or all is [healed](Self::heal).
    /// Returns how many are silent now.
    pub fn stall_all(&self) -> usize {
        let open = self.shared.open();
        for link in &open {
            link.give(Order::Stall);
        }
        open.len()
    }

    /// Closes connections as they come, or takes them again. Those that are open stay.
    pub fn set_down(&self, down: bool) {
        self.shared.down.store(down, Ordering::SeqCst);
    }

    /// Gives the port up, so that the system refuses connections, or listens there again. Connections that are open
    /// stay.
    ///
    /// # Errors
    /// When the port cannot be opened again, because another program has taken it.
    pub fn set_listening(&self, listening: bool) -> io::Result<()> {
        let (done, heard) = mpsc::channel();
        let gone = || io::Error::other("the thread of the proxy has ended");
        self.wishes.send(Wish::Listen(listening, done)).map_err(|_| gone())?;
        heard.recv().map_err(|_| gone())?
    }

    /// Forgets every plan, lets silent connections go on and listens again.
    ///
    /// # Errors
    /// As [`set_listening`](Self::set_listening).
    pub fn heal(&self) -> io::Result<()> {
        lock(&self.shared.next).clear();
        *lock(&self.shared.always) = Fault::default();
        *lock(&self.shared.responses) = ResponsePlan::default();
        self.set_down(false);
        for link in self.shared.open() {
            link.heal();
        }
        self.set_listening(true)
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

    /// Connections that are open now.
    #[must_use]
    pub fn open(&self) -> usize {
        self.shared.open().len()
    }

    /// Faults that are planned for single connections and responses and have not come to pass.
    #[must_use]
    pub fn planned(&self) -> usize {
        lock(&self.shared.next).len() + lock(&self.shared.responses).next.len()
    }

    /// Bytes of the server that were handed on so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::SeqCst)
    }

    /// Gives the order to end and waits until it is carried out.
    fn end_all(&self, order: Order) -> usize {
        let mut open = self.shared.open();
        open.retain(|link| link.give(order));
        let until = Instant::now() + GONE;
        while open.iter().any(|link| link.is_open()) && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
        open.len()
    }
}

impl Drop for ChaosProxy {
    fn drop(&mut self) {
        // A thread that has ended, or panicked, is what is wanted here.
        let _ = self.wishes.send(Wish::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    async fn accept(
        self: Arc<Self>,
        listener: TcpListener,
        mut wishes: wishes::UnboundedReceiver<Wish>,
    ) {
        let address = listener.local_addr();
        let mut listener = Some(listener);
        loop {
            let accepting = async {
                match &listener {
                    Some(listener) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                wish = wishes.recv() => match wish {
                    Some(Wish::Listen(false, done)) => {
                        listener = None;
                        // Whoever does not wait for the answer does not need it.
                        let _ = done.send(Ok(()));
                    }
                    Some(Wish::Listen(true, done)) => {
                        let outcome = match (&listener, &address) {
                            (None, Ok(address)) => listen_again(*address).await.map(|again| listener = Some(again)),
                            _ => Ok(()),
                        };
                        let _ = done.send(outcome);
                    }
                    Some(Wish::End) | None => return,
                },
                accepted = accepting => match accepted {
                    Ok((client, _)) => self.take(client),
                    // Descriptors are short; some will be free again.
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                },
            }
        }
    }

    fn take(self: &Arc<Self>, client: TcpStream) {
        self.connections.fetch_add(1, Ordering::SeqCst);
        let own = lock(&self.next).pop_front();
        let fault = own.clone().unwrap_or_else(|| lock(&self.always).clone());
        if fault.refuse || self.down.load(Ordering::SeqCst) {
            if fault.reset {
                // Without it the end is merely an orderly one.
                let _ = client.set_zero_linger();
            }
            return;
        }
        let link = Arc::new(Link::new(fault, own.is_some()));
        lock(&self.open).push(Arc::clone(&link));
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            shared.carry(&link, client).await;
            link.ended();
        });
    }

    /// A connection that the server does not take is reset: its client learns that nobody is there.
    async fn carry(&self, link: &Link, client: TcpStream) {
        let mut arrivals = self.arrived.subscribe();
        let before = *arrivals.borrow_and_update();
        let connecting = async {
            if link.is_behind() {
                let overtaken = arrivals.wait_for(|arrived| *arrived > before);
                // With nobody to be overtaken by, it goes on all the same.
                let _ = tokio::time::timeout(OVERTAKEN, overtaken).await;
            }
            self.connect().await
        };
        let connected = tokio::select! {
            _ = link.ordered_to_end() => return,
            connected = connecting => connected,
        };
        if let Some(server) = connected {
            self.arrived.send_modify(|arrived| *arrived += 1);
            return link.carry(self, client, server).await;
        }
        // Without it the end is merely an orderly one.
        let _ = client.set_zero_linger();
    }

    /// A connection to the server, if it takes one.
    pub(crate) async fn connect(&self) -> Option<TcpStream> {
        let targets = lock(&self.targets).clone();
        let connecting = tokio::time::timeout(CONNECT, TcpStream::connect(&targets[..]));
        connecting.await.ok().and_then(Result::ok)
    }

    /// The delays that hold for connections without a fault of their own.
    pub(crate) fn delays(&self) -> (Duration, Duration) {
        let always = lock(&self.always);
        (always.delay_up, always.delay)
    }

    /// What shall become of a response to this request.
    pub(crate) fn response_fault(&self, is_ndjson: bool, request: &[u8]) -> ResponseFault {
        let mut plan = lock(&self.responses);
        let found = plan.next.iter().position(|fault| fault.is_for(is_ndjson, request));
        match found.and_then(|place| plan.next.remove(place)) {
            Some(fault) => fault,
            None if plan.always.is_for(is_ndjson, request) => plan.always.clone(),
            None => ResponseFault::default(),
        }
    }

    pub(crate) fn count(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::SeqCst);
    }

    fn open(&self) -> Vec<Arc<Link>> {
        let mut open = lock(&self.open);
        open.retain(|link| link.is_open());
        open.clone()
    }
}

/// The port may be held for a moment by what is left of old connections.
async fn listen_again(address: SocketAddr) -> io::Result<TcpListener> {
    let until = Instant::now() + LISTEN_AGAIN;
    loop {
        match TcpListener::bind(address).await {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            outcome => return outcome,
        }
    }
}

/// A lock whose holder panicked still guards plain values.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
