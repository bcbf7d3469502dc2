//! Opens, joins, closes and pages sessions (session service §3).

use super::call::checked_profile;
use super::record::{Context, Write, logged_event, mint, new_event};
use super::{Client, Engine, detached, now, store_problem};
use crate::keys::{IdKind, NewKey, Role};
use crate::store::{self, NewSession, PageLimit, Seq, StoreError, ToolLists};
use crate::tools;
use broca_proto::Json;
use broca_proto::run::consent;
use broca_proto::run::log::LogEvent;
use broca_proto::run::metadata;
use broca_proto::run::methods::SessionState;
use broca_proto::run::open::{self, Declared, Joinable};
use broca_proto::run::view;
use broca_proto::session::event::EventType;
use broca_proto::session::feature::Features;
use broca_proto::session::ids::{ProfileId, SessionId};
use broca_proto::session::problem::Problem;
use bytes::Bytes;
use std::sync::Arc;

impl Engine {
    /// `POST /api/v1/sessions`.
    pub(crate) async fn open(
        self: &Arc<Self>,
        client: Client,
        features: Features,
        body: Bytes,
    ) -> Result<Json, Problem> {
        let engine = Arc::clone(self);
        let work = async move { engine.opened(client, features, body).await };
        detached(work).await.unwrap_or_else(|| Err(broke_off()))
    }

    async fn opened(
        &self,
        client: Client,
        features: Features,
        body: Bytes,
    ) -> Result<Json, Problem> {
        let fails = |error: StoreError| store_problem(&error);
        let body = open::read_body(body)?;
        let found = self.store().profile(client.profile.as_str()).await.map_err(fails)?;
        let profile = self.profile_of(&client, found.as_ref());
        let id = mint(IdKind::Session).map_err(fails)?;
        let metadata = metadata::opening(&body, features, self.metadata_bounds())?;
        let new = |version: Option<String>, settings: Option<&Json>| NewSession {
            id: id.clone(),
            profile_id: client.profile.as_str().to_owned(),
            creator: client.key.as_str().to_owned(),
            client_version: version,
            settings: settings.map(|json| json.as_str().to_owned()),
            metadata: metadata.as_ref().map(|json| json.as_str().to_owned()),
        };
        let settled = open::check_open(&body, &profile, features).and_then(|mut declared| {
            let (required, tools) = (&self.config.ask_approval, tools::declared(&self.tools));
            declared.approvals = consent::settle(&body, features, required, &tools)?;
            Ok(declared)
        });
        let declared = match settled {
            Ok(declared) => declared,
            Err(refused) => {
                if let Some(payload) = refused.audit {
                    let actor = client.key.clone();
                    let event = LogEvent::new(EventType::SessionError, actor, payload);
                    let event = new_event(event, None).map_err(fails)?;
                    let session = new(None, None);
                    let recorded = self.store().record_refused_open(session, event, now());
                    recorded.await.map_err(fails)?;
                }
                return Err(refused.problem);
            }
        };
        let Some(found) = found else { return Err(broke_off()) };
        let _slot = self.admit_open(&client.key).await?;
        let key = session_key()?;
        let payload = declared.event_payload();
        let event = LogEvent::new(EventType::SessionOpen, client.key.clone(), payload);
        let event = new_event(event, None).map_err(fails)?;
        let session = new(declared.client_version.clone(), declared.settings().as_ref());
        let opened =
            self.store().open_session(session, lists(&declared), key.hash.clone(), event, now());
        opened.await.map_err(fails)?;
        Ok(self.welcome(&id, &key, &found))
    }

    /// `POST …/join`.
    pub(crate) async fn join(
        self: &Arc<Self>,
        session: &SessionId,
        client: Client,
        body: Bytes,
    ) -> Result<Json, Problem> {
        let (engine, session) = (Arc::clone(self), session.clone());
        let work = async move { engine.joined(session, client, body).await };
        detached(work).await.unwrap_or_else(|| Err(broke_off()))
    }

    async fn joined(&self, id: SessionId, client: Client, body: Bytes) -> Result<Json, Problem> {
        let fails = |error: StoreError| match error {
            StoreError::NotOpen { state } => {
                let state = SessionState::parse(state.as_str());
                open::session_is_open(&state).err().unwrap_or_else(broke_off)
            }
            error => store_problem(&error),
        };
        let body = open::read_body(body)?;
        let found = self.store().profile(client.profile.as_str()).await.map_err(fails)?;
        let profile = self.profile_of(&client, found.as_ref());
        let row = self.store().session(id.as_str()).await.map_err(fails)?;
        let joinable = row.map(|row| Joinable {
            state: SessionState::parse(row.state.as_str()),
            profile: ProfileId::from(row.profile_id),
        });
        let declared = open::check_join(&body, &id, joinable.as_ref(), &profile)?;
        let Some(found) = found else { return Err(broke_off()) };
        let key = session_key()?;
        let payload = declared.event_payload();
        let event = LogEvent::new(EventType::SessionJoin, client.key.clone(), payload);
        let write = Write::Join {
            who: client.key.as_str().to_owned(),
            tools: declared.names_tools.then(|| lists(&declared)),
            session_key: key.hash.clone(),
        };
        let session = self.session(&id);
        session.record(self, write, vec![event], Context::default()).await.map_err(fails)?;
        Ok(self.welcome(id.as_str(), &key, &found))
    }

