//! Messages that have an id (feature `message-id`): the same message sent again is the same call.
//!
//! While the call goes on, its sender becomes one more listener. When it is over, the store knows what became of it.

use super::listeners::Asker;
use super::record::Shown;
use super::send::{self, Call, Said, stopping};
use super::session::{Enlisted, Session};
use super::turn::read_json;
use super::{Engine, Reply, now_ms, parking};
use crate::store::{
    KnownMessage, MessageAnswer, MessageOutcome, NamedMessage, PageLimit, Seq, StoreError,
};
use broca_proto::Json;
use broca_proto::run::repeat::{self, FirstOne};
use broca_proto::run::{methods, view};
use broca_proto::session::content::{Message, Role};
use broca_proto::session::event::{Event, EventType};
use broca_proto::session::feature::Features;
use broca_proto::session::ids::KeyId;
use broca_proto::session::rpc::{Request, RpcFailure};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// What a message was answered with.
struct Answered {
    events: Vec<Shown>,
    message: Message,
    /// How long its turn is still paused, if it is.
    pause: Option<u64>,
}

impl Engine {
    /// Answers `session.sendMessage` with a message that has an id. To be run in a task of its own: others may come to
    /// listen to the call.
    pub(super) async fn send_named(
        self: Arc<Self>,
        session: Arc<Session>,
        who: KeyId,
        asker: Asker,
        request: Request,
        named: (String, Said),
    ) -> Reply {
        let (id, said) = named;
        let name = NamedMessage {
            sender: who.as_str().to_owned(),
            id,
            digest: digest(&said),
            keep: self.config().message_ids,
        };
        let (call, listening) = match session.enlist(&who, asker.clone(), name.clone()) {
            Enlisted::New(call, listening) => (call, listening),
            Enlisted::Joined(listening) => return Reply::Call(listening),
            Enlisted::Refused(failure) => return Reply::Line(asker.line(Err(&failure))),
        };
        match self.look_up(&session, &name).await {
            Ok(Some(answered)) => session.end_unbegun(&call, |asker| match &answered {
                Ok(answered) => asker.line(Ok(&answered.result(asker.features))),
                Err(failure) => asker.line(Err(failure)),
            }),
            Ok(None) => self.send_new(session, call, said, &asker, &request).await,
            Err(error) => {
                let code = error.code();
                tracing::error!(session = %session.id, code, %error, "a message cannot be looked up");
                let failure = methods::internal_error();
                session.end_unbegun(&call, |asker| asker.line(Err(&failure)));
            }
        }
        Reply::Call(listening)
    }

    /// A message that came for the first time, as far as anybody knows.
    async fn send_new(
        self: &Arc<Self>,
        session: Arc<Session>,
        call: Arc<Call>,
        said: Said,
        asker: &Asker,
        request: &Request,
    ) {
        let admitted = self.admitted(&session, &call.who, asker.features, request).await;
        let admitted =
            admitted.and_then(|_| if self.is_stopping() { Err(stopping()) } else { Ok(()) });
        let admitted = match admitted {
            Ok(()) => self.admit_turn(&call.who).await,
            Err(failure) => Err(failure),
        };
        match admitted {
            Ok(slot) => {
                call.hold(slot);
                send::begin(self, session, call, said);
            }
            Err(failure) => session.end_unbegun(&call, |asker| asker.line(Err(&failure))),
        }
    }

    /// What became of a message that is known; nothing when it is new.
    async fn look_up(
        &self,
        session: &Session,
        name: &NamedMessage,
    ) -> Result<Option<Result<Answered, RpcFailure>>, StoreError> {
        let known = self.store().known_message(session.id.as_str(), &name.sender, &name.id).await;
        let known = match known {
            Ok(Some(known)) => known,
            // A session that is gone is told as ever.
            Ok(None) | Err(StoreError::Unknown { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let KnownMessage { digest, epoch, outcome } = known;
        let first = outcome.as_ref().map_or(FirstOne::BrokeOff, |_| FirstOne::Answered);
        if let Err(failure) = repeat::share_in(first, digest == name.digest) {
            return Ok(Some(Err(failure)));
        }
        let Some(MessageOutcome { spans, answer }) = outcome else {
            return Err(damaged("the outcome of a message"));
        };
        if let MessageAnswer::Failed { code, message } = answer {
            return Ok(Some(Err(RpcFailure { code, message })));
        }
        let events = self.logged(session, spans).await?;
        let message = match answer {
            MessageAnswer::Unlogged(message) => read_json(message)?,
            _ => {
                let is_answer = |shown: &&Shown| {
                    EventType::parse(shown.event.type_name()) == EventType::ServerMessageSend
                };
                let answer = events.iter().rev().find(is_answer);
                let answer = answer.map(|shown| shown.event.payload());
                answer.ok_or_else(|| damaged("the answer to a message"))?
            }
        };
        let message = Message::read(&message, Role::Assistant).map_err(|_| damaged("an answer"))?;
        let paused = self.store().pause(session.id.as_str()).await?;
        let paused = paused.filter(|parked| epoch == Some(parked.epoch));
        let pause = paused.map(|paused| parking(paused.pause).deadline.saturating_sub(now_ms()));
        Ok(Some(Ok(Answered { events, message, pause })))
    }

    /// The events at these places, as the wire shows them.
    async fn logged(
        &self,
        session: &Session,
        spans: Vec<(Seq, Seq)>,
    ) -> Result<Vec<Shown>, StoreError> {
        let (config, id) = (self.config(), session.id.as_str());
        let limit = PageLimit { events: config.replay_page, bytes: config.replay_bytes };
        let mut events = Vec::new();
        for (from, to) in spans {
            let mut after = Seq(from.0.saturating_sub(1));
            while after < to {
                let page = self.store().page(id, after, limit).await?;
                let Some(last) = page.events.last() else { break };
                after = last.seq;
                for event in page.events.iter().take_while(|event| event.seq <= to) {
                    events.push(Shown::logged(id, event)?);
                }
            }
        }
        Ok(events)
    }
}

impl Answered {
    /// The result for a request with these features. It is whole: the stream has carried nothing.
    fn result(&self, features: Features) -> Json {
        let whole = Features { lean_result: false, ..features };
        let shown = self.events.iter().map(|shown| shown.to(features));
        let shown = shown.filter(|event| view::shows_event(features, event.type_name()));
        let shown: Vec<Json> = shown.map(Event::json).collect();
        let result = view::send_message_result(whole, &self.message, &shown, None);
        let result = match self.pause {
            Some(left) => view::pausing_result(features, result, left),
            None => result,
        };
        view::replayed_result(&result)
    }
}

/// Tells a message from others.
fn digest(said: &Said) -> String {
    let mut hash = Sha256::new_with_prefix(said.message.to_json().as_bytes());
    if !said.generation.is_empty() {
        hash.update(said.generation.to_json().as_bytes());
    }
    let mut text = String::with_capacity(64);
    crate::keys::push_hex(&mut text, &hash.finalize());
    text
}

fn damaged(what: &str) -> StoreError {
    StoreError::Internal(format!("{what} in the store cannot be read"))
}
