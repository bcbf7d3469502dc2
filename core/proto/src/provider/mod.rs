//! The streams of model vendors: bytes in, assembled messages out.
//!
//! [`sse`] cuts a body into events, a vendor's reader ([`openai_chat`]) puts them together, and
//! [`mod@unit`] is what every vendor's answer becomes; [`alternation`] puts a conversation into the order that vendors want. Deltas are for showing; a message or a tool call
//! comes out only when it is complete.

pub mod alternation;
pub mod openai_chat;
pub mod sse;
pub mod unit;

use crate::Json;

/// A tool as a model is told about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolSpec {
    /// The name that the model calls.
    pub name: String,
    /// What the tool does.
    pub description: Option<String>,
    /// The JSON Schema of its arguments.
    pub input_schema: Json,
}
