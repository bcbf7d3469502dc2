//! Programs that drive a session: they send, run tools, ask, cancel, die and come back.

use crate::ledger::{Outcome, Turn, outcome_of};
use crate::options::Fault;
use crate::random::{Random, hash};
use crate::script;
use crate::session::Place;
use crate::world::{World, again};
use broca::engine::{Lost, Status};
use broca::steps::{Approval, Step};
use broca::tokio::{Client, Session};
use broca::tools::{Tool, ToolContext};
use broca::{Error, SavedSession};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// How long a paused turn waits for its results, unless it is held.
pub(crate) const PAUSE: Duration = Duration::from_millis(PAUSE_MS);
const PAUSE_MS: u64 = 5_000;

/// How long any turn may take.
const TURN: Duration = Duration::from_secs(240);

/// How often the last message of a driver may be tried.
const LAST_TRIES: u64 = 40;

/// How long such a message is not tried again.
const BETWEEN_TRIES: Duration = Duration::from_millis(200);

/// One driver of a session, over the lives of its programs.
pub(crate) struct Driver<'a> {
    world: &'a World,
    place: &'a Place,
    number: usize,
    random: Random,
    left: u64,
    sent: u64,
    turns: Vec<Turn>,
    /// The ids of the events that each life was shown, in order.
    lives: Vec<Vec<String>>,
}

/// What a driver has seen.
pub(crate) struct Driven {
    pub(crate) turns: Vec<Turn>,
    pub(crate) lives: Vec<Vec<String>>,
}

/// A turn whose program died, and what that had saved.
struct Died {
    saved: SavedSession,
    mark: String,
}

/// What shall happen in a turn, counted from its beginning.
struct Plan {
    cancel: Option<Instant>,
    save: Option<Instant>,
    die: Option<Instant>,
    /// How long each step takes to read.
    slow: Duration,
}

impl<'a> Driver<'a> {
    pub(crate) fn new(world: &'a World, place: &'a Place, number: usize, turns: u64) -> Self {
        let stream = 1_000 + place.number * 10 + number as u64;
        let random = Random::new(world.options.seed, stream);
        Self {
            world,
            place,
            number,
            random,
            left: turns,
            sent: 0,
            turns: Vec::new(),
            lives: Vec::new(),
        }
    }

