//! Playing on a client in another process, in whatever language, over a protocol of lines.
//!
//! The child holds one engine of its language's package at a time and does what it is told on its input; the virtual
//! clock, the service and everything that is expected stay here. The protocol is described in `core/vectors/README.md`;
//! [`answer_lines`] is a child over the bridge.

mod child;
mod line;
mod process;
mod twin;

pub use child::answer_lines;
pub use process::Through;

use crate::subject::{
    SEED, Subject, Taken, Value, WALL_MS, answer_words, close_word, command_json, effect_of,
    failed, options_json, steps_of,
};
use crate::vectors::{ChatCame, Surface};
use broca::engine::{
    Answer, CallId, CloseReason, Command, Config, ConnId, Effect, OpId, ResolveId, Resolved, Step,
    Trace,
};
use broca::proto::session::turn::Accepted;
use broca::{Error, ErrorKind, Time};
use bytes::Bytes;
use line::{Reply, text_word};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use twin::{Twin, same_outcome};

/// The engine that a child holds. Whatever it says is compared with what the bridge says to the same inputs.
#[derive(Debug)]
pub struct Spoken {
    process: Rc<RefCell<process::Process>>,
    twin: Twin,
    effects: VecDeque<Effect>,
    /// Calls by their ids in the conversation: what packages show when one is to be stopped.
    calls: BTreeMap<Bytes, i128>,
    fault: Option<String>,
}

impl Surface for Through {
    type Client = Spoken;

    fn client(&mut self, config: Config) -> Result<Spoken, Error> {
        let mut client = Spoken {
            process: self.process(),
            twin: Twin::new(&config)?,
            effects: VecDeque::new(),
            calls: BTreeMap::new(),
            fault: None,
        };
        let options = text_word(Some(&options_json(&config)));
        for reply in client.ask(&format!("new {options} {SEED} {WALL_MS}")) {
            match reply {
                Reply::Error(taken) => return Err(client.error_of(&taken)),
                _ => client.fail("an engine was answered with something else"),
            }
        }
        match client.refusal() {
            Some(error) => Err(error),
            None => Ok(client),
        }
    }

    fn chat(
        &mut self,
        status: u16,
        pieces: &[Bytes],
        end: crate::host::End,
    ) -> Result<ChatCame, String> {
        let process = self.process();
        let mut process = process.borrow_mut();
        process.ask(&format!("chat_new {status}"))?;
        for piece in pieces {
            process.ask(&format!("chat_data {}", line::bytes_word(piece)))?;
        }
        match end {
            crate::host::End::Eof => drop(process.ask("chat_end")?),
            crate::host::End::Reset => drop(process.ask("chat_broken")?),
            crate::host::End::Hold => {}
        }
        let replies = process.ask("chat_take")?;
        let text = replies.into_iter().find_map(|reply| match reply {
            Reply::Chat(text) => Some(text),
            _ => None,
        });
        ChatCame::read(&text.ok_or("the child gave no units")?)
    }

    fn lost(&self) -> Option<String> {
        self.process().borrow().lost()
    }
}

impl Spoken {
    /// Asks for something of which the twin knows; effects are kept, everything else is given.
    fn ask(&mut self, request: &str) -> Vec<Reply> {
        let (rest, effects) = self.say(request);
        self.compare_effects(&effects);
        rest
    }

    fn compare_effects(&mut self, effects: &[Taken]) {
        let compared = self.twin.effects(effects);
        self.check(compared);
    }

    fn check(&mut self, compared: Result<(), String>) {
        if let Err(fault) = compared {
            self.fail(fault);
        }
    }

    /// Says something to the child: the answer, and the effects in it.
    fn say(&mut self, request: &str) -> (Vec<Reply>, Vec<Taken>) {
        let answered = self.process.borrow_mut().ask(request);
        let (mut rest, mut effects) = (Vec::new(), Vec::new());
        match answered {
            Ok(replies) => {
                for reply in replies {
                    match reply {
                        Reply::Effect(taken) => {
                            match effect_of(&taken) {
                                Ok(effect) => self.effects.push_back(effect),
                                Err(fault) => self.fail(fault),
                            }
                            effects.push(taken);
                        }
                        other => rest.push(other),
                    }
                }
            }
            Err(fault) => self.fail(fault),
        }
        (rest, effects)
    }

