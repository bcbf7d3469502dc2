//! What the stream of a turn says on the way: steps for the application, failures, tokens.

use crate::engine::config::Config;
use crate::engine::ops::show;
use crate::engine::queue::StepQueue;
use crate::engine::step::{Delta, Step};
use broca_proto::json::ArrayWriter;
use broca_proto::session::approval::Change;
use broca_proto::session::budget::Meter;
use broca_proto::session::content::Message;
use broca_proto::session::event::{Event, EventType};
use broca_proto::session::exchange::Item;
use broca_proto::session::ids::{Cursor, KeyId};
use broca_proto::session::method::SendMessageResult;
use broca_proto::session::payload::ErrorReason;
use broca_proto::session::seen::Seen;
use broca_proto::session::trail::Said;
use broca_proto::{Error, ErrorKind, Json};

/// What the events of a turn have said so far.
pub(super) struct Heard {
    /// The id of the last event; its buffer is used again for every one.
    cursor: Vec<u8>,
    /// The id of the last event before the request under way; its buffer is used again too.
    start: Vec<u8>,
    pub(super) failure: Option<Error>,
    /// What the service said of the primary provider's failure.
    cause: Option<String>,
    pub(super) meter: Meter,
    seen: Seen,
    /// The id of the last event that showed an assistant's message; its buffer is used again.
    message: String,
    /// Whose message that was: this driver's key.
    driver: Option<KeyId>,
    /// The event that showed what the request under way has come to.
    answer: Option<Event>,
    /// What the stream of the request under way has carried, where its result lacks that.
    carried: Option<Carried>,
    /// What was said about questions for consent, until somebody looks at it.
    consent: Vec<Change>,
    /// A line was too long to be read: what it said is looked up in the result.
    missed: bool,
    /// What the request under way has said.
    said: Said,
    delta_limit: usize,
    event_limit: usize,
}

impl Heard {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            cursor: Vec::new(),
            start: Vec::new(),
            failure: None,
            cause: None,
            meter: Meter::default(),
            seen: Seen::default(),
            message: String::new(),
            driver: None,
            answer: None,
            carried: None,
            consent: Vec::new(),
            missed: false,
            said: Said::default(),
            delta_limit: config.delta_buffer_bytes,
            event_limit: config.step_buffer_bytes,
        }
    }

    /// Hands an item to the application.
    #[inline]
    pub(super) fn item(&mut self, item: Item, steps: &mut StepQueue) {
        match item {
            Item::Event(event) => {
                if !self.seen.insert(event.id_bytes()) {
                    return;
                }
                self.note_message(&event);
                self.note_consent(&event);
                look_at(&event, &mut self.failure, &mut self.cause, &mut self.meter);
                if let Some(carried) = &mut self.carried {
                    carried.add(&event);
                }
                // Not before there was one to read on from.
                let missed = steps.is_full(self.event_limit) && !self.cursor.is_empty();
                if missed {
                    steps.miss(event.id_bytes(), || cursor(&self.cursor), &self.said);
                }
                self.cursor.clear();
                self.cursor.extend_from_slice(event.id_bytes());
                if !missed {
                    steps.push(Step::Event(event));
                }
            }
            other => {
                self.missed |= matches!(other, Item::Oversized { .. });
                show(other, steps, self.delta_limit, || cursor(&self.cursor));
            }
        }
    }

    /// Whether an event was handed to the application lately.
    pub(super) fn has_seen(&self, event: &Event) -> bool {
        self.seen.contains(event.id_bytes())
    }

    /// Hands a piece of the display lane to the application.
    pub(super) fn delta(&self, delta: Delta, steps: &mut StepQueue) {
        steps.push_delta(delta, self.delta_limit, || cursor(&self.cursor));
    }

    /// A request is answered. What lines too long to be read would have said is taken from its
    /// `result.events`, so that a failure is not mistaken for a reply.
    pub(super) fn catch_up(&mut self, events: &Json) {
        if !std::mem::take(&mut self.missed) {
            return;
        }
        for event in events.elements().into_iter().flatten() {
            if let Ok(event) = Event::parse(&event.into_bytes())
                && self.seen.insert(event.id_bytes())
            {
                self.note_message(&event);
                look_at(&event, &mut self.failure, &mut self.cause, &mut self.meter);
            }
        }
    }

    /// A request with this message is about to leave.
    pub(super) fn begin_round(&mut self, message: &Message) {
        self.said = Said::of(message);
        self.start.clear();
        self.start.extend_from_slice(&self.cursor);
        self.answer = None;
        self.meter.begin();
        if let Some(carried) = &mut self.carried {
            carried.clear();
        }
    }

    /// The service leaves out of its results what the stream has carried: keeps it for the reply.
    pub(super) fn keep_carried(&mut self, bytes: usize) {
        self.carried = Some(Carried::new(bytes));
    }

    /// Completes a result that lacks what the stream has carried.
    pub(super) fn complete(&mut self, result: &mut SendMessageResult) {
        if let Some(carried) = &mut self.carried {
            carried.complete(result);
        }
    }

    /// The event that showed what the request under way has come to, if it came.
    pub(super) fn take_answer(&mut self) -> Option<Event> {
        self.answer.take()
    }

    /// The last event of the turn; the start when there was none.
    pub(super) fn cursor(&self) -> Cursor {
        cursor(&self.cursor)
    }

    /// The last event before the request under way; the start when the turn had none before.
    pub(super) fn start(&self) -> Cursor {
        cursor(&self.start)
    }

    /// Takes an event of the turn that the log has and no stream has brought.
    pub(super) fn recall(&mut self, event: &Event) {
        if self.seen.insert(event.id_bytes()) {
            self.note_message(event);
            look_at(event, &mut self.failure, &mut self.cause, &mut self.meter);
            self.cursor.clear();
            self.cursor.extend_from_slice(event.id_bytes());
        }
    }

    /// Whether an event of the turn came.
    pub(super) fn has_events(&self) -> bool {
        !self.cursor.is_empty()
    }

    /// The id of this driver's key, once an event has shown it.
    pub(super) fn driver(&self) -> Option<&KeyId> {
        self.driver.as_ref()
    }

    /// The id of the event that showed the assistant's last message; empty before there was one.
    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// Takes what an event says about a question for consent.
    #[inline]
    pub(super) fn note_consent(&mut self, event: &Event) {
        self.consent.extend(Change::of(event));
    }

    /// A question that was asked before anybody listened.
    pub(super) fn recall_question(&mut self, question: &Change) {
        self.consent.push(question.clone());
    }

    /// What was said about questions since the last time.
    pub(super) fn take_consent(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.consent)
    }

    fn note_message(&mut self, event: &Event) {
        if event.is(&EventType::ServerMessageSend) {
            self.message.clear();
            self.message.push_str(event.id());
            if self.driver.is_none() {
                self.driver = event.client_key_id();
            }
            self.answer = Some(event.clone());
        }
    }
}

