//! Compares what everybody was told with the log of the session.

use crate::drivers::{Driven, result_of};
use crate::ledger::{Call, Outcome, Turn};
use broca::Event;
use broca::proto::session::content::{Block, Message};
use broca::proto::session::payload::Payload;
use std::collections::{HashMap, HashSet};

/// Everything that is known of a session.
pub(crate) struct Evidence {
    pub(crate) log: Vec<Event>,
    pub(crate) driven: Vec<Driven>,
    pub(crate) observed: Vec<(&'static str, Vec<String>)>,
    /// Calls by idempotency key.
    pub(crate) calls: Vec<(String, Call)>,
}

/// Side effects of a session.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    pub(crate) all: u64,
    /// Of calls whose result in the log is no success: they were interrupted, or their program had died.
    pub(crate) without_result: u64,
}

/// A turn as the log has it.
#[derive(Debug, Default)]
struct Logged {
    /// Places of the events that its caller's stream carries, up to the answer.
    carried: Vec<usize>,
    answer: Option<String>,
}

/// The log, read.
#[derive(Debug, Default)]
struct Story {
    turns: HashMap<String, Logged>,
    /// Results of calls, by `tool_use_id`: the text, if it was a success.
    results: HashMap<String, Option<String>>,
    called: HashSet<String>,
}

/// Finds the first thing that is not as it must be.
pub(crate) fn check(evidence: &Evidence) -> Result<Effects, String> {
    let ids: Vec<&str> = evidence.log.iter().map(Event::id).collect();
    for (name, seen) in &evidence.observed {
        same(&ids, seen).map_err(|e| format!("the {name} observer: {e}"))?;
    }
    let places: HashMap<&str, usize> = ids.iter().enumerate().map(|(at, id)| (*id, at)).collect();
    let story = read(&evidence.log)?;
    for driven in &evidence.driven {
        for life in &driven.lives {
            once_and_in_order(&places, life)?;
        }
        for turn in &driven.turns {
            agrees(&story, &ids, turn)?;
        }
    }
    let mut marks: HashSet<&String> = story.turns.keys().collect();
    let sent = evidence.driven.iter().flat_map(|driven| &driven.turns);
    for turn in sent {
        marks.remove(&turn.mark);
    }
    if let Some(mark) = marks.iter().next() {
        return Err(format!("the log has a message {mark} of which no driver knows"));
    }
    effects(&story, &evidence.calls)
}

/// Every event once, in order.
fn same(logged: &[&str], seen: &[String]) -> Result<(), String> {
    if let Some(at) = logged.iter().zip(seen).position(|(logged, seen)| logged != seen) {
        let earlier = seen[..at].contains(&seen[at]);
        let what = if earlier { "came before" } else { "is another one" };
        return Err(format!(
            "event {at} of {} {what}: {} in place of {}",
            logged.len(),
            seen[at],
            logged[at]
        ));
    }
    if logged.len() != seen.len() {
        return Err(format!("{} events were logged, {} came", logged.len(), seen.len()));
    }
    Ok(())
}

/// What one program was shown in its turns follows the order of the log, and nothing comes twice.
fn once_and_in_order(places: &HashMap<&str, usize>, life: &[String]) -> Result<(), String> {
    let mut last = None;
    for id in life {
        let Some(at) = places.get(id.as_str()) else {
            return Err(format!("a driver was shown {id}, which is not in the log"));
        };
        if last.is_some_and(|last| last >= *at) {
            return Err(format!(
                "a driver was shown {id}, number {at} of the log, after number {last:?}"
            ));
        }
        last = Some(*at);
    }
    Ok(())
}