    /// Asks for something that has no answer of its own.
    fn tell(&mut self, request: &str) {
        for reply in self.ask(request) {
            let verb = request.split(' ').next().unwrap_or_default();
            self.fail(match reply {
                Reply::Error(taken) => match failed(&taken) {
                    Ok(error) => format!("{verb} was refused: {error}"),
                    Err(fault) => fault,
                },
                _ => format!("{verb} was answered with something else than effects"),
            });
        }
    }

    fn fail(&mut self, fault: impl Into<String>) {
        self.fault.get_or_insert_with(|| fault.into());
    }

    fn error_of(&mut self, taken: &Taken) -> Error {
        failed(taken).unwrap_or_else(|fault| {
            self.fail(fault.clone());
            Error::new(ErrorKind::Internal, fault)
        })
    }

    fn refusal(&self) -> Option<Error> {
        self.fault.as_ref().map(|fault| Error::new(ErrorKind::Internal, fault.clone()))
    }

    fn nonsense(&mut self, what: &str) -> Error {
        self.fail(format!("{what} was answered with neither a number nor an error"));
        self.refusal().unwrap_or_else(|| Error::new(ErrorKind::Internal, "nothing was said"))
    }

    /// Packages say what is to be stopped by its id in the conversation; the engine by its call.
    fn complete(&mut self, mut taken: Taken) -> Taken {
        match (taken.kind.as_str(), taken.fields.get("tool_use_id"), taken.fields.get("call")) {
            (
                "tool_call" | "approval",
                Some(Some(Value::Bytes(id))),
                Some(Some(Value::Number(n))),
            ) => {
                self.calls.insert(id.clone(), *n);
            }
            ("tool_cancel" | "approval_withdrawn", Some(Some(Value::Bytes(id))), None) => {
                match self.calls.get(id) {
                    Some(call) => {
                        taken.fields.insert("call".to_owned(), Some(Value::Number(*call)));
                    }
                    None => self.fail(format!("{}: its call was never shown", taken.kind)),
                }
            }
            _ => {}
        }
        taken
    }
}

/// The two words of trace headers.
fn trace_words(trace: Option<&Trace>) -> String {
    let word = |text: Option<&String>| text_word(text.map(String::as_str));
    let (parent, state) = (
        trace.and_then(|trace| trace.traceparent.as_ref()),
        trace.and_then(|trace| trace.tracestate.as_ref()),
    );
    format!("{} {}", word(parent), word(state))
}

impl Subject for Spoken {
    fn command(&mut self, command: Command, trace: Trace, now: Time) -> Result<OpId, Error> {
        let json =
            command_json(&command).map_err(|fault| Error::new(ErrorKind::Internal, fault))?;
        let words = trace_words(Some(&trace));
        let request = format!("command {} {} {words}", now.as_millis(), text_word(Some(&json)));
        let (replies, effects) = self.say(&request);
        let begun = replies.into_iter().find_map(|reply| match reply {
            Reply::Op(op) => Some(Ok(OpId(op))),
            Reply::Error(taken) => Some(Err(self.error_of(&taken))),
            _ => None,
        });
        let begun = begun.unwrap_or_else(|| Err(self.nonsense("a command")));
        let compared = self.twin.command(&command, &trace, now, &begun);
        self.check(compared);
        self.compare_effects(&effects);
        begun
    }

    fn cancel(&mut self, op: OpId, now: Time) {
        self.twin.give(|twin| twin.cancel(op.0, now));
        self.tell(&format!("cancel {} {}", now.as_millis(), op.0));
    }

