//! What goes beyond the plain contract, asked for with each request (design §6).
//!
//! A request says what it understands in the header [`HEADER`]; the service announces what it has
//! in `GET /api/v1/meta`. A request that asks for nothing sees the plain contract.

use super::content::open_enum;

/// The request header that lists features, separated by commas.
pub const HEADER: &str = "Broca-Features";

macro_rules! features {
    ($( $(#[$doc:meta])* $variant:ident $member:ident $word:literal, )*) => {
        open_enum! {
            /// One feature beyond the plain contract.
            Feature { $( $(#[$doc])* $variant = $word, )* }
        }

        /// A set of features; a request's, or a service's.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Features {
            $( $(#[$doc])* pub $member: bool, )*
        }

        impl Features {
            /// Every feature that this version knows.
            pub const ALL: Self = Self { $( $member: true, )* };
            /// The plain contract.
            pub const NONE: Self = Self { $( $member: false, )* };

            /// Reads a header value or a list of words; words nobody knows are skipped.
            pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
                let mut found = Self::NONE;
                for word in words.into_iter().flat_map(|list| list.split(',')) {
                    match word.trim() {
                        $( $word => found.$member = true, )*
                        _ => {}
                    }
                }
                found
            }

            /// The features that are also in `other`.
            #[must_use]
            pub const fn and(self, other: Self) -> Self {
                Self { $( $member: self.$member && other.$member, )* }
            }

            /// The features that are in either of the two.
            #[must_use]
            pub const fn or(self, other: Self) -> Self {
                Self { $( $member: self.$member || other.$member, )* }
            }

            /// Whether every feature of `other` is in this set.
            #[must_use]
            pub const fn covers(self, other: Self) -> bool {
                true $( && (self.$member || !other.$member) )*
            }

            /// The words of the set, in a fixed order.
            #[must_use]
            pub fn words(self) -> Vec<&'static str> {
                [$( (self.$member, $word), )*]
                    .into_iter()
                    .filter_map(|(has, word)| has.then_some(word))
                    .collect()
            }
        }
    };
}

features! {
    /// The display lane: words, reasoning and tool input as they are produced, lossy.
    Display display "display",
    /// `session.cancel`, and what it leaves in the log.
    Cancel cancel "cancel",
    /// A sign of life on streams that are silent.
    Heartbeat heartbeat "heartbeat",
    /// A call that waits at the gate is told its place.
    Queue queue "queue",
    /// `session.hold`, and how long a pause lasts.
    Hold hold "hold",
    /// A message sent again under its id is the same message.
    MessageId message_id "message-id",
    /// `result.events` without what the stream has carried.
    LeanResult lean_result "lean-result",
    /// Content blocks beyond text, tool calls and tool results.
    Blocks blocks "blocks",
    /// What the participants keep with a session, and its state.
    Metadata metadata "metadata",
    /// System prompt and generation options.
    Options options "options",
    /// Consent to calls of tools that the service runs.
    Approve approve "approve",
    /// Refused results and failed providers end a turn, not the session.
    KeepOpen keep_open "keep-open",
}

impl Features {
    /// What the service of this version offers and announces.
    pub const OFFERED: Self = Self::ALL;
    /// What the client of this version understands and asks for.
    pub const UNDERSTOOD: Self = Self {
        display: true,
        cancel: true,
        heartbeat: true,
        queue: true,
        hold: true,
        message_id: true,
        lean_result: true,
        blocks: true,
        metadata: true,
        approve: true,
        ..Self::NONE
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_features_are_skipped() {
        let found = Features::parse(["display , hologram", "message-id"]);
        assert_eq!(found, Features { display: true, message_id: true, ..Features::NONE });
        assert_eq!(Features::parse(["x,,"]), Features::NONE);
        assert_eq!(Features::parse(Features::ALL.words()), Features::ALL);
    }

    #[test]
    fn a_set_covers_what_is_in_it() {
        let hold = Features { hold: true, ..Features::NONE };
        assert!(Features::ALL.covers(hold) && hold.covers(Features::NONE) && hold.covers(hold));
        assert!(!Features::OFFERED.and(Features::NONE).covers(hold));
        assert_eq!(Features::ALL.words().len(), Feature::KNOWN.len());
        for feature in Feature::KNOWN {
            assert_eq!(Features::parse([feature.as_str()]).words(), [feature.as_str()]);
        }
    }
}
