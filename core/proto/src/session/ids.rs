//! Identifiers and cursors (session service §2): opaque texts, compared exactly.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! ids {
    ($( $(#[$doc:meta])* $name:ident, $prefix:literal; )*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Box<str>);

        impl $name {
            /// What the service puts before the 32 hexadecimal digits. Readers must not rely on it.
            pub const PREFIX: &'static str = $prefix;

            /// An identifier as it came. Nothing is checked: identifiers are opaque.
            #[must_use]
            pub fn new(text: impl Into<Box<str>>) -> Self {
                Self(text.into())
            }

            /// The text of the identifier.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<&$name> for $name {
            fn from(id: &$name) -> Self {
                id.clone()
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }
    )* };
}

ids! {
    /// A session.
    SessionId, "ses_";
    /// An event of a session's log.
    EventId, "evt_";
    /// A client key: who acts.
    KeyId, "key_";
    /// A profile: what its clients may use.
    ProfileId, "pro_";
}

/// How far a reader has come in a session's log: the id of the last event it has taken.
///
/// Store it to go on later, in this process or another one. Delivery is at least once across a
/// crash between taking an event and storing the cursor.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(transparent)]
pub struct Cursor(Option<EventId>);

impl Cursor {
    /// Before the first event.
    #[must_use]
    pub const fn start() -> Self {
        Self(None)
    }

    /// Just after the event `id`.
    #[must_use]
    pub const fn after(id: EventId) -> Self {
        Self(Some(id))
    }

    /// The last event taken, if any was.
    #[must_use]
    pub fn event_id(&self) -> Option<&EventId> {
        self.0.as_ref()
    }
}

/// Reads what `Display` writes; the empty text is the start.
impl From<&str> for Cursor {
    fn from(text: &str) -> Self {
        if text.is_empty() { Self::start() } else { Self::after(text.into()) }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_ref().map_or("", EventId::as_str))
    }
}
