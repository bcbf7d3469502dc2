//! One connection: carries bytes both ways, and does to them what was planned.

use crate::fault::Fault;
use crate::proxy::{Shared, lock};
use crate::response::{Plan, Responses, Then};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Pieces of one direction that may be under way, held back by a delay; more are left with the system.
const MAX_PIECES: usize = 64;

/// The most that is read at once, in bytes.
const MAX_READ: usize = 16 * 1024;

/// The most that is kept of a request, to tell requests apart.
const MAX_REQUEST: usize = 64 * 1024;

/// How long a client may go on sending after an orderly cut. Unread bytes would turn the cut into a reset.
const DRAIN: Duration = Duration::from_millis(200);

/// What the connection shall do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Pass,
    Stall,
    Close,
    Reset,
}

/// One connection and what is to become of it.
#[derive(Debug)]
pub(crate) struct Link {
    fault: Fault,
    /// The fault was planned for this connection; what holds for all does not concern it.
    is_own: bool,
    order: watch::Sender<Order>,
    /// How often all was healed: faults of before are over.
    heals: AtomicU64,
    /// What was sent since the last response began.
    request: Mutex<Vec<u8>>,
    is_open: AtomicBool,
}

/// A piece of one direction, and when it may go on; without bytes it is the end.
struct Piece {
    due: Instant,
    bytes: Result<Vec<u8>, Order>,
}

impl Link {
    pub(crate) fn new(fault: Fault, is_own: bool) -> Self {
        Self {
            fault,
            is_own,
            order: watch::Sender::new(Order::Pass),
            heals: AtomicU64::new(0),
            request: Mutex::default(),
            is_open: AtomicBool::new(true),
        }
    }

    pub(crate) fn is_behind(&self) -> bool {
        self.fault().is_some_and(|fault| fault.behind)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    pub(crate) fn ended(&self) {
        self.is_open.store(false, Ordering::SeqCst);
    }

    /// Gives an order; whether that changes anything. An end is final.
    pub(crate) fn give(&self, order: Order) -> bool {
        self.order.send_if_modified(|now| {
            let is_new = *now != order && !matches!(now, Order::Close | Order::Reset);
            if is_new {
                *now = order;
            }
            is_new
        })
    }

    /// Goes on if it was silent, and does no harm any more.
    pub(crate) fn heal(&self) {
        self.heals.fetch_add(1, Ordering::SeqCst);
        self.give(Order::Pass);
    }

    /// The fault of the connection, while it holds.
    fn fault(&self) -> Option<&Fault> {
        (self.heals.load(Ordering::SeqCst) == 0).then_some(&self.fault)
    }

    /// Carries bytes until one side ends, or an order or the fault ends both.
    pub(crate) async fn carry(
        &self,
        shared: &Shared,
        mut client: TcpStream,
        mut server: TcpStream,
    ) {
        for stream in [&client, &server] {
            // Only pieces would be joined without it.
            let _ = stream.set_nodelay(true);
        }
        let (mut from_client, mut to_client) = client.split();
        let (mut from_server, mut to_server) = server.split();
        let repeated = self.fault().is_some_and(|fault| fault.repeat);
        let (twin, copies) = mpsc::channel(MAX_PIECES);
        let twin = repeated.then_some(twin);
        let ending = tokio::select! {
            biased;
            ending = self.ordered_to_end() => ending,
            never = repeat(shared, copies), if repeated => never,
            ending = self.up(shared, &mut from_client, &mut to_server, twin) => ending,
            ending = self.down(shared, &mut from_server, &mut to_client) => ending,
        };
        if ending == Order::Reset {
            // Without it the end is merely an orderly one.
            let _ = client.set_zero_linger();
            return;
        }
        drop(server);
        self.ended();
        if client.shutdown().await.is_ok() {
            let mut rest = [0; 1024];
            let draining =
                async { while client.read(&mut rest).await.is_ok_and(|size| size > 0) {} };
            // A client that goes on sending after that sees a reset.
            let _ = tokio::time::timeout(DRAIN, draining).await;
        }
    }

    pub(crate) async fn ordered_to_end(&self) -> Order {
        let mut orders = self.order.subscribe();
        let is_end = |order: &Order| matches!(order, Order::Close | Order::Reset);
        // The sender is this link's own.
        orders.wait_for(is_end).await.map_or(Order::Close, |order| *order)
    }

    /// Returns when nothing keeps the connection silent.
    async fn passing(&self) {
        let mut orders = self.order.subscribe();
        // The sender is this link's own.
        let _ = orders.wait_for(|order| *order != Order::Stall).await;
    }

    async fn up(
        &self,
        shared: &Shared,
        from: &mut ReadHalf<'_>,
        to: &mut WriteHalf<'_>,
        twin: Option<mpsc::Sender<Vec<u8>>>,
    ) -> Order {
        let (pieces, mut held) = mpsc::channel(MAX_PIECES);
        let reading = self.read(shared, from, pieces, true);
        let writing = async {
            while let Some(piece) = next(&mut held).await {
                let bytes = match piece {
                    Ok(bytes) => bytes,
                    Err(end) => return end,
                };
                self.passing().await;
                self.remember(&bytes);
                if let Err(e) = to.write_all(&bytes).await {
                    return why(&e);
                }
                if let Some(twin) = &twin {
                    // A copy that cannot be delivered is none.
                    let _ = twin.try_send(bytes);
                }
            }
            Order::Close
        };
        until_written(reading, writing).await
    }

    async fn down(
        &self,
        shared: &Shared,
        from: &mut ReadHalf<'_>,
        to: &mut WriteHalf<'_>,
    ) -> Order {
        let (pieces, mut held) = mpsc::channel(MAX_PIECES);
        let reading = self.read(shared, from, pieces, false);
        let writing = async {
            let mut responses = Responses::new();
            let mut sent = 0;
            let mut heals = 0;
            while let Some(piece) = next(&mut held).await {
                let bytes = match piece {
                    Ok(bytes) => bytes,
                    Err(end) => {
                        let ended = self.write(shared, to, &responses.finish(), &mut sent).await;
                        return ended.unwrap_or(end);
                    }
                };
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    self.passing().await;
                    let healed = self.heals.load(Ordering::SeqCst);
                    if std::mem::replace(&mut heals, healed) != healed {
                        responses.heal();
                    }
                    let mut out = Vec::with_capacity(rest.len());
                    let (used, then) = responses.take(rest, &mut out, |head| {
                        let request = std::mem::take(&mut *lock(&self.request));
                        if request.starts_with(b"HEAD ") {
                            return Plan::NoBody;
                        }
                        Plan::Body(shared.response_fault(head.is_ndjson, &request))
                    });
                    rest = &rest[used..];
                    if let Some(end) = self.write(shared, to, &out, &mut sent).await {
                        return end;
                    }
                    match then {
                        Then::Go => {}
                        Then::Stall => {
                            self.give(Order::Stall);
                        }
                        Then::Cut { reset: true } => return Order::Reset,
                        Then::Cut { reset: false } => return Order::Close,
                    }
                }
            }
            Order::Close
        };
        until_written(reading, writing).await
    }

