//! Carries out what the turn machine of the protocol asks for: logs, models, tools, pauses and ends.
//!
//! Everything that is shown is on disk first. A turn that cannot be stored ends.

use super::deltas::Sink;
use super::record::{Context, Recorded, Write, mint};
use super::send::{Call, Feed, Feeding, Held, stopping};
use super::session::{Ending, Session, Stop, mark_cancelled};
use super::{Engine, millis, now_ms, parking};
use crate::hub::{ReaderId, ReaderKind};
use crate::keys::IdKind;
use crate::models::{self, ModelRequest};
use crate::store::{self, Epoch, Seq, StoreError, WallTime};
use broca_proto::Json;
use broca_proto::provider::ToolSpec;
use broca_proto::run::gate::{Entry, Parking, Refusal};
use broca_proto::run::log::{LogEvent, history_message};
use broca_proto::run::merge::Pause;
use broca_proto::run::methods::{self, SessionState};
use broca_proto::run::open::DeclaredTools;
use broca_proto::run::toolbox::{ServerTool, Toolbox};
use broca_proto::run::turn::{
    Effect, ModelCall, ModelFailure, ModelReply, Provider, ToolOutcome, ToolRun, Turn, TurnStart,
};
use broca_proto::run::view;
use broca_proto::session::content::Message;
use broca_proto::session::event::EventType;
use broca_proto::session::ids::KeyId;
use broca_proto::session::payload::TokenUsage;
use broca_proto::session::rpc::{self, RpcFailure};
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

/// A call that holds the gate, while its turn runs.
pub(super) struct Drive {
    engine: Arc<Engine>,
    session: Arc<Session>,
    call: Call,
    held: Held,
    stopped: watch::Receiver<Stop>,
    cancelled: Arc<AtomicBool>,
    lease: Lease,
    reader: Option<ReaderId>,
    /// The profile's models, primary first.
    chain: Vec<Arc<dyn models::Model>>,
    /// `result.events`.
    shown: Vec<Json>,
    /// The id that the assistant's next message will have.
    message_id: Arc<str>,
}

