//! Questions about tools that the service runs (feature `approve`): the application is asked once, and what it says goes to
//! the service on a connection of its own, never behind the stream of the turn.
//!
//! An answer that got lost is given again, which changes nothing where it had arrived, until the service gives the question up.
//! A question outlives the stream that brought it; one that the log settles is taken back.

use super::Turn;
use super::resend::may_pass;
use crate::engine::answer::{Progress, Rpc};
use crate::engine::command::{Answer, Trace};
use crate::engine::effect::{CallId, LogLevel};
use crate::engine::net::{ExchangeId, NetEvent};
use crate::engine::queue::StepQueue;
use crate::engine::session::Core;
use crate::engine::step::{Step, ToolCall};
use broca_proto::session::approval::{Approve, Change, Consent, Question};
use broca_proto::session::method::Method;
use broca_proto::session::turn::{Accepted, NARROWING_WIDENS};
use broca_proto::{Error, ErrorKind, Time};

/// A question that the log has not settled.
pub(super) struct Asked {
    call: CallId,
    question: Question,
    /// When the service gives it up, as far as is known.
    until: Time,
    said: Option<Said>,
}

/// What the application said, on its way to the service.
struct Said {
    answer: Approve,
    doing: Doing,
    failures: u32,
}

enum Doing {
    Telling(Box<Rpc>),
    /// Until the next try.
    Waiting(Time),
    /// The service knows, or cannot be told.
    Over,
}

impl Asked {
    fn exchange(&self) -> Option<ExchangeId> {
        match &self.said.as_ref()?.doing {
            Doing::Telling(rpc) => Some(rpc.exchange),
            _ => None,
        }
    }

    fn retry_at(&self) -> Option<Time> {
        match &self.said.as_ref()?.doing {
            Doing::Waiting(at) => Some(*at),
            _ => None,
        }
    }
}

impl Turn {
    /// What the stream or the log has said about questions.
    pub(super) fn consent_moved(&mut self, core: &mut Core, steps: &mut StepQueue, now: Time) {
        for change in self.heard.take_consent() {
            match change {
                Change::Asked { question, logged_ms } => {
                    self.ask_consent(question, logged_ms, core, steps, now);
                }
                Change::Settled { tool_use_id } => {
                    let settled = |asked: &Asked| asked.question.tool_use_id == tool_use_id;
                    if let Some(at) = self.asked.iter().position(settled) {
                        let asked = self.asked.remove(at);
                        take_back(&asked, core, steps, now);
                    }
                }
            }
        }
    }

    fn ask_consent(
        &mut self,
        question: Question,
        logged_ms: Option<u64>,
        core: &mut Core,
        steps: &mut StepQueue,
        now: Time,
    ) {
        let call = core.ask(self.op);
        let past = logged_ms.map_or(0, |at| core.wall_now_ms.saturating_sub(at));
        let until = now.plus(question.expires_in_ms.saturating_sub(past));
        let session = core.session_info().map(|info| info.id.to_string()).unwrap_or_default();
        steps.push(Step::Approval(ToolCall {
            call,
            idempotency_key: format!("{session}/{}", question.tool_use_id),
            may_have_run: false,
            server_side: true,
            tool_use_id: question.tool_use_id.clone(),
            name: question.name.clone(),
            input: question.input.clone(),
        }));
        self.asked.push(Asked { call, question, until, said: None });
    }

    /// The application answers a question about a tool of the service. The first answer counts.
    pub(super) fn consent(
        &mut self,
        call: CallId,
        answer: Answer,
        core: &mut Core,
        trace: &Trace,
        now: Time,
    ) -> Result<Accepted, Error> {
        let asked = self.asked.iter_mut().find(|asked| asked.call == call);
        let Some(asked) = asked.filter(|asked| asked.said.is_none()) else {
            return Ok(Accepted::TooLate);
        };
        let narrow = &asked.question.narrow;
        let (consent, reason) = match answer {
            Answer::Allow => (Consent::Allow, None),
            Answer::AllowNarrowed(input) if narrow.admit(&asked.question.input, &input) => {
                (Consent::Narrowed(input), None)
            }
            Answer::AllowNarrowed(_) => (Consent::Deny, Some(NARROWING_WIDENS.to_owned())),
            Answer::Deny(reason) => (Consent::Deny, Some(reason)),
            _ => {
                let message =
                    "this tool is the service's: its call is allowed or denied, not completed";
                return Err(Error::new(ErrorKind::Usage, message));
            }
        };
        let answer = Approve { tool_use_id: asked.question.tool_use_id.clone(), consent, reason };
        let rpc = core.rpc(self.op, &Method::Approve, &answer.to_json(), trace, now);
        let doing = Doing::Telling(Box::new(rpc));
        asked.said = Some(Said { answer, doing, failures: 0 });
        Ok(Accepted::Taken)
    }

