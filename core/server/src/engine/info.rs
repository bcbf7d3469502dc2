//! How sessions stand, and what is kept with them (feature `metadata`).

use super::lobby::broke_off;
use super::record::{Context, Write};
use super::session::Session;
use super::{Client, Engine, detached, store_problem};
use crate::store::{Overview, StoreError};
use broca_proto::Json;
use broca_proto::run::log::LogEvent;
use broca_proto::run::metadata::{self, Change};
use broca_proto::run::open;
use broca_proto::session::ids::{KeyId, SessionId};
use broca_proto::session::info::{SessionInfo, SessionState, TurnInfo};
use broca_proto::session::problem::Problem;
use bytes::Bytes;
use std::sync::Arc;

impl Engine {
    /// `GET /api/v1/sessions/{id}`.
    pub(crate) async fn info(&self, id: &SessionId) -> Result<Json, Problem> {
        let found = self.overview(id).await?;
        let profile = self.profile_shown(&found.session.profile_id).await?;
        self.told(found, &profile)
    }

    /// `GET /api/v1/sessions`: the sessions in which a client key took part, newest first, after the one that the cursor
    /// names.
    pub(crate) async fn sessions_of(
        &self,
        client: &Client,
        cursor: Option<&str>,
        limit: u32,
    ) -> Result<Json, Problem> {
        let fails = |error: StoreError| match error {
            StoreError::Unknown { .. } => {
                let detail = format!("invalid cursor: {:?}", cursor.unwrap_or_default());
                Problem::new(400, "bad_request", detail)
            }
            error => store_problem(&error),
        };
        let page = self.store().sessions_of(client.key.as_str(), cursor, limit).await;
        let page = page.map_err(fails)?;
        // A client key has one profile, and so have the sessions that it takes part in.
        let profile = self.profile_shown(client.profile.as_str()).await?;
        let last = page.items.last().filter(|_| page.more);
        let next = last.map_or_else(Json::null, |last| Json::string(&last.session.id));
        let items = page.items.into_iter().map(|found| self.told(found, &profile));
        let items = items.collect::<Result<Vec<Json>, Problem>>()?;
        Ok(Json::object([("items", &Json::array(&items)), ("next_cursor", &next)]))
    }

    /// `PATCH /api/v1/sessions/{id}`: on disk and shown to watchers when it is answered.
    pub(crate) async fn update(
        self: &Arc<Self>,
        id: &SessionId,
        who: KeyId,
        body: Bytes,
    ) -> Result<Json, Problem> {
        let (engine, session) = (Arc::clone(self), self.session(id));
        let work = async move {
            engine.updated(&session, &who, body).await?;
            engine.info(&session.id).await
        };
        detached(work).await.unwrap_or_else(|| Err(broke_off()))
    }

    async fn updated(&self, session: &Session, who: &KeyId, body: Bytes) -> Result<(), Problem> {
        let fails = |error: StoreError| match error {
            StoreError::NotOpen { state } => {
                let state = SessionState::parse(state.as_str());
                open::session_is_open(&state).err().unwrap_or_else(broke_off)
            }
            error => store_problem(&error),
        };
        let patch = metadata::read_patch(&open::read_body(body)?)?;
        // Somebody who changed it in between has come forward, so this ends.
        loop {
            let found = self.overview(&session.id).await?;
            let state = SessionState::parse(found.session.state.as_str());
            let registered = found.drivers.iter().any(|driver| driver == who.as_str());
            metadata::may_change(&state, registered)?;
            let (now, version) = (stored(&found.metadata)?, found.metadata_version);
            let changed = match metadata::change(&now, version, &patch, self.metadata_bounds())? {
                Change::To(changed) => changed,
                Change::Nothing => return Ok(()),
            };
            let event = LogEvent::metadata_updated(who, &changed, version + 1);
            let write = Write::Metadata { was: version, metadata: changed };
            let recorded = session.record(self, write, vec![event], Context::default()).await;
            if !recorded.map_err(fails)?.events.is_empty() {
                return Ok(());
            }
        }
    }

    /// How much metadata a session may have.
    pub(super) const fn metadata_bounds(&self) -> metadata::Bounds {
        metadata::Bounds {
            bytes: self.config.max_metadata,
            keys: self.config.max_metadata_keys as usize,
        }
    }

    async fn overview(&self, id: &SessionId) -> Result<Overview, Problem> {
        let found = self.store().overview(id.as_str()).await;
        let found = found.map_err(|error| store_problem(&error))?;
        found.ok_or_else(|| Problem::new(404, "not_found", format!("no session {id}")))
    }

    async fn profile_shown(&self, id: &str) -> Result<Json, Problem> {
        let found = self.store().profile(id).await.map_err(|error| store_problem(&error))?;
        Ok(found.map_or_else(Json::null, |profile| self.shown_profile(&profile)))
    }

    fn told(&self, found: Overview, profile: &Json) -> Result<Json, Problem> {
        let Overview { session, drivers, metadata, metadata_version, last_event } = found;
        let id = SessionId::from(session.id.as_str());
        let began = session.created_at.to_string();
        let mut info = SessionInfo::new(id.clone(), session.creator.into(), began);
        info.state = SessionState::parse(session.state.as_str());
        info.closed_at = session.closed_at.map(|at| at.to_string());
        info.drivers = drivers;
        info.turn = self.known(&id).map_or_else(TurnInfo::idle, |session| session.turn());
        info.profile = profile.clone();
        let settings = session.settings.as_deref().map(stored).transpose()?;
        if let Some(mode) = settings.as_ref().and_then(open::Declared::compaction_mode_of) {
            info.compaction = mode;
        }
        info.metadata = stored(&metadata)?;
        info.metadata_version = metadata_version;
        info.events = session.last_seq.0;
        if let Some((id, at)) = last_event {
            info.updated_at = at.to_string();
            info.last_event_id = Some(id.into());
        }
        Json::encode(&info).map_err(|_| broke_off())
    }
}

/// JSON that this service has stored.
fn stored(text: &str) -> Result<Json, Problem> {
    Json::parse(text.to_owned())
        .map_err(|_| store_problem(&StoreError::Internal("stored JSON cannot be read".to_owned())))
}
