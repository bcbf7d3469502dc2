//! Operations: one command from its beginning to its one `Finished`.

use super::answer::{Progress, Rest, Rpc};
use super::attach::Attach;
use super::catch_up::CatchUp;
use super::command::{Answer, Command, Trace};
use super::effect::{CallId, OpId};
use super::net::{ExchangeId, NetEvent};
use super::queue::StepQueue;
use super::send::Turn;
use super::session::{Core, RestCall, escape_into, not_offered, session_path};
use super::step::{Delta, DeltaKind, Gap, HistoryPage, Lost, Outcome, Status, Step};
use super::subscribe::Watch;
use broca_proto::session::display::{self, DisplayEvent};
use broca_proto::session::event::Event;
use broca_proto::session::exchange::Item;
use broca_proto::session::feature::Features;
use broca_proto::session::ids::{Cursor, SessionId};
use broca_proto::session::method::Method;
use broca_proto::session::notice;
use broca_proto::session::rest::{Meta, OpenRequest, Opened, Page};
use broca_proto::session::tool::Tool;
use broca_proto::session::turn::Accepted;
use broca_proto::{Error, ErrorKind, Json, Time};

pub(crate) struct Op {
    pub(crate) id: OpId,
    pub(crate) trace: Trace,
    pub(crate) steps: StepQueue,
    pub(crate) work: Work,
    pub(crate) is_turn: bool,
    /// Too many steps wait: its stream is not read.
    unread: bool,
    /// Reads from the log what was missed while too many steps waited.
    catch_up: CatchUp,
}

/// What an operation is doing.
pub(crate) enum Work {
    Begin(Command),
    Opening(Box<Opening>),
    Attaching(Box<Attach>),
    Turn(Box<Turn>),
    Watch(Box<Watch>),
    Asking(Asking),
    Over,
}

/// Opening or joining: what the service is, then the session, then the registration.
pub(crate) struct Opening {
    join: Option<SessionId>,
    tools: Vec<Tool>,
    metadata: Option<Json>,
    register: bool,
    stage: Stage,
}

enum Stage {
    Meta(Rest),
    Post(Rest, Meta),
    Register(Rpc),
}

/// One question, one answer.
pub(crate) struct Asking {
    question: Question,
    call: Asked,
}

pub(super) enum Asked {
    Rest(Rest),
    Rpc(Box<Rpc>),
}

impl Asked {
    pub(super) fn exchange(&self) -> ExchangeId {
        match self {
            Self::Rest(rest) => rest.exchange,
            Self::Rpc(rpc) => rpc.exchange,
        }
    }

    /// Takes an event of its exchange; the answer, once it is there.
    pub(super) fn take(
        &mut self,
        event: NetEvent,
        core: &mut Core,
        now: Time,
    ) -> Option<Result<Json, Error>> {
        let service = core.net.address();
        match self {
            Self::Rest(rest) => rest.take(event, &service),
            Self::Rpc(rpc) => match rpc.take(event, &service, |_| ()) {
                Progress::Over(answer) => Some(answer),
                Progress::Answered => {
                    core.linger(rpc.exchange, now);
                    None
                }
                Progress::Refused => {
                    core.hear_out(rpc.exchange, now);
                    None
                }
                Progress::Going => None,
            },
        }
    }
}

enum Question {
    History,
    Participants,
    Info,
    /// Whether the service lists sessions; then this page of them.
    Lists(String),
    Sessions,
    Meta,
    /// `again`: the service had forgotten this driver, and was asked to know it again.
    UpdateTools {
        tools: Vec<Tool>,
        again: bool,
    },
    /// Before the tools are declared again.
    RegisterAgain(Vec<Tool>),
    Close,
}

impl Op {
    pub(crate) fn new(id: OpId, command: Command, trace: Trace) -> Self {
        let is_turn = matches!(command, Command::Send { .. } | Command::Resume);
        let work = Work::Begin(command);
        Self {
            id,
            trace,
            steps: StepQueue::default(),
            work,
            is_turn,
            unread: false,
            catch_up: CatchUp::default(),
        }
    }

    /// Whether tools are being declared.
    pub(crate) fn declares_tools(&self) -> bool {
        let Work::Asking(asking) = &self.work else { return false };
        matches!(asking.question, Question::UpdateTools { .. } | Question::RegisterAgain(_))
    }