/// Reads the log: which message had which answer, and that every call has exactly one result.
fn read(log: &[Event]) -> Result<Story, String> {
    let mut story = Story::default();
    let mut turn: Option<String> = None;
    let mut open: Vec<String> = Vec::new();
    for (at, event) in log.iter().enumerate() {
        let payload = event.decode().map_err(|e| format!("event {at} cannot be read: {e}"))?;
        match payload {
            Payload::ClientMessageSend(message) => {
                close_calls(&mut story, &mut open, &message)
                    .map_err(|e| format!("event {at} ({}): {e}", event.id()))?;
                if let Some(mark) = mark(&message.text()) {
                    if story.turns.insert(mark.clone(), Logged::default()).is_some() {
                        return Err(format!("the message {mark} is twice in the log"));
                    }
                    turn = Some(mark);
                }
                continue;
            }
            Payload::ServerMessageSend(sent) => {
                let calls = sent.message.tool_uses().map(|(_, call)| call.id.clone());
                open = calls.collect();
                let logged = turn.as_ref().and_then(|mark| story.turns.get_mut(mark));
                if let Some(logged) = logged {
                    logged.carried.push(at);
                    if open.is_empty() {
                        logged.answer = Some(sent.message.text());
                    }
                }
                if open.is_empty() {
                    turn = None;
                }
                continue;
            }
            Payload::ToolCall(call) => {
                if !story.called.insert(call.id.clone()) {
                    return Err(format!("the call {} is twice in the log", call.id));
                }
            }
            Payload::ProviderRequest(_) | Payload::ProviderResponse(_) => {}
            _ => continue,
        }
        if let Some(logged) = turn.as_ref().and_then(|mark| story.turns.get_mut(mark)) {
            logged.carried.push(at);
        }
    }
    if open.is_empty() { Ok(story) } else { Err(format!("calls without a result: {open:?}")) }
}

/// Takes the results that a message brings: one for each open call, in their order.
fn close_calls(story: &mut Story, open: &mut Vec<String>, message: &Message) -> Result<(), String> {
    let blocks = message.content.blocks();
    let results: Vec<_> = blocks.iter().filter_map(Block::tool_result).collect();
    let ids: Vec<&str> = results.iter().map(|result| result.tool_use_id.as_str()).collect();
    if ids != open.iter().map(String::as_str).collect::<Vec<_>>() {
        return Err(format!("results of {ids:?} for the calls {open:?}"));
    }
    open.clear();
    for result in results {
        let text = broca::proto::session::content::Content::read(&result.content).text();
        let text = (result.is_error != Some(true)).then_some(text);
        story.results.insert(result.tool_use_id.clone(), text);
    }
    Ok(())
}

/// What marks a message.
fn mark(text: &str) -> Option<String> {
    let begin = text.find('#')?;
    let end = text[begin + 1..].find('#')? + begin + 2;
    Some(text[begin..end].to_owned())
}

/// What the driver was told about its message agrees with the log.
fn agrees(story: &Story, ids: &[&str], turn: &Turn) -> Result<(), String> {
    let logged = story.turns.get(&turn.mark);
    let mark = &turn.mark;
    match (&turn.outcome, logged) {
        (Outcome::Done(text), Some(logged)) => {
            if logged.answer.as_ref() != Some(text) {
                return Err(format!("{mark} was answered with another text than the log has"));
            }
            let Some(shown) = &turn.shown else { return Ok(()) };
            let shown: HashSet<&str> = shown.iter().map(String::as_str).collect();
            let missed = logged.carried.iter().find(|at| !shown.contains(ids[**at]));
            missed.map_or(Ok(()), |at| {
                Err(format!("{mark} is done, but event {at} of it ({}) was not shown", ids[*at]))
            })
        }
        (Outcome::Done(_) | Outcome::Refused | Outcome::Interrupted, None) => {
            Err(format!("{mark} came to {:?}, but the log does not have it", turn.outcome))
        }
        (
            Outcome::Refused | Outcome::Interrupted | Outcome::GivenUp,
            Some(Logged { answer: Some(_), .. }),
        ) => Err(format!("{mark} came to {:?}, but the log has an answer", turn.outcome)),
        (Outcome::NotSent, Some(_)) => {
            Err(format!("{mark} could safely be sent again, it was said, but the log has it"))
        }
        _ => Ok(()),
    }
}

