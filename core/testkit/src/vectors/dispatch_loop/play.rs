//! A paused turn with handlers that take virtual time.

use super::super::outcome::Ending;
use super::super::service::{PATIENCE_MS, around, config, meta, prepare, result};
use super::super::surface::Surface;
use super::{Behaviour, Feed, Gives, Kind};
use crate::host::{Delivery, Host, Request, Service};
use crate::subject::Subject;
use broca::engine::{Answer, CallId, Command, OpId, Step, ToolCall};
use broca::proto::session::content::{Block, Message};
use broca::proto::session::turn::{Calls, CallsOutput, ToolOutcome, Verdict};
use broca::{Json, Time};
use bytes::Bytes;
use std::collections::BTreeMap;

/// What happened.
#[derive(Default)]
pub(super) struct Came {
    /// Starts of each handler, by call.
    pub(super) runs: BTreeMap<String, u64>,
    /// What each handler got, by call.
    pub(super) inputs: BTreeMap<String, Json>,
    /// What became of each call.
    pub(super) states: BTreeMap<String, ToolOutcome>,
    /// How the turn ended, and when.
    pub(super) ending: Option<(Ending, Time)>,
    /// Requests of the turn after its first one: when, method, parameters.
    pub(super) requests: Vec<(Time, String, Json)>,
    /// When the turn was cancelled.
    pub(super) cancelled_at: Option<Time>,
    /// The message of the send that follows the turn.
    pub(super) next: Option<Message>,
}

/// Something that a handler or a person does later.
enum Due {
    Finish(ToolCall),
    Decide(CallId, String, Answer),
    Cancel,
}

/// The application of a case.
struct Application<'a> {
    feed: &'a Feed,
    came: Came,
    due: Vec<(Time, Due)>,
    /// Handlers that wait for another one to finish, and the tools that have.
    waiting: Vec<ToolCall>,
    finished: Vec<String>,
    twin: Calls,
}

/// Plays the case on a service of this kind; afterwards the application sends `next_text`.
pub(super) fn run(
    feed: &Feed,
    surface: &mut impl Surface,
    kind: Kind,
    one_read: bool,
    next_text: &str,
) -> Result<Came, String> {
    let mut config = config();
    if let Some(concurrent) = feed.concurrent {
        config.calls.concurrent = concurrent;
    }
    let mut limits = config.calls;
    limits.pause_ms = feed.turn_timeout_ms.unwrap_or(limits.pause_ms);
    let mut twin = Calls::new(feed.declared.clone(), limits);
    let paused = feed.assistant.clone();
    let service = Turns { kind, one_read, paused, timeout_ms: feed.turn_timeout_ms, sent: 0 };
    let client = surface.client(config).map_err(|e| e.to_string())?;
    let mut host = Host::over(client, service);
    prepare(&mut host, Command::Open { tools: feed.declared.clone(), metadata: None })?;
    let before = host.requests().len();
    let op = send(&mut host, "begin")?;
    // The pause begins when the answer is read, and no virtual time passes until then.
    let begin = host.now();
    // Calls that cannot be run at all are refused on both sides; the engine's word is what counts.
    let _ = twin.pause(&feed.assistant, begin);
    let mut app = Application {
        feed,
        came: Came::default(),
        due: Vec::new(),
        waiting: Vec::new(),
        finished: Vec::new(),
        twin,
    };
    if let Some(ms) = feed.cancel_after_ms {
        app.due.push((begin.plus(ms), Due::Cancel));
    }
    app.live(&mut host, op)?;
    app.came.requests = rpcs(&host.requests()[before + 1..]);
    let before = host.requests().len();
    if app.came.ending.is_some() {
        let op = send(&mut host, next_text)?;
        let until = host.now().plus(PATIENCE_MS);
        while let Some((from, step)) = host.next(until) {
            if from == op && matches!(step, Step::Finished(_)) {
                break;
            }
        }
        let next = rpcs(&host.requests()[before..]);
        let message =
            next.first().and_then(|(_, _, params)| params.member("message")?.decode().ok());
        app.came.next = message;
    }
    match host.fault() {
        Some(fault) => Err(fault),
        None => Ok(app.came),
    }
}

