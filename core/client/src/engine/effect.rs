//! What goes in and out of the engine at its edge with sockets and clocks.

use bytes::Bytes;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

macro_rules! numbers {
    ($( $(#[$doc:meta])* $name:ident; )*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);
    )* };
}

numbers! {
    /// A connection. Numbers are never reused; inputs for numbers the engine no longer knows are ignored.
    ConnId;
    /// A name to resolve.
    ResolveId;
    /// An operation: what one command started. The caller chooses the numbers and never reuses one.
    OpId;
    /// Something the application is asked: a tool call, an approval, a hook.
    CallId;
}

/// What the shell shall do. Effects are never held back by how fast steps are taken.
#[derive(Clone, PartialEq, Eq)]
pub enum Effect {
    /// Find the addresses of `host`, then call [`Engine::resolved`](super::Engine::resolved).
    Resolve {
        /// Names the answer.
        req: ResolveId,
        /// A host name; never an address.
        host: String,
    },
    /// Connect to `addr`, with TLS when `tls` is there, then call [`Engine::connected`](super::Engine::connected).
    Connect {
        /// The new connection.
        conn: ConnId,
        /// Where to.
        addr: SocketAddr,
        /// Whether to speak TLS at once.
        tls: Option<Tls>,
    },
    /// Start TLS on an open connection (the tunnel through a proxy), then call
    /// [`Engine::tls_started`](super::Engine::tls_started).
    StartTls {
        /// The connection.
        conn: ConnId,
        /// For whom.
        tls: Tls,
    },
    /// Write these bytes after all earlier ones, then call [`Engine::written`](super::Engine::written). A write error never ends a
    /// connection: reading goes on until [`Engine::closed`](super::Engine::closed).
    Write {
        /// The connection.
        conn: ConnId,
        /// What to write.
        bytes: Bytes,
    },
    /// Read nothing more from this connection for now.
    PauseRead {
        /// The connection.
        conn: ConnId,
    },
    /// Read again.
    ResumeRead {
        /// The connection.
        conn: ConnId,
    },
    /// Close the connection, or give up connecting it. No `closed` needs to follow.
    Close {
        /// The connection.
        conn: ConnId,
        /// Whether to drop it at once, unsent bytes included. Half-closing never happens.
        abort: bool,
    },
    /// Call [`Engine::timeout`](super::Engine::timeout) at this time. The latest one counts; `None` cancels it.
    Timer {
        /// When.
        at: Option<broca_proto::Time>,
    },
    /// Whether work is going on that should keep the process alive.
    Busy(bool),
    /// Steps are waiting where there were none, or were left over.
    Ready {
        /// Whose.
        op: OpId,
    },
    /// A line for the log of the application.
    Log(LogRecord),
}

/// Of bytes to write only how many: there are keys among them.
impl fmt::Debug for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolve { req, host } => write!(f, "Resolve({}, {host})", req.0),
            Self::Connect { conn, addr, tls } => {
                write!(f, "Connect({}, {addr}, tls: {})", conn.0, tls.is_some())
            }
            Self::StartTls { conn, .. } => write!(f, "StartTls({})", conn.0),
            Self::Write { conn, bytes } => write!(f, "Write({}, {} bytes)", conn.0, bytes.len()),
            Self::PauseRead { conn } => write!(f, "PauseRead({})", conn.0),
            Self::ResumeRead { conn } => write!(f, "ResumeRead({})", conn.0),
            Self::Close { conn, abort } => write!(f, "Close({}, abort: {abort})", conn.0),
            Self::Timer { at } => write!(f, "Timer({at:?})"),
            Self::Busy(busy) => write!(f, "Busy({busy})"),
            Self::Ready { op } => write!(f, "Ready({})", op.0),
            Self::Log(record) => record.fmt(f),
        }
    }
}

/// How TLS is to be spoken: server name for SNI and for the certificate. The only protocol offered is `http/1.1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// A host name or an address.
    pub server_name: String,
}

/// A record for the application's log: never keys, never payloads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// How important.
    pub level: LogLevel,
    /// What happened.
    pub message: String,
}

/// How important a log record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LogLevel {
    /// For finding faults.
    Debug,
    /// Worth knowing.
    Info,
    /// Odd, and survived.
    Warn,
}

/// The answer to [`Effect::Resolve`]: addresses in the order of preference, or why there are none.
pub type Resolved = Result<Vec<IpAddr>, String>;

/// Why a connection is gone. Reported exactly once for each connection that was not closed by the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer closed cleanly (with TLS: after its close_notify).
    Eof,
    /// The peer closed without TLS's close_notify.
    UncleanEof,
    /// The connection was reset.
    Reset,
    /// The network gave up.
    TimedOut,
    /// Nobody listens there.
    Refused,
    /// No way there.
    Unreachable,
    /// The certificate is not trusted, expired or not yet valid.
    TlsCert,
    /// The certificate is for another host.
    TlsHost,
    /// TLS failed in another way.
    TlsOther,
    /// This machine refused: out of descriptors, no permission.
    Local,
}

impl CloseReason {
    /// What it means, in words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Eof => "the peer closed the connection",
            Self::UncleanEof => "the peer cut the connection",
            Self::Reset => "the connection was reset",
            Self::TimedOut => "the network timed out",
            Self::Refused => "the connection was refused",
            Self::Unreachable => "the network is unreachable",
            Self::TlsCert => "the certificate is not trusted",
            Self::TlsHost => "the certificate is for another host",
            Self::TlsOther => "TLS failed",
            Self::Local => "this machine refused the connection",
        }
    }

    /// Whether it belongs to TLS.
    #[must_use]
    pub const fn is_tls(self) -> bool {
        matches!(self, Self::TlsCert | Self::TlsHost | Self::TlsOther)
    }
}