    /// Begins what the command asks for.
    pub(crate) fn start(&mut self, core: &mut Core, now: Time) {
        let Work::Begin(command) = std::mem::replace(&mut self.work, Work::Over) else { return };
        let session = core.session.as_ref().map(|s| session_path(&s.info.id)).unwrap_or_default();
        let ask_rest = |core: &mut Core, question: Question, call: RestCall, op: &Self| {
            let rest = core.rest(op.id, call, &op.trace, now);
            Work::Asking(Asking { question, call: Asked::Rest(rest) })
        };
        self.work = match command {
            Command::Open { tools, metadata } => {
                self.opening(core, None, tools, metadata, true, now)
            }
            Command::Join { session_id, tools } => {
                self.opening(core, Some(session_id), tools, None, true, now)
            }
            Command::Observe { session_id } => {
                self.opening(core, Some(session_id), Vec::new(), None, false, now)
            }
            Command::Attach { saved, tools } => {
                match Attach::begin(self.id, saved, tools, core, &self.trace, now) {
                    Ok(attach) => Work::Attaching(Box::new(attach)),
                    Err(error) => {
                        core.opening_over();
                        self.finish_with(core, Err(error), now);
                        Work::Over
                    }
                }
            }
            Command::Resume => {
                Work::Turn(Box::new(Turn::resume(self.id, core, &mut self.steps, &self.trace, now)))
            }
            Command::Save => {
                // The engine answers it, which knows of every operation.
                Work::Over
            }
            Command::Send { message } => Work::Turn(Box::new(Turn::begin(
                self.id,
                message,
                core,
                &mut self.steps,
                &self.trace,
                now,
            ))),
            Command::Subscribe { from } => Work::Watch(Box::new(Watch::begin(
                self.id,
                from,
                core,
                &mut self.steps,
                &self.trace,
                now,
            ))),
            Command::History { cursor, limit } => {
                let path = page_path(session + "/events", cursor.as_deref(), limit);
                let call = RestCall::new("GET", path).with_session_key();
                ask_rest(core, Question::History, call, self)
            }
            Command::Info => {
                let call = RestCall::new("GET", session).with_session_key();
                ask_rest(core, Question::Info, call, self)
            }
            Command::Update { metadata, version } => {
                let call = RestCall::new("PATCH", session).with_session_key();
                let call = call.with_body(patch(&metadata, version));
                ask_rest(core, Question::Info, call, self)
            }
            Command::Sessions { cursor, limit } => {
                let path = page_path("/api/v1/sessions".to_owned(), cursor.as_deref(), limit);
                ask_rest(core, Question::Lists(path), RestCall::new("GET", META), self)
            }
            Command::Participants => {
                let call = RestCall::new("GET", format!("{session}/participants"));
                ask_rest(core, Question::Participants, call.with_session_key(), self)
            }
            Command::Meta => ask_rest(core, Question::Meta, RestCall::new("GET", META), self),
            Command::Close => {
                let call = RestCall::new("DELETE", session);
                ask_rest(core, Question::Close, call.with_session_key(), self)
            }
            Command::UpdateTools { tools } => {
                match core.declare_tools(self.id, &tools, &self.trace, now) {
                    Ok(rpc) => Work::Asking(Asking {
                        question: Question::UpdateTools { tools, again: false },
                        call: Asked::Rpc(Box::new(rpc)),
                    }),
                    Err(error) => {
                        self.finish_with(core, Err(error), now);
                        Work::Over
                    }
                }
            }
        };
        self.after(core, now);
    }

    /// An event of one of this operation's exchanges.
    #[inline]
    pub(crate) fn network(
        &mut self,
        core: &mut Core,
        exchange: ExchangeId,
        event: NetEvent,
        now: Time,
    ) {
        if self.catch_up.has(exchange) {
            let Self { catch_up, steps, trace, .. } = self;
            catch_up.network(exchange, event, core, steps, trace, now);
            return;
        }
        match &mut self.work {
            Work::Turn(turn) => {
                turn.network(exchange, event, core, &mut self.steps, &self.trace, now);
            }
            Work::Watch(watch) => {
                watch.network(exchange, event, core, &mut self.steps, &self.trace, now);
            }
            Work::Opening(_) => self.opening_network(core, exchange, event, now),
            Work::Attaching(attach) => {
                if let Some(outcome) = attach.network(exchange, event, core, &self.trace, now) {
                    self.finish_with(core, outcome, now);
                }
            }
            Work::Asking(_) => self.asking_network(core, exchange, event, now),
            Work::Begin(_) | Work::Over => core.net.abort(exchange, now),
        }
        self.after(core, now);
    }

