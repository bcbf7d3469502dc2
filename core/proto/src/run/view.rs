//! What one request may see: the plain contract, and what it asked for beyond it (design §6,
//! session service §22).
//!
//! Readers of the plain contract know a closed set of event types and of content blocks. What is
//! hidden still counts: a cursor moves over it.

use super::log::{Audience, LogEvent, boolean};
use crate::Json;
use crate::session::content::{Block, BlockKind, Content, Message, Role};
use crate::session::event::EventType;
use crate::session::feature::Features;
use crate::session::payload::TokenUsage;

/// What a request must have asked for to be shown events of this type; nothing for a type that nobody is shown.
#[must_use]
pub fn needed_for_event(type_name: &str) -> Option<Features> {
    match type_name {
        EventType::TURN_CANCELLED => Some(Features { cancel: true, ..Features::NONE }),
        EventType::METADATA_UPDATED => Some(Features { metadata: true, ..Features::NONE }),
        EventType::APPROVAL_REQUESTED | EventType::APPROVAL_RESOLVED => {
            Some(Features { approve: true, ..Features::NONE })
        }
        _ => EventType::parse(type_name).is_plain().then_some(Features::NONE),
    }
}

/// Whether a request with these features is shown events of this type, in streams, replay, pages and `result.events`.
#[must_use]
pub fn shows_event(features: Features, type_name: &str) -> bool {
    needed_for_event(type_name).is_some_and(|needed| features.covers(needed))
}

/// The features that decide what is shown of an event's payload.
pub const CONTENT: Features = Features { options: true, blocks: true, ..Features::NONE };

/// What a request may have asked for of [`CONTENT`], short of everything.
const LESS: [Features; 3] = [
    Features::NONE,
    Features { options: true, ..Features::NONE },
    Features { blocks: true, ..Features::NONE },
];

/// Payloads that are less than the whole one, each with what those have asked for of [`CONTENT`] who are shown it.
pub type Reduced = Vec<(Vec<Features>, Json)>;

/// The payload of an event as a request with these features is shown it; nothing when it is shown as it is.
#[must_use]
pub fn shown_payload(features: Features, type_name: &str, payload: &Json) -> Option<Json> {
    reduce(features, &EventType::parse(type_name), payload)
}

/// Whether [`shown_payload`] may be less than the payload: for shells that would have to read it first.
#[must_use]
pub fn may_hide(features: Features, type_name: &str) -> bool {
    match EventType::parse(type_name) {
        EventType::ProviderRequest => !features.covers(CONTENT),
        EventType::ServerMessageSend => !features.blocks,
        _ => false,
    }
}

/// An event on its way to the log, whose whole payload this is, as those see it who have not asked for everything in it.
#[must_use]
pub fn reduced_payloads(event: &LogEvent, whole: &Json) -> Reduced {
    // A request's messages are looked through as they are, not as text: there may be many.
    if let Some(elided) = &event.elided {
        let hides = |message: &Message| message.role == Role::Assistant && !is_plain(message);
        if without_options(&event.payload).is_none() && !elided.messages.iter().any(hides) {
            return Vec::new();
        }
    }
    reduced(&event.event_type, whole)
}

/// As [`reduced_payloads`], for an event that was read from the log.
#[must_use]
pub fn reduced_logged_payloads(type_name: &str, payload: &Json) -> Reduced {
    reduced(&EventType::parse(type_name), payload)
}

fn reduced(event_type: &EventType, payload: &Json) -> Reduced {
    let mut all: Reduced = Vec::new();
    for asked in LESS {
        let Some(shown) = reduce(asked, event_type, payload) else { continue };
        match all.iter_mut().find(|(_, known)| *known == shown) {
            Some((readers, _)) => readers.push(asked),
            None => all.push((vec![asked], shown)),
        }
    }
    all
}

fn reduce(features: Features, event_type: &EventType, payload: &Json) -> Option<Json> {
    match event_type {
        EventType::ServerMessageSend if !features.blocks => plain_json(payload),
        EventType::ProviderRequest => {
            let asked = (!features.options).then(|| without_options(payload)).flatten();
            let payload = asked.as_ref().unwrap_or(payload);
            let messages = (!features.blocks).then(|| payload.member("messages")).flatten();
            let messages = messages.and_then(|messages| plain_messages(&messages));
            messages.map(|messages| payload.with_member("messages", &messages)).or(asked)
        }
        _ => None,
    }
}

