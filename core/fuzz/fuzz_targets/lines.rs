//! Any bytes as the body of an `/rpc` answer: the same lines however they are cut, and each line read as a
//! general JSON reader reads it.
//!
//! The first byte chooses the limit, the second how the rest is cut.

#![no_main]

use broca_proto::session::exchange::{BodyEnd, Exchange, Item};
use broca_proto::session::ndjson::{Decoder, Found};
use broca_proto::session::rpc::Line;
use broca_proto::{ErrorKind, Json};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let [choice, cut, body @ ..] = data else { return };
    let limit = if choice % 2 == 0 { 1 << 20 } else { 64 };
    let piece = usize::from(*cut % 64) + 1;
    let whole = lines(body, usize::MAX, limit);
    let pieces = lines(body, piece, limit);
    assert_eq!(whole.len(), pieces.len(), "by {piece}");
    for (a, b) in whole.iter().zip(&pieces) {
        match (a, b) {
            (Found::Line(a), Found::Line(b)) => {
                assert_eq!(a, b);
                assert!(a.len() <= limit);
                line(a);
            }
            (Found::Oversized { head, .. }, Found::Oversized { .. }) => assert!(head.len() <= 512),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(exchange(body, usize::MAX, limit), exchange(body, piece, limit), "by {piece}");
});

fn lines(body: &[u8], piece: usize, limit: usize) -> Vec<Found> {
    let mut decoder = Decoder::new(limit);
    let mut found = Vec::new();
    for piece in body.chunks(piece) {
        decoder.push(Bytes::copy_from_slice(piece));
        while let Some(line) = decoder.next_line() {
            found.push(line);
        }
        assert!(decoder.held_bytes() <= limit.saturating_add(1).max(512));
    }
    found.extend(decoder.finish_input());
    found
}

/// What the scanner makes of a line, against `serde_json`.
fn line(text: &Bytes) {
    // A lone surrogate is kept raw by the scanner and refused by `serde_json`, and both have their own
    // limits of depth and of numbers: where `serde_json` refuses, the scanner may accept.
    let Ok(value) = serde_json::from_slice::<Value>(text) else { return };
    let Value::Object(object) = value else {
        assert!(Line::parse(text).is_err());
        return;
    };
    // Of repeated members both take the last, but an event is read at its first `params`.
    if count_members(text) != object.len() {
        return;
    }
    match Line::parse(text) {
        Ok(Line::Event(event)) => {
            assert_eq!(object["method"], "session.event");
            assert!(!object.contains_key("id"));
            assert_eq!(object["params"]["id"], event.id());
            assert_eq!(object["params"]["event_type"], event.type_name());
            same(&event.json(), &object["params"]);
        }
        Ok(Line::Notification { method, params, raw }) => {
            assert_eq!(object.get("method").and_then(Value::as_str).unwrap_or_default(), method);
            same(&params, object.get("params").unwrap_or(&Value::Object(Default::default())));
            same(&raw, &Value::Object(object));
        }
        Ok(Line::Notice(_)) => assert!(object.contains_key("error") && !object.contains_key("id")),
        Ok(Line::Response { id, outcome }) => {
            same(&id, &object["id"]);
            if let Ok(result) = outcome {
                same(&result, &object["result"]);
            }
        }
        Err(_) => {
            let event = object.get("method").is_some_and(|m| m == "session.event");
            let answer = object.contains_key("id") && !object.contains_key("method");
            assert!(event || answer, "refused without a reason");
        }
        Ok(_) => {}
    }
}

fn count_members(text: &Bytes) -> usize {
    Json::parse(text.clone()).ok().and_then(|json| json.members()).map_or(usize::MAX, |m| m.len())
}

fn same(json: &Json, value: &Value) {
    assert_eq!(&serde_json::from_str::<Value>(json.as_str()).expect("a value"), value);
}

/// The items and the outcome of a whole body.
fn exchange(body: &[u8], piece: usize, limit: usize) -> (Vec<Item>, Result<Json, ErrorKind>) {
    let mut exchange = Exchange::new(Json::integer(1), limit);
    let mut items = Vec::new();
    for piece in body.chunks(piece) {
        exchange.receive(Bytes::copy_from_slice(piece));
        while let Some(item) = exchange.poll() {
            items.push(item);
        }
    }
    while let Some(item) = exchange.end(BodyEnd::Complete) {
        items.push(item);
    }
    // The counted size of an oversized line may hold its CR, which comes in the same piece or not.
    for item in &mut items {
        if let Item::Oversized { bytes, .. } = item {
            *bytes = 0;
        }
    }
    let outcome = exchange.take_outcome().expect("an outcome").map_err(|e| e.kind());
    (items, outcome)
}