    /// `DELETE /api/v1/sessions/{id}`: watchers are shown the end before their streams end.
    pub(crate) async fn close(self: &Arc<Self>, id: &SessionId) -> Result<(), Problem> {
        let (engine, session) = (Arc::clone(self), self.session(id));
        let work = async move {
            let fails = |error: StoreError| store_problem(&error);
            let row = engine.store().session(session.id.as_str()).await.map_err(fails)?;
            let Some(row) = row else {
                let detail = format!("no session {}", session.id);
                return Err(Problem::new(404, "not_found", detail));
            };
            let event = LogEvent::closed_by_client(&row.creator.into());
            let write = Write::Close { lease: None, to: store::SessionState::Closed };
            let closed = session.record(&engine, write, vec![event], Context::default()).await;
            let already = closed.map_err(fails)?.already;
            let state = already.map_or(SessionState::Closed, |s| SessionState::parse(s.as_str()));
            session.close(state.clone());
            already.map_or(Ok(()), |_| open::session_is_open(&state))
        };
        detached(work).await.unwrap_or_else(|| Err(broke_off()))
    }

    /// `GET …/participants`.
    pub(crate) async fn drivers(&self, id: &SessionId) -> Result<Vec<String>, Problem> {
        self.store().drivers(id.as_str()).await.map_err(|error| store_problem(&error))
    }

    /// `GET …/events`: a page after the place that the cursor names.
    pub(crate) async fn page(
        &self,
        id: &SessionId,
        after: u64,
        limit: u32,
        features: Features,
    ) -> Result<Json, Problem> {
        let fails = |error: StoreError| store_problem(&error);
        let limit = PageLimit { events: limit, bytes: self.config.page_bytes };
        let page = self.store().page(id.as_str(), Seq(after), limit).await.map_err(fails)?;
        let mut items = Vec::with_capacity(page.events.len());
        for event in &page.events {
            if view::shows_event(features, &event.event_type) {
                items.push(logged_event(id.as_str(), event, features).map_err(fails)?.json());
            }
        }
        let next = page.events.last().filter(|_| page.more);
        let next = next.map_or_else(Json::null, |event| Json::string(&event.seq.0.to_string()));
        Ok(Json::object([("items", &Json::array(&items)), ("next_cursor", &next)]))
    }

    fn profile_of(&self, client: &Client, found: Option<&store::Profile>) -> open::Profile {
        found.map_or_else(
            || open::Profile {
                id: client.profile.clone(),
                available: false,
                primary_provider: String::new(),
                primary_known: false,
                allowed_tools: Vec::new(),
            },
            |profile| checked_profile(self, profile),
        )
    }

    /// The answer to open and join.
    fn welcome(&self, session: &str, key: &NewKey, profile: &store::Profile) -> Json {
        Json::object([
            ("profile", &self.shown_profile(profile)),
            ("session_id", &Json::string(session)),
            ("session_key", &Json::string(key.plaintext.expose())),
        ])
    }

    /// A profile as clients are shown it.
    pub(super) fn shown_profile(&self, profile: &store::Profile) -> Json {
        let texts = |list: &[String]| {
            let texts: Vec<Json> = list.iter().map(|text| Json::string(text)).collect();
            Json::array(&texts)
        };
        let model = self.models.get(&profile.primary_provider).map(|model| model.describe());
        let provider = model.map_or_else(Json::null, |model| {
            let (name, model) = (Json::string(&model.provider), Json::string(&model.model));
            Json::object([("model", &model), ("provider", &name)])
        });
        Json::object([
            ("allowed_tools", &texts(&profile.allowed_tools)),
            ("id", &Json::string(&profile.id)),
            ("mcp_servers", &texts(&profile.mcp_servers)),
            ("name", &Json::string(&profile.name)),
            ("provider", &provider),
        ])
    }
}

fn lists(declared: &Declared) -> ToolLists {
    let text = |list: &open::DeclaredTools| list.raw.as_str().to_owned();
    ToolLists {
        tools: text(&declared.tools),
        sandbox_tools: text(&declared.sandbox_tools),
        subagent_tools: text(&declared.subagent_tools),
    }
}

fn session_key() -> Result<NewKey, Problem> {
    NewKey::mint(Role::Session).map_err(|error| {
        tracing::error!(%error, "no key can be made");
        broke_off()
    })
}

pub(super) fn broke_off() -> Problem {
    Problem::new(500, "internal", "the service failed; see its log")
}
