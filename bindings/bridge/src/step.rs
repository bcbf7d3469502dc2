//! Steps as records.

use crate::batch::Batch;
use crate::errors::push_failed;
use crate::layout::{
    ABSENT, approval, approval_withdrawn, delta, done, event, finished, gap, notification,
    received, sending, status, tool_call, tool_cancel, tool_settled, warning,
};
use broca::engine::{
    Delta, DeltaKind, Gap, HistoryPage, Lost, Outcome, Queued, Reply, Status, Step, ToolCall,
};
use broca_proto::Json;
use broca_proto::session::event::{Event, Place};
use broca_proto::session::rest::Meta;

impl Batch {
    /// Adds a step.
    pub(crate) fn push_step(&mut self, step: &Step, session: &SessionWords<'_>) {
        match step {
            Step::Event(event) => self.push_event(event),
            Step::Delta(delta) => self.push_delta(delta),
            Step::Notification { method, raw } => {
                self.begin(&notification::KIND);
                self.push_text(Some(method));
                self.push_json(raw);
            }
            Step::Gap(gap) => self.push_gap(gap),
            Step::ToolCall(call) => self.push_call(&tool_call::KIND, call),
            Step::Approval(call) => {
                self.push_call(&approval::KIND, call);
                self.push_word(call.server_side.into());
            }
            Step::ToolCancel { call } => {
                self.begin(&tool_cancel::KIND);
                self.push_number(Some(call.0));
            }
            Step::ApprovalWithdrawn { call } => {
                self.begin(&approval_withdrawn::KIND);
                self.push_number(Some(call.0));
            }
            Step::ToolSettled { tool_use_id, name, outcome } => {
                self.begin(&tool_settled::KIND);
                self.push_text(Some(tool_use_id));
                self.push_text(Some(outcome.as_str()));
                self.push_text(Some(name));
            }
            Step::Status(status) => self.push_status(status),
            Step::Warning(odd) => {
                self.begin(&warning::KIND);
                self.push_text(Some(odd.class.as_str()));
                self.push_text(Some(&odd.message));
            }
            Step::Sending { call, round, message } => {
                self.begin(&sending::KIND);
                self.push_number(Some(call.0));
                self.push_word(*round);
                self.push_json(&message.to_json());
            }
            Step::Received { round, message } => {
                self.begin(&received::KIND);
                self.push_word(*round);
                self.push_json(&message.to_json());
            }
            Step::Done(reply) => self.push_done(reply),
            Step::Finished(Ok(outcome)) => self.push_outcome(outcome, session),
            Step::Finished(Err(error)) => push_failed(self, error),
        }
    }

