//! What comes out of a subject: records as names and values, read back into effects and steps of the engine.
//!
//! Everything that a record says more than once is compared: the fields of an event with its raw JSON, the text of a
//! reply with its message. What does not fit together is a fault.

use broca::engine::{
    CallId, ConnId, Delta, DeltaKind, Effect, Gap, HistoryPage, LogLevel, LogRecord, Lost, OpId,
    Outcome, Queued, Reply, ResolveId, Spent, Status, Step, Tls, ToolCall, ToolOutcome,
};
use broca::proto::session::content::{Message, Role};
use broca::proto::session::event::Event;
use broca::proto::session::exchange::{Warning, WarningClass};
use broca::proto::session::ids::Cursor;
use broca::proto::session::saved::SavedSession;
use broca::{Error, ErrorKind, Json, Retry, Time};
use broca_bridge::layout::{self, FieldType};
use broca_bridge::{Batch, Record};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A record: its kind and its fields, by the names of the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The kind.
    pub kind: String,
    /// The fields; one that is there and absent is `None`.
    pub fields: BTreeMap<String, Option<Value>>,
}

/// The value of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A number, of one word or two.
    Number(i128),
    /// Text, JSON or bytes.
    Bytes(Bytes),
}

impl Taken {
    /// The records of a batch. Kinds that the layout does not list are a fault: both sides are of one version here.
    ///
    /// # Errors
    /// When a kind is unknown, or the batch holds other records than it says.
    pub fn all_of(batch: &Batch) -> Result<Vec<Self>, String> {
        let all: Vec<Self> =
            batch.records().map(|record| Self::of(&record)).collect::<Result<_, _>>()?;
        if all.len() != batch.len() {
            return Err(format!("a batch of {} records has {}", batch.len(), all.len()));
        }
        Ok(all)
    }

    fn of(record: &Record<'_>) -> Result<Self, String> {
        let number = record.kind();
        let kind = layout::kind(number).ok_or_else(|| format!("record of kind {number}"))?;
        let value = |field: &layout::Field| match field.field_type {
            FieldType::Word if field.name == "code" => {
                Some(Value::Number(record.word(field.at).cast_signed().into()))
            }
            FieldType::Word => Some(Value::Number(record.word(field.at).into())),
            FieldType::Number => record.number(field.at).map(|n| Value::Number(n.into())),
            FieldType::Text | FieldType::Json | FieldType::Bytes => {
                record.bytes(field.at).map(|bytes| Value::Bytes(Bytes::copy_from_slice(bytes)))
            }
        };
        let fields = kind.fields.iter().map(|field| (field.name.to_owned(), value(field)));
        Ok(Self { kind: kind.name.to_owned(), fields: fields.collect() })
    }

    fn field(&self, name: &str) -> Result<Option<&Value>, String> {
        match self.fields.get(name) {
            Some(value) => Ok(value.as_ref()),
            None => Err(format!("{} came without \"{name}\"", self.kind)),
        }
    }

    fn maybe_number(&self, name: &str) -> Result<Option<u64>, String> {
        match self.field(name)? {
            None => Ok(None),
            Some(Value::Number(n)) => match u64::try_from(*n) {
                Ok(n) => Ok(Some(n)),
                Err(_) => Err(format!("{}.{name} is {n}", self.kind)),
            },
            Some(Value::Bytes(_)) => Err(format!("{}.{name} is no number", self.kind)),
        }
    }

    fn number(&self, name: &str) -> Result<u64, String> {
        self.maybe_number(name)?.ok_or_else(|| format!("{}.{name} is absent", self.kind))
    }

    fn word(&self, name: &str) -> Result<u32, String> {
        let number = self.number(name)?;
        u32::try_from(number).map_err(|_| format!("{}.{name} is {number}", self.kind))
    }

    /// A field that packages of an earlier version do not hand on.
    fn later_word(&self, name: &str) -> Result<u32, String> {
        if self.fields.contains_key(name) { self.word(name) } else { Ok(0) }
    }

    fn maybe_bytes(&self, name: &str) -> Result<Option<Bytes>, String> {
        match self.field(name)? {
            None => Ok(None),
            Some(Value::Bytes(bytes)) => Ok(Some(bytes.clone())),
            Some(Value::Number(_)) => Err(format!("{}.{name} is a number", self.kind)),
        }
    }

    fn bytes(&self, name: &str) -> Result<Bytes, String> {
        self.maybe_bytes(name)?.ok_or_else(|| format!("{}.{name} is absent", self.kind))
    }

