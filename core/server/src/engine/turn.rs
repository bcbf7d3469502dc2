//! Carries out what the turn machine of the protocol asks for: logs, models, tools, pauses and ends.
//!
//! Everything that is shown is on disk first. A turn that cannot be stored ends.

mod note;
mod prepare;
mod work;

use super::approve::OpenQuestion;
use super::record::{Context, Recorded, Shown, Write};
use super::send::{Call, Held, Said, stopping};
use super::session::{Ending, Session, Stop};
use super::{Engine, millis, now_ms, parking};
use crate::hub::ReaderId;
use crate::models;
use crate::store::{self, Epoch, MessageNote, StoreError, WallTime};
use broca_proto::Json;
use broca_proto::run::gate::{Entry, Parking, Refusal};
use broca_proto::run::log::{Audience, LogEvent};
use broca_proto::run::merge::Pause;
use broca_proto::run::methods::{self, SessionState};
use broca_proto::run::turn::{Effect, Turn, TurnStart};
use broca_proto::run::view;
use broca_proto::session::content::Message;
use broca_proto::session::feature::Features;
use broca_proto::session::payload::TokenUsage;
use broca_proto::session::rpc::RpcFailure;
use bytes::Bytes;
pub(super) use prepare::{read_json, read_pause};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::watch;

/// How far the turn has come with the store's gate.
#[derive(Debug, Clone)]
enum Lease {
    None,
    /// To be taken with the first events.
    Take(Entry, Option<Epoch>),
    Has(Epoch),
}

/// Why a turn ends without the machine's word.
enum Broken {
    Store(StoreError),
    Closed,
    Shutdown,
}

impl From<StoreError> for Broken {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// How a turn is answered; each stream is told in its own way.
struct Answered {
    message: Message,
    usage: Option<TokenUsage>,
    /// How long the turn waits for its results, if it paused.
    pause: Option<u64>,
}

type Outcome = Result<Answered, RpcFailure>;

/// A call that holds the gate, while its turn runs.
pub(super) struct Drive {
    engine: Arc<Engine>,
    session: Arc<Session>,
    call: Arc<Call>,
    held: Held,
    stopped: watch::Receiver<Stop>,
    cancelled: Arc<AtomicBool>,
    lease: Lease,
    reader: Option<ReaderId>,
    /// The profile's models, primary first.
    chain: Vec<Arc<dyn models::Model>>,
    /// The question that the turn waits on; until what became of it is on disk.
    question: Option<OpenQuestion>,
    /// What has been logged; `result.events` shows of it what each stream asked for.
    shown: Vec<Shown>,
    /// The id that the assistant's next message will have.
    message_id: Arc<str>,
}

impl Drive {
    pub(super) fn new(
        engine: Arc<Engine>,
        session: Arc<Session>,
        call: Arc<Call>,
        held: Held,
        stopped: watch::Receiver<Stop>,
        cancelled: Arc<AtomicBool>,
    ) -> Self {
        Self {
            engine,
            session,
            call,
            held,
            stopped,
            cancelled,
            lease: Lease::None,
            reader: None,
            chain: Vec::new(),
            question: None,
            shown: Vec::new(),
            message_id: Arc::from(""),
        }
    }

    /// `was_alone`: for a time nobody listened to the call while it waited.
    pub(super) async fn run(mut self, entry: Entry, said: Said, was_alone: bool) {
        let can_come_again = self.call.message.is_some() && entry != Entry::Resumed;
        if was_alone && can_come_again && self.session.give_up_if_gone(&self.call) {
            let ending = self.give_back(&entry).await;
            self.held.end(ending, |_| Bytes::new());
            return;
        }
        let prepared = self.prepare(entry.clone(), said).await;
        let start = match prepared {
            Ok(Ok(start)) => start,
            Ok(Err((failure, ending))) => return self.end(ending, &Err(failure)),
            Err(error) => {
                let ending = self.give_back(&entry).await;
                let failure = self.store_failure(&error);
                return self.end(ending, &Err(failure));
            }
        };
        self.reader = self.call.listeners.begin(&self.session.hub);
        let done = self.turn(start).await;
        if let Err(why) = &done {
            self.withdraw_question(why).await;
        }
        let (ending, outcome) = match done {
            Ok(done) => done,
            Err(Broken::Closed) => {
                let state = self.session.ended().unwrap_or(SessionState::Closed);
                let failure = methods::gate_refusal(Refusal::Closed, &state);
                self.note_end(&failure).await;
                (Ending::Released, Err(failure))
            }
            Err(Broken::Shutdown) => (Ending::Released, Err(stopping())),
            Err(Broken::Store(error)) => {
                let failure = self.store_failure(&error);
                let ending = match self.lease {
                    Lease::Has(_) => Ending::Released,
                    _ => self.give_back(&entry).await,
                };
                (ending, Err(failure))
            }
        };
        self.end(ending, &outcome);
    }

