//! What one request may see: the plain contract, and what it asked for beyond it (design §6,
//! session service §22).
//!
//! Readers of the plain contract know a closed set of event types and of content blocks. What is
//! hidden still counts: a cursor moves over it.

use crate::Json;
use crate::session::content::{Block, BlockKind, Content, Message};
use crate::session::event::EventType;
use crate::session::feature::Features;

/// What a request must have asked for to be shown events of this type; nothing for a type that nobody is shown.
#[must_use]
pub fn needed_for_event(type_name: &str) -> Option<Features> {
    match type_name {
        EventType::TURN_CANCELLED => Some(Features { cancel: true, ..Features::NONE }),
        _ => EventType::parse(type_name).is_plain().then_some(Features::NONE),
    }
}

/// Whether a request with these features is shown events of this type, in streams, replay, pages and `result.events`.
#[must_use]
pub fn shows_event(features: Features, type_name: &str) -> bool {
    needed_for_event(type_name).is_some_and(|needed| features.covers(needed))
}

/// The message as `result.message` shows it: text, tool calls and tool results. No feature offers other blocks yet.
#[must_use]
pub fn shown_message(_features: Features, message: &Message) -> Message {
    let content = match &message.content {
        Content::Blocks(blocks) => {
            Content::Blocks(blocks.iter().filter(|block| is_plain(block)).cloned().collect())
        }
        content => content.clone(),
    };
    Message { role: message.role.clone(), content }
}

/// The result of `session.sendMessage`: the message as [`shown_message`] gives it, and the events of the call, which the
/// shell has chosen by [`shows_event`].
#[must_use]
pub fn send_message_result<'a>(
    features: Features,
    message: &Message,
    events: impl IntoIterator<Item = &'a Json>,
) -> Json {
    let message = shown_message(features, message).to_json();
    Json::object([("events", &Json::array(events)), ("message", &message)])
}

fn is_plain(block: &Block) -> bool {
    !matches!(block.kind(), BlockKind::Unknown { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_request_sees_the_catalogue_and_nothing_else() {
        for kind in EventType::KNOWN {
            assert!(shows_event(Features::NONE, kind.as_str()), "{kind}");
        }
        for hidden in [EventType::TURN_CANCELLED, "session.hologram", ""] {
            assert!(!shows_event(Features::NONE, hidden), "{hidden}");
        }
    }

    #[test]
    fn cancelled_turns_are_shown_to_those_who_asked_for_cancel_only() {
        let cancel = Features { cancel: true, ..Features::NONE };
        let display = Features { display: true, ..Features::NONE };
        assert!(shows_event(cancel, EventType::TURN_CANCELLED));
        assert!(!shows_event(display, EventType::TURN_CANCELLED));
        assert!(!shows_event(Features::ALL, "session.hologram"));
    }

    #[test]
    fn blocks_outside_the_plain_contract_are_hidden_and_the_others_keep_their_text() {
        let text = r#"{"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"a","x":1.0},{"type":"tool_use","id":"t","name":"n","input":{},"dispatch":"client"}]}"#;
        let message: Message = Json::parse(text).unwrap().decode().unwrap();
        let shown = shown_message(Features::NONE, &message).to_json();
        let expected = r#"{"role":"assistant","content":[{"type":"text","text":"a","x":1.0},{"type":"tool_use","id":"t","name":"n","input":{},"dispatch":"client"}]}"#;
        assert_eq!(shown.as_str(), expected);
        let event = Json::parse(r#"{"id":"evt_1"}"#).unwrap();
        let result = send_message_result(Features::NONE, &message, [&event]);
        assert_eq!(
            result.as_str(),
            format!(r#"{{"events":[{{"id":"evt_1"}}],"message":{expected}}}"#)
        );
    }
}