    /// The application has taken steps: reading goes on when few enough wait.
    pub(crate) fn relieve(&mut self, core: &mut Core) {
        let room = core.config.step_buffer_bytes / 2;
        if self.unread && self.waiting() <= room {
            self.unread = false;
            if let Work::Watch(watch) = &mut self.work {
                watch.come_back(core, &mut self.steps);
            }
            if let Some(exchange) = self.stream() {
                core.net.pause(exchange, false);
            }
        }
        if self.steps.bytes() <= room {
            self.catch_up.wake(core, &self.steps);
        }
    }

    /// Bytes of the steps that only the application can make fewer. For the events of a turn the log is there.
    fn waiting(&self) -> usize {
        match &self.work {
            Work::Turn(turn) if turn.reads_on() => self.steps.later_bytes(),
            _ => self.steps.bytes(),
        }
    }

    /// Whether the process must not end for lack of anything to do.
    pub(crate) fn is_busy(&self) -> bool {
        !self.steps.is_finished() || self.steps.missed().is_some()
    }

    /// The exchange from which steps come without bound.
    fn stream(&self) -> Option<ExchangeId> {
        match &self.work {
            Work::Turn(turn) => turn.stream(),
            Work::Watch(watch) => watch.stream(),
            _ => None,
        }
    }

    pub(crate) fn timeout(&mut self, core: &mut Core, now: Time) {
        match &mut self.work {
            Work::Turn(turn) => turn.timeout(core, &mut self.steps, &self.trace, now),
            Work::Watch(watch) => watch.timeout(core, &mut self.steps, &self.trace, now),
            _ => {}
        }
        self.catch_up.timeout(self.id, core, &mut self.steps, &self.trace, now);
        self.after(core, now);
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let work = match &self.work {
            Work::Turn(turn) => turn.poll_timeout(),
            Work::Watch(watch) => watch.poll_timeout(),
            _ => None,
        };
        work.into_iter().chain(self.catch_up.poll_timeout()).min()
    }

    /// Ends the operation early. What the application has missed is not waited for.
    pub(crate) fn cancel(&mut self, core: &mut Core, now: Time) {
        self.catch_up.give_up(core, &mut self.steps, now);
        match &mut self.work {
            Work::Turn(turn) => turn.cancel(core, &mut self.steps, &self.trace, now),
            Work::Over => {}
            _ => {
                let error = Error::new(ErrorKind::Cancelled, "cancelled by the application");
                self.finish_with(core, Err(error), now);
            }
        }
        self.after(core, now);
    }

    pub(crate) fn answer(
        &mut self,
        core: &mut Core,
        call: CallId,
        answer: Answer,
        now: Time,
    ) -> Result<Accepted, Error> {
        let accepted = match &mut self.work {
            Work::Turn(turn) => turn.answer(call, answer, core, &mut self.steps, &self.trace, now),
            _ => Ok(Accepted::TooLate),
        };
        self.after(core, now);
        accepted
    }

    /// Ends the operation now, whatever it was doing.
    pub(crate) fn finish_with(
        &mut self,
        core: &mut Core,
        outcome: Result<Outcome, Error>,
        now: Time,
    ) {
        match std::mem::replace(&mut self.work, Work::Over) {
            Work::Opening(opening) => {
                core.session = None;
                core.opening_over();
                let exchange = match &opening.stage {
                    Stage::Meta(rest) | Stage::Post(rest, _) => rest.exchange,
                    Stage::Register(rpc) => rpc.exchange,
                };
                core.net.abort(exchange, now);
            }
            Work::Asking(asking) => {
                if outcome.is_err() && matches!(asking.question, Question::Close) {
                    core.closing_failed();
                }
                core.net.abort(asking.call.exchange(), now);
            }
            Work::Attaching(attach) => {
                if outcome.is_err() {
                    core.session = None;
                    core.opening_over();
                }
                core.net.abort(attach.exchange(), now);
            }
            Work::Turn(mut turn) => {
                self.catch_up.give_up(core, &mut self.steps, now);
                turn.stop_calls(&mut self.steps, now);
                turn.settle_accounts(core);
                turn.drop_now(core, now);
            }
            Work::Watch(mut watch) => watch.drop_now(core, now),
            Work::Begin(_) | Work::Over => {}
        }
        core.forget_questions(self.id);
        self.steps.push(Step::Finished(outcome));
    }