impl Drive {
    pub(super) fn new(
        engine: Arc<Engine>,
        session: Arc<Session>,
        call: Call,
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
            shown: Vec::new(),
            message_id: Arc::from(""),
        }
    }

    pub(super) async fn run(mut self, entry: Entry, message: Message, feed: Feeding) {
        let prepared = self.prepare(entry.clone(), message).await;
        let start = match prepared {
            Ok(Ok(start)) => start,
            Ok(Err((failure, ending))) => {
                self.held.end(ending, None);
                let _ = feed.send(Feed::Answer(self.call.line(Err(&failure))));
                return;
            }
            Err(error) => {
                let ending = self.give_back(&entry).await;
                self.held.end(ending, None);
                let failure = self.store_failure(&error);
                let _ = feed.send(Feed::Answer(self.call.line(Err(&failure))));
                return;
            }
        };
        let reader = self.session.hub.attach(ReaderKind::Call, self.call.features);
        let id = reader.id();
        self.reader = Some(id);
        self.held.stream = Some((id, self.call.line(Err(&methods::internal_error()))));
        // A caller that is gone is no reason to stop.
        let _ = feed.send(Feed::Live(reader));
        let (ending, outcome) = match self.turn(start).await {
            Ok(done) => done,
            Err(Broken::Closed) => {
                let state = self.session.ended().unwrap_or(SessionState::Closed);
                let failure = methods::gate_refusal(Refusal::Closed, &state);
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
        let line = self.call.line(outcome.as_ref());
        self.held.end(ending, Some((id, line)));
    }

    /// Reads what the turn starts from. The inner error is an answer without a turn.
    async fn prepare(
        &mut self,
        entry: Entry,
        message: Message,
    ) -> Result<Result<TurnStart, (RpcFailure, Ending)>, StoreError> {
        let (store, id) = (self.engine.store(), self.session.id.as_str());
        let Some(session) = store.session(id).await? else {
            let failure = RpcFailure::new(rpc::code::APPLICATION, "session no longer exists");
            return Ok(Err((failure, Ending::Released)));
        };
        let state = SessionState::parse(session.state.as_str());
        if let Err(failure) = methods::session_is_open(&state) {
            return Ok(Err((failure, Ending::Over(state))));
        }
        let profile = store.profile(&session.profile_id).await?.filter(|p| !p.deleted);
        let Some(profile) = profile else {
            let profile = session.profile_id.into();
            let event = LogEvent::profile_unavailable(&self.call.who, &profile);
            let to = store::SessionState::Error;
            let write = Write::Close { lease: None, to };
            self.session.record(&self.engine, write, vec![event], Context::default()).await?;
            let failure = methods::profile_unavailable();
            return Ok(Err((failure, Ending::Over(SessionState::Error))));
        };
        let parked = match entry {
            Entry::Fresh => None,
            Entry::Resumed | Entry::Reclaimed { .. } => store.pause(id).await?,
        };
        let paused = parked.as_ref().map(|parked| read_pause(&parked.pause)).transpose()?;
        let tools = store.tools(id, self.call.who.as_str()).await?.unwrap_or_default();
        let mut history = Vec::new();
        for message in store.messages(id, Seq::START, session.last_seq).await? {
            let payload = read_json(message.payload)?;
            history.push(history_message(&payload, &EventType::parse(&message.event_type)));
        }
        let providers = self.engine.chain(&profile).map(|chain| {
            self.chain = chain;
            self.chain.iter().map(describe).collect()
        });
        self.lease = Lease::Take(entry.clone(), parked.map(|parked| parked.epoch));
        Ok(Ok(TurnStart {
            actor: self.call.who.clone(),
            entry,
            paused,
            message,
            history,
            toolbox: self.toolbox(tools)?,
            providers,
            max_rounds: self.engine.config().max_rounds,
        }))
    }

    fn toolbox(&self, lists: store::ToolLists) -> Result<Toolbox, StoreError> {
        let read = |raw: String| {
            let declared = DeclaredTools::read(read_json(raw)?);
            declared.map(|declared| declared.tools).map_err(|_| damaged("a tool list"))
        };
        let server = self.engine.tools.iter().map(|tool| {
            let ToolSpec { name, description, input_schema } = tool.spec();
            ServerTool {
                declaration: broca_proto::session::tool::ToolDeclaration {
                    name,
                    description,
                    input_schema,
                },
                server_name: tool.server_name().to_owned(),
            }
        });
        Ok(Toolbox {
            client: read(lists.tools)?,
            sandbox: read(lists.sandbox_tools)?,
            subagent: read(lists.subagent_tools)?,
            server: server.collect(),
        })
    }

    /// Runs the machine to its pause or end.
    async fn turn(
        &mut self,
        start: TurnStart,
    ) -> Result<(Ending, Result<Json, RpcFailure>), Broken> {
        let mut turn = match Turn::start(start) {
            Ok(turn) => turn,
            Err(rejected) if rejected.ends_session => {
                let mut events = self.abandonment();
                events.extend(rejected.events);
                let to = store::SessionState::Error;
                self.record(Write::Close { lease: None, to }, events).await?;
                return Ok((Ending::Over(SessionState::Error), Err(rejected.failure)));
            }
            Err(rejected) => return Ok((Ending::Released, Err(rejected.failure))),
        };
        while let Some(effect) = turn.poll_effect() {
            match effect {
                Effect::Log(events) => self.log(events).await?,
                Effect::CallModel(call) => self.call_model(&mut turn, call).await?,
                Effect::CallTool(run) => self.call_tool(&mut turn, run).await?,
                Effect::Pause { events, pause, message } => {
                    return self.pause(events, pause, &message, turn.usage()).await;
                }
                Effect::Finish { events, answer, outcome } => {
                    let lease = self.take_lease().await?;
                    let ending = if outcome.ends_session() {
                        let to = store::SessionState::Error;
                        self.record(Write::Close { lease: Some(lease), to }, events).await?;
                        Ending::Over(SessionState::Error)
                    } else {
                        self.record(Write::Release(lease), events).await?;
                        Ending::Released
                    };
                    let usage = turn.usage();
                    return Ok((ending, answer.map(|message| self.result(&message, usage))));
                }
            }
        }
        let fault = "the turn stopped without an end".to_owned();
        Err(Broken::Store(StoreError::Internal(fault)))
    }

    async fn call_model(&mut self, turn: &mut Turn, call: ModelCall) -> Result<(), Broken> {
        let Some(model) = self.chain.get(call.provider).cloned() else {
            turn.handle_model_failure(ModelFailure {
                status: None,
                error: "this provider is not configured".to_owned(),
                body: None,
            });
            return Ok(());
        };
        self.message_id = mint(IdKind::Event)?.into();
        let spec = |tool: &broca_proto::session::tool::ToolDeclaration| ToolSpec {
            name: tool.name.clone(),
            description: tool.description.clone(),
            input_schema: tool.input_schema.clone(),
        };
        let request = ModelRequest {
            messages: call.messages.as_ref().clone(),
            tools: call.tools.iter().map(spec).collect(),
            max_tokens: None,
        };
        let sink = Sink::new(&self.session.hub, &self.message_id);
        let answered = tokio::select! {
            biased;
            stop = stop(&mut self.stopped) => Err(stop),
            answer = model.call(&request, &sink) => Ok(answer),
        };
        let answer = match answered {
            Ok(answer) => answer,
            Err(stop) => {
                sink.void();
                return self.stop(turn, stop);
            }
        };
        match answer {
            Ok(reply) => turn.handle_model_reply(ModelReply {
                content: reply.content,
                body: reply.body,
                usage: reply.usage.map(|usage| TokenUsage {
                    input_tokens: usage.input_tokens,
                    output_tokens: usage.output_tokens,
                }),
            }),
            Err(failure) => {
                sink.void();
                turn.handle_model_failure(ModelFailure {
                    status: failure.status,
                    error: failure.error,
                    body: failure.body,
                });
            }
        }
        Ok(())
    }

    async fn call_tool(&mut self, turn: &mut Turn, run: ToolRun) -> Result<(), Broken> {
        let found = self
            .engine
            .tools
            .iter()
            .rev()
            .find(|tool| tool.server_name() == run.server_name && tool.spec().name == run.name);
        let outcome = match found.cloned() {
            None => ToolOutcome::Failed(format!("the tool '{}' is gone", run.name)),
            Some(tool) => tokio::select! {
                biased;
                stop = stop(&mut self.stopped) => return self.stop(turn, stop),
                answer = tool.call(&run.input) => match answer {
                    Ok(answer) => ToolOutcome::Answered(answer.result()),
                    Err(reason) => ToolOutcome::Failed(reason),
                },
            },
        };
        turn.handle_tool_outcome(outcome);
        Ok(())
    }

    fn stop(&self, turn: &mut Turn, why: Stop) -> Result<(), Broken> {
        match why {
            Stop::Cancel | Stop::No => {
                turn.handle_cancel();
                mark_cancelled(&self.cancelled);
                Ok(())
            }
            Stop::Closed => Err(Broken::Closed),
            Stop::Shutdown => Err(Broken::Shutdown),
        }
    }

    async fn pause(
        &mut self,
        events: Vec<LogEvent>,
        pause: Pause,
        message: &Message,
        usage: Option<TokenUsage>,
    ) -> Result<(Ending, Result<Json, RpcFailure>), Broken> {
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
            progress: "{}".to_owned(),
        };
        self.record(Write::Park { lease, pause }, events).await?;
        let result = view::pausing_result(self.call.features, self.result(message, usage), timeout);
        Ok((Ending::Parked { deadline }, Ok(result)))
    }

    /// Logs events, the first ones together with taking the gate.
    async fn log(&mut self, events: Vec<LogEvent>) -> Result<(), Broken> {
        let Lease::Has(lease) = self.lease else { return self.claim(events).await };
        self.record(Write::Append(Some(lease)), events).await?;
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
        let epoch = self.record(write, all).await?.epoch;
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

    async fn record(&mut self, write: Write, events: Vec<LogEvent>) -> Result<Recorded, Broken> {
        let context = Context {
            caller: self.reader,
            message_id: Some(&self.message_id).filter(|id| !id.is_empty()).map(|id| &**id),
        };
        let recorded = self.session.record(&self.engine, write, events, context).await;
        let recorded = match recorded {
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
        if recorded.already.is_some() {
            return Err(Broken::Closed);
        }
        let features = self.call.features;
        for shown in &recorded.events {
            if view::in_result(features, shown.event.type_name(), shown.audience) {
                self.shown.push(shown.event.json());
            }
        }
        Ok(recorded)
    }

    fn result(&self, message: &Message, usage: Option<TokenUsage>) -> Json {
        view::send_message_result(self.call.features, message, &self.shown, usage)
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

impl Engine {
    /// The models of a profile, in order; fallbacks that are not configured are left out. The error says why
    /// there is no primary.
    fn chain(&self, profile: &store::Profile) -> Result<Vec<Arc<dyn models::Model>>, String> {
        let primary = &profile.primary_provider;
        if !self.models.contains_key(primary) {
            return Err(format!("provider \"{primary}\" is not configured"));
        }
        let mut chain = Vec::new();
        for name in std::iter::once(primary).chain(&profile.fallback_providers) {
            match self.models.get(name) {
                Some(model) => chain.push(Arc::clone(model)),
                None => tracing::warn!(provider = %name, "a fallback provider is not configured"),
            }
        }
        Ok(chain)
    }
}

fn describe(model: &Arc<dyn models::Model>) -> Provider {
    let described = model.describe();
    Provider {
        provider: described.provider,
        base_url: described.base_url,
        model: described.model,
        max_tokens: Some(described.max_tokens),
    }
}

/// Waits until the turn is to stop.
async fn stop(stopped: &mut watch::Receiver<Stop>) -> Stop {
    let why = stopped.wait_for(|why| *why != Stop::No).await.ok().map(|why| *why);
    match why {
        Some(why) => why,
        // The session keeps the sender while the turn runs.
        None => std::future::pending().await,
    }
}

pub(super) fn read_pause(pause: &store::Pause) -> Result<Pause, StoreError> {
    let stash = read_json(pause.stashed.clone())?.decode();
    Ok(Pause {
        owner: KeyId::from(pause.owner.as_str()),
        expected: pause.expected.clone(),
        stash: stash.map_err(|_| damaged("a paused turn"))?,
    })
}

fn read_json(text: String) -> Result<Json, StoreError> {
    Json::parse(text).map_err(|_| damaged("a payload"))
}

fn damaged(what: &str) -> StoreError {
    StoreError::Internal(format!("{what} in the store cannot be read"))
}