fn without_options(payload: &Json) -> Option<Json> {
    let is_there = |name: &&str| payload.member(name).is_some();
    let there: Vec<&str> = ["options", "system"].into_iter().filter(is_there).collect();
    let shown = there.iter().fold(payload.clone(), |shown, name| shown.without_member(name));
    (!there.is_empty()).then_some(shown)
}

/// A list of messages without what [`plain_json`] takes away; nothing when that is nothing.
fn plain_messages(messages: &Json) -> Option<Json> {
    let mut messages = messages.elements()?;
    let mut hidden = false;
    for message in &mut messages {
        let role = message.member("role").and_then(|role| role.to_text());
        if role.is_some_and(|role| role == Role::Assistant.as_str())
            && let Some(plain) = plain_json(message)
        {
            (*message, hidden) = (plain, true);
        }
    }
    hidden.then(|| Json::array(&messages))
}

/// An assistant's message without the blocks that readers of the plain contract do not know; nothing when it has none.
fn plain_json(message: &Json) -> Option<Json> {
    let Content::Blocks(blocks) = Content::read(&message.member("content")?) else { return None };
    let plain: Vec<&Json> = blocks.iter().filter(|b| is_plain_block(b)).map(Block::json).collect();
    (plain.len() < blocks.len()).then(|| message.with_member("content", &Json::array(plain)))
}

fn is_plain(message: &Message) -> bool {
    message.content.blocks().iter().all(is_plain_block)
}

/// The message as `result.message` shows it: text, tool calls and tool results, and with `blocks` everything.
#[must_use]
pub fn shown_message(features: Features, message: &Message) -> Message {
    let content = match &message.content {
        Content::Blocks(blocks) if !features.blocks => {
            Content::Blocks(blocks.iter().filter(|block| is_plain_block(block)).cloned().collect())
        }
        content => content.clone(),
    };
    Message { role: message.role.clone(), content }
}

/// Whether `result.events` of a call with these features holds an event for this audience. With `lean-result` it
/// holds only what the call's own stream did not carry.
#[must_use]
pub fn in_result(features: Features, type_name: &str, audience: Audience) -> bool {
    let wanted = match audience {
        Audience::Everyone => !features.lean_result,
        Audience::AllButCallerStream => true,
        Audience::Watchers => false,
    };
    wanted && shows_event(features, type_name)
}

/// The result of `session.sendMessage`: the message as [`shown_message`] gives it, and the events of the call, which the
/// shell has chosen by [`in_result`]. With `lean-result` it says so, and what the call cost: `usage` is the sum over
/// the call's model answers, its numbers `null` when one of them came without.
#[must_use]
pub fn send_message_result<'a>(
    features: Features,
    message: &Message,
    events: impl IntoIterator<Item = &'a Json>,
    usage: Option<TokenUsage>,
) -> Json {
    let message = shown_message(features, message).to_json();
    let events = Json::array(events);
    if !features.lean_result {
        return Json::object([("events", &events), ("message", &message)]);
    }
    let number = |count: fn(TokenUsage) -> u64| {
        let count = usage.and_then(|usage| i64::try_from(count(usage)).ok());
        count.map_or_else(Json::null, Json::integer)
    };
    let usage = Json::object([
        ("input_tokens", &number(|usage| usage.input_tokens)),
        ("output_tokens", &number(|usage| usage.output_tokens)),
    ]);
    let lean = boolean(true);
    Json::object([("events", &events), ("lean", &lean), ("message", &message), ("usage", &usage)])
}

/// The result of a call that paused: for requests that asked for `hold` it says how long nobody takes the turn over.
#[must_use]
pub fn pausing_result(features: Features, result: Json, expires_in_ms: u64) -> Json {
    if !features.hold {
        return result;
    }
    let left = Json::integer(i64::try_from(expires_in_ms).unwrap_or(i64::MAX));
    result.with_member("pause", &Json::object([("expires_in_ms", &left)]))
}