    /// Writes up to the limits of the connection's fault; how the connection ends, if it does.
    async fn write(
        &self,
        shared: &Shared,
        to: &mut WriteHalf<'_>,
        mut out: &[u8],
        sent: &mut u64,
    ) -> Option<Order> {
        while !out.is_empty() {
            self.passing().await;
            let fault = self.fault().cloned().unwrap_or_default();
            let room = |limit: Option<u64>| {
                let left = limit.and_then(|limit| limit.checked_sub(*sent));
                left.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX))
            };
            let (until_cut, until_stall) = (room(fault.cut_after), room(fault.stall_after));
            let piece = if fault.piece == 0 { usize::MAX } else { fault.piece };
            let size = out.len().min(until_cut).min(until_stall).min(piece);
            if let Err(e) = to.write_all(&out[..size]).await {
                return Some(why(&e));
            }
            shared.count(size);
            *sent += size as u64;
            out = &out[size..];
            if size == until_cut {
                return Some(if fault.reset { Order::Reset } else { Order::Close });
            }
            if size == until_stall {
                self.give(Order::Stall);
            }
        }
        None
    }

    /// Reads one direction to its end. What is read may go on when the delay is over.
    async fn read(
        &self,
        shared: &Shared,
        from: &mut ReadHalf<'_>,
        pieces: mpsc::Sender<Piece>,
        is_up: bool,
    ) {
        let mut buffer = vec![0; MAX_READ];
        loop {
            let bytes = match from.read(&mut buffer).await {
                Ok(0) => Err(Order::Close),
                Ok(size) => Ok(buffer[..size].to_vec()),
                Err(e) => Err(why(&e)),
            };
            let own = self.fault().filter(|_| self.is_own);
            let (up, down) =
                own.map_or_else(|| shared.delays(), |fault| (fault.delay_up, fault.delay));
            let is_end = bytes.is_err();
            let due = Instant::now() + if is_up { up } else { down };
            if pieces.send(Piece { due, bytes }).await.is_err() || is_end {
                return;
            }
        }
    }

    /// Keeps the beginning of the request that is under way.
    fn remember(&self, bytes: &[u8]) {
        let mut request = lock(&self.request);
        let room = MAX_REQUEST - request.len();
        request.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// Sends the same to the server over a second connection and reads its answers over; it never has the last word.
async fn repeat(shared: &Shared, mut copies: mpsc::Receiver<Vec<u8>>) -> Order {
    if let Some(mut twin) = shared.connect().await {
        let (mut from, mut to) = twin.split();
        let mut answers = vec![0; MAX_READ];
        let reading = async { while from.read(&mut answers).await.is_ok_and(|size| size > 0) {} };
        let writing = async {
            while let Some(bytes) = copies.recv().await {
                if to.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = reading => {}
            () = writing => {}
        }
    }
    std::future::pending().await
}

/// The reader ends before the writer, which has the last word.
async fn until_written(
    reading: impl Future<Output = ()>,
    writing: impl Future<Output = Order>,
) -> Order {
    let reading = async {
        reading.await;
        std::future::pending().await
    };
    tokio::select! {
        order = writing => order,
        order = reading => order,
    }
}

/// The next piece, when it is due.
async fn next(held: &mut mpsc::Receiver<Piece>) -> Option<Result<Vec<u8>, Order>> {
    let piece = held.recv().await?;
    // The timer works in whole milliseconds; without a delay there is nothing to wait for.
    if piece.due > Instant::now() {
        tokio::time::sleep_until(piece.due).await;
    }
    Some(piece.bytes)
}

/// How one side's failure looks to the other.
fn why(error: &io::Error) -> Order {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => Order::Reset,
        _ => Order::Close,
    }
}