    /// What follows from whatever was just done: the end of the operation, or too many steps.
    #[inline]
    fn after(&mut self, core: &mut Core, now: Time) {
        if self.steps.is_finished() {
            if !matches!(self.work, Work::Over) {
                self.work = Work::Over;
                core.forget_questions(self.id);
            }
            return;
        }
        self.unread |= self.waiting() > core.config.step_buffer_bytes;
        if self.unread {
            if let Work::Watch(watch) = &mut self.work
                && watch.leave(core, now)
            {
                return;
            }
            // Said again for every stream: one that has just begun must not be read either.
            if let Some(exchange) = self.stream() {
                core.net.pause(exchange, true);
            }
        }
    }

    // ---- opening ----------------------------------------------------------------------------

    fn opening(
        &self,
        core: &mut Core,
        join: Option<SessionId>,
        tools: Vec<Tool>,
        metadata: Option<Json>,
        register: bool,
        now: Time,
    ) -> Work {
        let meta = core.rest(self.id, RestCall::new("GET", META), &self.trace, now);
        let stage = Stage::Meta(meta);
        Work::Opening(Box::new(Opening { join, tools, metadata, register, stage }))
    }

    fn opening_network(
        &mut self,
        core: &mut Core,
        exchange: ExchangeId,
        event: NetEvent,
        now: Time,
    ) {
        let Work::Opening(opening) = &mut self.work else { return };
        let service = core.net.address();
        let done = match &mut opening.stage {
            Stage::Meta(rest) if rest.exchange == exchange => match rest.take(event, &service) {
                None => return,
                Some(answer) => {
                    answer.and_then(|json| read_meta(&json, &service)).and_then(|meta| {
                        if opening.metadata.is_some() && !core.offered(&meta).metadata {
                            return Err(not_offered("metadata", ""));
                        }
                        let approvals = match &opening.join {
                            None => asked_approvals(core, &meta)?,
                            Some(_) => None,
                        };
                        let asks = Features {
                            approve: approvals.is_some(),
                            metadata: opening.metadata.is_some(),
                            ..Features::NONE
                        };
                        let declarations =
                            opening.tools.iter().map(|t| t.declaration.clone()).collect();
                        let body = OpenRequest {
                            client_version: core.config.client_version.clone(),
                            tools: opening.register.then_some(declarations),
                            metadata: opening.metadata.take(),
                            approvals,
                            ..OpenRequest::default()
                        };
                        let body = Json::encode(&body)
                            .map_err(|e| Error::new(ErrorKind::InvalidArgument, e.to_string()))?;
                        let path = match &opening.join {
                            Some(id) => format!("{}/join", session_path(id)),
                            None => "/api/v1/sessions".to_owned(),
                        };
                        let call = RestCall::new("POST", path).with_client_key().with_body(body);
                        let call = call.asking_for(asks);
                        let rest = core.rest(self.id, call, &self.trace, now);
                        opening.stage = Stage::Post(rest, meta);
                        Ok(None)
                    })
                }
            },
            Stage::Post(rest, meta) if rest.exchange == exchange => {
                match rest.take(event, &service) {
                    None => return,
                    Some(answer) => {
                        let meta = std::mem::take(meta);
                        let opened = answer.and_then(|json| {
                            Opened::read(&json).map_err(|e| {
                                let message = format!("{service} answered without a session: {e}");
                                Error::new(ErrorKind::NotBroca, message)
                            })
                        });
                        opened.map(|opened| {
                            core.begin_session(opened, meta, std::mem::take(&mut opening.tools));
                            core.remember(opening.join.is_none(), opening.register);
                            if !opening.register {
                                return Some(());
                            }
                            let params = Json::empty_object();
                            let rpc = core.rpc(
                                self.id,
                                &Method::RegisterDriver,
                                &params,
                                &self.trace,
                                now,
                            );
                            opening.stage = Stage::Register(rpc);
                            None
                        })
                    }
                }
            }
            Stage::Register(rpc) if rpc.exchange == exchange => {
                match rpc.take(event, &service, |_| ()) {
                    Progress::Going => return,
                    Progress::Answered => {
                        core.linger(exchange, now);
                        return;
                    }
                    Progress::Refused => {
                        core.hear_out(exchange, now);
                        return;
                    }
                    Progress::Over(answer) => answer.map(|_| Some(())),
                }
            }
            _ => return,
        };
        match done {
            Ok(None) => {}
            Ok(Some(())) => {
                let info = core.session_info().map(|info| Outcome::Opened {
                    session_id: info.id.clone(),
                    profile: info.profile.clone(),
                    pending: false,
                });
                let lost = || Error::new(ErrorKind::Internal, "the session is gone");
                core.opening_over();
                self.steps.push(Step::Finished(info.ok_or_else(lost)));
            }
            Err(error) => self.finish_with(core, Err(error), now),
        }
    }

