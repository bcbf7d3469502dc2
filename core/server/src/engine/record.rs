//! Writes events to the log and shows them: on disk first, then to the readers, in the order of the log.

use super::session::Session;
use super::{Engine, now};
use crate::hub::{Publication, ReaderId};
use crate::keys::{IdKind, KeyHash};
use crate::store::{
    Closing, Elided, Epoch, Join, MessageNote, MetadataChange, NewEvent, Pause, Registration, Seq,
    SessionState, StoreError, Stored, ToolLists,
};
use broca_proto::Json;
use broca_proto::run::log::{Audience, LogEvent};
use broca_proto::run::view;
use broca_proto::session::event::{Event, EventParts, EventType};
use broca_proto::session::feature::Features;
use broca_proto::session::rpc;

/// What is written together with events.
#[derive(Debug)]
pub(super) enum Write {
    /// Nothing else; under a lease or without.
    Append(Option<Epoch>),
    /// The gate is taken.
    Claim { owner: String },
    /// The owner takes up its paused turn.
    Resume { owner: String, parked: Epoch },
    /// Somebody takes over a paused turn.
    TakeOver { owner: String, parked: Epoch },
    /// The turn pauses.
    Park { lease: Epoch, pause: Pause },
    /// The turn is over.
    Release(Epoch),
    /// The session is over.
    Close { lease: Option<Epoch>, to: SessionState },
    /// The session is over if no session key is left in it.
    CloseAbandoned,
    /// A driver registers.
    Register { who: String },
    /// The session's metadata changes, if it still has this version; one event.
    Metadata { was: u64, metadata: Json },
    /// A client joins; one event.
    Join { who: String, tools: Option<ToolLists>, session_key: KeyHash },
}

/// What was written.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// The lease, when the gate was taken.
    pub(super) epoch: Option<Epoch>,
    /// The events, in their order. None when the registration or the close had happened before, or the metadata has
    /// another version.
    pub(super) events: Vec<Shown>,
    /// The state in which a session to be closed had ended before.
    pub(super) already: Option<SessionState>,
}

/// An event on disk, as readers see it.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) seq: Seq,
    pub(super) event: Event,
    /// As those see it who asked for less than everything in it.
    reduced: Vec<(Vec<Features>, Event)>,
    pub(super) audience: Audience,
}

impl Shown {
    /// An event read from the log.
    pub(super) fn logged(session: &str, stored: &crate::store::Event) -> Result<Self, StoreError> {
        let event = logged_event(session, stored, Features::ALL)?;
        let mut reduced = Vec::new();
        let less = view::reduced_logged_payloads(event.type_name(), &event.payload());
        for (readers, _) in less {
            let asked = readers.first().copied().unwrap_or(Features::NONE);
            reduced.push((readers, logged_event(session, stored, asked)?));
        }
        Ok(Self { seq: stored.seq, event, reduced, audience: Audience::Everyone })
    }

    /// The event as a request with these features is shown it.
    pub(super) fn to(&self, features: Features) -> &Event {
        let asked = features.and(view::CONTENT);
        let less = self.reduced.iter().find(|(readers, _)| readers.contains(&asked));
        less.map_or(&self.event, |(_, event)| event)
    }
}

/// For whom and with what events are written.
#[derive(Debug, Default)]
pub(super) struct Context<'a> {
    /// The stream that does not show what its caller has just sent.
    pub(super) caller: Option<ReaderId>,
    /// The id for the assistant's message, under which its deltas were shown.
    pub(super) message_id: Option<&'a str>,
    /// What is to be remembered of the sender's message; for a gate that is taken or given back, and for a close.
    pub(super) note: Option<MessageNote>,
}

impl Session {
    /// Writes and shows. To be run in a task of its own: dropped half-way, events would be on disk unseen.
    pub(super) async fn record(
        &self,
        engine: &Engine,
        write: Write,
        events: Vec<LogEvent>,
        context: Context<'_>,
    ) -> Result<Recorded, StoreError> {
        let _order = self.order.lock().await;
        let mut shown_as = Vec::with_capacity(events.len());
        let mut new = Vec::with_capacity(events.len());
        for event in events {
            let whole = event.whole_payload();
            shown_as.push((event.audience, view::reduced_payloads(&event, &whole), whole));
            new.push(new_event(event, context.message_id)?);
        }
        let (stored, mut recorded) = self.write(engine, write, new, context.note).await?;
        let mut publications = Vec::with_capacity(stored.len());
        for (stored, (audience, less, payload)) in stored.into_iter().zip(shown_as) {
            let event = wire_event(self.id.as_str(), &stored, &payload)?;
            let type_name = event.type_name();
            let mut reduced = Vec::with_capacity(less.len());
            for (readers, payload) in less {
                reduced.push((readers, wire_event(self.id.as_str(), &stored, &payload)?));
            }
            let line = |(readers, event): &(Vec<Features>, Event)| {
                (readers.clone(), rpc::event_line(event))
            };
            publications.push(Publication {
                seq: stored.seq.0,
                line: rpc::event_line(&event),
                reduced: reduced.iter().map(line).collect(),
                needs: view::needed_for_event(type_name),
                withheld_from: context.caller.filter(|_| audience != Audience::Everyone),
            });
            recorded.events.push(Shown { seq: stored.seq, event, reduced, audience });
        }
        self.hub.publish(publications);
        Ok(recorded)
    }