    /// Gives the gate back and answers.
    fn end(&mut self, ending: Ending, outcome: &Outcome) {
        let shown = &self.shown;
        self.held.end(ending, |asker| match outcome {
            Ok(answered) => asker.line(Ok(&answered.result(asker.features, shown))),
            Err(failure) => asker.line(Err(failure)),
        });
    }

    /// Runs the machine to its pause or end.
    async fn turn(&mut self, start: TurnStart) -> Result<(Ending, Outcome), Broken> {
        let entry = start.entry.clone();
        let mut turn = match Turn::start(start) {
            Ok(turn) => turn,
            Err(rejected) if rejected.ends_session => {
                let mut events = self.abandonment();
                events.extend(rejected.events);
                let to = store::SessionState::Error;
                let note = self.end_note(Err(&rejected.failure), &[]);
                self.record(Write::Close { lease: None, to }, events, note).await?;
                return Ok((Ending::Over(SessionState::Error), Err(rejected.failure)));
            }
            Err(rejected) => return Ok((self.give_back(&entry).await, Err(rejected.failure))),
        };
        while let Some(effect) = turn.poll_effect() {
            match effect {
                Effect::Log(events) => self.log(events).await?,
                Effect::CallModel(call) => self.call_model(&mut turn, call).await?,
                Effect::Wait { ms } => self.wait(&mut turn, ms).await?,
                Effect::Ask { events, question } => self.ask(&mut turn, events, question).await?,
                Effect::CallTool(run) => self.call_tool(&mut turn, run).await?,
                Effect::Pause { events, pause, message } => {
                    return self.pause(events, pause, message, turn.usage()).await;
                }
                Effect::Finish { events, answer, ends_session, .. } => {
                    let lease = self.take_lease().await?;
                    let note = self.end_note(answer.as_ref(), &events);
                    let (write, ending) = if ends_session {
                        let to = store::SessionState::Error;
                        let over = Ending::Over(SessionState::Error);
                        (Write::Close { lease: Some(lease), to }, over)
                    } else {
                        (Write::Release(lease), Ending::Released)
                    };
                    self.record(write, events, note).await?;
                    let usage = turn.usage();
                    let answered = |message| Answered { message, usage, pause: None };
                    return Ok((ending, answer.map(answered)));
                }
            }
        }
        let fault = "the turn stopped without an end".to_owned();
        Err(Broken::Store(StoreError::Internal(fault)))
    }

    async fn pause(
        &mut self,
        events: Vec<LogEvent>,
        pause: Pause,
        message: Message,
        usage: Option<TokenUsage>,
    ) -> Result<(Ending, Outcome), Broken> {
        let lease = self.take_lease().await?;
        let (began, timeout) = (now_ms(), millis(self.engine.config().turn_timeout));
        let deadline = began.saturating_add(timeout);
        let wall = |at: u64| WallTime(i64::try_from(at).unwrap_or(i64::MAX));
        let stash: Vec<Json> = pause.stash.iter().map(|block| block.json().clone()).collect();
        let pause = store::Pause {
            owner: pause.owner.as_str().to_owned(),
            began: wall(began),
            deadline: wall(deadline),
            expected: pause.expected,
            stashed: Json::array(&stash).as_str().to_owned(),
            progress: pause.generation.to_json().as_str().to_owned(),
        };
        let note = self.end_note(Ok(&message), &events);
        self.record(Write::Park { lease, pause }, events, note).await?;
        let answered = Answered { message, usage, pause: Some(timeout) };
        Ok((Ending::Parked { began, deadline }, Ok(answered)))
    }

