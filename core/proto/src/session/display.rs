//! The display lane of the session service (feature `display`): what is being produced, lossy, never replayed.
//!
//! On the wire it is a notification without id,
//! `{"jsonrpc":"2.0","method":"session.display","params":{"type":…}}`, with the tags and members of
//! the two-lane contract's display events (two-lane §10.1).

use crate::Json;

/// The method of a display notification.
pub const METHOD: &str = "session.display";

/// One display event.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DisplayEvent {
    /// A piece of the answer.
    TextDelta {
        /// The message it will be part of.
        message_id: String,
        /// The piece.
        delta: String,
    },
    /// A piece of the model's reasoning.
    ReasoningDelta {
        /// The message it belongs to.
        message_id: String,
        /// The piece.
        delta: String,
    },
    /// A piece of the JSON text of a call's arguments.
    ToolInputDelta {
        /// The call.
        tool_call_id: String,
        /// The piece.
        delta: String,
    },
    /// Display events were shed.
    Gap {
        /// How many.
        dropped: u64,
    },
    /// Everything partial shown so far is void. Unfamiliar display events are read as this.
    Reset,
}

impl DisplayEvent {
    /// Reads the parameters of a notification.
    #[must_use]
    pub fn read(params: &Json) -> Self {
        let text = |name: &str| params.member(name).and_then(|v| v.to_text()).unwrap_or_default();
        match text("type").as_str() {
            "text_delta" => {
                Self::TextDelta { message_id: text("message_id"), delta: text("delta") }
            }
            "reasoning_delta" => {
                Self::ReasoningDelta { message_id: text("message_id"), delta: text("delta") }
            }
            "tool_input_delta" => {
                Self::ToolInputDelta { tool_call_id: text("tool_call_id"), delta: text("delta") }
            }
            "display_gap" => Self::Gap {
                dropped: params.member("dropped").and_then(|v| v.decode().ok()).unwrap_or(1),
            },
            _ => Self::Reset,
        }
    }

    /// The parameters of the notification.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let of = |tag: &str, link: (&str, &str), delta: &str| {
            Json::object([
                ("type", &Json::string(tag)),
                (link.0, &Json::string(link.1)),
                ("delta", &Json::string(delta)),
            ])
        };
        match self {
            Self::TextDelta { message_id, delta } => {
                of("text_delta", ("message_id", message_id), delta)
            }
            Self::ReasoningDelta { message_id, delta } => {
                of("reasoning_delta", ("message_id", message_id), delta)
            }
            Self::ToolInputDelta { tool_call_id, delta } => {
                of("tool_input_delta", ("tool_call_id", tool_call_id), delta)
            }
            Self::Gap { dropped } => Json::object([
                ("type", &Json::string("display_gap")),
                ("dropped", &Json::integer(i64::try_from(*dropped).unwrap_or(i64::MAX))),
            ]),
            Self::Reset => Json::object([("type", &Json::string("display_reset"))]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_events_are_read_as_they_are_written() {
        let (id, delta) = ("m".to_owned(), "é\n".to_owned());
        for event in [
            DisplayEvent::TextDelta { message_id: id.clone(), delta: delta.clone() },
            DisplayEvent::ReasoningDelta { message_id: id.clone(), delta: delta.clone() },
            DisplayEvent::ToolInputDelta { tool_call_id: id, delta },
            DisplayEvent::Gap { dropped: 7 },
            DisplayEvent::Reset,
        ] {
            assert_eq!(DisplayEvent::read(&event.to_json()), event);
        }
        assert_eq!(DisplayEvent::read(&Json::empty_object()), DisplayEvent::Reset);
    }
}