    async fn write(
        &self,
        engine: &Engine,
        write: Write,
        new: Vec<NewEvent>,
        note: Option<MessageNote>,
    ) -> Result<(Vec<Stored>, Recorded), StoreError> {
        let (store, id, now) = (engine.store(), self.id.as_str(), now());
        let mut recorded = Recorded::default();
        let mut leased = |lease: crate::store::Lease| {
            recorded.epoch = Some(lease.epoch);
            lease.events
        };
        let stored = match write {
            Write::Append(lease) => store.append(id, lease, new, now).await?,
            Write::Claim { owner } => leased(store.claim_gate(id, &owner, new, note, now).await?),
            Write::Resume { owner, parked } => {
                leased(store.resume(id, &owner, parked, new, note, now).await?)
            }
            Write::TakeOver { owner, parked } => {
                leased(store.take_over(id, &owner, parked, new, note, now).await?)
            }
            Write::Park { lease, pause } => store.park(id, lease, pause, new, note, now).await?,
            Write::Release(lease) => store.release_gate(id, lease, new, note, now).await?,
            Write::Close { lease, to } => match store.close(id, lease, to, new, note, now).await? {
                Closing::Now(stored) => stored,
                Closing::Already(state) => {
                    recorded.already = Some(state);
                    Vec::new()
                }
            },
            Write::CloseAbandoned => match store.close_abandoned(id, new, now).await? {
                Closing::Now(stored) => stored,
                Closing::Already(state) => {
                    recorded.already = Some(state);
                    Vec::new()
                }
            },
            Write::Register { who } => match store.register_driver(id, &who, new, now).await? {
                Registration::First(stored) => stored,
                Registration::Already => Vec::new(),
            },
            Write::Metadata { was, metadata } => {
                let event = only(new)?;
                let text = metadata.as_str().to_owned();
                match store.change_metadata(id, was, text, event, now).await? {
                    MetadataChange::Now(stored) => vec![stored],
                    MetadataChange::Behind => Vec::new(),
                }
            }
            Write::Join { who, tools, session_key } => {
                let event = only(new)?;
                let session = id.to_owned();
                let join = Join { session, client_key_id: who, tools, session_key, event };
                vec![store.join(join, now).await?]
            }
        };
        Ok((stored, recorded))
    }
}

/// The event of a write that logs one.
fn only(mut events: Vec<NewEvent>) -> Result<NewEvent, StoreError> {
    events.pop().ok_or_else(|| StoreError::Internal("a write without its event".to_owned()))
}

/// An event for the store.
pub(super) fn new_event(event: LogEvent, message_id: Option<&str>) -> Result<NewEvent, StoreError> {
    let id = match message_id {
        Some(id) if event.event_type == EventType::ServerMessageSend => id.to_owned(),
        _ => mint(IdKind::Event)?,
    };
    Ok(NewEvent {
        id,
        client_key_id: Some(event.client_key_id.as_str().to_owned()),
        event_type: event.event_type.as_str().to_owned(),
        payload: event.payload.as_str().to_owned(),
        elided: event
            .elided
            .map(|elided| Elided { from: Seq::START, tail: elided.tail.as_str().to_owned() }),
    })
}

/// Draws an id.
pub(super) fn mint(kind: IdKind) -> Result<String, StoreError> {
    kind.mint().map_err(|error| StoreError::Internal(error.to_string()))
}

fn wire_event(session: &str, stored: &Stored, payload: &Json) -> Result<Event, StoreError> {
    let NewEvent { id, client_key_id, event_type, .. } = &stored.event;
    let created_at = stored.created_at.to_string();
    let parts = EventParts {
        id,
        session_id: session,
        client_key_id: client_key_id.as_deref(),
        event_type,
        payload: payload.as_str(),
        created_at: &created_at,
    };
    let damaged = |_| StoreError::Internal("an event cannot be written".to_owned());
    Event::write(&parts).map_err(damaged)
}

/// An event read from the log, as the wire shows it to a request with these features.
pub(super) fn logged_event(
    session: &str,
    event: &crate::store::Event,
    features: Features,
) -> Result<Event, StoreError> {
    let damaged = |_| StoreError::Internal("a logged event's payload is no JSON".to_owned());
    let reduced = if view::may_hide(features, &event.event_type) {
        let payload = Json::parse(event.payload.clone()).map_err(damaged)?;
        view::shown_payload(features, &event.event_type, &payload)
    } else {
        None
    };
    let payload = reduced.as_ref().map_or(event.payload.as_str(), Json::as_str);
    let created_at = event.created_at.to_string();
    let parts = EventParts {
        id: &event.id,
        session_id: session,
        client_key_id: event.client_key_id.as_deref(),
        event_type: &event.event_type,
        payload,
        created_at: &created_at,
    };
    Event::write(&parts).map_err(damaged)
}