impl Application<'_> {
    fn live<S: Service, C: Subject>(
        &mut self,
        host: &mut Host<S, C>,
        op: OpId,
    ) -> Result<(), String> {
        let end = host.now().plus(PATIENCE_MS);
        loop {
            self.due.sort_by_key(|(at, _)| *at);
            let until = self.due.first().map_or(end, |(at, _)| *at).min(end);
            if let Some((from, step)) = host.next(until) {
                if from == op {
                    self.take(step, host.now());
                }
                self.watch(host.now());
                continue;
            }
            self.watch(host.now());
            if self.due.is_empty() || until >= end {
                return Ok(());
            }
            let (_, due) = self.due.remove(0);
            self.act(due, host, op)?;
            self.watch(host.now());
        }
    }

    fn take(&mut self, step: Step, now: Time) {
        match step {
            Step::ToolCall(call) => self.begin(call, now),
            Step::Approval(call) => {
                if let Some(approval) = self.feed.approvals.get(&call.tool_use_id)
                    && let Some(answer) = approval.answer.clone()
                {
                    let due = Due::Decide(call.call, call.tool_use_id, answer);
                    self.due.push((now.plus(approval.after_ms), due));
                }
            }
            Step::Done(reply) => self.came.ending = Some((Ending::Replied(reply.text()), now)),
            Step::Finished(Err(error)) => self.came.ending = Some((Ending::Failed(error), now)),
            // A handler of a case ignores the signal to stop: it is abandoned after the grace time.
            _ => {}
        }
    }

    /// A handler starts, or waits for the one that it starts after.
    fn begin(&mut self, call: ToolCall, now: Time) {
        let behaviour = self.feed.tools.get(&call.name);
        let after = behaviour.and_then(|b| b.starts_after.as_ref());
        if after.is_some_and(|name| !self.finished.contains(name)) {
            self.waiting.push(call);
            return;
        }
        *self.came.runs.entry(call.tool_use_id.clone()).or_default() += 1;
        self.came.inputs.insert(call.tool_use_id.clone(), call.input.clone());
        let after_ms = behaviour.map_or(0, |b| b.after_ms);
        self.due.push((now.plus(after_ms), Due::Finish(call)));
    }

    fn act<S: Service, C: Subject>(
        &mut self,
        due: Due,
        host: &mut Host<S, C>,
        op: OpId,
    ) -> Result<(), String> {
        let now = host.now();
        match due {
            Due::Cancel => {
                self.came.cancelled_at = Some(now);
                self.twin.cancel(now);
                host.cancel(op);
            }
            Due::Decide(call, id, answer) => {
                let verdict = match &answer {
                    Answer::AllowNarrowed(input) => Verdict::AllowNarrowed(input.clone()),
                    Answer::Deny(reason) => Verdict::Deny(reason.clone()),
                    _ => Verdict::Allow,
                };
                // The engine judges whether the answer fits; the twin only follows.
                let _ = self.twin.decide(&id, verdict, now);
                host.answer(call, answer).map_err(|e| format!("the approval of {id}: {e}"))?;
            }
            Due::Finish(call) => {
                let gives = self.feed.tools.get(&call.name).map(|b: &Behaviour| b.gives.clone());
                let id = call.tool_use_id.clone();
                let answer = match gives {
                    Some(Gives::Returns(content)) => Answer::Complete(content),
                    Some(Gives::Throws(message)) => Answer::Fail(message),
                    Some(Gives::Echo) => Answer::Complete(Json::string(call.input.as_str())),
                    None => return Err(format!("a handler ran for {id}, whose tool nobody has")),
                };
                // An answer that comes too late is dropped on both sides.
                let _ = match &answer {
                    Answer::Complete(content) => self.twin.complete(&id, content.clone(), now),
                    _ => self.twin.fail(&id, fail_text(&answer), now),
                };
                host.answer(call.call, answer).map_err(|e| format!("the answer to {id}: {e}"))?;
                self.finished.push(call.name);
                for waiting in std::mem::take(&mut self.waiting) {
                    self.begin(waiting, now);
                }
            }
        }
        Ok(())
    }

    /// Lets time pass for the twin, and notes what it settled.
    fn watch(&mut self, now: Time) {
        if self.twin.poll_timeout().is_some_and(|at| at <= now) {
            self.twin.handle_timeout(now);
        }
        while let Some(output) = self.twin.poll() {
            if let CallsOutput::Settled { id, outcome, .. } = output {
                self.came.states.insert(id, outcome);
            }
        }
    }
}