/// Each call had its effect as often as was promised.
fn effects(story: &Story, calls: &[(String, Call)]) -> Result<Effects, String> {
    let mut effects = Effects::default();
    let mut keys: HashMap<&str, &str> = HashMap::new();
    for (key, call) in calls {
        let id = call.tool_use_id.as_str();
        if let Some(other) = keys.insert(id, key) {
            return Err(format!("the call {id} had two idempotency keys, {other} and {key}"));
        }
        if !story.called.contains(id) {
            return Err(format!("a tool ran for the call {id}, which the log does not have"));
        }
        if call.started > 1 {
            return Err(format!(
                "the call {id} was started {} times as if for the first",
                call.started
            ));
        }
        if call.effects > 1 {
            return Err(format!("the call {id} had {} effects", call.effects));
        }
        effects.all += u64::from(call.effects);
        if !matches!(story.results.get(id), Some(Some(_))) {
            effects.without_result += u64::from(call.effects);
        }
    }
    let had: HashSet<&str> = calls
        .iter()
        .filter(|(_, call)| call.effects == 1)
        .map(|(_, call)| call.tool_use_id.as_str())
        .collect();
    for (id, result) in &story.results {
        let Some(text) = result else { continue };
        if *text != result_of(id) {
            return Err(format!("the result of {id} is that of another call: {text}"));
        }
        if !had.contains(id.as_str()) {
            return Err(format!("the call {id} has a result, but had no effect"));
        }
    }
    Ok(effects)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn event(number: usize, event_type: &str, payload: &Value) -> Event {
        let json = json!({"id": format!("e{number}"), "session_id": "s", "client_key_id": null,
            "event_type": event_type, "payload": payload, "created_at": ""});
        Event::parse(&json.to_string().into()).unwrap()
    }

    /// A turn with one call, answered.
    fn evidence() -> Evidence {
        let said = |content: Value| json!({"role": "user", "content": content});
        let answered = |content: Value| json!({"role": "assistant", "content": content});
        let call = json!({"type": "tool_use", "id": "c1", "name": "effect", "input": {}, "dispatch": "client"});
        let result =
            json!({"type": "tool_result", "tool_use_id": "c1", "content": result_of("c1")});
        let log = vec![
            event(0, "client.message.send", &said(json!("[one] #1-0-1#"))),
            event(
                1,
                "tool.call",
                &json!({"id": "c1", "name": "effect", "input": {}, "dispatch": "client"}),
            ),
            event(2, "server.message.send", &answered(json!([call]))),
            event(3, "client.message.send", &said(json!([result]))),
            event(4, "server.message.send", &answered(json!([{"type": "text", "text": "so"}]))),
        ];
        let ids = |of: &[usize]| of.iter().map(|n| format!("e{n}")).collect::<Vec<_>>();
        let turn = Turn {
            mark: "#1-0-1#".to_owned(),
            outcome: Outcome::Done("so".to_owned()),
            shown: Some(ids(&[1, 2, 4])),
        };
        let call = Call { tool_use_id: "c1".to_owned(), started: 1, started_again: 1, effects: 1 };
        Evidence {
            log,
            driven: vec![Driven { turns: vec![turn], lives: vec![ids(&[1, 2, 4])] }],
            observed: vec![("only", ids(&[0, 1, 2, 3, 4]))],
            calls: vec![("k".to_owned(), call)],
        }
    }

    #[test]
    fn what_agrees_is_found_to_agree() {
        assert_eq!(check(&evidence()), Ok(Effects { all: 1, without_result: 0 }));
    }

    #[test]
    fn each_kind_of_disagreement_is_found() {
        type Change = fn(&mut Evidence);
        let cases: [(&str, Change); 14] = [
            ("4 came", |e| drop(e.observed[0].1.pop())),
            ("came before", |e| e.observed[0].1[2] = "e1".to_owned()),
            ("is another one", |e| e.observed[0].1.swap(2, 3)),
            ("not in the log", |e| e.driven[0].lives[0][0] = "e9".to_owned()),
            ("after number", |e| e.driven[0].lives[0].swap(0, 1)),
            ("another text", |e| e.driven[0].turns[0].outcome = Outcome::Done("no".to_owned())),
            ("was not shown", |e| e.driven[0].turns[0].shown = Some(Vec::new())),
            ("the log has an answer", |e| e.driven[0].turns[0].outcome = Outcome::Refused),
            ("safely be sent again", |e| e.driven[0].turns[0].outcome = Outcome::NotSent),
            ("no driver knows", |e| e.driven[0].turns.clear()),
            ("started 2 times", |e| e.calls[0].1.started = 2),
            ("2 effects", |e| e.calls[0].1.effects = 2),
            ("had no effect", |e| e.calls[0].1.effects = 0),
            ("two idempotency keys", |e| {
                let (_, call) = e.calls[0].clone();
                e.calls.push(("other".to_owned(), call));
            }),
        ];
        for (part, change) in cases {
            let mut evidence = evidence();
            change(&mut evidence);
            let found = check(&evidence).unwrap_err();
            assert!(found.contains(part), "{part}: {found}");
        }
        let mut lost = evidence();
        lost.log.truncate(3);
        lost.observed.clear();
        assert!(check(&lost).unwrap_err().contains("without a result"));
    }
}