    /// Adds an event. Its JSON is stored once; the fields lie inside.
    pub(crate) fn push_event(&mut self, of: &Event) {
        let (base, len) = self.store(of.as_bytes());
        if base == ABSENT {
            self.begin(&event::KIND);
            (0..7).for_each(|_| self.push_span(Self::NOWHERE));
            return;
        }
        let places = of.places();
        let mut span = |place: Place<'_>| match place {
            Place::At(from, to) => (base + from, to - from),
            Place::Decoded(text) => self.store(text.as_bytes()),
        };
        let id = span(places.id);
        let event_type = span(places.event_type);
        let session_id = span(places.session_id);
        let client_key_id = places.client_key_id.map_or(Self::NOWHERE, &mut span);
        let created_at = span(places.created_at);
        let payload = match places.payload {
            Some((from, to)) => (base + from, to - from),
            None => self.store(b"{}"),
        };
        self.begin(&event::KIND);
        for span in [id, event_type, session_id, client_key_id, created_at, payload, (base, len)] {
            self.push_span(span);
        }
    }

    fn push_json(&mut self, json: &Json) {
        self.push_bytes(json.as_bytes());
    }

    fn push_delta(&mut self, of: &Delta) {
        self.begin(&delta::KIND);
        self.push_word(match of.kind {
            DeltaKind::Text => 0,
            DeltaKind::Reasoning => 1,
            DeltaKind::ToolInput => 2,
            DeltaKind::Reset => 3,
            _ => u32::MAX,
        });
        self.push_text(Some(&of.link));
        self.push_text(Some(&of.text));
    }

    fn push_gap(&mut self, of: &Gap) {
        let (lost, count, limit, cursor) = match &of.lost {
            Lost::Deltas(count) => (0, Some(*count), None, None),
            Lost::Line { bytes, limit } => (1, Some(*bytes), Some(*limit as u64), None),
            Lost::Cursor(cursor) => (2, None, None, Some(cursor.to_string())),
            Lost::Unseen => (3, None, None, None),
            _ => (u32::MAX, None, None, None),
        };
        self.begin(&gap::KIND);
        self.push_word(lost);
        self.push_number(count);
        self.push_number(limit);
        self.push_text(cursor.as_deref());
        self.push_text(Some(&of.after.to_string()));
    }

    fn push_call(&mut self, kind: &crate::layout::Kind, call: &ToolCall) {
        self.begin(kind);
        self.push_number(Some(call.call.0));
        self.push_text(Some(&call.tool_use_id));
        self.push_text(Some(&call.name));
        self.push_json(&call.input);
        self.push_text(Some(&call.idempotency_key));
        self.push_word(call.may_have_run.into());
    }

    fn push_status(&mut self, of: &Status) {
        let words;
        let mut place = None;
        let (state, delay_ms, kind, why) = match of {
            Status::Queued { place: Some(queued) } => {
                place = Some(*queued);
                let Queued { position, waiting } = queued;
                words = format!("place {position} of {waiting} at the service");
                ("queued", None, None, Some(words.as_str()))
            }
            Status::Queued { place: None } => ("queued", None, None, None),
            Status::Sent => ("sent", None, None, None),
            Status::Connected => ("connected", None, None, None),
            Status::Reconnecting { delay_ms, kind, why } => {
                ("reconnecting", Some(*delay_ms), Some(kind.as_str()), Some(why.as_str()))
            }
            _ => ("", None, None, None),
        };
        self.begin(&status::KIND);
        self.push_text(Some(state));
        self.push_number(delay_ms);
        self.push_text(kind);
        self.push_text(why);
        self.push_number(place.map(|queued| queued.position));
        self.push_number(place.map(|queued| queued.waiting));
    }

    fn push_done(&mut self, reply: &Reply) {
        let usage = reply.usage.and_then(|usage| serde_json::to_vec(&usage).ok());
        self.begin(&done::KIND);
        self.push_text(Some(&reply.text()));
        self.push_json(&reply.message.to_json());
        match usage {
            Some(usage) => self.push_bytes(&usage),
            None => self.push_text(None),
        }
        self.push_word(reply.rounds);
        match &reply.events[..] {
            [one] => self.push_json(one),
            many => {
                let all: Vec<Json> = many.iter().filter_map(Json::elements).flatten().collect();
                self.push_json(&Json::array(&all));
            }
        }
        self.push_word(reply.tool_calls);
        match written(&reply.session) {
            Some(session) => self.push_json(&session),
            None => self.push_text(None),
        }
    }

    fn push_outcome(&mut self, outcome: &Outcome, session: &SessionWords<'_>) {
        let (word, value) = match outcome {
            Outcome::Opened { session_id, profile, pending } => {
                let features = Json::array(&session.features());
                let pending = written(pending).unwrap_or_default();
                let value = Json::object([
                    ("session_id", &Json::string(session_id.as_str())),
                    ("profile", profile),
                    ("features", &features),
                    ("meta", &session.meta()),
                    ("pending", &pending),
                ]);
                ("opened", Some(value))
            }
            Outcome::Saved(saved) => {
                ("saved", Json::parse(saved.to_json().expose().to_owned()).ok())
            }
            Outcome::Replied => ("replied", None),
            Outcome::Ended => ("ended", None),
            Outcome::Page(page) => ("page", Some(self.push_page(page))),
            Outcome::Participants(participants) => ("participants", written(participants)),
            Outcome::Info(info) => ("info", Some(info.clone())),
            Outcome::Sessions(page) => ("sessions", Some(page.clone())),
            Outcome::Meta(meta) => ("meta", written(meta)),
            Outcome::Updated => ("updated", None),
            Outcome::Closed => ("closed", None),
            _ => ("", None),
        };
        self.begin(&finished::KIND);
        self.push_text(Some(word));
        match value {
            Some(value) => self.push_json(&value),
            None => self.push_text(None),
        }
    }

    /// The events of a page stand before the record that ends the operation.
    fn push_page(&mut self, page: &HistoryPage) -> Json {
        page.events.iter().for_each(|event| self.push_event(event));
        let next = page.next.as_deref().map_or_else(Json::null, Json::string);
        Json::object([("next", &next)])
    }
}

/// What the engine knows about its session beside the outcome of opening it.
pub(crate) struct SessionWords<'a>(pub(crate) Option<&'a broca::engine::SessionInfo>);

impl SessionWords<'_> {
    fn features(&self) -> Vec<Json> {
        let words = self.0.map(|info| info.features.words()).unwrap_or_default();
        words.into_iter().map(Json::string).collect()
    }

    fn meta(&self) -> Json {
        self.0.and_then(|info| written::<Meta>(&info.meta)).unwrap_or_default()
    }
}

fn written<T: serde::Serialize>(value: &T) -> Option<Json> {
    Json::parse(serde_json::to_vec(value).ok()?).ok()
}

/// Adds the events of a JSON array, such as `done.events`; elements that are no events are left out.
pub(crate) fn push_events(batch: &mut Batch, array: &Json) {
    for element in array.elements().unwrap_or_default() {
        if let Ok(event) = Event::parse(&element.into_bytes()) {
            batch.push_event(&event);
        }
    }
}