/// What the stream of a request has carried.
pub(super) struct Carried {
    events: ArrayWriter,
    limit: usize,
}

impl Carried {
    /// Keeps at most about so many bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { events: ArrayWriter::default(), limit }
    }

    /// Completes a result that lacks what was carried: the service had said the rest before.
    pub(super) fn complete(&mut self, result: &mut SendMessageResult) {
        if !result.lean {
            return;
        }
        let mut whole = ArrayWriter::default();
        let carried = self.take();
        for events in [&result.events, &carried] {
            events.elements().into_iter().flatten().for_each(|event| whole.push(&event));
        }
        result.events = whole.finish();
    }

    #[inline]
    pub(super) fn add(&mut self, event: &Event) {
        if is_foreign(event) {
            return;
        }
        if self.events.bytes() + event.bytes() > self.limit {
            self.clear();
        }
        self.events.push(&event.json());
    }

    pub(super) fn clear(&mut self) {
        self.events.clear();
    }

    /// What was carried, as an array.
    pub(super) fn take(&mut self) -> Json {
        std::mem::take(&mut self.events).finish()
    }
}

/// Whether an event belongs to no turn, although the stream of one shows it.
fn is_foreign(event: &Event) -> bool {
    event.is(&EventType::SessionJoin)
        || event.is(&EventType::SessionDriverRegister)
        || event.type_name() == EventType::METADATA_UPDATED
}

/// What a turn's events say about its outcome: failures that come as ordinary results, and tokens.
fn look_at(
    event: &Event,
    failure: &mut Option<Error>,
    cause: &mut Option<String>,
    meter: &mut Meter,
) {
    if event.is(&EventType::ProviderResponse) {
        meter.count(&event.payload());
        return;
    }
    if !event.is(&EventType::SessionError) {
        return;
    }
    let payload = event.payload();
    let reason = payload.member("reason").and_then(|r| r.to_text()).unwrap_or_default();
    let (kind, message) = match ErrorReason::parse(&reason) {
        ErrorReason::ProviderCallFailed => {
            *cause = payload.member("detail").and_then(|d| d.to_text());
            return;
        }
        ErrorReason::AllProvidersFailed => {
            let cause = cause.as_deref().unwrap_or("see the provider.response events of the turn");
            let message = format!(
                "every model provider failed ({cause}); check the service's model, its address and its key"
            );
            (ErrorKind::ProvidersFailed, message)
        }
        ErrorReason::ProviderConfig => (
            ErrorKind::ProvidersFailed,
            "the profile's provider is not configured on the service".to_owned(),
        ),
        ErrorReason::LoopLimit => (
            ErrorKind::LoopLimit,
            "the turn reached the service's limit of model rounds; the session is over".to_owned(),
        ),
        _ => return,
    };
    *failure = Some(Error::new(kind, message).with_details(payload));
}

fn cursor(event_id: &[u8]) -> Cursor {
    std::str::from_utf8(event_id).unwrap_or_default().into()
}