    /// Whether the exchange tells the service what the application said.
    pub(super) fn tells_consent(&self, exchange: ExchangeId) -> bool {
        self.asked.iter().any(|asked| asked.exchange() == Some(exchange))
    }

    /// An event of such an exchange.
    pub(super) fn consent_network(
        &mut self,
        exchange: ExchangeId,
        event: NetEvent,
        core: &mut Core,
        now: Time,
    ) {
        let asked = self.asked.iter_mut().find(|asked| asked.exchange() == Some(exchange));
        let Some(Asked { until, said: Some(said), .. }) = asked else { return };
        let Doing::Telling(rpc) = &mut said.doing else { return };
        match rpc.take(event, "the service", |_| ()) {
            Progress::Going => {}
            Progress::Answered => core.linger(exchange, now),
            Progress::Refused => core.hear_out(exchange, now),
            Progress::Over(answer) => {
                core.net.abort(exchange, now);
                said.doing = Doing::Over;
                let Err(error) = answer else { return };
                core.log(LogLevel::Warn, format!("session.approve failed: {error}"));
                if may_pass(&error) && now < *until {
                    said.failures = said.failures.saturating_add(1);
                    let jitter = core.random();
                    let delay = core.config.reconnect.delay_ms(said.failures, jitter);
                    said.doing = Doing::Waiting(now.plus(delay));
                }
            }
        }
    }

    pub(super) fn consent_timeout(&mut self, core: &mut Core, trace: &Trace, now: Time) {
        for asked in &mut self.asked {
            if asked.retry_at().is_none_or(|at| now < at) {
                continue;
            }
            let Some(said) = &mut asked.said else { continue };
            let rpc = core.rpc(self.op, &Method::Approve, &said.answer.to_json(), trace, now);
            said.doing = Doing::Telling(Box::new(rpc));
        }
    }

    pub(super) fn consent_poll_timeout(&self) -> Option<Time> {
        self.asked.iter().filter_map(Asked::retry_at).min()
    }

    /// Until when the silence of the turn is a person's, who is asked.
    pub(super) fn consent_until(&self) -> Option<Time> {
        self.asked.iter().map(|asked| asked.until).max()
    }

    /// The turn is to end: nobody has to answer any more, and nobody is told what was said.
    pub(super) fn end_consent(&mut self, core: &mut Core, steps: &mut StepQueue, now: Time) {
        self.drop_consent(core, now);
        self.withdraw_consent(steps);
    }

    /// Takes back what the application was asked.
    pub(super) fn withdraw_consent(&mut self, steps: &mut StepQueue) {
        self.asked.retain(|asked| {
            if asked.said.is_none() {
                steps.push(Step::ApprovalWithdrawn { call: asked.call });
            }
            asked.said.is_some()
        });
    }

    /// Drops what is under way to tell the service.
    pub(super) fn drop_consent(&mut self, core: &mut Core, now: Time) {
        for asked in &mut self.asked {
            if let Some(exchange) = asked.exchange() {
                core.net.abort(exchange, now);
            }
            if let Some(said) = &mut asked.said {
                said.doing = Doing::Over;
            }
        }
    }
}

/// The question no longer matters, and neither does what was said.
fn take_back(asked: &Asked, core: &mut Core, steps: &mut StepQueue, now: Time) {
    if let Some(exchange) = asked.exchange() {
        core.net.abort(exchange, now);
    }
    if asked.said.is_none() {
        steps.push(Step::ApprovalWithdrawn { call: asked.call });
    }
}
