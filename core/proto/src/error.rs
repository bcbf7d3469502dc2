//! The one table of errors (design §5): numbers, kinds, classes and what a retry would do.
//!
//! Every language's exception classes, the C status codes and the messages' kinds are projections
//! of [`ErrorKind`]. Rows are added, never renumbered.

use crate::Json;
use std::fmt;

/// Whether the same call may be made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Retry {
    /// Nothing happened: the call may be repeated at once.
    Safe,
    /// Repeating would do harm or fail the same way.
    Unsafe,
    /// The other side may or may not have acted: look before repeating.
    Unknown,
}

impl Retry {
    /// The word used in every language: `safe`, `unsafe` or `unknown`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Unsafe => "unsafe",
            Self::Unknown => "unknown",
        }
    }
}

macro_rules! error_kinds {
    ($( $(#[$doc:meta])* $variant:ident = $code:literal, $kind:literal, $class:literal, $parent:expr, $retry:ident; )*) => {
        /// A row of the error table.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $( $(#[$doc])* $variant, )*
        }

        impl ErrorKind {
            /// Every row, in the order of the table.
            pub const ALL: &'static [Self] = &[ $( Self::$variant, )* ];

            /// The number that never changes; negative.
            #[must_use]
            pub const fn code(self) -> i32 {
                match self { $( Self::$variant => $code, )* }
            }

            /// The kind as a word, the same in every language.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $kind, )* }
            }

            /// The name of the exception class.
            #[must_use]
            pub const fn class(self) -> &'static str {
                match self { $( Self::$variant => $class, )* }
            }

            /// The kind this one is a special case of.
            #[must_use]
            pub const fn parent(self) -> Option<Self> {
                match self { $( Self::$variant => $parent, )* }
            }

            /// What a retry would do when nothing more is known.
            #[must_use]
            pub const fn retry(self) -> Retry {
                match self { $( Self::$variant => Retry::$retry, )* }
            }
        }
    };
}

error_kinds! {
    /// The call itself was wrong: wrong order, wrong thread, an async tool on a sync client.
    Usage = -1, "usage", "UsageError", None, Unsafe;
    /// An argument cannot be used as given.
    InvalidArgument = -2, "invalid_argument", "InvalidArgumentError", None, Unsafe;
    /// The client or session was closed before the call.
    Closed = -3, "closed", "ClosedError", None, Unsafe;
    /// The client was made before a fork and used after it.
    Forked = -4, "forked", "ForkedError", None, Unsafe;
    /// The connection failed.
    Transport = -100, "transport", "TransportError", None, Unknown;
    /// No connection could be made: nothing was sent.
    Connect = -101, "connect", "ConnectError", Some(Self::Transport), Safe;
    /// TLS could not be agreed or the certificate was refused: nothing was sent.
    Tls = -102, "tls", "TlsError", Some(Self::Transport), Unsafe;
    /// The connection broke while in use.
    Io = -103, "io", "IoError", Some(Self::Transport), Unknown;
    /// The peer did not answer in time.
    Timeout = -110, "timeout", "TimeoutError", None, Unknown;
    /// The stream ended without its terminal line.
    StreamEndedEarly = -120, "stream_ended_early", "StreamEndedEarlyError", None, Unknown;
    /// The terminal line was longer than the limit.
    LineTooLong = -121, "line_too_long", "LineTooLongError", None, Unknown;
    /// The service dropped this reader because it fell behind.
    Lagged = -122, "lagged", "LaggedError", None, Unknown;
    /// The peer broke the protocol.
    Protocol = -200, "protocol", "ProtocolError", None, Unsafe;
    /// Bytes that are not what the protocol says.
    Malformed = -201, "malformed", "MalformedError", Some(Self::Protocol), Unsafe;
    /// The peer speaks a version this program does not.
    UnsupportedVersion = -202, "unsupported_version", "UnsupportedVersionError", Some(Self::Protocol), Unsafe;
    /// A bound of this program was exceeded; the message names it.
    Limit = -203, "limit", "LimitError", Some(Self::Protocol), Unsafe;
    /// The opening exchange failed.
    Handshake = -204, "handshake", "HandshakeError", Some(Self::Protocol), Unsafe;
    /// What answered is not a session service.
    NotBroca = -205, "not_broca", "NotBrocaError", Some(Self::Protocol), Unsafe;
    /// The service does not offer what this call needs, or this client does not ask for it.
    NotOffered = -206, "not_offered", "NotOfferedError", Some(Self::Protocol), Unsafe;
    /// The service answered a REST call with a problem document.
    Api = -300, "api", "ApiError", None, Unsafe;
    /// The key was refused.
    Unauthorized = -301, "unauthorized", "UnauthorizedError", Some(Self::Api), Unsafe;
    /// The session is closed or in error.
    SessionClosed = -302, "session_closed", "SessionClosedError", Some(Self::Api), Unsafe;
    /// The profile does not allow a declared tool.
    ToolNotAllowed = -303, "tool_not_allowed", "ToolNotAllowedError", Some(Self::Api), Unsafe;
    /// The service answered with a JSON-RPC error.
    Rpc = -320, "rpc", "RpcError", None, Unsafe;
    /// The caller has not registered as a driver.
    DriverNotRegistered = -321, "driver_not_registered", "DriverNotRegisteredError", Some(Self::Rpc), Safe;
    /// A paused turn stands in the way.
    TurnInProgress = -322, "turn_in_progress", "TurnInProgressError", Some(Self::Rpc), Safe;
    /// The parameters were refused.
    InvalidParams = -323, "invalid_params", "InvalidParamsError", Some(Self::Rpc), Unsafe;
    /// Every model provider failed.
    ProvidersFailed = -340, "providers_failed", "ProvidersFailedError", None, Safe;
    /// The turn reached the service's limit of model rounds.
    LoopLimit = -341, "loop_limit", "LoopLimitError", None, Unsafe;
    /// The model's answer does not fit the type that the program wants, also after it was told so.
    OutputInvalid = -343, "output_invalid", "OutputInvalidError", None, Unsafe;
    /// A tool failed.
    Tool = -400, "tool", "ToolError", None, Unsafe;
    /// The model asked for a tool that nobody registered.
    UnknownTool = -401, "unknown_tool", "UnknownToolError", Some(Self::Tool), Unsafe;
    /// A tool did not finish before its deadline.
    ToolTimeout = -402, "tool_timeout", "ToolTimeoutError", Some(Self::Tool), Unknown;
    /// A hook of the application failed.
    Hook = -410, "hook", "HookError", None, Unsafe;
    /// A person or a rule refused the call.
    ApprovalDenied = -411, "approval_denied", "ApprovalDeniedError", None, Unsafe;
    /// The application cancelled the operation.
    Cancelled = -500, "cancelled", "CancelledError", None, Safe;
    /// A fault of this library.
    Internal = -900, "internal", "InternalError", None, Unknown;
    /// A panic was caught at a boundary.
    Panic = -901, "panic", "PanicError", None, Unknown;
    /// Two parts of Broca of different versions met.
    VersionMismatch = -902, "version_mismatch", "VersionMismatchError", None, Unsafe;
}

