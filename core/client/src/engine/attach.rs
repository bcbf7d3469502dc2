//! Going on with a session that another program has saved (design §4, guarantee 11): register again, then read the log
//! to see what became of its last turn.

use super::address::Address;
use super::answer::Rest;
use super::command::Trace;
use super::effect::{LogLevel, OpId};
use super::memory::Pending;
use super::net::{ExchangeId, NetEvent};
use super::ops::{Asked, read_meta, read_page};
use super::session::{Core, RestCall, escape_into, session_path};
use super::step::{HistoryPage, Outcome};
use broca_proto::session::event::Event;
use broca_proto::session::ids::Cursor;
use broca_proto::session::method::Method;
use broca_proto::session::rest::{Limits, Opened, Participants};
use broca_proto::session::saved::{SavedSession, SavedTurn};
use broca_proto::session::standing::{LoggedTurn, Part, Standing};
use broca_proto::session::tool::Tool;
use broca_proto::{Error, ErrorKind, Json, Time};

/// Attaching to a saved session.
pub(crate) struct Attach {
    op: OpId,
    saved: Box<SavedSession>,
    tools: Vec<Tool>,
    stage: Stage,
    asked: Asked,
    found: Found,
}

enum Stage {
    Meta,
    Register,
    Tools,
    Who,
    /// The page of the log that begins at this place.
    Log(Option<String>),
}

/// What the log has told so far.
struct Found {
    log: LoggedTurn,
    events: Vec<Event>,
    bytes: usize,
    shed: bool,
    /// How many of the events the application has taken.
    taken: usize,
    /// The saved cursor lies behind.
    past_cursor: bool,
    /// The turn came to where it stands after the saved cursor.
    fresh: bool,
    /// The page on which the turn begins.
    page: Option<String>,
    last: Cursor,
}