impl Came {
    /// The results of the turn's calls that went out, whichever request took them.
    pub(super) fn blocks_sent(&self, method: &str) -> Vec<Vec<Block>> {
        let of = |params: &Json| match method {
            "session.cancel" => params
                .member("results")
                .and_then(|results| results.elements())
                .map(|blocks| blocks.into_iter().map(Block::read).collect()),
            _ => params
                .member("message")
                .and_then(|message| message.decode::<Message>().ok())
                .map(|message| message.content.blocks().to_vec()),
        };
        let sent = self.requests.iter().filter(|(_, m, _)| m == method);
        sent.map(|(_, _, params)| of(params).unwrap_or_default()).collect()
    }

    /// Requests after the cancellation and before the turn was quiet.
    pub(super) fn on_cancel(&self) -> Vec<(&str, &Json)> {
        let Some(at) = self.cancelled_at else { return Vec::new() };
        let since = self.requests.iter().filter(|(when, ..)| *when >= at);
        since.map(|(_, method, params)| (method.as_str(), params)).collect()
    }
}

fn fail_text(answer: &Answer) -> &str {
    match answer {
        Answer::Fail(message) => message,
        _ => "",
    }
}

fn send<S: Service, C: Subject>(host: &mut Host<S, C>, text: &str) -> Result<OpId, String> {
    host.command(Command::Send { message: Message::user(text) })
        .map_err(|e| format!("a message was refused: {e}"))
}

fn rpcs(requests: &[Request]) -> Vec<(Time, String, Json)> {
    let calls =
        requests.iter().filter_map(|r| r.rpc().map(|call| (r.at, call.method, call.params)));
    calls.collect()
}

/// A service whose model calls the case's tools first and then says that it is done.
struct Turns {
    kind: Kind,
    one_read: bool,
    paused: Message,
    timeout_ms: Option<u64>,
    sent: usize,
}

impl Service for Turns {
    fn answer(&mut self, request: &Request, _: Time) -> Vec<Delivery> {
        let features: &[&str] = if self.kind == Kind::WithCancel { &["cancel"] } else { &[] };
        let Some(call) = request.rpc() else {
            return around(request, meta(features, self.timeout_ms), &[]);
        };
        if call.method != "session.sendMessage" {
            let cancelled = Json::parse(r#"{"cancelled":true,"was":"paused"}"#).unwrap_or_default();
            let is_cancel = call.method == "session.cancel";
            return result(&call, &if is_cancel { cancelled } else { Json::empty_object() });
        }
        self.sent += 1;
        let message = match self.sent {
            1 => self.paused.to_json(),
            _ => Message::assistant(vec![Block::of_text("done")]).to_json(),
        };
        let answer = [("message", &message), ("events", &Json::array([]))];
        let whole = result(&call, &Json::object(answer));
        if self.one_read {
            return whole;
        }
        let cut = |delivery| match delivery {
            Delivery::Bytes(bytes) => (0..bytes.len())
                .map(|at| Delivery::Bytes(Bytes::copy_from_slice(&bytes[at..=at])))
                .collect(),
            closed => vec![closed],
        };
        whole.into_iter().flat_map(cut).collect()
    }
}
