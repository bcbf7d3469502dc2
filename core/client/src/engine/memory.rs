//! What is remembered of a session beside what every operation needs: for saving it, and for going on with one that
//! was saved.

use super::queue::StepQueue;
use super::session::Core;
use broca_proto::session::budget::Spent;
use broca_proto::session::content::{Block, Message};
use broca_proto::session::event::Event;
use broca_proto::session::ids::{Cursor, KeyId};
use broca_proto::session::saved::{SavedResult, SavedSession, SavedTurn};
use broca_proto::session::standing::{LoggedPause, LoggedTurn, Standing};
use broca_proto::session::tool::Tool;
use broca_proto::session::turn::{CallLimits, Calls, CallsOutput, ToolOutcome};
use broca_proto::{Error, ErrorKind, Time};

/// What is remembered of a session.
#[derive(Default)]
pub(crate) struct Memory {
    /// This client is a driver; an observer has nothing to save but its cursor.
    pub(crate) drives: bool,
    /// This client opened the session.
    pub(crate) opened: bool,
    /// The id of this client's key, once an event has shown it.
    pub(crate) driver: Option<KeyId>,
    /// The last event that the application has taken from a turn.
    pub(crate) cursor: Cursor,
    /// What the turns that are over have spent.
    pub(crate) spent: Spent,
    /// A page of the log at or before the beginning of the last turn.
    pub(crate) page: Option<String>,
    /// A turn that another program has left, until it is taken up.
    pub(crate) pending: Option<Box<Pending>>,
}

/// A turn that another program has left.
pub(crate) struct Pending {
    pub(crate) log: LoggedTurn,
    /// The events of the turn, and from which on the application has not taken them.
    pub(crate) events: Vec<Event>,
    pub(crate) news: usize,
    /// Events of the turn that were too many to be kept.
    pub(crate) shed: bool,
    /// The last event of the log, to be followed from there.
    pub(crate) last: Cursor,
    pub(crate) saved: SavedTurn,
}

impl Core {
    /// The session, with the turn that nobody drives at present, if there is one.
    pub(crate) fn save(&self) -> Result<SavedSession, Error> {
        let usage = |message: &str| Err(Error::new(ErrorKind::Usage, message));
        let Some(session) = self.session.as_ref().filter(|_| !self.is_opening()) else {
            return usage("no session is open that could be saved");
        };
        let memory = &session.memory;
        if !memory.drives {
            return usage("an observer has nothing to save but the cursor of its subscription");
        }
        let kept = &session.kept_results;
        let cancelled = (!kept.is_empty()).then(|| SavedTurn {
            results: saved_results(kept, |_| None),
            cancelled: true,
            ..SavedTurn::default()
        });
        let pending = memory.pending.as_ref().map(|pending| pending.saved.clone());
        Ok(SavedSession {
            service: self.config.base_url.clone(),
            session_id: session.info.id.clone(),
            session_key: session.key.clone(),
            cursor: memory.cursor.clone(),
            page: memory.page.clone(),
            client_key_id: memory.driver.clone(),
            opened: memory.opened,
            client_version: self.config.client_version.clone(),
            tools: session.tools.iter().map(|tool| tool.name().to_owned()).collect(),
            profile: session.info.profile.clone(),
            spent: memory.spent,
            turn: pending.or(cancelled),
        })
    }

    /// Notes whose turns these are.
    pub(crate) fn learn_driver(&mut self, driver: Option<&KeyId>) {
        if let Some(memory) = self.memory().filter(|memory| memory.driver.is_none()) {
            memory.driver = driver.cloned();
        }
    }

    /// A message is sent instead of taking up the turn that was left: results for its calls lead the message.
    pub(crate) fn give_up_pending(&mut self, now: Time) {
        let Some(pending) = self.memory().and_then(|memory| memory.pending.take()) else { return };
        let tools = self.session.as_ref().map(|s| s.tools.clone()).unwrap_or_default();
        let results = pending.give_up(tools, self.call_limits(), now);
        self.keep_results(results);
    }
}

/// Results as they are saved. `outcome` knows what became of a call; a result that nobody knows more of is what it says.
pub(crate) fn saved_results(
    blocks: &[Block],
    outcome: impl Fn(&str) -> Option<ToolOutcome>,
) -> Vec<SavedResult> {
    let save = |block: &Block| {
        let result = block.tool_result()?;
        let said =
            if result.is_error == Some(true) { ToolOutcome::Failed } else { ToolOutcome::Done };
        let outcome = outcome(&result.tool_use_id).unwrap_or(said);
        Some(SavedResult { outcome, result: block.clone() })
    };
    blocks.iter().filter_map(save).collect()
}

impl Memory {
    /// Notes what the application has taken of a turn.
    pub(crate) fn taken(&mut self, steps: &StepQueue) {
        if let Some(id) = steps.last_event_id() {
            self.cursor = id.into();
        }
    }
}

impl Pending {
    /// The message that was open when the session was saved never came to the log.
    pub(crate) fn unsent(mut self) -> Self {
        self.log = LoggedTurn::new(self.log.driver().cloned(), false);
        self.events.clear();
        self.news = 0;
        self
    }

    /// The pause that is to be answered, if there is one.
    pub(crate) fn pause(&self) -> Option<&LoggedPause> {
        match self.log.standing() {
            Standing::Paused(pause) => Some(pause),
            _ => None,
        }
    }

    /// The saved results that belong to this pause.
    pub(crate) fn results(&self, pause: &LoggedPause) -> Vec<(ToolOutcome, Block)> {
        let here = self.saved.pause.as_ref().is_none_or(|id| id.as_str() == pause.event_id);
        let results = self.saved.results.iter().filter(|_| here);
        results.map(|saved| (saved.outcome, saved.result.clone())).collect()
    }

    /// The turn is not to go on: the results of its pause, made up where there are none, for the next message to lead with.
    pub(crate) fn give_up(&self, tools: Vec<Tool>, limits: CallLimits, now: Time) -> Vec<Block> {
        let Some(pause) = self.pause() else { return Vec::new() };
        abandoned(Calls::new(tools, limits), &pause.message, self.results(pause), now)
    }
}

/// The results of a pause that is not to go on: those that are there, and for the other calls that they may have run.
pub(crate) fn abandoned(
    mut calls: Calls,
    message: &Message,
    results: Vec<(ToolOutcome, Block)>,
    now: Time,
) -> Vec<Block> {
    if !matches!(calls.take_up(message, results, None, now), Ok(true)) {
        return Vec::new();
    }
    calls.abandon(now);
    let results = std::iter::from_fn(|| calls.poll()).find_map(|output| match output {
        CallsOutput::Results { blocks, .. } => Some(blocks),
        _ => None,
    });
    results.unwrap_or_default()
}
