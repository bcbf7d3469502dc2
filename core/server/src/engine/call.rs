//! Answers `/rpc`: one method each (session service §5).

use super::listeners::{Asker, Listening};
use super::record::{Context, Write};
use super::send::{self, Call, Said};
use super::session::Session;
use super::{Engine, Replay, approve, cancel, detached, hold};
use crate::store::{self, StoreError};
use broca_proto::Json;
use broca_proto::run::log::LogEvent;
use broca_proto::run::methods::{self, Caller, SessionState};
use broca_proto::run::open;
use broca_proto::run::repeat;
use broca_proto::session::approval::Approve;
use broca_proto::session::event::EventType;
use broca_proto::session::feature::Features;
use broca_proto::session::ids::{KeyId, ProfileId, SessionId};
use broca_proto::session::method::{self, Method, Params};
use broca_proto::session::rpc::{Request, RpcFailure, response_line};
use bytes::Bytes;
use std::sync::Arc;

/// How a request is answered.
pub(crate) enum Reply {
    /// With one line.
    Line(Bytes),
    /// Not at all: the request was a notification.
    Nothing,
    /// With the stream of a call.
    Call(Listening),
    /// With the stream of a subscription.
    Watch(Replay),
}

impl Engine {
    /// Answers one request of `who`, whose session key was checked.
    pub(crate) async fn call(
        self: &Arc<Self>,
        id: &SessionId,
        who: KeyId,
        features: Features,
        request: Request,
    ) -> Reply {
        let session = self.session(id);
        if let Some(named) = named_message(&request, features) {
            let asker = Asker { features, id: request.id.clone() };
            let fallen = asker.line(Err(&methods::internal_error()));
            let work = Arc::clone(self).send_named(session, who, asker, request, named);
            return detached(work).await.unwrap_or(Reply::Line(fallen));
        }
        let answer = match self.admitted(&session, &who, features, &request).await {
            Err(failure) => Err(failure),
            Ok((Method::SendMessage, _)) if self.is_stopping() => Err(send::stopping()),
            Ok((Method::SendMessage, _)) => match sent_message(&request, features) {
                Err(failure) => Err(failure),
                Ok((_, said)) => match self.admit_turn(&who).await {
                    Err(failure) => Err(failure),
                    Ok(slot) => {
                        let asker = Asker { features, id: request.id };
                        let (call, listening) = Call::new(who, asker, None);
                        call.hold(slot);
                        send::begin(self, session, call, said);
                        return Reply::Call(listening);
                    }
                },
            },
            Ok((Method::Subscribe, _)) => match method::Subscribe::read(&request.params) {
                Err(failure) => Err(failure),
                Ok(subscribe) => {
                    let since = subscribe.since_event_id;
                    return Reply::Watch(Replay::new(self, id, who, features, since));
                }
            },
            Ok((method, row)) => {
                let (engine, params) = (Arc::clone(self), request.params);
                let work = async move { engine.act(&session, who, method, &params, row).await };
                detached(work).await.unwrap_or_else(|| Err(methods::internal_error()))
            }
        };
        match request.id {
            None => Reply::Nothing,
            Some(id) => Reply::Line(response_line(&id, answer.as_ref())),
        }
    }

    pub(super) async fn admitted(
        &self,
        session: &Session,
        who: &KeyId,
        features: Features,
        request: &Request,
    ) -> Result<(Method, store::Session), RpcFailure> {
        let id = session.id.as_str();
        let read = async {
            let row = self.store().session(id).await?;
            let drivers = self.store().drivers(id).await?;
            Ok((row, drivers.iter().any(|driver| driver == who.as_str())))
        };
        let (row, registered) = read.await.map_err(|error| internal(session, &error))?;
        let Some(row) = row else {
            let code = broca_proto::session::rpc::code::APPLICATION;
            return Err(RpcFailure::new(code, "session no longer exists"));
        };
        let state = SessionState::parse(row.state.as_str());
        let caller = Caller { registered, state: &state, features };
        Ok((methods::admit(&request.method, caller)?, row))
    }