    /// Logs events, the first ones together with taking the gate.
    async fn log(&mut self, events: Vec<LogEvent>) -> Result<(), Broken> {
        let Lease::Has(lease) = self.lease else { return self.claim(events).await };
        self.record(Write::Append(Some(lease)), events, None).await?;
        Ok(())
    }

    async fn take_lease(&mut self) -> Result<Epoch, Broken> {
        if !matches!(self.lease, Lease::Has(_)) {
            self.claim(Vec::new()).await?;
        }
        match self.lease {
            Lease::Has(lease) => Ok(lease),
            _ => Err(StoreError::LeaseLost.into()),
        }
    }

    async fn claim(&mut self, events: Vec<LogEvent>) -> Result<(), Broken> {
        let owner = self.call.who.as_str().to_owned();
        let mut all = self.abandonment();
        all.extend(events);
        let write = match &self.lease {
            Lease::Take(Entry::Resumed, Some(parked)) => Write::Resume { owner, parked: *parked },
            Lease::Take(Entry::Reclaimed { .. }, Some(parked)) => {
                Write::TakeOver { owner, parked: *parked }
            }
            _ => Write::Claim { owner },
        };
        let begins = |message| MessageNote { message, outcome: None };
        let note = self.call.message.clone().map(begins);
        let epoch = self.record(write, all, note).await?.epoch;
        self.lease = epoch.map_or(Lease::None, Lease::Has);
        Ok(())
    }

    /// What is logged when somebody's paused turn is taken over.
    fn abandonment(&self) -> Vec<LogEvent> {
        match &self.lease {
            Lease::Take(Entry::Reclaimed { from }, Some(_)) => {
                vec![LogEvent::turn_abandoned(from)]
            }
            _ => Vec::new(),
        }
    }

    async fn record(
        &mut self,
        write: Write,
        events: Vec<LogEvent>,
        note: Option<MessageNote>,
    ) -> Result<Recorded, Broken> {
        let context = Context {
            note,
            caller: self.reader,
            message_id: Some(&self.message_id).filter(|id| !id.is_empty()).map(|id| &**id),
        };
        let recorded = self.session.record(&self.engine, write, events, context).await;
        let mut recorded = match recorded {
            Ok(recorded) => recorded,
            // Somebody closed the session under the turn.
            Err(StoreError::NotOpen { .. } | StoreError::LeaseLost)
                if self.session.ended().is_some() || *self.stopped.borrow() == Stop::Closed =>
            {
                return Err(Broken::Closed);
            }
            Err(StoreError::NotOpen { .. }) => return Err(Broken::Closed),
            Err(error) => return Err(error.into()),
        };
        self.question = None;
        if recorded.already.is_some() {
            return Err(Broken::Closed);
        }
        let of_the_call = |shown: &Shown| shown.audience != Audience::Watchers;
        self.shown.extend(recorded.events.drain(..).filter(of_the_call));
        Ok(recorded)
    }

    /// How the gate is given back when the turn could not begin.
    async fn give_back(&self, entry: &Entry) -> Ending {
        if matches!(entry, Entry::Fresh) {
            return Ending::Released;
        }
        match self.engine.store().pause(self.session.id.as_str()).await {
            Ok(Some(parked)) => Ending::GivenBack(parking(parked.pause)),
            Ok(None) => Ending::Released,
            // Nobody can say whose turn it is: it stays with the one who was to take it up.
            Err(_) => {
                let owner = match entry {
                    Entry::Reclaimed { from } => from.clone(),
                    _ => self.call.who.clone(),
                };
                Ending::GivenBack(Parking { owner, began: now_ms(), deadline: now_ms() })
            }
        }
    }

    fn store_failure(&self, error: &StoreError) -> RpcFailure {
        tracing::error!(
            session = %self.session.id, code = error.code(), %error,
            "a turn could not be stored and ends"
        );
        methods::internal_error()
    }
}

impl Answered {
    /// The result for a request with these features, `shown` being the events of the call.
    fn result(&self, features: Features, shown: &[Shown]) -> Json {
        let events: Vec<Json> = shown
            .iter()
            .filter(|shown| view::in_result(features, shown.event.type_name(), shown.audience))
            .map(|shown| shown.to(features).json())
            .collect();
        let result = view::send_message_result(features, &self.message, &events, self.usage);
        match self.pause {
            Some(left) => view::pausing_result(features, result, left),
            None => result,
        }
    }
}
