//! The engine: what requests mean, carried out on store, gate and fan-out.
//!
//! [`session`] is one session while somebody uses it, [`record`] writes its log and shows it, [`send`]
//! waits at the gate, [`revoke`] takes keys away, [`quota`] holds them to their limits, [`listeners`] are a call's streams, [`named`] knows messages that come again, [`turn`] runs turns, [`cancel`] ends them, [`hold`] prolongs their pauses, [`approve`] asks for consent, [`replay`] feeds subscriptions. [`lobby`] opens, joins, closes and
//! pages, [`info`] tells how sessions stand; [`call`] answers `/rpc`. What the protocol says is decided in `broca_proto::run`.

mod approve;
mod call;
mod cancel;
mod deltas;
mod hold;
mod info;
mod listeners;
mod lobby;
mod named;
mod quota;
mod record;
mod replay;
mod revoke;
mod send;
mod session;
mod turn;

use crate::config::Config;
use crate::keys::{KeyHash, Role};
use crate::models::Model;
use crate::store::{self, Store, StoreError, WallTime};
use crate::tools::ServerTool;
use broca_proto::Secret;
use broca_proto::run::gate::Parking;
use broca_proto::session::ids::{KeyId, ProfileId, SessionId};
use broca_proto::session::problem::Problem;
pub(crate) use call::Reply;
pub(crate) use listeners::{Feed, Listening};
pub(crate) use replay::{Replay, ReplayStep};
use session::Session;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tracing::Instrument;

/// The models of a service by the names that profiles use.
pub type Models = BTreeMap<String, Arc<dyn Model>>;

/// How often sessions that nobody uses are dropped from memory.
const SWEEP: Duration = Duration::from_secs(2);

/// A recognised client key.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) key: KeyId,
    pub(crate) profile: ProfileId,
}

/// Everything that requests share.
pub(crate) struct Engine {
    config: Config,
    store: Arc<dyn Store>,
    models: Models,
    tools: Vec<Arc<dyn ServerTool>>,
    quotas: quota::Quotas,
    sessions: Mutex<HashMap<SessionId, Arc<Session>>>,
    stopping: AtomicBool,
    /// How many turns are at work.
    turns: watch::Sender<usize>,
}

impl Engine {
    /// An engine over a store; turns that were paused before a restart wait on.
    pub(crate) async fn start(
        config: Config,
        store: Arc<dyn Store>,
        models: Models,
        tools: Vec<Arc<dyn ServerTool>>,
    ) -> Result<Arc<Self>, StoreError> {
        let mut sessions = HashMap::new();
        for parked in store.all_pauses().await? {
            let id = SessionId::from(parked.session);
            sessions.insert(id.clone(), Session::parked(id, &config, parking(parked.pause)));
        }
        approve::withdraw_interrupted(&store).await?;
        let engine = Arc::new(Self {
            config,
            store,
            models,
            tools,
            quotas: quota::Quotas::default(),
            sessions: Mutex::new(sessions),
            stopping: AtomicBool::new(false),
            turns: watch::channel(0).0,
        });
        engine.quotas.load(engine.store().as_ref()).await?;
        engine.close_abandoned(engine.store().abandoned_sessions().await?).await?;
        let swept = Arc::downgrade(&engine);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                let Some(engine) = swept.upgrade() else { return };
                engine.lock().retain(|_, session| session.is_in_use());
            }
        });
        Ok(engine)
    }

    pub(crate) fn models(&self) -> &Models {
        &self.models
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The client behind a client key.
    pub(crate) async fn client_of(&self, key: &Secret) -> Result<Option<Client>, Problem> {
        if !has_role(key, Role::Client) {
            return Ok(None);
        }
        let found = self.store.client_key(KeyHash::of(key.expose()), now()).await;
        let found = found.map_err(|error| store_problem(&error))?;
        Ok(found.map(|key| Client {
            key: KeyId::from(key.id),
            profile: ProfileId::from(key.profile_id),
        }))
    }

    /// The client key for which this session key was minted, if it belongs to this session.
    pub(crate) async fn participant_of(
        &self,
        session: &SessionId,
        key: &Secret,
    ) -> Result<Option<KeyId>, Problem> {
        if !has_role(key, Role::Session) {
            return Ok(None);
        }
        let hash = KeyHash::of(key.expose());
        let found = self.store.session_key(session.as_str(), hash, now()).await;
        let found = found.map_err(|error| store_problem(&error))?;
        Ok(found.map(KeyId::from))
    }

    /// Ends subscriptions and refuses calls that wait; running turns go on.
    pub(crate) fn begin_shutdown(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        for session in self.lock().values() {
            session.begin_shutdown();
        }
    }

    /// Waits until no turn is at work, also none whose caller has gone.
    pub(crate) async fn turns_are_over(&self) {
        // The sender lives as long as the engine.
        let _ = self.turns.subscribe().wait_for(|turns| *turns == 0).await;
    }

    /// Cuts the turns that still run.
    pub(crate) fn cut_turns(&self) {
        for session in self.lock().values() {
            session.stop_running(session::Stop::Shutdown);
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// The sessions that somebody uses right now.
    fn in_memory(&self) -> Vec<Arc<Session>> {
        self.lock().values().cloned().collect()
    }

    /// The session in memory; only what is used right now is there.
    fn session(&self, id: &SessionId) -> Arc<Session> {
        let mut sessions = self.lock();
        if let Some(session) = sessions.get(id) {
            return Arc::clone(session);
        }
        let session = Session::new(id.clone(), &self.config);
        sessions.insert(id.clone(), Arc::clone(&session));
        session
    }

    /// The session, if somebody uses it right now.
    fn known(&self, id: &SessionId) -> Option<Arc<Session>> {
        self.lock().get(id).map(Arc::clone)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn has_role(key: &Secret, role: Role) -> bool {
    let text = key.expose();
    // `bae_` is the beginning of the other prefixes too; the length tells them apart.
    text.starts_with(role.prefix()) && text.len() == role.prefix().len() + 48
}

/// The wall clock.
pub(crate) fn now() -> WallTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    WallTime(since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX)))
}

/// The wall clock as the gate counts it.
fn now_ms() -> u64 {
    u64::try_from(now().0).unwrap_or(0)
}

/// A time as the gate counts it.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A stored pause as the gate counts it.
fn parking(pause: store::Pause) -> Parking {
    let at = |time: WallTime| u64::try_from(time.0).unwrap_or(0);
    Parking {
        owner: KeyId::from(pause.owner),
        began: at(pause.began),
        deadline: at(pause.deadline),
    }
}

/// Runs work that must not stop half-way when its caller goes away.
pub(crate) async fn detached<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    match tokio::spawn(work.in_current_span()).await {
        Ok(done) => Some(done),
        Err(error) => {
            tracing::error!(panicked = error.is_panic(), "a task of the service broke off");
            None
        }
    }
}

/// What a REST caller is told when the store failed.
pub(crate) fn store_problem(error: &StoreError) -> Problem {
    if *error != StoreError::Revoked {
        tracing::error!(code = error.code(), %error, "the store failed");
    }
    match error {
        StoreError::Revoked => Problem::new(401, "unauthorized", "invalid client key"),
        StoreError::Full => Problem::new(507, "internal", "the service's storage is full"),
        _ => Problem::new(500, "internal", "the service's storage failed"),
    }
}