impl Attach {
    /// Begins with what the service is.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when the session belongs to another service than this client's.
    pub(crate) fn begin(
        op: OpId,
        saved: Box<SavedSession>,
        tools: Vec<Tool>,
        core: &mut Core,
        trace: &Trace,
        now: Time,
    ) -> Result<Self, Error> {
        let here = Address::parse(&core.config.base_url)?;
        if Address::parse(&saved.service).ok().as_ref() != Some(&here) {
            let message = format!(
                "the session was saved at another address than {}; make the client with the saved one, or change \"service\" in \
                 the saved session if the service has moved",
                core.net.address()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let meta = core.rest(op, RestCall::new("GET", "/api/v1/meta"), trace, now);
        let found = Found {
            log: LoggedTurn::new(saved.client_key_id.clone(), saved.opened),
            events: Vec::new(),
            bytes: 0,
            shed: false,
            taken: 0,
            past_cursor: saved.cursor.event_id().is_none(),
            fresh: false,
            page: saved.page.clone(),
            last: Cursor::start(),
        };
        Ok(Self { op, saved, tools, stage: Stage::Meta, asked: Asked::Rest(meta), found })
    }

    pub(crate) fn exchange(&self) -> ExchangeId {
        self.asked.exchange()
    }

    /// An event of the network. The outcome once there is one.
    pub(crate) fn network(
        &mut self,
        exchange: ExchangeId,
        event: NetEvent,
        core: &mut Core,
        trace: &Trace,
        now: Time,
    ) -> Option<Result<Outcome, Error>> {
        if self.asked.exchange() != exchange {
            return None;
        }
        let answer = self.asked.take(event, core, now)?;
        match answer.and_then(|json| self.go_on(&json, core, trace, now)) {
            Ok(None) => None,
            Ok(Some(outcome)) => Some(Ok(outcome)),
            Err(error) => Some(Err(error)),
        }
    }

    /// A question is answered: the next one, or the outcome.
    fn go_on(
        &mut self,
        answer: &Json,
        core: &mut Core,
        trace: &Trace,
        now: Time,
    ) -> Result<Option<Outcome>, Error> {
        let stage = std::mem::replace(&mut self.stage, Stage::Meta);
        (self.stage, self.asked) = match stage {
            Stage::Meta => {
                let meta = read_meta(answer, &core.net.address())?;
                let opened = Opened {
                    session_id: self.saved.session_id.clone(),
                    session_key: self.saved.session_key.clone(),
                    profile: self.saved.profile.clone(),
                };
                core.begin_session(opened, meta, std::mem::take(&mut self.tools));
                let none = Json::empty_object();
                let rpc = core.rpc(self.op, &Method::RegisterDriver, &none, trace, now);
                (Stage::Register, Asked::Rpc(Box::new(rpc)))
            }
            Stage::Register => match self.update_tools(core, trace, now)? {
                Some(asked) => (Stage::Tools, asked),
                None => self.who(core, trace, now),
            },
            Stage::Tools => self.who(core, trace, now),
            Stage::Who => {
                let drivers = answer.decode::<Participants>().map(|who| who.drivers);
                if let Ok([only]) = drivers.as_deref() {
                    // Registered just now, and nobody else is.
                    let only = Some(only.as_str().into());
                    self.found.log = LoggedTurn::new(only, self.saved.opened);
                }
                self.page(None, core, trace, now)
            }
            Stage::Log(place) => {
                let HistoryPage { events, next } = read_page(answer)?;
                let limit = core.config.step_buffer_bytes;
                for event in events {
                    self.found.event(event, &self.saved.cursor, place.as_ref(), limit);
                }
                match next {
                    Some(next) if Some(&next) != place.as_ref() => {
                        self.page(Some(next), core, trace, now)
                    }
                    _ => return Ok(Some(self.found(place, core, now))),
                }
            }
        };
        Ok(None)
    }

    /// Declares the tools of this program. One that brings none leaves what was declared.
    fn update_tools(
        &self,
        core: &mut Core,
        trace: &Trace,
        now: Time,
    ) -> Result<Option<Asked>, Error> {
        let tools = core.session.as_ref().map(|s| s.tools.clone()).unwrap_or_default();
        let here = |name: &&String| tools.iter().any(|tool| tool.name() == *name);
        let missing: Vec<&str> =
            self.saved.tools.iter().filter(|name| !here(name)).map(String::as_str).collect();
        if !missing.is_empty() {
            let message = format!(
                "the session was saved with tools that this program lacks: {}",
                missing.join(", ")
            );
            core.log(LogLevel::Warn, message);
        }
        if tools.is_empty() {
            return Ok(None);
        }
        let rpc = core.declare_tools(self.op, &tools, trace, now)?;
        Ok(Some(Asked::Rpc(Box::new(rpc))))
    }

    /// Finds out which driver this is, unless it is known.
    fn who(&self, core: &mut Core, trace: &Trace, now: Time) -> (Stage, Asked) {
        if self.found.log.driver().is_some() {
            return self.page(self.saved.page.clone(), core, trace, now);
        }
        let path = format!("{}/participants", session_path(&self.saved.session_id));
        let call = RestCall::new("GET", path).with_session_key();
        (Stage::Who, Asked::Rest(core.rest(self.op, call, trace, now)))
    }

    fn page(
        &self,
        place: Option<String>,
        core: &mut Core,
        trace: &Trace,
        now: Time,
    ) -> (Stage, Asked) {
        let announced = core.session_info().and_then(|info| info.meta.limits);
        let limit = announced.and_then(|limits| limits.max_page);
        let limit = limit.or(Limits::standard().max_page).unwrap_or(200);
        let mut path = format!("{}/events?limit={limit}", session_path(&self.saved.session_id));
        if let Some(place) = &place {
            path.push_str("&cursor=");
            escape_into(&mut path, place);
        }
        let call = RestCall::new("GET", path).with_session_key();
        let rest: Rest = core.rest(self.op, call, trace, now);
        (Stage::Log(place), Asked::Rest(rest))
    }

    /// The log is read to its end.
    fn found(&mut self, last_page: Option<String>, core: &mut Core, now: Time) -> Outcome {
        let tools = core.session.as_ref().map(|s| s.tools.clone()).unwrap_or_default();
        let limits = core.call_limits();
        let saved = self.saved.turn.take();
        let opened = self.saved.opened;
        let (mut pending, page) = self.found.pending(saved, last_page);
        let mut kept = Vec::new();
        if let Some(left) = &pending
            && left.saved.cancelled
            && left.pause().is_some()
        {
            // That turn is not to go on. A message that was to follow it is not in the log.
            kept = left.give_up(tools, limits, now);
            pending = pending.filter(|left| left.saved.message.is_some()).map(Pending::unsent);
        }
        core.keep_results(kept);
        if let Some(session) = &mut core.session {
            session.known = Some(self.found.last.clone());
            let memory = &mut session.memory;
            memory.drives = true;
            memory.opened = opened;
            memory.driver = self.found.log.driver().cloned();
            memory.cursor = self.saved.cursor.clone();
            memory.spent = self.saved.spent;
            memory.page = page;
            memory.pending = pending.map(Box::new);
        }
        core.know(self.found.last.clone());
        core.opening_over();
        Outcome::Opened {
            session_id: self.saved.session_id.clone(),
            profile: self.saved.profile.clone(),
            pending: core.session.as_ref().is_some_and(|s| s.memory.pending.is_some()),
        }
    }
}

impl Found {
    fn event(&mut self, event: Event, cursor: &Cursor, page: Option<&String>, limit: usize) {
        let before = std::mem::discriminant(self.log.standing());
        let part = self.log.event(&event);
        if std::mem::discriminant(self.log.standing()) != before || part == Part::First {
            self.fresh = self.past_cursor;
        }
        let is_cursor = cursor.event_id().is_some_and(|id| id.as_str() == event.id());
        self.last = Cursor::after(event.event_id());
        if part == Part::First {
            self.forget();
            self.shed = false;
            self.page = page.cloned();
        }
        if part != Part::Foreign {
            self.bytes += event.bytes();
            self.events.push(event);
            if self.bytes > limit {
                self.forget();
                self.shed = true;
            }
        }
        if !self.past_cursor {
            self.taken = self.events.len();
        }
        self.past_cursor |= is_cursor;
    }

    fn forget(&mut self) {
        self.events.clear();
        (self.bytes, self.taken) = (0, 0);
    }

    /// The turn that is to be taken up, if there is one, and the page to read from the next time.
    fn pending(
        &mut self,
        saved: Option<SavedTurn>,
        last_page: Option<String>,
    ) -> (Option<Pending>, Option<String>) {
        if !self.past_cursor {
            // The service does not know the cursor: nothing says that the application has anything of this turn.
            (self.taken, self.fresh) = (0, true);
        }
        let message = saved.as_ref().is_some_and(|turn| turn.message.is_some());
        let (open, unsent) = match self.log.standing() {
            Standing::Running | Standing::Paused(_) => (true, false),
            Standing::None => (message, message),
            // It was over before: the message that was open then is not in the log.
            _ if !self.fresh && message => (true, true),
            _ => (saved.is_some(), false),
        };
        if !open {
            return (None, last_page);
        }
        let pending = Pending {
            log: self.log.clone(),
            events: std::mem::take(&mut self.events),
            news: self.taken,
            shed: self.shed,
            last: self.last.clone(),
            saved: saved.unwrap_or_default(),
        };
        (Some(if unsent { pending.unsent() } else { pending }), self.page.take())
    }
}
