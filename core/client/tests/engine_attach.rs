//! A session outlives its program: saved at any moment, attached to by another engine (guarantee 11).

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their own helpers")]

mod engine_host;

use broca::engine::{
    Answer, CallId, Command, Environment, Lost, Outcome, SavedSession, Step, ToolCall, ToolOutcome,
};
use broca::{ErrorKind, Json, Retry};
use engine_host::service::{
    FULL, PLAIN, bare_event, failure, head, json, line, result, results, say, service, stream, tool,
};
use engine_host::{Act, Host, Request, config};
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

/// The service's side, which outlives every client: a log, and a model whose answers are given.
#[derive(Default)]
struct World {
    log: Vec<(String, String)>,
    /// The calls of the answers to come; after them the model says that it is done.
    answers: Vec<Vec<(&'static str, &'static str)>>,
    paused: Option<Vec<String>>,
    /// Every set of results that came.
    taken: Vec<Vec<(String, bool)>>,
    drivers: Vec<&'static str>,
    /// The model is at work and says nothing for now.
    stuck: bool,
}

type Shared = Rc<RefCell<World>>;

impl World {
    fn shared(answers: &[&[(&'static str, &'static str)]]) -> Shared {
        let answers = answers.iter().map(|calls| calls.to_vec()).collect();
        let world = Self { answers, drivers: vec!["key_1"], ..Self::default() };
        let shared = Rc::new(RefCell::new(world));
        shared.borrow_mut().append("session.open", "{}");
        shared
    }

    /// Adds an event of the first driver.
    fn append(&mut self, kind: &str, payload: &str) -> String {
        self.append_of("key_1", kind, payload)
    }

    fn append_of(&mut self, key: &str, kind: &str, payload: &str) -> String {
        let id = format!("evt_{}", self.log.len() + 1);
        let bare = bare_event(&id, kind, payload)
            .replace("\"client_key_id\":null", &format!("\"client_key_id\":\"{key}\""));
        self.log.push((id.clone(), bare));
        id
    }