    fn answer(&mut self, call: CallId, answer: Answer, now: Time) -> Result<Accepted, Error> {
        let trace = match &answer {
            Answer::Send { trace, .. } => trace_words(trace.as_ref()),
            _ => trace_words(None),
        };
        let (word, value) =
            answer_words(&answer).map_err(|fault| Error::new(ErrorKind::Internal, fault))?;
        let words = text_word(value.as_deref());
        let request = format!("answer {} {} {word} {words} {trace}", now.as_millis(), call.0);
        let (replies, effects) = self.say(&request);
        let accepted = replies.into_iter().find_map(|reply| match reply {
            Reply::Accepted(true) => Some(Ok(Accepted::Taken)),
            Reply::Accepted(false) => Some(Ok(Accepted::TooLate)),
            Reply::Error(taken) => Some(Err(self.error_of(&taken))),
            _ => None,
        });
        let accepted = accepted.unwrap_or_else(|| Err(self.nonsense("an answer")));
        let own = self.twin.handle().answer(call.0, answer, now);
        self.check(same_outcome("an answer", &own, &accepted));
        self.compare_effects(&effects);
        accepted
    }

    fn resolved(&mut self, req: ResolveId, answer: Resolved, now: Time) {
        self.twin.give(|twin| twin.resolved(req.0, answer.clone(), now));
        let words = match answer {
            Ok(addresses) => {
                let addresses = addresses.iter().map(|ip| text_word(Some(&ip.to_string())));
                ["-".to_owned()].into_iter().chain(addresses).collect::<Vec<_>>().join(" ")
            }
            Err(why) => text_word(Some(&why)),
        };
        self.tell(&format!("resolved {} {} {words}", now.as_millis(), req.0));
    }

    fn connected(&mut self, conn: ConnId, now: Time) {
        self.twin.give(|twin| twin.connected(conn.0, now));
        self.tell(&format!("connected {} {}", now.as_millis(), conn.0));
    }

    fn tls_started(&mut self, conn: ConnId, now: Time) {
        self.twin.give(|twin| twin.tls_started(conn.0, now));
        self.tell(&format!("tls_started {} {}", now.as_millis(), conn.0));
    }

    fn data(&mut self, conn: ConnId, bytes: Bytes, now: Time) {
        self.twin.give(|twin| twin.data(conn.0, &bytes, now));
        let bytes = line::bytes_word(&bytes);
        self.tell(&format!("data {} {} {bytes}", now.as_millis(), conn.0));
    }

    fn written(&mut self, conn: ConnId, bytes: usize, now: Time) {
        self.twin.give(|twin| twin.written(conn.0, bytes, now));
        self.tell(&format!("written {} {} {bytes}", now.as_millis(), conn.0));
    }

    fn closed(&mut self, conn: ConnId, why: CloseReason, now: Time) {
        self.twin.give(|twin| twin.closed(conn.0, why, now));
        match close_word(why) {
            Some(word) => self.tell(&format!("closed {} {} {word}", now.as_millis(), conn.0)),
            None => self.fail(format!("there is no word for {why:?}")),
        }
    }

    fn timeout(&mut self, now: Time) {
        self.twin.give(|twin| twin.timeout(now));
        self.tell(&format!("timeout {}", now.as_millis()));
    }

    fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    fn steps(&mut self, op: OpId, max_bytes: usize, out: &mut Vec<Step>) {
        let max_bytes = max_bytes.min(1 << 30);
        let (mut taken, mut over) = (Vec::new(), None);
        let (replies, effects) = self.say(&format!("steps {} {max_bytes}", op.0));
        for reply in replies {
            match reply {
                Reply::Step(step) => taken.push(self.complete(step)),
                Reply::Over(said) => over = Some(said),
                _ => self.fail("steps were answered with something else"),
            }
        }
        let compared = self.twin.steps(op, max_bytes, &taken);
        self.check(compared);
        self.compare_effects(&effects);
        match steps_of(&taken) {
            Ok(steps) => {
                if over != Some(matches!(steps.last(), Some(Step::Finished(_)))) {
                    self.fail("the end of an operation was not told as such");
                }
                out.extend(steps);
            }
            Err(fault) => self.fail(fault),
        }
    }

    fn fault(&self) -> Option<String> {
        self.fault.clone()
    }
}