    fn maybe_text(&self, name: &str) -> Result<Option<String>, String> {
        let text = |bytes: Bytes| {
            String::from_utf8(bytes.into())
                .map_err(|_| format!("{}.{name} is not UTF-8", self.kind))
        };
        self.maybe_bytes(name)?.map(text).transpose()
    }

    fn text(&self, name: &str) -> Result<String, String> {
        self.maybe_text(name)?.ok_or_else(|| format!("{}.{name} is absent", self.kind))
    }

    fn maybe_json(&self, name: &str) -> Result<Option<Json>, String> {
        let json = |bytes| Json::parse(bytes).map_err(|e| format!("{}.{name}: {e}", self.kind));
        self.maybe_bytes(name)?.map(json).transpose()
    }

    fn json(&self, name: &str) -> Result<Json, String> {
        self.maybe_json(name)?.ok_or_else(|| format!("{}.{name} is absent", self.kind))
    }

    fn message(&self) -> Result<Message, String> {
        // The role is always there.
        Message::read(&self.json("message")?, Role::parse("none"))
            .map_err(|e| format!("{}.message: {e}", self.kind))
    }

    fn unknown(&self, name: &str, value: impl std::fmt::Display) -> String {
        format!("{}.{name} is \"{value}\", which is unknown here", self.kind)
    }
}

/// The effect that a record is.
///
/// # Errors
/// When it is none, or something of it is missing.
pub fn effect_of(taken: &Taken) -> Result<Effect, String> {
    let conn = || taken.number("conn").map(ConnId);
    Ok(match taken.kind.as_str() {
        "resolve" => {
            Effect::Resolve { req: ResolveId(taken.number("req")?), host: taken.text("host")? }
        }
        "connect" => {
            let port = taken.number("port")?;
            let port = u16::try_from(port).map_err(|_| taken.unknown("port", port))?;
            let address = taken.text("address")?;
            let ip = address.parse().map_err(|_| taken.unknown("address", &address))?;
            let tls = taken.maybe_text("server_name")?.map(|server_name| Tls { server_name });
            Effect::Connect { conn: conn()?, addr: SocketAddr::new(ip, port), tls }
        }
        "start_tls" => {
            Effect::StartTls { conn: conn()?, tls: Tls { server_name: taken.text("server_name")? } }
        }
        "write" => Effect::Write { conn: conn()?, bytes: taken.bytes("bytes")? },
        "pause_read" => Effect::PauseRead { conn: conn()? },
        "resume_read" => Effect::ResumeRead { conn: conn()? },
        "close" => Effect::Close { conn: conn()?, abort: taken.word("abort")? != 0 },
        "timer" => Effect::Timer { at: taken.maybe_number("at")?.map(Time::from_millis) },
        "busy" => Effect::Busy(taken.word("busy")? != 0),
        "ready" => Effect::Ready { op: OpId(taken.number("op")?) },
        "log" => {
            let level = match taken.word("level")? {
                0 => LogLevel::Debug,
                1 => LogLevel::Info,
                2 => LogLevel::Warn,
                other => return Err(taken.unknown("level", other)),
            };
            Effect::Log(LogRecord { level, message: taken.text("message")? })
        }
        other => return Err(format!("{other} is no effect")),
    })
}

/// The steps that records are, in order. The events of a page of the log go into the outcome they stand before.
///
/// # Errors
/// When one is none, or something of it is missing.
pub fn steps_of(taken: &[Taken]) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    for record in taken {
        let step = match (record.kind.as_str(), record.fields.get("outcome")) {
            ("finished", Some(Some(Value::Bytes(word)))) if word == "page" => {
                let is_event = |step: &&Step| matches!(step, Step::Event(_));
                let first = steps.len() - steps.iter().rev().take_while(is_event).count();
                let events = steps.drain(first..).filter_map(|step| match step {
                    Step::Event(event) => Some(event),
                    _ => None,
                });
                let events = events.collect();
                let next = record.json("value")?.member("next").filter(|next| !next.is_null());
                let next = next.map(|next| next.to_text().ok_or("the next page is no text"));
                let page = HistoryPage { events, next: next.transpose()? };
                Step::Finished(Ok(Outcome::Page(page)))
            }
            _ => step_of(record)?,
        };
        steps.push(step);
    }
    Ok(steps)
}

