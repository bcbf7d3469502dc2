//! Messages under the ids that their senders gave them, and what became of them (feature `message-id`).

use super::event::Seq;
use super::session::Epoch;

/// A message under its sender's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedMessage {
    /// The client key that sent it; ids of other keys are other ids.
    pub sender: String,
    /// The id.
    pub id: String,
    /// Tells the message from others, in hex.
    pub digest: String,
    /// How many of its session's messages are remembered, the newest first; older ones are forgotten with this one.
    pub keep: u32,
}

/// What is remembered of a message together with what its turn logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageNote {
    /// The message.
    pub message: NamedMessage,
    /// What became of it; nothing when its turn begins.
    pub outcome: Option<MessageOutcome>,
}

/// What became of a message, told by the log as far as the log has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MessageOutcome {
    /// The events of its call, from and to; those that are logged together with the outcome belong to it without being
    /// named.
    pub spans: Vec<(Seq, Seq)>,
    /// How it was answered.
    pub answer: MessageAnswer,
}

/// How a message was answered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum MessageAnswer {
    /// With the last message of the assistant among its events.
    #[default]
    Logged,
    /// With a message that is not in the log: JSON as text.
    Unlogged(String),
    /// With an error.
    Failed {
        /// Its number.
        code: i64,
        /// Its sentence.
        message: String,
    },
}

/// What is known of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownMessage {
    /// Tells the message from others, in hex.
    pub digest: String,
    /// Under which lease its turn ran; nothing when it never began. A turn that is paused under it is this one.
    pub epoch: Option<Epoch>,
    /// What became of it; nothing when its turn came to no end.
    pub outcome: Option<MessageOutcome>,
}