    /// Drives until all is said. Each life is a runtime of its own: what dies with it says no farewell.
    pub(crate) fn run(mut self) -> Result<Driven, String> {
        let mut died = None;
        loop {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|e| format!("no runtime: {e}"))?;
            self.lives.push(Vec::new());
            died = runtime.block_on(self.live(died))?;
            drop(runtime);
            if died.is_none() {
                return Ok(Driven { turns: self.turns, lives: self.lives });
            }
            self.world.counts.deaths.add(1);
            let away = if self.random.chance(8) { 2 * PAUSE_MS } else { 200 };
            std::thread::sleep(Duration::from_millis(self.random.below(away)));
        }
    }

    /// One program, to its end or its death.
    async fn live(&mut self, died: Option<Died>) -> Result<Option<Died>, String> {
        let client = self.world.client(self.world.server.key(self.number), |_| {})?;
        let session = self.begin(&client, died.as_ref()).await?;
        if let Some(Died { mark, .. }) = died {
            match session.resume() {
                None => self.ended(mark, Outcome::Unread, None),
                Some(turn) => {
                    if let Some(died) = self.take(&session, turn, mark, true).await? {
                        return Ok(Some(died));
                    }
                }
            }
        }
        while self.left > 0 && !self.world.is_over() {
            self.left -= 1;
            let kind = script::kind(self.random.below(100));
            let (mark, text) = self.message(kind);
            let turn = session.send(text);
            if let Some(died) = self.take(&session, turn, mark, false).await? {
                return Ok(Some(died));
            }
        }
        // Whatever happened, the session takes a new message and answers.
        for _ in 0..LAST_TRIES {
            let (mark, text) = self.message("[say]");
            let asked = tokio::time::timeout(TURN, session.ask(text.as_str())).await;
            match asked.map_err(|_| format!("the last message of {} hangs", self.name()))? {
                Ok(reply) => {
                    self.ended(mark, Outcome::Done(reply.text()), None);
                    return Ok(None);
                }
                Err(error) => {
                    let outcome = outcome_of(&error, false)?;
                    self.ended(mark, outcome, None);
                    sleep(BETWEEN_TRIES).await;
                }
            }
        }
        Err(format!("{} got no answer to its last message, tried {LAST_TRIES} times", self.name()))
    }

    async fn begin(&self, client: &Client, died: Option<&Died>) -> Result<Session, String> {
        let tools = || {
            let tool = |name: &'static str| {
                let ledger = Arc::clone(&self.place.ledger);
                let run = move |_: Arguments, context: ToolContext| {
                    let ledger = Arc::clone(&ledger);
                    async move { effect(&ledger, context).await }
                };
                Tool::function_with_context(name, "Has an effect.", run)
            };
            [tool("effect"), tool("guarded").approval()]
        };
        if let Some(Died { saved, .. }) = died {
            let attaching = || client.attach(saved.clone()).tools(tools()).into_future();
            return again("attach", attaching).await;
        }
        if self.number == 0 {
            let session = again("open", || client.open().tools(tools()).into_future()).await?;
            self.place.opened(session.id().clone());
            return Ok(session);
        }
        let id = self.place.id();
        again("join", || client.join(id.clone()).tools(tools()).into_future()).await
    }

    /// A message of this kind, and what marks it in the log.
    fn message(&mut self, kind: &str) -> (String, String) {
        self.sent += 1;
        let mark = format!("#{}-{}-{}#", self.place.number, self.number, self.sent);
        let text = format!("{kind} {mark}");
        (mark, text)
    }

    fn plan(&mut self) -> Plan {
        let now = Instant::now();
        let options = &self.world.options;
        let mut at = |span: u64| now + Duration::from_millis(self.random.below(span));
        let (cancel, save, die) = (at(600), at(400), at(500));
        Plan {
            cancel: (options.has(Fault::Cancel) && self.random.chance(8)).then_some(cancel),
            save: Some(save),
            die: (options.has(Fault::Kill) && self.random.chance(6)).then_some(die),
            slow: Duration::from_millis(if self.random.chance(6) { 4 } else { 0 }),
        }
    }

    /// Takes a turn to its end, or dies in it.
    async fn take(
        &mut self,
        session: &Session,
        mut turn: broca::tokio::Turn,
        mark: String,
        resumed: bool,
    ) -> Result<Option<Died>, String> {
        let counts = &self.world.counts;
        let mut plan = self.plan();
        let limit = Instant::now() + TURN;
        let mut shown = Vec::new();
        let mut saved = session.save().map_err(|e| format!("save: {e}"))?;
        let (mut reconnected, mut reply) = (false, None);
        let outcome = loop {
            let step = tokio::select! {
                step = turn.next() => step,
                () = moment(plan.cancel) => {
                    plan.cancel = None;
                    turn.request_cancel();
                    continue;
                }
                () = moment(plan.save) => {
                    plan.save = None;
                    saved = session.save().map_err(|e| format!("save: {e}"))?;
                    continue;
                }
                () = moment(plan.die) => {
                    if self.random.chance(50) {
                        saved = session.save().map_err(|e| format!("save: {e}"))?;
                    }
                    // What is dropped here has no runtime any more that would speak of it.
                    return Ok(Some(Died { saved, mark }));
                }
                () = sleep_until(limit) => {
                    return Err(format!("{} {mark} did not end within {TURN:?}", self.name()));
                }
            };
            match step {
                None => break Outcome::Done(reply.ok_or("a turn ended without a reply")?),
                Some(Err(error)) => {
                    self.world.counts.error(&error);
                    break outcome_of(&error, resumed)
                        .map_err(|e| format!("{} {mark}: {e}", self.name()))?;
                }
                Some(Ok(Step::Done(done))) => reply = Some(done.text()),
                Some(Ok(Step::Event(event))) => {
                    shown.push(event.id().to_owned());
                    if let Some(life) = self.lives.last_mut() {
                        life.push(event.id().to_owned());
                    }
                }
                Some(Ok(Step::Approval(approval))) => self.decide(approval),
                Some(Ok(Step::ToolSettled { outcome, .. })) => counts.settled(outcome),
                Some(Ok(Step::Status(Status::Reconnecting { .. }))) => {
                    reconnected = true;
                    counts.reconnects.add(1);
                }
                Some(Ok(Step::Gap(gap))) if !matches!(gap.lost, Lost::Deltas(_)) => {
                    return Err(format!("{} {mark} has a gap: {:?}", self.name(), gap.lost));
                }
                Some(Ok(_)) => {}
            }
            if !plan.slow.is_zero() {
                sleep(plan.slow).await;
            }
        };
        if reconnected && matches!(outcome, Outcome::Done(_)) {
            counts.recovered.add(1);
        }
        if resumed {
            counts.resumed.add(1);
        }
        self.ended(mark, outcome, (!resumed).then_some(shown));
        Ok(None)
    }

    /// Answers a question: mostly at once, sometimes so late that the pause must have been held.
    fn decide(&mut self, approval: Approval) {
        let denied = self.random.chance(25);
        let late = if self.random.chance(4) { 2 * PAUSE_MS } else { 60 };
        let wait = Duration::from_millis(self.random.below(late));
        let held = Arc::clone(&self.world.counts.held);
        tokio::spawn(async move {
            sleep(wait).await;
            // Withdrawn in the meantime, perhaps: then the answer does not matter.
            let answered = if denied { approval.deny("not this time") } else { approval.allow() };
            if wait > PAUSE && answered.is_ok() {
                held.add(1);
            }
        });
    }

    fn ended(&mut self, mark: String, outcome: Outcome, shown: Option<Vec<String>>) {
        self.world.counts.turn(&outcome);
        self.turns.push(Turn { mark, outcome, shown });
    }

    fn name(&self) -> String {
        format!("driver {} of session {}", self.number, self.place.number)
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Arguments {
    /// Which of the calls of one answer it is.
    #[serde(rename = "number")]
    _number: u64,
}

/// The tool: its effect is in the ledger, at a pace that its key decides.
async fn effect(ledger: &crate::ledger::Ledger, context: ToolContext) -> Result<String, Error> {
    let pace = hash(context.idempotency_key());
    if ledger.begin(&context) {
        let slow = pace.is_multiple_of(60);
        sleep(Duration::from_millis(if slow { 300 + pace % 500 } else { pace % 12 })).await;
        if context.cancel_signal().is_cancelled() {
            return Err(Error::new(broca::ErrorKind::Tool, "stopped before it did anything"));
        }
        ledger.effect(&context);
        sleep(Duration::from_millis(pace % 7)).await;
    }
    Ok(result_of(context.tool_use_id()))
}

/// What the tool answers for this call.
pub(crate) fn result_of(tool_use_id: &str) -> String {
    format!("ok-{:08x}", hash(tool_use_id) >> 32)
}

/// This moment; never without one.
async fn moment(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
