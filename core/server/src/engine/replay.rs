//! Subscriptions: what was logged before, then the live feed, without a seam (session service §5.4).

use super::Engine;
use super::record::logged_event;
use super::session::Session;
use crate::hub::{Reader, ReaderKind};
use crate::store::{PageLimit, Seq, SessionState, StoreError};
use broca_proto::Json;
use broca_proto::run::view;
use broca_proto::session::feature::Features;
use broca_proto::session::ids::{KeyId, SessionId};
use broca_proto::session::rpc::{self, RpcFailure};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;

/// A subscription that still shows the past. The reader is attached first, so that nothing falls between.
pub(crate) struct Replay {
    engine: Arc<Engine>,
    session: Arc<Session>,
    who: KeyId,
    features: Features,
    reader: Reader,
    from: From,
}

enum From {
    /// After the event with this id; from the first one when there is none.
    Event(String),
    After(Seq),
    /// Only what comes from now on.
    Live,
}

/// What a subscription's stream does next.
pub(crate) enum ReplayStep {
    /// Write these lines and go on.
    Lines(Bytes, Replay),
    /// All is shown; the feed goes on live.
    Live(Reader),
    /// Write these lines, if any, and end.
    End(Bytes),
}

impl Replay {
    pub(super) fn new(
        engine: &Arc<Engine>,
        session: &SessionId,
        who: KeyId,
        features: Features,
        since: Option<String>,
    ) -> Self {
        let session = engine.session(session);
        let reader = attach(&session, &who, features);
        let from = since.map_or(From::Live, From::Event);
        Self { engine: Arc::clone(engine), session, who, features, reader, from }
    }

    /// The next page, or the end of the replay.
    pub(crate) async fn step(mut self) -> ReplayStep {
        match self.next().await {
            Ok(Some(lines)) => ReplayStep::Lines(lines, self),
            Ok(None) => match self.end_if_over().await {
                Ok(()) => ReplayStep::Live(self.reader),
                Err(error) => ReplayStep::End(failed(&error)),
            },
            Err(error) => ReplayStep::End(failed(&error)),
        }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        let (store, id) = (self.engine.store(), self.session.id.as_str());
        let mut after = match &self.from {
            From::Live => return Ok(None),
            From::After(after) => *after,
            From::Event(event) => store.position_of(id, event).await?.unwrap_or(Seq::START),
        };
        loop {
            let limit = PageLimit {
                events: self.engine.config().replay_page,
                bytes: self.engine.config().replay_bytes,
            };
            let page = store.page(id, after, limit).await?;
            let mut lines = BytesMut::new();
            for event in &page.events {
                after = event.seq;
                if view::shows_event(self.features, &event.event_type) {
                    lines.extend_from_slice(&rpc::event_line(&logged_event(
                        id,
                        event,
                        self.features,
                    )?));
                }
            }
            self.from = From::After(after);
            if page.events.is_empty() {
                if self.reader.has_lagged() {
                    // The replay took longer than the ring reaches back: the log has the rest.
                    self.reader = attach(&self.session, &self.who, self.features);
                    continue;
                }
                self.reader.skip_to(after.0);
                return Ok(None);
            }
            if !lines.is_empty() {
                return Ok(Some(lines.freeze()));
            }
        }
    }

    /// Lets the reader end after what it has when nothing will follow. A session that ends later ends its
    /// readers itself.
    async fn end_if_over(&self) -> Result<(), StoreError> {
        // While the order is held, all that is in the log has been shown.
        let _order = self.session.order.lock().await;
        let session = self.engine.store().session(self.session.id.as_str()).await?;
        let over = session.is_none_or(|session| session.state != SessionState::Open);
        if over || self.engine.is_stopping() {
            self.reader.end();
        }
        Ok(())
    }
}

fn attach(session: &Session, who: &KeyId, features: Features) -> Reader {
    let reader = session.hub.attach(ReaderKind::Subscription, features);
    reader.belongs_to(who);
    reader
}

fn failed(error: &StoreError) -> Bytes {
    tracing::error!(code = error.code(), %error, "a replay failed");
    let failure = RpcFailure::new(rpc::code::APPLICATION, "replay failed");
    rpc::response_line(&Json::null(), Err(&failure))
}