    // ---- questions --------------------------------------------------------------------------

    fn asking_network(
        &mut self,
        core: &mut Core,
        exchange: ExchangeId,
        event: NetEvent,
        now: Time,
    ) {
        let Work::Asking(asking) = &mut self.work else { return };
        if asking.call.exchange() != exchange {
            return;
        }
        let Some(answer) = asking.call.take(event, core, now) else { return };
        if let (Question::Lists(path), Ok(json)) = (&mut asking.question, &answer) {
            let meta = read_meta(json, &core.net.address());
            let lists = meta.and_then(|meta| {
                if core.offered(&meta).metadata { Ok(()) } else { Err(not_offered("metadata", "")) }
            });
            if let Err(error) = lists {
                return self.finish_with(core, Err(error), now);
            }
            let call = RestCall::new("GET", std::mem::take(path)).with_client_key();
            let rest = core.rest(self.id, call.asking_for(METADATA), &self.trace, now);
            *asking = Asking { question: Question::Sessions, call: Asked::Rest(rest) };
            return;
        }
        let forgotten = |error: &Error| error.kind() == ErrorKind::DriverNotRegistered;
        let next = match (&mut asking.question, &answer) {
            (Question::UpdateTools { tools, again: false }, Err(error))
                if forgotten(error) && core.memory().is_some_and(|memory| memory.drives) =>
            {
                let tools = std::mem::take(tools);
                let none = Json::empty_object();
                let rpc = core.rpc(self.id, &Method::RegisterDriver, &none, &self.trace, now);
                Some(Ok((Question::RegisterAgain(tools), rpc)))
            }
            (Question::RegisterAgain(tools), Ok(_)) => {
                let tools = std::mem::take(tools);
                let rpc = core.declare_tools(self.id, &tools, &self.trace, now);
                Some(rpc.map(|rpc| (Question::UpdateTools { tools, again: true }, rpc)))
            }
            _ => None,
        };
        match next {
            None => {}
            Some(Ok((question, rpc))) => {
                core.net.abort(exchange, now);
                *asking = Asking { question, call: Asked::Rpc(Box::new(rpc)) };
                return;
            }
            Some(Err(error)) => return self.finish_with(core, Err(error), now),
        }
        let outcome = match (&mut asking.question, answer) {
            (Question::Close, Err(error)) if error.is(ErrorKind::SessionClosed) => {
                Ok(Outcome::Closed)
            }
            (Question::Close, Ok(_)) => Ok(Outcome::Closed),
            (_, Err(error)) => Err(error),
            (Question::History, Ok(json)) => read_page(&json).map(Outcome::Page),
            (Question::Participants, Ok(json)) => {
                json.decode().map(Outcome::Participants).map_err(|e| malformed(&e))
            }
            (Question::Info, Ok(json)) => object(json).map(Outcome::Info),
            (Question::Sessions | Question::Lists(_), Ok(json)) => {
                object(json).map(Outcome::Sessions)
            }
            (Question::Meta, Ok(json)) => read_meta(&json, &core.net.address()).map(Outcome::Meta),
            (Question::RegisterAgain(_), Ok(_)) => Ok(Outcome::Updated),
            (Question::UpdateTools { tools, .. }, Ok(_)) => {
                if let Some(session) = &mut core.session {
                    session.tools = std::mem::take(tools);
                }
                Ok(Outcome::Updated)
            }
        };
        self.finish_with(core, outcome, now);
    }
}

/// What calls about how sessions stand ask for.
const METADATA: Features = Features { metadata: true, ..Features::NONE };

const META: &str = "/api/v1/meta";