/// The result of a message that was answered before and came again.
#[must_use]
pub fn replayed_result(result: &Json) -> Json {
    result.with_member("replayed", &boolean(true))
}

fn is_plain_block(block: &Block) -> bool {
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
        for hidden in
            [EventType::TURN_CANCELLED, EventType::METADATA_UPDATED, "session.hologram", ""]
        {
            assert!(!shows_event(Features::NONE, hidden), "{hidden}");
        }
    }

    #[test]
    fn cancelled_turns_and_changed_metadata_are_shown_to_those_who_asked_for_them_only() {
        let cancel = Features { cancel: true, ..Features::NONE };
        let display = Features { display: true, ..Features::NONE };
        let metadata = Features { metadata: true, ..Features::NONE };
        assert!(shows_event(cancel, EventType::TURN_CANCELLED));
        assert!(!shows_event(display, EventType::TURN_CANCELLED));
        assert!(shows_event(metadata, EventType::METADATA_UPDATED));
        assert!(!shows_event(cancel, EventType::METADATA_UPDATED));
        assert!(!shows_event(Features::ALL, "session.hologram"));
    }

    #[test]
    fn questions_for_consent_are_shown_to_those_who_asked_for_approve_only() {
        let approve = Features { approve: true, ..Features::NONE };
        let others = Features { approve: false, ..Features::ALL };
        for kind in [EventType::APPROVAL_REQUESTED, EventType::APPROVAL_RESOLVED] {
            assert!(shows_event(approve, kind) && !shows_event(others, kind));
        }
    }

    #[test]
    fn blocks_outside_the_plain_contract_are_hidden_and_the_others_keep_their_text() {
        let text = r#"{"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"a","x":1.0},{"type":"tool_use","id":"t","name":"n","input":{},"dispatch":"client"}]}"#;
        let message: Message = Json::parse(text).unwrap().decode().unwrap();
        let shown = shown_message(Features::NONE, &message).to_json();
        let expected = r#"{"role":"assistant","content":[{"type":"text","text":"a","x":1.0},{"type":"tool_use","id":"t","name":"n","input":{},"dispatch":"client"}]}"#;
        assert_eq!(shown.as_str(), expected);
        let event = Json::parse(r#"{"id":"evt_1"}"#).unwrap();
        let result = send_message_result(Features::NONE, &message, [&event], None);
        assert_eq!(
            result.as_str(),
            format!(r#"{{"events":[{{"id":"evt_1"}}],"message":{expected}}}"#)
        );
    }

    #[test]
    fn how_long_a_pause_lasts_is_told_to_those_who_asked_for_hold() {
        let result = || Json::parse(r#"{"events":[]}"#).unwrap();
        let hold = Features { hold: true, ..Features::NONE };
        assert_eq!(pausing_result(Features::NONE, result(), 5), result());
        let told = pausing_result(hold, result(), 120_000);
        assert_eq!(told.as_str(), r#"{"events":[],"pause":{"expires_in_ms":120000}}"#);
    }

    #[test]
    fn a_lean_result_holds_what_the_stream_left_out_and_the_sum_of_the_tokens() {
        let lean = Features { lean_result: true, ..Features::NONE };
        let sent = EventType::ClientMessageSend;
        for (audience, whole, lean_too) in [
            (Audience::Everyone, true, false),
            (Audience::AllButCallerStream, true, true),
            (Audience::Watchers, false, false),
        ] {
            assert_eq!(in_result(Features::NONE, sent.as_str(), audience), whole, "{audience:?}");
            assert_eq!(in_result(lean, sent.as_str(), audience), lean_too, "{audience:?}");
        }
        assert!(!in_result(Features::NONE, EventType::TURN_CANCELLED, Audience::Everyone));
        let said = Message::assistant(Vec::new());
        let usage = TokenUsage { input_tokens: 7, output_tokens: 2 };
        for (usage, numbers) in [
            (Some(usage), r#"{"input_tokens":7,"output_tokens":2}"#),
            (None, r#"{"input_tokens":null,"output_tokens":null}"#),
        ] {
            let result = send_message_result(lean, &said, [], usage);
            let message = r#"{"role":"assistant","content":[]}"#;
            let expected =
                format!(r#"{{"events":[],"lean":true,"message":{message},"usage":{numbers}}}"#);
            assert_eq!(result.as_str(), expected);
        }
    }

    #[test]
    fn what_a_model_is_asked_beside_the_conversation_is_shown_to_those_who_asked_for_options() {
        let request = EventType::ProviderRequest;
        let text = r#"{"attempt":0,"tools":[],"options":{"top_p":1},"system":"s","messages":[]}"#;
        let payload = Json::parse(text).unwrap();
        let plain = r#"{"attempt":0,"tools":[],"messages":[]}"#;
        let shown = shown_payload(Features::NONE, request.as_str(), &payload).unwrap();
        assert_eq!(shown.as_str(), plain);
        let options = Features { options: true, ..Features::NONE };
        assert_eq!(shown_payload(options, request.as_str(), &payload), None);
        let reduced = reduced_logged_payloads(request.as_str(), &payload);
        let [(readers, reduced)] = &reduced[..] else { panic!("{reduced:?}") };
        let blocks = Features { blocks: true, ..Features::NONE };
        assert_eq!((&readers[..], reduced.as_str()), (&[Features::NONE, blocks][..], plain));
        let plain = Json::parse(plain).unwrap();
        assert!(reduced_logged_payloads(request.as_str(), &plain).is_empty());
        // Members of other events are theirs.
        assert_eq!(shown_payload(Features::NONE, "tool.call", &payload), None);
    }

    #[test]
    fn reasoning_is_shown_in_messages_and_requests_to_those_who_asked_for_blocks() {
        let json = |text: &str| Json::parse(text.to_owned()).unwrap();
        let blocks = Features { blocks: true, ..Features::NONE };
        let hidden = r#"{"type":"thinking","thinking":"hm"},"#;
        let message = |hidden: &str| {
            format!(r#"{{"role":"assistant","content":[{hidden}{{"type":"text","text":"a"}}]}}"#)
        };
        let request = |hidden: &str, options: &str| {
            // What the user said stays, whatever it is.
            let image = r#"{"role":"user","content":[{"type":"image"}]}"#;
            let messages = format!("[{image},{}]", message(hidden));
            format!(r#"{{"attempt":0{options},"messages":{messages}}}"#)
        };
        let options = r#","options":{"top_p":1}"#;
        for (kind, whole, plain) in [
            (EventType::ServerMessageSend, message(hidden), message("")),
            (EventType::ProviderRequest, request(hidden, ""), request("", "")),
            (EventType::ProviderRequest, request(hidden, options), request("", "")),
        ] {
            let whole = json(&whole);
            let shown = shown_payload(Features::NONE, kind.as_str(), &whole).unwrap();
            assert_eq!(shown.as_str(), plain);
            assert!(may_hide(Features::NONE, kind.as_str()));
            assert_eq!(shown_payload(CONTENT, kind.as_str(), &whole), None);
            assert!(reduced_logged_payloads(kind.as_str(), &json(&plain)).is_empty());
            let shown =
                shown_message(blocks, &Message::assistant(vec![Block::read(whole.clone())]));
            assert_eq!(shown.content.blocks().len(), 1);
        }
        let whole = json(&request(hidden, options));
        let request_type = EventType::ProviderRequest.as_str();
        let asked_blocks = shown_payload(blocks, request_type, &whole).unwrap();
        assert_eq!(asked_blocks.as_str(), request(hidden, ""));
        let reduced = reduced_logged_payloads(request_type, &whole);
        assert_eq!(reduced.len(), 3, "each of the three sees something else");
        let alike = reduced_logged_payloads(request_type, &json(&request(hidden, "")));
        let [(readers, _)] = &alike[..] else { panic!("{alike:?}") };
        assert_eq!(readers.len(), 2);
        let user = r#"{"role":"user","content":[{"type":"image"}]}"#;
        assert_eq!(shown_payload(Features::NONE, "client.message.send", &json(user)), None);
    }
}