    /// Carries out a method that answers with one line.
    async fn act(
        &self,
        session: &Arc<Session>,
        who: KeyId,
        method: Method,
        params: &Json,
        row: store::Session,
    ) -> Result<Json, RpcFailure> {
        let fails = |error: StoreError| match error {
            StoreError::NotOpen { state } => {
                let state = SessionState::parse(state.as_str());
                methods::session_is_open(&state).err().unwrap_or_else(methods::internal_error)
            }
            error => internal(session, &error),
        };
        let profile = async {
            let profile = self.store().profile(&row.profile_id).await.map_err(fails)?;
            profile.filter(|p| !p.deleted).ok_or_else(methods::profile_unavailable)
        };
        match method {
            Method::RegisterDriver => {
                let images = profile.await.map(|p| p.available_sandboxes).unwrap_or_default();
                let events = registration(&who, &images);
                let write = Write::Register { who: who.as_str().to_owned() };
                session.record(self, write, events, Context::default()).await.map_err(fails)?;
                Ok(yes("registered"))
            }
            Method::Unsubscribe => {
                session.hub.end_subscriptions();
                Ok(yes("unsubscribed"))
            }
            Method::UpdateClientTools => {
                let profile = checked_profile(self, &profile.await?);
                let declared = methods::update_client_tools(params, &profile)?;
                let raw = declared.raw.as_str().to_owned();
                let replaced = self.store().replace_tools(session.id.as_str(), who.as_str(), raw);
                replaced.await.map_err(fails)?;
                Ok(yes("updated"))
            }
            Method::ReportLocalSandbox | Method::ReportLocalSubagent => {
                let event = match method {
                    Method::ReportLocalSandbox => methods::report_local_sandbox(&who, params)?,
                    _ => methods::report_local_subagent(&who, params)?,
                };
                let write = Write::Append(None);
                session
                    .record(self, write, vec![event], Context::default())
                    .await
                    .map_err(fails)?;
                Ok(yes("reported"))
            }
            Method::Cancel => {
                let wish = method::Cancel::read(params)?;
                cancel::cancel(self, session, &who, wish).await
            }
            Method::Approve => {
                let said = Approve::read(params)?;
                approve::approve(self, session, &who, said).await
            }
            Method::Hold => {
                let held = hold::hold(self, session, &who).await.map_err(fails)?;
                Json::encode(&held).map_err(|_| methods::internal_error())
            }
            method => {
                let images = profile.await.map(|p| p.available_sandboxes).unwrap_or_default();
                let refused = methods::unbuilt(&method, params, &images);
                Err(refused.unwrap_or_else(methods::internal_error))
            }
        }
    }
}

/// What a `session.sendMessage` says, and the id that its sender gave it.
fn sent_message(
    request: &Request,
    features: Features,
) -> Result<(Option<String>, Said), RpcFailure> {
    let message = methods::send_message(&request.params)?;
    let id = repeat::message_id(&request.params, features)?;
    let generation = methods::generation(&request.params, features)?;
    Ok((id, Said { message, generation }))
}

/// A message that has an id. Such a one may have been answered before, whatever has become of the session since.
fn named_message(request: &Request, features: Features) -> Option<(String, Said)> {
    if Method::parse(&request.method) != Method::SendMessage || !features.message_id {
        return None;
    }
    let (id, said) = sent_message(request, features).ok()?;
    id.map(|id| (id, said))
}

/// What registering logs: the driver, and what the profile's images are good for.
fn registration(who: &KeyId, images: &[String]) -> Vec<LogEvent> {
    let mut events = vec![LogEvent::driver_registered(who)];
    if !images.is_empty() {
        let (status, detail) = (Json::string("error"), "sandboxes are not built into this service");
        let detail = Json::string(detail);
        let images: Vec<Json> = images
            .iter()
            .map(|name| {
                let name = Json::string(name);
                Json::object([("detail", &detail), ("name", &name), ("status", &status)])
            })
            .collect();
        let payload = Json::object([("images", &Json::array(&images))]);
        events.push(LogEvent::new(EventType::SessionSandboxAvailable, who.clone(), payload));
    }
    events
}

/// The profile as the checks of declared tools see it.
pub(super) fn checked_profile(engine: &Engine, profile: &store::Profile) -> open::Profile {
    open::Profile {
        id: ProfileId::from(profile.id.as_str()),
        available: !profile.deleted,
        primary_provider: profile.primary_provider.clone(),
        primary_known: engine.models.contains_key(&profile.primary_provider),
        allowed_tools: profile.allowed_tools.clone(),
    }
}

fn yes(word: &str) -> Json {
    Json::object([(word, &Json::encode(&true).unwrap_or_default())])
}

fn internal(session: &Session, error: &StoreError) -> RpcFailure {
    tracing::error!(session = %session.id, code = error.code(), %error, "the store failed");
    methods::internal_error()
}