fn step_of(taken: &Taken) -> Result<Step, String> {
    let call = || taken.number("call").map(CallId);
    Ok(match taken.kind.as_str() {
        "event" => Step::Event(event(taken)?),
        "notification" => {
            Step::Notification { method: taken.text("method")?, raw: taken.json("raw")? }
        }
        "delta" => {
            let kind = match taken.word("delta_kind")? {
                0 => DeltaKind::Text,
                1 => DeltaKind::Reasoning,
                2 => DeltaKind::ToolInput,
                3 => DeltaKind::Reset,
                other => return Err(taken.unknown("delta_kind", other)),
            };
            // What a reset belongs to is of no use to anybody.
            let link = match kind {
                DeltaKind::Reset => taken.maybe_text("link")?.unwrap_or_default(),
                _ => taken.text("link")?,
            };
            Step::Delta(Delta { kind, link, text: taken.text("text")? })
        }
        "gap" => Step::Gap(gap(taken)?),
        "tool_call" => Step::ToolCall(tool_call(taken)?),
        "approval" => Step::Approval(tool_call(taken)?),
        "tool_cancel" => Step::ToolCancel { call: call()? },
        "approval_withdrawn" => Step::ApprovalWithdrawn { call: call()? },
        "tool_settled" => {
            let word = taken.text("outcome")?;
            let outcome = TOOL_OUTCOMES.into_iter().find(|outcome| outcome.as_str() == word);
            let outcome = outcome.ok_or_else(|| taken.unknown("outcome", &word))?;
            // Packages of an earlier version do not hand the name on.
            let name = match taken.fields.get("name") {
                Some(_) => taken.text("name")?,
                None => String::new(),
            };
            Step::ToolSettled { tool_use_id: taken.text("tool_use_id")?, name, outcome }
        }
        "status" => Step::Status(status(taken)?),
        "warning" => {
            let word = taken.text("class")?;
            let class = WARNING_CLASSES.into_iter().find(|class| class.as_str() == word);
            let class = class.ok_or_else(|| taken.unknown("class", &word))?;
            Step::Warning(Warning { class, message: taken.text("message")? })
        }
        "sending" => {
            Step::Sending { call: call()?, round: taken.word("round")?, message: taken.message()? }
        }
        "received" => Step::Received { round: taken.word("round")?, message: taken.message()? },
        "done" => Step::Done(Box::new(reply(taken)?)),
        "finished" => Step::Finished(Ok(outcome(taken)?)),
        "failed" => Step::Finished(Err(failed(taken)?)),
        other => return Err(format!("{other} is no step")),
    })
}

const TOOL_OUTCOMES: [ToolOutcome; 5] = [
    ToolOutcome::Done,
    ToolOutcome::Failed,
    ToolOutcome::NotStarted,
    ToolOutcome::InterruptedMayHaveRun,
    ToolOutcome::TimedOutMayHaveRun,
];

const WARNING_CLASSES: [WarningClass; 4] = [
    WarningClass::MalformedLine,
    WarningClass::IdTypeChanged,
    WarningClass::UnexpectedId,
    WarningClass::Notice,
];

fn event(taken: &Taken) -> Result<Event, String> {
    let event = Event::parse(&taken.bytes("raw")?).map_err(|e| format!("event.raw: {e}"))?;
    let (session_id, client_key_id) = (event.session_id(), event.client_key_id());
    let says = [
        ("id", Some(event.id())),
        ("event_type", Some(event.type_name())),
        ("session_id", Some(session_id.as_str())),
        ("client_key_id", client_key_id.as_ref().map(|id| id.as_str())),
        ("created_at", Some(event.created_at())),
    ];
    for (name, said) in says {
        if taken.maybe_text(name)?.as_deref() != said {
            return Err(format!("event.{name} differs from the raw JSON of event {}", event.id()));
        }
    }
    if taken.json("payload")? != event.payload() {
        return Err(format!("event.payload differs from the raw JSON of event {}", event.id()));
    }
    Ok(event)
}

fn gap(taken: &Taken) -> Result<Gap, String> {
    let cursor = |name| taken.maybe_text(name).map(|text| text.map(|t| Cursor::from(t.as_str())));
    let lost = match taken.word("lost")? {
        0 => Lost::Deltas(taken.number("count")?),
        1 => {
            let limit = taken.number("limit")?;
            let limit = usize::try_from(limit).map_err(|_| taken.unknown("limit", limit))?;
            Lost::Line { bytes: taken.number("count")?, limit }
        }
        2 => Lost::Cursor(cursor("cursor")?.ok_or("gap.cursor is absent")?),
        3 => Lost::Unseen,
        other => return Err(taken.unknown("lost", other)),
    };
    Ok(Gap { lost, after: cursor("after")?.ok_or("gap.after is absent")? })
}

