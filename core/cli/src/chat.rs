//! `broca chat`: one message, or a conversation line by line, with programs as tools.

use crate::arguments::ChatArguments;
use crate::consent::Consent;
use crate::fault::Fault;
use crate::interrupt::{Interrupt, Interrupts};
use crate::message::{Lines, Source};
use crate::place::{Purpose, Reach};
use crate::program::{self, Bounds, Ended, Invocation, Program};
use crate::view::{Settled, View};
use broca::engine::{CallId, Reply, ToolOutcome};
use broca::proto::session::feature::Features;
use broca::steps::{Step, ToolCall};
use broca::tokio::{Client, Session, Turn};
use broca::{Approvals, Ask, Error, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Two interrupts within this time leave the prompt.
const TWICE: Duration = Duration::from_secs(2);

/// How long a service may be silent before the person is told that it is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs the command.
pub(crate) async fn run(arguments: ChatArguments) -> Result<(), Fault> {
    let reach = Reach::find(&arguments.reach, Purpose::Drive, |name| std::env::var(name).ok())?;
    let programs = program::brought(&arguments)?;
    let source = Source::of(&arguments)?;
    let bounds = Bounds {
        timeout: Duration::from_secs(arguments.tool_timeout),
        output_bytes: usize::try_from(arguments.tool_output).unwrap_or(usize::MAX),
    };
    let mut interrupts = Interrupts::listen()?;
    let client = Client::builder(reach.url, reach.key)
        .configure(|config| {
            config.client_version = Some(concat!("broca-cli/", env!("CARGO_PKG_VERSION")).into());
        })
        .build()?;
    let opening = match &arguments.session {
        Some(session) => client.join(session.as_str()),
        None => {
            let approvals = Approvals {
                ask: consent_of(&client, &arguments, &programs).await?,
                ..Approvals::default()
            };
            client.open().approvals(approvals)
        }
    };
    let opening = opening.tools(programs.iter().map(|program| program.declare(bounds)));
    let session = tokio::select! {
        session = opening => session?,
        _ = interrupts.next() => return Err(Fault::interrupted("interrupted before the session was open")),
    };
    let mut view = View::new(arguments.json);
    view.session(session.id().as_str(), arguments.session.is_some())?;
    let mut chat = Chat {
        session,
        view,
        interrupts,
        lines: Lines::default(),
        consent: Consent::default(),
        programs,
        bounds,
        json: arguments.json,
    };
    let outcome = match source {
        Source::Message(message) => chat.turn(message).await,
        Source::Lines { prompt } => chat.converse(prompt).await,
    };
    if arguments.close {
        chat.session.close().await?;
    }
    outcome
}

/// Which tools of the service are asked for. A service that cannot ask runs them unasked: that is enough for `*`, and too
/// little for a tool that is named.
async fn consent_of(
    client: &Client,
    arguments: &ChatArguments,
    programs: &[Arc<Program>],
) -> Result<Ask, Fault> {
    let ask = program::asked_of_service(arguments, programs);
    if ask == Ask::Everything
        && !Features::parse(client.meta().await?.features.iter().map(String::as_str)).approve
    {
        return Ok(Ask::Nobody);
    }
    Ok(ask)
}

/// A chat under way.
struct Chat {
    session: Session,
    view: View,
    interrupts: Interrupts,
    lines: Lines,
    consent: Consent,
    programs: Vec<Arc<Program>>,
    bounds: Bounds,
    json: bool,
}

impl Chat {
    /// Takes message after message until there are no more.
    async fn converse(&mut self, prompt: bool) -> Result<(), Fault> {
        let mut last_interrupt: Option<Instant> = None;
        loop {
            if prompt {
                self.view.prompt()?;
            }
            let line = tokio::select! {
                line = self.lines.next() => line?,
                interrupt = self.interrupts.next() => {
                    let twice = last_interrupt.is_some_and(|at| at.elapsed() < TWICE);
                    if interrupt == Interrupt::End || twice {
                        return Err(Fault::interrupted("interrupted at the prompt"));
                    }
                    last_interrupt = Some(Instant::now());
                    self.view.note("Ctrl-C once more leaves, and so does Ctrl-D")?;
                    continue;
                }
            };
            let Some(message) = line else { return Ok(()) };
            last_interrupt = None;
            if message.trim().is_empty() {
                continue;
            }
            match self.turn(message).await {
                Ok(()) => {}
                Err(fault) if fault.ends_a_conversation() => return Err(fault),
                Err(fault) => fault.report(self.json),
            }
        }
    }

    /// One turn, from the message to the reply.
    async fn turn(&mut self, message: String) -> Result<(), Fault> {
        self.view.begin();
        let mut turn = self.session.send(message);
        let mut calls = Calls::new();
        let outcome = self.follow(&mut turn, &mut calls).await;
        calls.stop_all();
        self.consent.forget();
        while let Some(ended) = calls.next().await {
            hand_in(&mut calls, ended)?;
        }
        for id in calls.unsettled() {
            self.settled(&mut calls, &id, None, ToolOutcome::InterruptedMayHaveRun)?;
        }
        match outcome {
            Ok(reply) => self.view.reply(&reply),
            Err(Stop::Fault(fault)) => {
                // The output is gone, perhaps. The turn must not go on without us.
                let _why_is_known = turn.cancel().await;
                Err(fault)
            }
            Err(Stop::Ended { error, by }) => {
                self.view.end_words()?;
                match by {
                    Some(Interrupt::End) => Err(Fault::interrupted("told to end").leaving()),
                    Some(Interrupt::Keyboard) if error.is(ErrorKind::Cancelled) => {
                        Err(Fault::interrupted("the turn was cancelled"))
                    }
                    _ => Err(error.into()),
                }
            }
        }
    }

    async fn follow(&mut self, turn: &mut Turn, calls: &mut Calls) -> Result<Reply, Stop> {
        let mut interrupted = None;
        let mut reply = None;
        let mut silent = true;
        let patience = tokio::time::sleep(PATIENCE);
        let mut patience = std::pin::pin!(patience);
        loop {
            tokio::select! {
                biased;
                interrupt = self.interrupts.next() => {
                    if interrupted != Some(Interrupt::End) {
                        interrupted = Some(interrupt);
                    }
                    turn.request_cancel();
                    calls.stop_all();
                }
                Some(ended) = calls.next() => hand_in(calls, ended)?,
                line = self.lines.next(), if self.consent.is_asked() => {
                    self.consent.decide(line?, &mut self.view)?;
                }
                step = turn.next() => {
                    silent &= matches!(step, Some(Ok(Step::Status(_))));
                    match step {
                        Some(Ok(Step::Done(done))) => reply = Some(*done),
                        Some(Ok(step)) => self.show(step, calls)?,
                        Some(Err(error)) => return Err(Stop::Ended { error, by: interrupted }),
                        None => break,
                    }
                }
                () = &mut patience, if silent => {
                    silent = false;
                    self.view.note("waiting: the model thinks, or another driver's turn is under way")?;
                }
            }
        }
        reply.ok_or_else(|| Stop::Ended {
            error: Error::new(ErrorKind::Internal, "the turn ended without a reply"),
            by: interrupted,
        })
    }

    fn show(&mut self, step: Step, calls: &mut Calls) -> Result<(), Fault> {
        match step {
            Step::Event(event) => self.view.event(&event),
            Step::Delta(delta) => self.view.delta(&delta),
            Step::Gap(gap) => self.view.gap(&gap),
            Step::Status(status) => self.view.status(&status),
            Step::Warning(warning) => self.view.warning(&warning),
            Step::ToolCall(call) => {
                self.view.tool_call(&call.tool_use_id, &call.name, &call.input)?;
                calls.begin(&call);
                match self.programs.iter().find(|program| program.name() == call.name) {
                    Some(program) => calls.start(Arc::clone(program), call, self.bounds),
                    None => {
                        let why = "No program was brought for this tool.";
                        call.fail(why)?;
                        calls.ended(&call.tool_use_id, Some(why.to_owned()));
                    }
                }
                Ok(())
            }
            Step::ToolSettled { tool_use_id, name, outcome } => {
                self.settled(calls, &tool_use_id, Some(&name), outcome)
            }
            Step::ToolCancel { call } => {
                calls.stop(call);
                Ok(())
            }
            Step::Approval(approval) => self.consent.ask(approval, &mut self.view),
            Step::ApprovalWithdrawn { call } => self.consent.withdraw(call, &mut self.view),
            _ => Ok(()),
        }
    }

    /// Shows what became of a call.
    fn settled(
        &mut self,
        calls: &mut Calls,
        id: &str,
        name: Option<&str>,
        outcome: ToolOutcome,
    ) -> Result<(), Fault> {
        let run = calls.settle(id);
        let took = run.as_ref().map_or(Duration::ZERO, Run::took);
        let name = name.or_else(|| run.as_ref().map(|run| run.name.as_str()));
        let why = run.as_ref().and_then(|run| run.why.as_deref());
        let why = why.filter(|_| outcome == ToolOutcome::Failed);
        self.view.tool_settled(Settled { id, name, outcome, took, why })
    }
}

/// Hands in what a program answered. How it went is shown when the call is settled.
fn hand_in(calls: &mut Calls, ended: EndedCall) -> Result<(), Fault> {
    let EndedCall { call, outcome } = ended;
    let mut why = None;
    match outcome {
        Ended::Done(text) => {
            call.complete(text.as_str())?;
        }
        Ended::Failed(reason) => {
            call.fail(reason.as_str())?;
            why = Some(reason);
        }
        // Too late for the model; it tells the turn that nothing runs any more.
        Ended::Stopped => {
            call.fail("The program was stopped.")?;
        }
    }
    calls.ended(&call.tool_use_id, why);
    Ok(())
}

/// Why following a turn stopped.
enum Stop {
    /// On our side.
    Fault(Fault),
    /// The turn ended without a reply, perhaps because of an interrupt.
    Ended { error: Error, by: Option<Interrupt> },
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Calls that are not settled yet, and programs that run.
struct Calls {
    running: JoinSet<EndedCall>,
    stops: Vec<(CallId, oneshot::Sender<()>)>,
    runs: Vec<Run>,
}

/// A call that is not settled.
struct Run {
    tool_use_id: String,
    name: String,
    begun: Instant,
    /// How long the program ran, once it has ended.
    took: Option<Duration>,
    /// Why it failed.
    why: Option<String>,
}

impl Run {
    fn took(&self) -> Duration {
        self.took.unwrap_or_else(|| self.begun.elapsed())
    }
}

/// A program that ran.
struct EndedCall {
    call: ToolCall,
    outcome: Ended,
}

impl Calls {
    fn new() -> Self {
        Self { running: JoinSet::new(), stops: Vec::new(), runs: Vec::new() }
    }

    /// A call was made.
    fn begin(&mut self, call: &ToolCall) {
        self.runs.push(Run {
            tool_use_id: call.tool_use_id.clone(),
            name: call.name.clone(),
            begun: Instant::now(),
            took: None,
            why: None,
        });
    }

    /// Runs its program.
    fn start(&mut self, program: Arc<Program>, call: ToolCall, bounds: Bounds) {
        let (stop, stopped) = oneshot::channel();
        self.stops.push((call.call, stop));
        self.running.spawn(async move {
            let invocation = Invocation {
                input: call.input.clone(),
                idempotency_key: call.idempotency_key.clone(),
                tool_use_id: call.tool_use_id.clone(),
            };
            let stop = async {
                if stopped.await.is_err() {
                    std::future::pending().await
                }
            };
            let outcome = program.run(invocation, bounds, stop).await;
            EndedCall { call, outcome }
        });
    }

    /// The time of this call is over.
    fn stop(&mut self, call: CallId) {
        if let Some(at) = self.stops.iter().position(|(id, _)| *id == call) {
            // It has ended by itself, perhaps.
            let _ended = self.stops.swap_remove(at).1.send(());
        }
    }

    /// The turn is over.
    fn stop_all(&mut self) {
        for (_, stop) in self.stops.drain(..) {
            let _ended = stop.send(());
        }
    }

    /// The program of a call has ended, perhaps after the call was settled.
    fn ended(&mut self, tool_use_id: &str, why: Option<String>) {
        if let Some(run) = self.runs.iter_mut().find(|run| run.tool_use_id == tool_use_id) {
            run.took = Some(run.begun.elapsed());
            run.why = why;
        }
    }

    /// The call is settled; what is known of its program, if one was started.
    fn settle(&mut self, tool_use_id: &str) -> Option<Run> {
        let at = self.runs.iter().position(|run| run.tool_use_id == tool_use_id)?;
        Some(self.runs.remove(at))
    }

    /// Calls that were never settled.
    fn unsettled(&self) -> Vec<String> {
        self.runs.iter().map(|run| run.tool_use_id.clone()).collect()
    }

    /// The next program that has ended; nothing when none runs.
    async fn next(&mut self) -> Option<EndedCall> {
        loop {
            // An error would be a panic of ours: the turn's own deadline answers that call.
            if let Ok(ended) = self.running.join_next().await? {
                self.stops.retain(|(id, _)| *id != ended.call.call);
                return Some(ended);
            }
        }
    }
}
