//! Consent to tools of the service (feature `approve`): asked once, answered on a connection of its own, and still open
//! after a cut (guarantees 7, 10 and 11).

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their own helpers")]

mod engine_host;

use broca::engine::{
    Accepted, Answer, CallId, CloseReason, Command, Config, Environment, Outcome, Step,
};
use broca::{Approvals, ErrorKind, Json};
use engine_host::service::{
    bare_event, end, failure, head, json, line, result, say, service, stream,
};
use engine_host::{Act, Host, Request, config};
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

const FEATURES: &[&str] = &["approve", "cancel"];
const NAMED: &[&str] = &["approve", "cancel", "message-id"];
const REQUESTED: (&str, &str) = (
    "session.approval.requested",
    r#"{"expires_in_ms":600000,"input":{"limit":5,"q":"pLaNtEd"},"name":"find","narrow":{"/limit":"at_most"},"owner_client_key_id":"key_1","tool_use_id":"t"}"#,
);
const CALLED: (&str, &str) =
    ("tool.call", r#"{"dispatch":"mcp","id":"t","name":"find","input":{}}"#);
const RESOLVED: (&str, &str) =
    ("session.approval.resolved", r#"{"by":"person","decision":"allow","tool_use_id":"t"}"#);
const LATE: (&str, &str) =
    ("session.approval.resolved", r#"{"by":"deadline","decision":"deny","tool_use_id":"t"}"#);
const RAN: (&str, &str) = ("mcp.response", r#"{"ok":true,"result":{},"server_name":"s"}"#);
const HI: (&str, &str) =
    ("server.message.send", r#"{"role":"assistant","content":[{"type":"text","text":"hi"}]}"#);

/// The service's side: its log, and what it does with the answers that come.
#[derive(Default)]
struct World {
    log: Vec<(String, String)>,
    /// What a message logs, and how much of that its stream shows before it breaks; nothing: it stays open.
    turn: Vec<(&'static str, &'static str)>,
    shown: Option<usize>,
    /// What an answer logs.
    then: Vec<(&'static str, &'static str)>,
    /// So many answers break off before they are answered.
    lost: usize,
    /// A subscription breaks when it has shown what there is.
    flaky: bool,
    /// The params of the answers that came.
    answers: Vec<serde_json::Value>,
}

type Shared = Rc<RefCell<World>>;

impl World {
    fn shared(turn: &[(&'static str, &'static str)], shown: Option<usize>) -> Shared {
        let mut world =
            Self { turn: turn.to_vec(), shown, then: vec![RESOLVED, RAN, HI], ..Self::default() };
        world.add(&[("session.open", "{}")]);
        Rc::new(RefCell::new(world))
    }

    /// Logs events of this driver; gives their lines.
    fn add(&mut self, events: &[(&str, &str)]) -> Vec<Act> {
        let from = self.log.len();
        for (kind, payload) in events {
            let id = format!("e{}", self.log.len());
            let bare = bare_event(&id, kind, payload)
                .replace("\"client_key_id\":null", "\"client_key_id\":\"key_1\"")
                .replace("2026-01-01T00:00:00.000Z", "2023-11-14T22:13:20.000Z");
            self.log.push((id, bare));
        }
        self.lines(from)
    }

    fn lines(&self, from: usize) -> Vec<Act> {
        let event = |(_, bare): &(String, String)| {
            line(&format!(r#"{{"jsonrpc":"2.0","method":"session.event","params":{bare}}}"#))
        };
        self.log[from..].iter().map(event).collect()
    }

    fn answer(&mut self, request: &Request) -> Vec<Act> {
        if request.method == "GET" && request.target.contains("/events") {
            let items: Vec<&str> = self.log.iter().map(|(_, bare)| bare.as_str()).collect();
            return json(200, &format!(r#"{{"items":[{}],"next_cursor":null}}"#, items.join(",")));
        }
        if request.target.ends_with("/participants") {
            return json(200, r#"{"drivers":["key_1"]}"#);
        }
        match request.rpc() {
            "session.sendMessage" if self.log.len() > 1 => vec![head()],
            "session.sendMessage" => {
                self.add(&[("client.message.send", r#"{"role":"user","content":"go"}"#)]);
                let turn = self.turn.clone();
                let lines = self.add(&turn);
                let mut acts = vec![head()];
                match self.shown {
                    None => acts.extend(lines),
                    Some(shown) => {
                        acts.extend(lines.into_iter().take(shown));
                        acts.push(Act::Close(CloseReason::Reset));
                    }
                }
                acts
            }
            "session.approve" => {
                let first = self.answers.is_empty();
                self.answers.push(request.body["params"].clone());
                if first {
                    let then = self.then.clone();
                    self.add(&then);
                }
                if self.lost > 0 {
                    self.lost -= 1;
                    return vec![Act::Close(CloseReason::Reset)];
                }
                let said = r#"{"approved":true,"decision":"allow","by":"person","was":"waiting"}"#;
                stream(&[result(request, said)])
            }
            "session.subscribe" => {
                let since = request.body["params"]["since_event_id"].as_str().unwrap();
                let from = self.log.iter().position(|(id, _)| id == since).map_or(0, |at| at + 1);
                let mut acts = vec![head()];
                acts.extend(self.lines(from));
                acts.extend(self.flaky.then_some(Act::Close(CloseReason::Reset)));
                acts
            }
            "session.cancel" => stream(&[result(request, r#"{"cancelled":true,"was":"running"}"#)]),
            "session.registerDriver" => stream(&[result(request, r#"{"registered":true}"#)]),
            other => panic!("{other}"),
        }
    }
}

fn opened(features: &[&str], world: &Shared, change: impl FnOnce(&mut Config)) -> Host {
    let mut host = opened_by(features, world, 0, change);
    host.settle();
    host
}

fn opened_by(
    features: &[&str],
    world: &Shared,
    seed: u64,
    change: impl FnOnce(&mut Config),
) -> Host {
    let shared = Rc::clone(world);
    let service = move |request: &Request| shared.borrow_mut().answer(request);
    let mut host = Host::opened(change, seed, features, Vec::new(), service);
    host.command(2, say("go"));
    host
}

/// The questions that were shown, and those that were taken back.
fn questions(host: &Host, op: u64) -> (Vec<CallId>, Vec<CallId>) {
    let (mut asked, mut withdrawn) = (Vec::new(), Vec::new());
    for step in host.said(op) {
        match step {
            Step::Approval(call) => {
                assert!(call.server_side && !call.may_have_run);
                assert_eq!((call.name.as_str(), call.tool_use_id.as_str()), ("find", "t"));
                asked.push(call.call);
            }
            Step::ApprovalWithdrawn { call } => withdrawn.push(*call),
            _ => {}
        }
    }
    (asked, withdrawn)
}

fn the_question(host: &Host) -> CallId {
    let (asked, withdrawn) = questions(host, 2);
    assert_eq!((asked.len(), withdrawn.len()), (1, 0), "{:?}", host.said(2));
    asked[0]
}

/// The stream of the turn goes on with what the log got meanwhile, and ends.
fn go_on(host: &mut Host, world: &Shared, from: usize) {
    let request = host.rpcs("session.sendMessage")[0].clone();
    let message = r#"{"role":"assistant","content":[{"type":"text","text":"hi"}]}"#;
    let answer = result(&request, &format!(r#"{{"message":{message},"events":[]}}"#));
    let lines = world.borrow().lines(from);
    for act in lines.into_iter().chain([line(&answer), end()]) {
        host.act(request.conn, act);
    }
    host.finish(2);
}

fn replied(host: &Host, op: u64) -> String {
    assert!(matches!(host.outcome(op), Some(Ok(Outcome::Replied))), "{:?}", host.said(op));
    let done = host.said(op).iter().find_map(|step| match step {
        Step::Done(reply) => Some(reply.text()),
        _ => None,
    });
    done.unwrap()
}

#[test]
fn a_question_is_shown_behind_its_event_and_its_answer_waits_for_no_stream() {
    let world = World::shared(&[CALLED, REQUESTED], None);
    let mut host = opened(FEATURES, &world, |c| c.max_connections = 1);
    let question = the_question(&host);
    let last = host.said(2).iter().rev().take(2).collect::<Vec<_>>();
    assert!(matches!(last[..], [Step::Approval(_), Step::Event(_)]), "{last:?}");
    host.advance(300_000);
    assert_eq!(host.answer(question, Answer::Allow).unwrap(), Accepted::Taken);
    host.settle();
    let said = serde_json::json!({"tool_use_id": "t", "decision": "allow"});
    assert_eq!(world.borrow().answers, [said]);
    assert_eq!(host.answer(question, Answer::Deny("no".to_owned())).unwrap(), Accepted::TooLate);
    go_on(&mut host, &world, 4);
    assert_eq!(replied(&host, 2), "hi");
    the_question(&host);
    assert_eq!(world.borrow().answers.len(), 1);
}

#[test]
fn a_narrowed_input_is_checked_before_it_leaves() {
    for (input, sent) in [
        (
            r#"{"limit":2,"q":"pLaNtEd"}"#,
            serde_json::json!({"tool_use_id": "t", "decision": "allow_narrowed",
                               "input": {"limit": 2, "q": "pLaNtEd"}}),
        ),
        (
            r#"{"limit":6,"q":"pLaNtEd"}"#,
            serde_json::json!({"tool_use_id": "t", "decision": "deny", "reason": "narrowing_widens"}),
        ),
    ] {
        let world = World::shared(&[CALLED, REQUESTED], None);
        let mut host = opened(FEATURES, &world, |_| ());
        let question = the_question(&host);
        let complete = Answer::Complete(Json::string("x"));
        let refused = host.answer(question, complete).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Usage);
        let input = Json::parse(input.to_owned()).unwrap();
        host.answer(question, Answer::AllowNarrowed(input)).unwrap();
        host.settle();
        assert_eq!(world.borrow().answers, [sent]);
    }
}

#[test]
fn a_question_that_is_settled_elsewhere_is_taken_back() {
    let world = World::shared(&[CALLED, REQUESTED], None);
    let mut host = opened(FEATURES, &world, |_| ());
    let question = the_question(&host);
    world.borrow_mut().add(&[LATE, HI]);
    go_on(&mut host, &world, 4);
    assert_eq!(questions(&host, 2), (vec![question], vec![question]));
    assert_eq!(host.answer(question, Answer::Allow).unwrap(), Accepted::TooLate);
    assert_eq!(host.left("session.approve"), 0);
}

#[test]
fn a_question_that_nothing_settles_is_taken_back_with_the_turn() {
    let world = World::shared(&[CALLED, REQUESTED], None);
    let mut host = opened(FEATURES, &world, |_| ());
    let question = the_question(&host);
    host.cancel(2);
    host.advance(10_000);
    assert_eq!(host.error(2).kind(), ErrorKind::Cancelled);
    assert_eq!(questions(&host, 2), (vec![question], vec![question]));
    let world = World::shared(&[CALLED, REQUESTED], None);
    let mut host = opened(FEATURES, &world, |_| ());
    let question = the_question(&host);
    let request = host.rpcs("session.sendMessage")[0].clone();
    host.act(request.conn, line(&failure(&request, -32000, "session is closed, not open")));
    host.act(request.conn, end());
    host.finish(2);
    assert_eq!(questions(&host, 2), (vec![question], vec![question]));
}

#[test]
fn an_answer_that_gets_lost_is_given_again_until_it_has_arrived() {
    let world = World::shared(&[CALLED, REQUESTED], None);
    world.borrow_mut().lost = 3;
    let mut host = opened(FEATURES, &world, |_| ());
    let question = the_question(&host);
    host.answer(question, Answer::Allow).unwrap();
    host.advance(120_000);
    let answers = world.borrow().answers.clone();
    assert_eq!(answers.len(), 4, "three were lost, and then it is known");
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    go_on(&mut host, &world, 4);
    assert_eq!(replied(&host, 2), "hi");
}

#[test]
fn an_answer_is_not_given_again_once_the_service_has_given_the_question_up() {
    let world = World::shared(&[CALLED, REQUESTED], None);
    (world.borrow_mut().lost, world.borrow_mut().then) = (usize::MAX, Vec::new());
    let mut host = opened(FEATURES, &world, |_| ());
    let question = the_question(&host);
    host.answer(question, Answer::Allow).unwrap();
    host.advance(700_000);
    let tries = world.borrow().answers.len();
    assert!(tries > 3, "{tries}");
    host.advance(700_000);
    assert_eq!(world.borrow().answers.len(), tries);
}

#[test]
fn a_question_from_before_a_cut_is_open_after_it_and_is_not_asked_twice() {
    for features in [FEATURES, NAMED] {
        // How much of the turn the stream shows before it breaks.
        for shown in 0..=2 {
            let world = World::shared(&[CALLED, REQUESTED], Some(shown));
            let mut host = opened(features, &world, |_| ());
            host.advance(5_000);
            let question = the_question(&host);
            assert_eq!(host.left("session.subscribe"), 1, "{shown} shown");
            assert_eq!(host.event_ids(2), ["e2", "e3"], "each event once");
            host.answer(question, Answer::Allow).unwrap();
            host.settle();
            assert_eq!(world.borrow().answers.len(), 1);
            // The log goes on for who follows it.
            let lines = world.borrow().lines(4);
            let followed = host.rpcs("session.subscribe")[0].conn;
            lines.into_iter().for_each(|act| host.act(followed, act));
            host.finish(2);
            assert_eq!(replied(&host, 2), "hi");
            the_question(&host);
        }
    }
}

#[test]
fn what_was_answered_before_a_cut_is_not_asked_again() {
    let world = World::shared(&[CALLED, REQUESTED], None);
    let mut host = opened(FEATURES, &world, |_| ());
    let question = the_question(&host);
    host.answer(question, Answer::Allow).unwrap();
    host.settle();
    let stream = host.rpcs("session.sendMessage")[0].conn;
    host.cut(stream, CloseReason::Reset);
    host.finish(2);
    assert_eq!(replied(&host, 2), "hi");
    the_question(&host);
    assert_eq!(world.borrow().answers.len(), 1);
}

#[test]
fn a_cut_turn_waits_for_its_person_as_long_as_the_service_does() {
    let world = World::shared(&[CALLED, REQUESTED], Some(2));
    let mut host = opened(FEATURES, &world, |c| c.recovery_timeout_ms = 10_000);
    host.advance(500_000);
    let question = the_question(&host);
    assert!(host.outcome(2).is_none(), "{:?}", host.said(2));
    host.answer(question, Answer::Allow).unwrap();
    host.settle();
    let lines = world.borrow().lines(4);
    let followed = host.rpcs("session.subscribe")[0].conn;
    lines.into_iter().for_each(|act| host.act(followed, act));
    host.finish(2);
    assert_eq!(replied(&host, 2), "hi");
    // Nobody answers, and the service says nothing either: that comes to an end, too.
    let world = World::shared(&[CALLED, REQUESTED], Some(2));
    let mut host = opened(FEATURES, &world, |c| c.recovery_timeout_ms = 10_000);
    host.finish(2);
    assert!(host.now > 600_000 && host.now < 700_000, "{}", host.now);
    let (asked, withdrawn) = questions(&host, 2);
    assert_eq!(asked, withdrawn);
}

#[test]
fn what_is_to_be_asked_for_is_said_when_the_session_is_opened() {
    let rules = Json::parse(r#"{"approvals":{"ask":["find"],"narrow":{"find":{"/n":"at_most"}}}}"#);
    let approvals = Approvals::read(&rules.unwrap()).unwrap();
    let open = |features: &'static [&'static str], asks: bool| {
        let mut settings = config();
        if asks {
            settings.approvals = approvals.clone();
        }
        let mut host = Host::new(settings, Environment::none(), 0);
        host.script = service(features, |_| Vec::new());
        host.command(1, Command::Open { tools: Vec::new(), metadata: None });
        host.finish(1);
        host
    };
    let host = open(FEATURES, true);
    let opened = host.requests.iter().find(|r| r.method == "POST").unwrap();
    let expected = serde_json::json!({"ask": ["find"], "narrow": {"find": {"/n": "at_most"}}});
    assert_eq!(opened.body["approvals"], expected);
    assert_eq!(opened.header("broca-features"), Some("approve"));
    let host = open(FEATURES, false);
    let opened = host.requests.iter().find(|r| r.method == "POST").unwrap();
    assert!(opened.body.get("approvals").is_none() && opened.header("broca-features").is_none());
    // A service that asks nobody would run them: the session is not opened there.
    let host = open(&["cancel"], true);
    assert_eq!(host.error(1).kind(), ErrorKind::NotOffered);
    assert!(host.error(1).message().contains("approve"), "{:?}", host.error(1));
    assert!(host.requests.iter().all(|r| r.method != "POST"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_breaks_it_is_asked_once_and_the_turn_goes_on(
        seed in 1u64..,
        shown in 0usize..3,
        lost in 0usize..3,
        think_ms in 0u64..20_000,
    ) {
        let world = World::shared(&[CALLED, REQUESTED], Some(shown));
        (world.borrow_mut().lost, world.borrow_mut().flaky) = (lost, true);
        let mut host = opened_by(FEATURES, &world, seed, |_| ());
        host.until(|host| !questions(host, 2).0.is_empty());
        host.advance(think_ms);
        let question = the_question(&host);
        host.answer(question, Answer::Allow).unwrap();
        host.finish(2);
        prop_assert_eq!(replied(&host, 2), "hi");
        the_question(&host);
        prop_assert_eq!(host.event_ids(2), ["e2", "e3", "e4", "e5", "e6"]);
        let answers = world.borrow().answers.clone();
        prop_assert!(!answers.is_empty() && answers.iter().all(|answer| *answer == answers[0]));
    }
}

/// Another program that attaches to the session as it was saved, and takes its turn up.
fn attached(host: &Host, world: &Shared) -> Host {
    let saved = Box::new(host.engine.save().unwrap());
    let mut next = Host::new(config(), Environment::none(), 0);
    let shared = Rc::clone(world);
    next.script = service(FEATURES, move |request| shared.borrow_mut().answer(request));
    next.command(1, Command::Attach { saved, tools: Vec::new() });
    next.finish(1);
    next.command(2, Command::Resume);
    next.settle();
    next
}

#[test]
fn a_program_that_takes_the_turn_up_is_asked_what_is_still_open() {
    let world = World::shared(&[CALLED, REQUESTED], None);
    let first = opened(FEATURES, &world, |_| ());
    the_question(&first);
    let mut next = attached(&first, &world);
    let question = the_question(&next);
    next.advance(500_000);
    assert!(next.outcome(2).is_none(), "a person may take long: {:?}", next.said(2));
    next.answer(question, Answer::Deny("no".to_owned())).unwrap();
    next.settle();
    assert_eq!(world.borrow().answers[0]["reason"], "no");
    let lines = world.borrow().lines(4);
    let followed = next.rpcs("session.subscribe")[0].conn;
    lines.into_iter().for_each(|act| next.act(followed, act));
    next.finish(2);
    assert_eq!(replied(&next, 2), "hi");
    the_question(&next);
}

#[test]
fn a_question_that_comes_after_the_turn_was_taken_up_is_asked_too() {
    let world = World::shared(&[CALLED], None);
    let first = opened(FEATURES, &world, |_| ());
    let mut next = attached(&first, &world);
    assert_eq!(questions(&next, 2).0, []);
    let lines = world.borrow_mut().add(&[REQUESTED]);
    let followed = next.rpcs("session.subscribe")[0].conn;
    lines.into_iter().for_each(|act| next.act(followed, act));
    next.settle();
    the_question(&next);
}

#[test]
fn a_program_that_takes_the_turn_up_is_not_asked_what_was_settled() {
    let world = World::shared(&[CALLED, REQUESTED, RESOLVED], None);
    let first = opened(FEATURES, &world, |_| ());
    let mut next = attached(&first, &world);
    assert_eq!(questions(&next, 2).0, []);
    let lines = world.borrow_mut().add(&[RAN, HI]);
    let followed = next.rpcs("session.subscribe")[0].conn;
    lines.into_iter().for_each(|act| next.act(followed, act));
    next.finish(2);
    assert_eq!(replied(&next, 2), "hi");
}