fn tool_call(taken: &Taken) -> Result<ToolCall, String> {
    Ok(ToolCall {
        call: CallId(taken.number("call")?),
        tool_use_id: taken.text("tool_use_id")?,
        name: taken.text("name")?,
        input: taken.json("input")?,
        idempotency_key: taken.text("idempotency_key")?,
        may_have_run: taken.later_word("may_have_run")? != 0,
        server_side: taken.later_word("server_side")? != 0,
    })
}

fn status(taken: &Taken) -> Result<Status, String> {
    let word = taken.text("state")?;
    Ok(match word.as_str() {
        "queued" => {
            let later = |name: &str| match taken.fields.contains_key(name) {
                true => taken.maybe_number(name),
                false => Ok(None),
            };
            let place = later("position")?.zip(later("waiting")?);
            let place = place.map(|(position, waiting)| Queued { position, waiting });
            Status::Queued { place }
        }
        "sent" => Status::Sent,
        "connected" => Status::Connected,
        "reconnecting" => Status::Reconnecting {
            delay_ms: taken.number("delay_ms")?,
            kind: kind(taken, "error_kind")?,
            why: taken.text("why")?,
        },
        other => return Err(taken.unknown("state", other)),
    })
}

fn reply(taken: &Taken) -> Result<Reply, String> {
    let usage = taken.maybe_json("usage")?.map(|usage| usage.decode());
    let reply = Reply {
        message: taken.message()?,
        usage: usage.transpose().map_err(|e| format!("done.usage: {e}"))?,
        rounds: taken.word("rounds")?,
        tool_calls: taken.later_word("tool_calls")?,
        session: match taken.fields.get("session") {
            Some(Some(_)) => {
                taken.json("session")?.decode().map_err(|e| format!("done.session: {e}"))?
            }
            _ => Spent::default(),
        },
        events: vec![taken.json("events")?],
    };
    if taken.text("text")? != reply.text() {
        return Err("done.text differs from the text of done.message".to_owned());
    }
    Ok(reply)
}

fn outcome(taken: &Taken) -> Result<Outcome, String> {
    let decoded = |e| format!("finished.value: {e}");
    let word = taken.text("outcome")?;
    Ok(match word.as_str() {
        "opened" => {
            let value = taken.json("value")?;
            let id = value.member("session_id").and_then(|id| id.to_text());
            for name in ["features", "meta"] {
                value.member(name).ok_or_else(|| format!("finished.value has no {name}"))?;
            }
            Outcome::Opened {
                session_id: id.ok_or("finished.value has no session_id")?.into(),
                profile: value.member("profile").ok_or("finished.value has no profile")?,
                pending: value.member("pending").is_some_and(|pending| pending.as_str() == "true"),
            }
        }
        "saved" => {
            let saved = SavedSession::parse(taken.json("value")?.as_bytes());
            Outcome::Saved(Box::new(saved.map_err(|e| format!("finished.value: {e}"))?))
        }
        "replied" => Outcome::Replied,
        "ended" => Outcome::Ended,
        "participants" => Outcome::Participants(taken.json("value")?.decode().map_err(decoded)?),
        "info" => Outcome::Info(taken.json("value")?),
        "sessions" => Outcome::Sessions(taken.json("value")?),
        "meta" => Outcome::Meta(taken.json("value")?.decode().map_err(decoded)?),
        "updated" => Outcome::Updated,
        "closed" => Outcome::Closed,
        other => return Err(taken.unknown("outcome", other)),
    })
}

/// The error that a record is: of an operation that failed, or of a call that was refused.
///
/// # Errors
/// When something of it is missing, or its code is not that of its kind.
pub fn failed(taken: &Taken) -> Result<Error, String> {
    let kind = kind(taken, "kind")?;
    if taken.field("code")? != Some(&Value::Number(kind.code().into())) {
        return Err(format!("failed.code is not that of {kind}"));
    }
    let word = taken.text("retry")?;
    let retry = [Retry::Safe, Retry::Unsafe, Retry::Unknown];
    let retry = retry.into_iter().find(|retry| retry.as_str() == word);
    let retry = retry.ok_or_else(|| taken.unknown("retry", &word))?;
    let error = Error::new(kind, taken.text("message")?).with_retry(retry);
    Ok(match taken.maybe_json("details")? {
        Some(details) => error.with_details(details),
        None => error,
    })
}

fn kind(taken: &Taken, name: &str) -> Result<ErrorKind, String> {
    let word = taken.text(name)?;
    let kind = ErrorKind::ALL.iter().copied().find(|kind| kind.as_str() == word);
    kind.ok_or_else(|| taken.unknown(name, &word))
}