impl ErrorKind {
    /// Whether this kind is `other` or a special case of it.
    #[must_use]
    pub fn is(self, other: Self) -> bool {
        self == other || self.parent().is_some_and(|parent| parent.is(other))
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error as the application sees it: a row of the table, a sentence, and details as JSON.
///
/// The sentence says what was wrong, where, and the cure; it never holds keys or payloads.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    retry: Retry,
    details: Option<Json>,
}

impl Error {
    /// An error of `kind` with the table's answer to "may I retry?".
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, message: message.into(), retry: kind.retry(), details: None }))
    }

    /// The same error with a more precise answer to "may I retry?".
    #[must_use]
    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.0.retry = retry;
        self
    }

    /// The same error with machine-readable details: a JSON object, never keys or payloads.
    #[must_use]
    pub fn with_details(mut self, details: Json) -> Self {
        self.0.details = Some(details);
        self
    }

    /// The row of the table.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The stable number of the row.
    #[must_use]
    pub fn code(&self) -> i32 {
        self.0.kind.code()
    }

    /// What was wrong, where, and the cure.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Whether the same call may be made again.
    #[must_use]
    pub fn retry(&self) -> Retry {
        self.0.retry
    }

    /// Details for programs, a JSON object; for a problem document or an RPC error its members.
    #[must_use]
    pub fn details(&self) -> Option<&Json> {
        self.0.details.as_ref()
    }

    /// Whether the kind is `kind` or a special case of it.
    #[must_use]
    pub fn is(&self, kind: ErrorKind) -> bool {
        self.0.kind.is(kind)
    }
}

/// As the text: this is what a program prints whose `main` returns an error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind, self.0.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_kinds_and_classes_are_unique() {
        let codes: HashSet<_> = ErrorKind::ALL.iter().map(|k| k.code()).collect();
        let kinds: HashSet<_> = ErrorKind::ALL.iter().map(|k| k.as_str()).collect();
        let classes: HashSet<_> = ErrorKind::ALL.iter().map(|k| k.class()).collect();
        assert_eq!(codes.len(), ErrorKind::ALL.len());
        assert_eq!(kinds.len(), ErrorKind::ALL.len());
        assert_eq!(classes.len(), ErrorKind::ALL.len());
    }

    #[test]
    fn special_cases_are_also_their_parents() {
        assert!(ErrorKind::NotBroca.is(ErrorKind::Protocol));
        assert!(ErrorKind::Connect.is(ErrorKind::Transport));
        assert!(!ErrorKind::Protocol.is(ErrorKind::NotBroca));
    }

    #[test]
    fn the_table_of_the_design_stands() {
        let rows = [
            (-1, "usage"),
            (-2, "invalid_argument"),
            (-3, "closed"),
            (-4, "forked"),
            (-100, "transport"),
            (-101, "connect"),
            (-102, "tls"),
            (-103, "io"),
            (-110, "timeout"),
            (-120, "stream_ended_early"),
            (-121, "line_too_long"),
            (-122, "lagged"),
            (-200, "protocol"),
            (-201, "malformed"),
            (-202, "unsupported_version"),
            (-203, "limit"),
            (-204, "handshake"),
            (-205, "not_broca"),
            (-206, "not_offered"),
            (-300, "api"),
            (-301, "unauthorized"),
            (-302, "session_closed"),
            (-303, "tool_not_allowed"),
            (-320, "rpc"),
            (-321, "driver_not_registered"),
            (-322, "turn_in_progress"),
            (-323, "invalid_params"),
            (-340, "providers_failed"),
            (-341, "loop_limit"),
            (-343, "output_invalid"),
            (-400, "tool"),
            (-401, "unknown_tool"),
            (-402, "tool_timeout"),
            (-410, "hook"),
            (-411, "approval_denied"),
            (-500, "cancelled"),
            (-900, "internal"),
            (-901, "panic"),
            (-902, "version_mismatch"),
        ];
        let ours: Vec<_> = ErrorKind::ALL.iter().map(|k| (k.code(), k.as_str())).collect();
        assert_eq!(ours, rows);
    }
}
