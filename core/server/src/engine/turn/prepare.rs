//! What a turn starts from, read from the store.

use super::{Drive, Lease};
use crate::engine::record::{Context, Write};
use crate::engine::send::Said;
use crate::engine::session::Ending;
use crate::engine::{Engine, millis};
use crate::models;
use crate::store::{self, Seq, StoreError};
use crate::tools;
use broca_proto::Json;
use broca_proto::run::gate::Entry;
use broca_proto::run::log::{LogEvent, history_message};
use broca_proto::run::merge::Pause;
use broca_proto::run::methods::{self, SessionState};
use broca_proto::run::open::{Declared, DeclaredTools};
use broca_proto::run::toolbox::Toolbox;
use broca_proto::run::turn::{ConsentTerms, Provider, RetryPolicy, TurnStart};
use broca_proto::session::event::EventType;
use broca_proto::session::generation::Generation;
use broca_proto::session::ids::KeyId;
use broca_proto::session::rpc::{self, RpcFailure};
use std::sync::Arc;

impl Drive {
    /// Reads what the turn starts from. The inner error is an answer without a turn.
    pub(super) async fn prepare(
        &mut self,
        entry: Entry,
        said: Said,
    ) -> Result<Result<TurnStart, (RpcFailure, Ending)>, StoreError> {
        let Said { message, generation } = said;
        let (store, id) = (self.engine.store(), self.session.id.as_str());
        let Some(session) = store.session(id).await? else {
            let failure = RpcFailure::new(rpc::code::APPLICATION, "session no longer exists");
            return Ok(Err((failure, Ending::Released)));
        };
        let state = SessionState::parse(session.state.as_str());
        if let Err(failure) = methods::session_is_open(&state) {
            return Ok(Err((failure, Ending::Over(state))));
        }
        let profile = store.profile(&session.profile_id).await?.filter(|p| !p.deleted);
        let Some(profile) = profile else {
            let profile = session.profile_id.into();
            let event = LogEvent::profile_unavailable(&self.call.who, &profile);
            let to = store::SessionState::Error;
            let write = Write::Close { lease: None, to };
            let failure = methods::profile_unavailable();
            let note = self.end_note(Err(&failure), &[]);
            let context = Context { note, ..Context::default() };
            self.session.record(&self.engine, write, vec![event], context).await?;
            return Ok(Err((failure, Ending::Over(SessionState::Error))));
        };
        let parked = match entry {
            Entry::Fresh => None,
            Entry::Resumed | Entry::Reclaimed { .. } => store.pause(id).await?,
        };
        let paused = parked.as_ref().map(|parked| read_pause(&parked.pause)).transpose()?;
        let tools = store.tools(id, self.call.who.as_str()).await?.unwrap_or_default();
        let mut history = Vec::new();
        for message in store.messages(id, Seq::START, session.last_seq).await? {
            let payload = read_json(message.payload)?;
            history.push(history_message(&payload, &EventType::parse(&message.event_type)));
        }
        let (mut session_generation, mut approvals) = Default::default();
        if let Some(settings) = session.settings {
            let unreadable = || damaged("a session's settings");
            let settings = read_json(settings)?;
            session_generation = Declared::generation_of(&settings).map_err(|_| unreadable())?;
            approvals = Declared::approvals_of(&settings).map_err(|_| unreadable())?;
        }
        let providers = self.engine.chain(&profile).map(|chain| {
            self.chain = chain;
            self.chain.iter().map(describe).collect()
        });
        self.lease = Lease::Take(entry.clone(), parked.map(|parked| parked.epoch));
        Ok(Ok(TurnStart {
            actor: self.call.who.clone(),
            entry,
            paused,
            message,
            history,
            toolbox: self.toolbox(tools)?,
            providers,
            max_rounds: self.engine.config().max_rounds,
            keep_open: self.retry_policy()?,
            session_generation,
            generation,
            consent: ConsentTerms { approvals, wait_ms: self.wait_for_consent() },
        }))
    }

    fn toolbox(&self, lists: store::ToolLists) -> Result<Toolbox, StoreError> {
        let read = |raw: String| {
            let declared = DeclaredTools::read(read_json(raw)?);
            declared.map(|declared| declared.tools).map_err(|_| damaged("a tool list"))
        };
        Ok(Toolbox {
            client: read(lists.tools)?,
            sandbox: read(lists.sandbox_tools)?,
            subagent: read(lists.subagent_tools)?,
            server: tools::declared(&self.engine.tools),
        })
    }

    /// How long a question for consent waits; nothing when the request that began the call did not ask to be asked.
    fn wait_for_consent(&self) -> Option<u64> {
        self.call.features.approve.then(|| millis(self.engine.config().approval_timeout))
    }

    /// How attempts are tried again; nothing for a caller of the plain contract.
    fn retry_policy(&self) -> Result<Option<RetryPolicy>, StoreError> {
        if !self.call.features.keep_open {
            return Ok(None);
        }
        let config = self.engine.config();
        let no_randomness = |error| StoreError::Internal(format!("no random number: {error}"));
        Ok(Some(RetryPolicy {
            retries: config.provider_retries,
            base_ms: millis(config.provider_retry_base),
            cap_ms: millis(config.provider_retry_cap),
            jitter: getrandom::u64().map_err(no_randomness)?,
        }))
    }
}

impl Engine {
    /// The models of a profile, in order; fallbacks that are not configured are left out. The error says why
    /// there is no primary.
    fn chain(&self, profile: &store::Profile) -> Result<Vec<Arc<dyn models::Model>>, String> {
        let primary = &profile.primary_provider;
        if !self.models.contains_key(primary) {
            return Err(format!("provider \"{primary}\" is not configured"));
        }
        let mut chain = Vec::new();
        for name in std::iter::once(primary).chain(&profile.fallback_providers) {
            match self.models.get(name) {
                Some(model) => chain.push(Arc::clone(model)),
                None => tracing::warn!(provider = %name, "a fallback provider is not configured"),
            }
        }
        Ok(chain)
    }
}

fn describe(model: &Arc<dyn models::Model>) -> Provider {
    let described = model.describe();
    Provider {
        provider: described.provider,
        base_url: described.base_url,
        model: described.model,
        max_tokens: Some(described.max_tokens),
    }
}

pub(in crate::engine) fn read_pause(pause: &store::Pause) -> Result<Pause, StoreError> {
    let stash = read_json(pause.stashed.clone())?.decode();
    Ok(Pause {
        owner: KeyId::from(pause.owner.as_str()),
        expected: pause.expected.clone(),
        stash: stash.map_err(|_| damaged("a paused turn"))?,
        generation: Generation::read(&read_json(pause.progress.clone())?)
            .map_err(|_| damaged("a paused turn"))?,
    })
}

pub(in crate::engine) fn read_json(text: String) -> Result<Json, StoreError> {
    Json::parse(text).map_err(|_| damaged("a payload"))
}

fn damaged(what: &str) -> StoreError {
    StoreError::Internal(format!("{what} in the store cannot be read"))
}