    /// The lines of the events from this place on.
    fn lines(&self, from: usize) -> Vec<String> {
        let line = |(_, bare): &(String, String)| {
            format!(r#"{{"jsonrpc":"2.0","method":"session.event","params":{bare}}}"#)
        };
        self.log[from..].iter().map(line).collect()
    }

    fn answer(&mut self, request: &Request) -> Vec<Act> {
        let path = request.target.split('?').next().unwrap();
        if request.method == "GET" && path.ends_with("/events") {
            return self.page(request);
        }
        if path.ends_with("/participants") {
            return json(200, &format!("{{\"drivers\":{:?}}}", self.drivers));
        }
        match request.rpc() {
            "session.registerDriver" => stream(&[result(request, r#"{"registered":true}"#)]),
            "session.updateClientTools" => stream(&[result(request, r#"{"updated":true}"#)]),
            "session.cancel" => stream(&[result(request, r#"{"cancelled":true,"was":"paused"}"#)]),
            "session.subscribe" => {
                let since = request.body["params"]["since_event_id"].as_str().unwrap();
                let from = self.log.iter().position(|(id, _)| id == since).unwrap() + 1;
                let mut acts = vec![head()];
                acts.extend(self.lines(from).iter().map(|text| line(text)));
                acts
            }
            "session.sendMessage" => self.send(request),
            other => panic!("{other}"),
        }
    }

    fn page(&self, request: &Request) -> Vec<Act> {
        let cursor = request.target.split("cursor=").nth(1).unwrap_or("0");
        let from: usize = cursor.parse().unwrap();
        let items: Vec<&str> =
            self.log[from..].iter().take(3).map(|(_, bare)| bare.as_str()).collect();
        let to = from + items.len();
        let next = if to < self.log.len() { format!("\"{to}\"") } else { "null".to_owned() };
        json(200, &format!(r#"{{"items":[{}],"next_cursor":{next}}}"#, items.join(",")))
    }

    fn send(&mut self, request: &Request) -> Vec<Act> {
        let sent = results(request);
        let begin = self.log.len();
        match self.paused.take() {
            Some(expected) => {
                let ids: Vec<String> = sent.iter().map(|(id, _)| id.clone()).collect();
                assert_eq!(ids, expected, "one result for each call, in their order");
                self.taken.push(sent);
            }
            None => assert_eq!(sent, [], "nothing is paused"),
        }
        let message = request.body["params"]["message"].to_string();
        self.append("client.message.send", &message);
        if self.stuck {
            return vec![head()];
        }
        let message = self.model();
        let mut lines = self.lines(begin + 1);
        lines.push(result(request, &format!(r#"{{"message":{message},"events":[]}}"#)));
        stream(&lines)
    }

    /// The model answers.
    fn model(&mut self) -> String {
        self.append(
            "provider.response",
            r#"{"ok":true,"usage":{"input_tokens":3,"output_tokens":2}}"#,
        );
        let calls = if self.answers.is_empty() { Vec::new() } else { self.answers.remove(0) };
        let blocks: Vec<String> = calls
            .iter()
            .map(|(id, name)| format!(r#"{{"type":"tool_use","id":"{id}","name":"{name}","input":{{}},"dispatch":"client"}}"#))
            .collect();
        let content = if calls.is_empty() {
            r#"[{"type":"text","text":"done"}]"#.to_owned()
        } else {
            self.paused = Some(calls.iter().map(|(id, _)| (*id).to_owned()).collect());
            format!("[{}]", blocks.join(","))
        };
        let message = format!(r#"{{"role":"assistant","content":{content}}}"#);
        self.append("server.message.send", &message);
        message
    }
}

fn tools() -> Vec<broca::proto::session::tool::Tool> {
    vec![tool("x"), tool("y")]
}

/// A program that has opened the session.
fn opened(world: &Shared, features: &[&str], seed: u64) -> Host {
    let world = Rc::clone(world);
    Host::opened(|_| (), seed, features, tools(), move |r| world.borrow_mut().answer(r))
}

/// Another program that attaches to it, by operation 1.
fn attaching(world: &Shared, saved: SavedSession, features: &[&str], seed: u64) -> Host {
    // Through its text, as it goes from program to program.
    let saved = SavedSession::parse(saved.to_json().expose().as_bytes()).unwrap();
    let world = Rc::clone(world);
    let mut host = Host::new(config(), Environment::none(), seed);
    host.script = service(features, move |r| world.borrow_mut().answer(r));
    host.command(1, Command::Attach { saved: Box::new(saved), tools: tools() });
    host.finish(1);
    host
}

fn attached(world: &Shared, saved: SavedSession) -> Host {
    let host = attaching(world, saved, PLAIN, 0);
    assert!(matches!(host.outcome(1), Some(Ok(Outcome::Opened { .. }))), "{:?}", host.said(1));
    host
}

fn is_pending(host: &Host) -> bool {
    match host.outcome(1) {
        Some(Ok(Outcome::Opened { pending, .. })) => *pending,
        other => panic!("{other:?}"),
    }
}

fn resume(host: &mut Host) {
    host.command(2, Command::Resume);
    host.settle();
}

fn calls(host: &Host, op: u64) -> Vec<ToolCall> {
    let call = |step: &Step| match step {
        Step::ToolCall(call) => Some(call.clone()),
        _ => None,
    };
    host.said(op).iter().filter_map(call).collect()
}

fn text(text: &str) -> Answer {
    Answer::Complete(Json::string(text))
}

fn done(host: &Host, op: u64) -> &broca::engine::Reply {
    let done = host.said(op).iter().find_map(|step| match step {
        Step::Done(reply) => Some(&**reply),
        _ => None,
    });
    done.unwrap_or_else(|| panic!("{:?}", host.said(op)))
}

#[test]
fn a_pause_is_taken_up_with_the_results_that_were_there() {
    let world = World::shared(&[&[("a", "x"), ("b", "y"), ("c", "nobody")]]);
    let mut first = opened(&world, PLAIN, 0);
    first.command(2, say("go"));
    first.settle();
    let before = calls(&first, 2);
    first.answer(before[1].call, text("B")).unwrap();
    first.settle();
    let saved = first.engine.save().unwrap();
    drop(first);

    let mut second = attached(&world, saved);
    assert!(is_pending(&second));
    assert_eq!(second.left("session.sendMessage"), 0, "nothing goes on unasked");
    resume(&mut second);
    let open = calls(&second, 2);
    assert_eq!(open.len(), 1, "{open:?}");
    assert!(open[0].may_have_run && !before[0].may_have_run);
    assert_eq!(open[0].tool_use_id, "a");
    assert_eq!(open[0].idempotency_key, before[0].idempotency_key);
    assert_eq!(second.event_ids(2), Vec::<String>::new(), "the application had them all");
    second.answer(open[0].call, text("A")).unwrap();
    second.settle();
    let results = [("a".into(), false), ("b".into(), false), ("c".into(), true)];
    assert_eq!(world.borrow().taken, [results]);
    let reply = done(&second, 2);
    assert_eq!((reply.text().as_str(), reply.rounds), ("done", 2));
    assert_eq!(reply.usage.unwrap().input_tokens, 6, "of both programs");
    assert_eq!(reply.turn_events().len(), 3);
    assert_eq!(second.event_ids(2), ["evt_6", "evt_7"]);
    // The session goes on as any other.
    second.command(3, say("again"));
    second.finish(3);
    assert!(matches!(second.outcome(3), Some(Ok(Outcome::Replied))));
}

#[test]
fn the_next_program_asks_for_approvals_anew_and_keeps_refusals() {
    let world = World::shared(&[&[("a", "rm"), ("b", "rm")]]);
    let mut guarded = tool("rm");
    guarded.approval = true;
    let asked = |host: &Host| -> Vec<ToolCall> {
        let asked = |s: &Step| if let Step::Approval(call) = s { Some(call.clone()) } else { None };
        host.said(2).iter().filter_map(asked).collect()
    };
    let served = Rc::clone(&world);
    let mut first = Host::opened(
        |_| (),
        0,
        PLAIN,
        vec![guarded.clone()],
        move |r| served.borrow_mut().answer(r),
    );
    first.command(2, say("go"));
    first.settle();
    first.answer(asked(&first)[0].call, Answer::Allow).unwrap();
    first.answer(asked(&first)[1].call, Answer::Deny("no".into())).unwrap();
    first.settle();
    assert_eq!(calls(&first, 2).len(), 1);
    let saved = first.engine.save().unwrap();
    drop(first);

    let served = Rc::clone(&world);
    let mut second = Host::new(config(), Environment::none(), 0);
    second.script = service(PLAIN, move |r| served.borrow_mut().answer(r));
    second.command(1, Command::Attach { saved: Box::new(saved), tools: vec![guarded] });
    second.finish(1);
    resume(&mut second);
    let again = asked(&second);
    assert_eq!((again.len(), calls(&second, 2).len()), (1, 0), "{:?}", second.said(2));
    assert!(again[0].tool_use_id == "a" && again[0].may_have_run);
    second.answer(again[0].call, Answer::Allow).unwrap();
    second.settle();
    second.answer(calls(&second, 2)[0].call, text("gone")).unwrap();
    second.settle();
    assert_eq!(world.borrow().taken, [[("a".into(), false), ("b".into(), true)]]);
}

#[test]
fn what_came_after_the_save_is_found_in_the_log() {
    let world = World::shared(&[&[("a", "x")]]);
    let first = opened(&world, PLAIN, 0);
    let saved = first.engine.save().unwrap();
    assert_eq!((saved.client_key_id.clone(), saved.turn.clone()), (None, None));
    let mut first = first;
    first.command(2, say("go"));
    first.settle();
    drop(first);

    let mut second = attached(&world, saved);
    resume(&mut second);
    assert_eq!(second.event_ids(2), ["evt_2", "evt_3", "evt_4"]);
    let open = calls(&second, 2);
    assert!(open[0].may_have_run);
    second.answer(open[0].call, text("A")).unwrap();
    second.finish(2);
    assert!(matches!(second.outcome(2), Some(Ok(Outcome::Replied))));
}

#[test]
fn a_turn_that_ended_meanwhile_brings_its_reply_from_the_log() {
    let world = World::shared(&[&[("a", "x")]]);
    let mut first = opened(&world, PLAIN, 0);
    first.command(2, say("go"));
    first.settle();
    let saved = first.engine.save().unwrap();
    first.answer(calls(&first, 2)[0].call, text("A")).unwrap();
    first.settle();
    drop(first);

    let mut second = attached(&world, saved);
    resume(&mut second);
    assert_eq!(done(&second, 2).text(), "done");
    assert_eq!(second.event_ids(2), ["evt_5", "evt_6", "evt_7"]);
    assert!(calls(&second, 2).is_empty());
    assert_eq!(second.left("session.sendMessage"), 0);
}

#[test]
fn a_reply_that_waits_to_be_taken_is_not_lost() {
    let world = World::shared(&[]);
    let mut first = opened(&world, PLAIN, 0);
    first.pull = 0;
    first.command(2, say("go"));
    first.settle();
    let saved = first.engine.save().unwrap();
    assert!(saved.turn.is_some());
    drop(first);
    let mut second = attached(&world, saved);
    resume(&mut second);
    assert_eq!(done(&second, 2).text(), "done");
}

#[test]
fn a_turn_that_still_runs_is_watched_to_its_end() {
    let world = World::shared(&[&[("a", "x")]]);
    world.borrow_mut().stuck = true;
    let mut first = opened(&world, PLAIN, 0);
    first.command(2, say("go"));
    first.settle();
    let saved = first.engine.save().unwrap();
    drop(first);

    let mut second = attached(&world, saved);
    resume(&mut second);
    assert!(second.outcome(2).is_none());
    let conn = second.requests.last().unwrap().conn;
    let lines = {
        let mut world = world.borrow_mut();
        let from = world.log.len();
        world.stuck = false;
        world.model();
        world.lines(from)
    };
    lines.iter().for_each(|text| second.act(conn, line(text)));
    second.settle();
    let open = calls(&second, 2);
    assert!(!open[0].may_have_run, "nobody was shown this call before");
    second.answer(open[0].call, text("A")).unwrap();
    second.finish(2);
    assert_eq!(done(&second, 2).text(), "done");
    assert_eq!(second.event_ids(2), ["evt_2", "evt_3", "evt_4", "evt_6", "evt_7"]);
}

#[test]
fn a_turn_of_which_nothing_more_comes_is_an_unknown_outcome() {
    let world = World::shared(&[]);
    world.borrow_mut().stuck = true;
    let mut first = opened(&world, PLAIN, 0);
    first.command(2, say("go"));
    first.settle();
    let saved = first.engine.save().unwrap();
    let mut second = attached(&world, saved);
    resume(&mut second);
    second.advance(299_000);
    assert!(second.outcome(2).is_none());
    second.advance(2_000);
    assert_eq!(second.error(2).kind(), ErrorKind::StreamEndedEarly);
    assert_eq!(second.error(2).retry(), Retry::Unknown);
    // Whatever the service does with it, the next message can be sent.
    world.borrow_mut().stuck = false;
    second.command(3, say("again"));
    second.finish(3);
    assert!(matches!(second.outcome(3), Some(Ok(_))));
}

#[test]
fn a_watched_turn_is_cancelled_where_the_service_can() {
    for (features, asked) in [(FULL, 1), (PLAIN, 0)] {
        let world = World::shared(&[]);
        world.borrow_mut().stuck = true;
        let mut first = opened(&world, features, 0);
        first.command(2, say("go"));
        first.settle();
        let mut second = attaching(&world, first.engine.save().unwrap(), features, 0);
        resume(&mut second);
        second.cancel(2);
        second.finish(2);
        assert_eq!(second.error(2).kind(), ErrorKind::Cancelled);
        assert_eq!(second.left("session.cancel"), asked);
    }
}

#[test]
fn a_pause_that_was_abandoned_meanwhile_is_told_as_such() {
    let world = World::shared(&[&[("a", "x")]]);
    let mut first = opened(&world, PLAIN, 0);
    first.command(2, say("go"));
    first.settle();
    let saved = first.engine.save().unwrap();
    {
        let mut world = world.borrow_mut();
        world.paused = None;
        world.append(
            "session.error",
            r#"{"reason":"driver_turn_abandoned","owner_client_key_id":"key_1"}"#,
        );
        world.append_of("key_2", "client.message.send", r#"{"role":"user","content":"mine"}"#);
    }
    let mut second = attached(&world, saved);
    resume(&mut second);
    assert_eq!(second.error(2).kind(), ErrorKind::Timeout);
    assert!(second.error(2).message().contains("given the paused turn up"));
    assert!(calls(&second, 2).is_empty());
    assert_eq!(second.left("session.sendMessage"), 0);
    second.command(3, say("again"));
    second.finish(3);
    assert!(matches!(second.outcome(3), Some(Ok(_))));
}

#[test]
fn a_closed_session_is_an_error() {
    let world = World::shared(&[]);
    let first = opened(&world, PLAIN, 0);
    let saved = first.engine.save().unwrap();
    let mut host = Host::new(config(), Environment::none(), 0);
    host.script = Box::new(|request| match request.rpc() {
        "" => json(200, r#"{"version":"1","api_versions":["v1"]}"#),
        _ => stream(&[failure(request, -32000, "session is closed, not open")]),
    });
    host.command(1, Command::Attach { saved: Box::new(saved), tools: tools() });
    host.finish(1);
    assert_eq!(host.error(1).kind(), ErrorKind::SessionClosed);
    // Nothing is left of it: another session may be opened.
    assert!(host.try_command(2, Command::Open { tools: vec![], metadata: None }).is_ok());
}

#[test]
fn with_nothing_pending_it_is_a_session_like_any_other() {
    let world = World::shared(&[]);
    let mut first = opened(&world, PLAIN, 0);
    first.command(2, say("go"));
    first.finish(2);
    let saved = first.engine.save().unwrap();
    assert_eq!((saved.turn.clone(), saved.cursor.to_string().as_str()), (None, "evt_4"));
    assert_eq!(saved.client_key_id.as_ref().unwrap().as_str(), "key_1");
    let mut second = attached(&world, saved);
    assert!(!is_pending(&second));
    assert_eq!(second.try_command(2, Command::Resume).unwrap_err().kind(), ErrorKind::Usage);
    second.command(3, say("again"));
    second.finish(3);
    assert!(matches!(second.outcome(3), Some(Ok(_))));
    // What it has learned makes the next attach read less of the log.
    let again = second.engine.save().unwrap();
    assert!(again.page.is_some());
    let third = attached(&world, again);
    let pages = third.requests.iter().filter(|r| r.target.contains("/events")).count();
    assert!(pages < 3, "{pages}");
}

#[test]
fn a_message_that_never_came_to_the_log_is_told_as_such() {
    let world = World::shared(&[]);
    let mut first = opened(&world, PLAIN, 0);
    first.command(2, say("earlier"));
    first.finish(2);
    first.script = Box::new(|_| Vec::new());
    first.command(3, say("lost"));
    first.settle();
    let saved = first.engine.save().unwrap();
    assert!(saved.turn.as_ref().unwrap().message.is_some());
    let mut second = attached(&world, saved);
    resume(&mut second);
    assert_eq!(second.error(2).kind(), ErrorKind::StreamEndedEarly);
    assert!(second.error(2).message().contains("send it again"));
    assert!(second.event_ids(2).is_empty());
}

#[test]
fn a_message_that_is_not_in_the_log_goes_again_where_the_service_knows_it_by_its_id() {
    let known = &["message-id"];
    let world = World::shared(&[]);
    let mut first = opened(&world, known, 0);
    first.script = Box::new(|_| Vec::new());
    first.command(2, say("lost"));
    first.settle();
    let sent = first.rpcs("session.sendMessage")[0].body["params"].clone();
    assert!(sent["message_id"].is_string());
    let saved = first.engine.save().unwrap();
    let mut second = attaching(&world, saved.clone(), known, 0);
    resume(&mut second);
    assert_eq!(done(&second, 2).text(), "done");
    assert_eq!(second.rpcs("session.sendMessage")[0].body["params"], sent);
    // A service that does not know them is not sent it again.
    let world = World::shared(&[]);
    let mut plain = attaching(&world, saved, PLAIN, 0);
    resume(&mut plain);
    assert_eq!(plain.left("session.sendMessage"), 0);
    assert!(plain.error(2).message().contains("send it again"));
}

#[test]
fn a_message_that_is_sent_instead_leads_with_results_for_what_was_open() {
    let world = World::shared(&[&[("a", "x"), ("b", "y")]]);
    let mut first = opened(&world, PLAIN, 0);
    first.command(2, say("go"));
    first.settle();
    first.answer(calls(&first, 2)[1].call, text("B")).unwrap();
    let mut second = attached(&world, first.engine.save().unwrap());
    second.command(3, say("something else"));
    second.finish(3);
    assert!(matches!(second.outcome(3), Some(Ok(_))));
    assert_eq!(world.borrow().taken, [[("a".into(), true), ("b".into(), false)]]);
    assert_eq!(second.try_command(4, Command::Resume).unwrap_err().kind(), ErrorKind::Usage);
}

#[test]
fn a_turn_that_waits_for_its_resume_is_given_up_by_a_message_before_it() {
    let world = World::shared(&[&[("a", "x")]]);
    let mut first = opened(&world, PLAIN, 0);
    first.command(2, say("go"));
    first.settle();
    let mut second = attached(&world, first.engine.save().unwrap());
    second.command(3, say("first"));
    assert_eq!(second.try_command(4, Command::Resume).unwrap_err().kind(), ErrorKind::Usage);
    second.finish(3);
}

#[test]
fn results_of_a_cancelled_turn_lead_the_next_message_of_the_next_program() {
    let world = World::shared(&[&[("a", "x")]]);
    let mut first = opened(&world, PLAIN, 0);
    first.command(2, say("go"));
    first.settle();
    first.cancel(2);
    first.advance(3_000);
    assert_eq!(first.error(2).kind(), ErrorKind::Cancelled);
    let saved = first.engine.save().unwrap();
    assert!(saved.turn.as_ref().unwrap().cancelled);
    assert_eq!(saved.turn.as_ref().unwrap().results[0].outcome, ToolOutcome::Failed);
    let mut second = attached(&world, saved);
    assert!(!is_pending(&second));
    second.command(3, say("next"));
    second.finish(3);
    assert_eq!(world.borrow().taken, [[("a".into(), true)]]);
}

#[test]
fn results_of_another_pause_are_not_taken_for_this_one() {
    // Some servers number their calls anew in every answer.
    let world = World::shared(&[&[("a", "x")], &[("a", "x")]]);
    let mut first = opened(&world, PLAIN, 0);
    first.command(2, say("go"));
    first.settle();
    first.script = Box::new(|_| Vec::new());
    first.answer(calls(&first, 2)[0].call, text("A")).unwrap();
    first.settle();
    let saved = first.engine.save().unwrap();
    assert_eq!(saved.turn.as_ref().unwrap().results.len(), 1, "on its way");
    // It arrived after all, and the next pause has a call of the same id.
    {
        let mut world = world.borrow_mut();
        world.paused = None;
        let content =
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"A"}]}"#;
        world.append("client.message.send", content);
        world.model();
    }
    let mut second = attached(&world, saved);
    resume(&mut second);
    let open = calls(&second, 2);
    assert!(open.len() == 1 && open[0].may_have_run, "{open:?}");
}

#[test]
fn among_several_drivers_a_pause_is_nobodys_unless_it_is_known_whose() {
    let world = World::shared(&[]);
    {
        let mut world = world.borrow_mut();
        world.drivers = vec!["key_1", "key_2"];
        world.append_of("key_2", "client.message.send", r#"{"role":"user","content":"go"}"#);
        let call = r#"{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"x","input":{},"dispatch":"client"}]}"#;
        world.append_of("key_2", "server.message.send", call);
    }
    let first = opened(&world, PLAIN, 0);
    let saved = first.engine.save().unwrap();
    // The opener is known from the first event; it is another one.
    assert!(saved.opened && !is_pending(&attached(&world, saved.clone())));
    let joined = SavedSession { opened: false, ..saved.clone() };
    assert!(!is_pending(&attached(&world, joined)));
    let owner = SavedSession { client_key_id: Some("key_2".into()), ..saved };
    assert!(is_pending(&attached(&world, owner)));
}

#[test]
fn a_saved_session_goes_to_its_own_service_only() {
    let world = World::shared(&[]);
    let mut saved = opened(&world, PLAIN, 0).engine.save().unwrap();
    saved.service = "http://elsewhere:8080".to_owned();
    let host = attaching(&world, saved, PLAIN, 0);
    assert_eq!(host.error(1).kind(), ErrorKind::InvalidArgument);
    assert!(host.requests.is_empty());
}

#[test]
fn only_a_driver_has_something_to_save() {
    let world = World::shared(&[]);
    let mut host = Host::new(config(), Environment::none(), 0);
    let served = Rc::clone(&world);
    host.script = service(PLAIN, move |r| served.borrow_mut().answer(r));
    assert_eq!(host.engine.save().unwrap_err().kind(), ErrorKind::Usage);
    host.command(1, Command::Observe { session_id: "ses_1".into() });
    host.finish(1);
    assert_eq!(host.engine.save().unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(host.try_command(2, Command::Save).unwrap_err().kind(), ErrorKind::Usage);
}

#[test]
fn saving_is_an_operation_too() {
    let world = World::shared(&[]);
    let mut host = opened(&world, PLAIN, 0);
    host.command(2, Command::Save);
    host.settle();
    let Some(Ok(Outcome::Saved(saved))) = host.outcome(2) else { panic!("{:?}", host.said(2)) };
    assert_eq!(**saved, host.engine.save().unwrap());
    assert_eq!(
        (saved.session_id.as_str(), &saved.tools[..]),
        ("ses_1", &["x".to_owned(), "y".to_owned()][..])
    );
}

#[test]
fn a_turn_too_large_to_be_kept_leaves_a_gap() {
    let world = World::shared(&[&[("a", "x")]]);
    let mut first = opened(&world, PLAIN, 0);
    let saved = first.engine.save().unwrap();
    first.command(2, say("go"));
    first.settle();
    let mut second = Host::new(
        {
            let mut c = config();
            c.step_buffer_bytes = 300;
            c
        },
        Environment::none(),
        0,
    );
    let served = Rc::clone(&world);
    second.script = service(PLAIN, move |r| served.borrow_mut().answer(r));
    second.command(1, Command::Attach { saved: Box::new(saved), tools: tools() });
    second.finish(1);
    resume(&mut second);
    let gap = |step: &Step| matches!(step, Step::Gap(gap) if gap.lost == Lost::Unseen);
    assert!(second.said(2).iter().any(gap), "{:?}", second.said(2));
    assert_eq!(calls(&second, 2).len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    /// Whenever a program saves and dies, the next one brings the turn to its end: every pause is answered once
    /// and whole, and a result that was saved is never asked for again.
    #[test]
    fn whenever_a_program_dies_the_next_one_ends_the_turn(seed in 1..u64::MAX, acts in 0..40_usize, lives in 1..4_usize) {
        let world = World::shared(&[&[("a", "x"), ("b", "y")], &[("c", "x")], &[("a", "y"), ("d", "nobody")]]);
        let mut host = opened(&world, PLAIN, seed);
        host.command(2, say("go"));
        let mut answered: Vec<String> = Vec::new();
        for life in 0..=lives {
            let limit = if life == lives { usize::MAX } else { acts / (life + 1) };
            run(&mut host, limit, &mut answered);
            if host.outcome(2).is_some() {
                break;
            }
            let saved = host.engine.save().unwrap();
            host = attaching(&world, saved, PLAIN, seed.wrapping_add(life as u64) | 1);
            if !is_pending(&host) {
                // It died before anything had left.
                host.command(2, say("go"));
            } else {
                resume(&mut host);
                if matches!(host.outcome(2), Some(Err(error)) if error.message().contains("send it again")) {
                    return Ok(());
                }
            }
        }
        host.finish(2);
        prop_assert!(matches!(host.outcome(2), Some(Ok(_))), "{:?}", host.said(2));
        prop_assert_eq!(world.borrow().taken.len(), 3);
        prop_assert!(world.borrow().paused.is_none());
    }
}

/// Lets the program go on for so many answers.
fn run(host: &mut Host, limit: usize, answered: &mut Vec<String>) {
    for _ in 0..limit.min(64) {
        host.settle();
        let open: Vec<(CallId, String)> =
            calls(host, 2).iter().map(|c| (c.call, c.idempotency_key.clone())).collect();
        let next = open.into_iter().find(|(_, key)| !answered.contains(key));
        let Some((call, key)) = next else { return };
        host.answer(call, text("ok")).unwrap();
        answered.push(key);
    }
}

#[test]
fn what_the_program_before_has_spent_counts_for_this_one() {
    for (rounds, calls_allowed) in [(Some(2), None), (None, Some(2))] {
        let world = World::shared(&[&[("a", "x")], &[("b", "x"), ("c", "x")]]);
        let mut first = opened(&world, PLAIN, 0);
        first.command(2, say("go"));
        first.settle();
        first.answer(calls(&first, 2)[0].call, text("A")).unwrap();
        first.settle();
        let saved = first.engine.save().unwrap();
        let mut second = Host::new(
            {
                let mut config = config();
                config.turn_budget.rounds = rounds;
                config.turn_budget.tool_calls = calls_allowed;
                config
            },
            Environment::none(),
            0,
        );
        let served = Rc::clone(&world);
        second.script = service(PLAIN, move |r| served.borrow_mut().answer(r));
        second.command(1, Command::Attach { saved: Box::new(saved), tools: tools() });
        second.finish(1);
        resume(&mut second);
        assert_eq!(second.error(2).kind(), ErrorKind::LoopLimit);
        assert!(calls(&second, 2).is_empty());
        assert_eq!(second.left("session.sendMessage"), 0);
        second.command(3, say("enough"));
        second.finish(3);
        let taken = world.borrow().taken.clone();
        assert_eq!(taken[1], [("b".into(), true), ("c".into(), true)], "valid, and honest");
    }
}