/// Where a page of a list is.
fn page_path(mut path: String, cursor: Option<&str>, limit: Option<u32>) -> String {
    path.push('?');
    if let Some(cursor) = cursor {
        path.push_str("cursor=");
        escape_into(&mut path, cursor);
        path.push('&');
    }
    if let Some(limit) = limit {
        path.push_str("limit=");
        path.push_str(&limit.to_string());
    }
    path.truncate(path.trim_end_matches(['?', '&']).len());
    path
}

/// The body that changes what is kept with a session.
fn patch(metadata: &Json, version: Option<u64>) -> Json {
    let version = version.map(|version| Json::integer(i64::try_from(version).unwrap_or(i64::MAX)));
    let version = version.as_ref().map(|version| ("version", version));
    Json::object([("metadata", metadata)].into_iter().chain(version))
}

/// An answer that has to be an object.
fn object(json: Json) -> Result<Json, Error> {
    if json.is_object() {
        return Ok(json);
    }
    let reason = "it is no JSON object".to_owned();
    Err(malformed(&broca_proto::json::JsonError { at: 0, reason }))
}

/// Whom a session that is opened asks for, where this client says so.
fn asked_approvals(core: &Core, meta: &Meta) -> Result<Option<Json>, Error> {
    let approvals = &core.config.approvals;
    if approvals.is_empty() {
        return Ok(None);
    }
    if !core.offered(meta).approve {
        return Err(not_offered("approve", "; its tools would run unasked"));
    }
    Ok(Some(approvals.to_json()))
}

fn malformed(e: &broca_proto::json::JsonError) -> Error {
    Error::new(ErrorKind::Malformed, format!("the service's answer cannot be read: {e}"))
}

pub(super) fn read_meta(json: &Json, service: &str) -> Result<Meta, Error> {
    let meta: Result<Meta, _> = json.decode();
    meta.ok().filter(|meta| meta.api_versions.iter().any(|v| v == "v1")).ok_or_else(|| {
        let message = format!(
            "{service} answered, but not as a session service of API v1; check the address"
        );
        Error::new(ErrorKind::NotBroca, message)
    })
}

pub(super) fn read_page(json: &Json) -> Result<HistoryPage, Error> {
    let page: Page = json.decode().map_err(|e| malformed(&e))?;
    let events: Result<Vec<Event>, _> =
        page.items.into_iter().map(|item| Event::parse(&item.into_bytes())).collect();
    Ok(HistoryPage { events: events.map_err(|e| malformed(&e))?, next: page.next_cursor })
}

/// Hands an item of a stream that is no event to the application.
pub(crate) fn show(
    item: Item,
    steps: &mut StepQueue,
    delta_limit: usize,
    after: impl Fn() -> Cursor,
) {
    match item {
        Item::Notification { method, params, raw } if method == display::METHOD => {
            let (kind, link, text) = match DisplayEvent::read(&params) {
                DisplayEvent::TextDelta { message_id, delta } => {
                    (DeltaKind::Text, message_id, delta)
                }
                DisplayEvent::ReasoningDelta { message_id, delta } => {
                    (DeltaKind::Reasoning, message_id, delta)
                }
                DisplayEvent::ToolInputDelta { tool_call_id, delta } => {
                    (DeltaKind::ToolInput, tool_call_id, delta)
                }
                DisplayEvent::Gap { dropped } => {
                    steps.push_shed(dropped, after);
                    return;
                }
                DisplayEvent::Reset => (DeltaKind::Reset, String::new(), String::new()),
                _ => {
                    steps.push(Step::Notification { method, raw });
                    return;
                }
            };
            steps.push_delta(Delta { kind, link, text }, delta_limit, after);
        }
        Item::Notification { method, .. } if method == notice::HEARTBEAT => {}
        Item::Notification { method, params, raw } if method == notice::QUEUED => {
            match notice::Queued::read(&params) {
                place @ Some(_) => steps.push(Step::Status(Status::Queued { place })),
                None => steps.push(Step::Notification { method, raw }),
            }
        }
        Item::Notification { method, raw, .. } => steps.push(Step::Notification { method, raw }),
        Item::Oversized { bytes, limit } => {
            steps.push(Step::Gap(Gap { lost: Lost::Line { bytes, limit }, after: after() }));
        }
        Item::Warning(warning) => steps.push_warning(warning),
        Item::Event(event) => steps.push(Step::Event(event)),
        _ => {}
    }
}
