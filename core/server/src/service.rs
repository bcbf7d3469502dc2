//! The service as a whole: opened over a database, served on a listener, shut down in order.

use crate::admin::{self, bootstrap::AdminKey};
use crate::config::{Config, ConfigError};
use crate::engine::{Engine, Models};
use crate::http;
use crate::keys::{IdKind, NewKey, NoRandomness, Role};
use crate::store::{
    NewClientKey, Profile, SqliteSettings, SqliteStore, Store, StoreError, WallTime,
};
use crate::tools::{self, ServerTool};
use broca_proto::Json;
use broca_proto::run::consent;
use broca_proto::run::quota::KeyLimits;
use bytes::Bytes;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;

/// The most of the shutdown timeout that is kept for turns that are cut: to let go, and to tell their callers.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Why the service cannot start or do what it was told.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// A setting is out of its bounds.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The database cannot be used; the text says why and what to do.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another program listens there.
    #[error("port in use: another program listens on {addr}; stop it, or choose another address")]
    PortInUse {
        /// The address.
        addr: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}: {source}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// What the operating system said.
        source: io::Error,
    },
    /// The admin key cannot be written.
    #[error(
        "the admin key cannot be written to {path}: {source}; name another file with --admin-key-file"
    )]
    AdminKeyFile {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The file with the hash of the admin key is there and cannot be used.
    #[error("the admin key's hash file {path} cannot be used: {why}")]
    AdminKeyHashFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Keys cannot be made.
    #[error(transparent)]
    Randomness(#[from] NoRandomness),
    /// The task of the database broke off.
    #[error("opening the database broke off; please report it")]
    Internal,
}

/// A profile to be made (session service §13).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewProfile {
    /// Its name, unique in the service.
    pub name: String,
    /// The model that is asked first, by the name it has in the service.
    pub primary_provider: String,
    /// The models that are asked next, in order.
    pub fallback_providers: Vec<String>,
    /// The names of client tools that may be declared; `*` allows every name.
    pub allowed_tools: Vec<String>,
}

impl NewProfile {
    /// A profile that allows every tool, with one model.
    #[must_use]
    pub fn permissive(name: impl Into<String>, primary_provider: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            primary_provider: primary_provider.into(),
            fallback_providers: Vec::new(),
            allowed_tools: vec!["*".to_owned()],
        }
    }
}

/// A session service over one database.
pub struct Service {
    engine: Arc<Engine>,
    shutdown: watch::Sender<bool>,
}

impl Service {
    /// Opens the database of `config`, with these models and server-side tools.
    ///
    /// # Errors
    /// [`ServiceError::Config`], [`ServiceError::Store`].
    pub async fn open(
        config: Config,
        models: Models,
        tools: Vec<Arc<dyn ServerTool>>,
    ) -> Result<Self, ServiceError> {
        config.check()?;
        let settings = SqliteSettings::new(&config.db_path);
        let opened = tokio::task::spawn_blocking(move || SqliteStore::open(&settings)).await;
        let store = opened.map_err(|_| ServiceError::Internal)??;
        Self::over(config, Arc::new(store), models, tools).await
    }

    /// A service over a store that is open already.
    ///
    /// # Errors
    /// [`ServiceError::Config`], or [`ServiceError::Store`] when its paused turns cannot be read.
    pub async fn over(
        config: Config,
        store: Arc<dyn Store>,
        models: Models,
        tools: Vec<Arc<dyn ServerTool>>,
    ) -> Result<Self, ServiceError> {
        config.check()?;
        if let Some(name) = consent::unknown(&config.ask_approval, &tools::declared(&tools)) {
            let reason = format!("names {name:?}, which is no tool of this service");
            return Err(ConfigError { name: "BROCA_ASK_APPROVAL".to_owned(), reason }.into());
        }
        let engine = Engine::start(config, store, models, tools).await?;
        let (shutdown, _) = watch::channel(false);
        Ok(Self { engine, shutdown })
    }

    /// Listens on the address of the configuration.
    ///
    /// # Errors
    /// [`ServiceError::PortInUse`], [`ServiceError::Listen`].
    pub async fn bind(&self) -> Result<TcpListener, ServiceError> {
        listen(self.engine.config().addr).await
    }

    /// Listens on the admin port's address, if the configuration names one.
    ///
    /// # Errors
    /// [`ServiceError::PortInUse`], [`ServiceError::Listen`].
    pub async fn bind_admin(&self) -> Result<Option<TcpListener>, ServiceError> {
        match self.engine.config().admin.addr {
            Some(addr) => listen(addr).await.map(Some),
            None => Ok(None),
        }
    }

    /// Sees to it that there is an admin key: one that is there is kept unless it is to be rotated, else the hash file is
    /// read if there is one, else a key is made and written to the key file. Blocks on the disk; call it before serving.
    ///
    /// # Errors
    /// [`ServiceError::AdminKeyFile`], [`ServiceError::AdminKeyHashFile`], and what the store says.
    pub async fn establish_admin_key(&self, rotate: bool) -> Result<AdminKey, ServiceError> {
        admin::bootstrap::establish(&self.engine, rotate).await
    }

    /// Carries out a request of the admin port, such as `GET /admin/v1/keys`, for whoever has the database itself: no key is
    /// asked for. Answers the status and the body, which is empty where there is none.
    ///
    /// # Errors
    /// [`ServiceError::Internal`] for a method or a path that is none.
    pub async fn manage(
        &self,
        method: &str,
        path: &str,
        body: &Json,
    ) -> Result<(u16, Bytes), ServiceError> {
        let done = admin::carry_out(Arc::clone(&self.engine), method, path, body).await;
        done.map_err(|_| ServiceError::Internal)
    }

    /// Serves the admin port until [`Service::shutdown`].
    pub async fn serve_admin(&self, listener: TcpListener) {
        let router = admin::router(Arc::clone(&self.engine));
        let mut shutdown = self.shutdown.subscribe();
        tokio::select! {
            () = http::serve(listener, router, self.engine.config(), self.shutdown.subscribe()) => {}
            () = async {
                // The sender lives as long as the service.
                let _ = shutdown.wait_for(|up| *up).await;
                tokio::time::sleep(LAST_WORDS).await;
            } => {}
        }
    }

    /// Serves the client port until [`Service::shutdown`] and returns when the open requests are done, or the
    /// shutdown timeout is over.
    pub async fn serve(&self, listener: TcpListener) {
        let router = http::router(Arc::clone(&self.engine));
        let config = self.engine.config();
        let serving = async {
            http::serve(listener, router, config, self.shutdown.subscribe()).await;
            // Turns whose callers have gone have the same time.
            self.engine.turns_are_over().await;
        };
        tokio::select! {
            biased;
            () = serving => {}
            () = self.time_is_up() => {
                tracing::warn!("requests or turns were still open at the shutdown timeout and are cut");
            }
        }
    }

    /// Returns when the shutdown timeout is over. A little earlier, turns that still run are cut.
    async fn time_is_up(&self) {
        // The sender lives as long as the service.
        let _ = self.shutdown.subscribe().wait_for(|up| *up).await;
        let (begun, whole) = (Instant::now(), self.engine.config().shutdown_timeout);
        tokio::time::sleep_until(begun + (whole - LAST_WORDS.min(whole / 10))).await;
        self.engine.cut_turns();
        tokio::time::sleep_until(begun + whole).await;
    }

    /// Begins to shut down: nothing new is accepted, subscriptions end at once, calls that wait are refused,
    /// running turns go on for at most the shutdown timeout.
    pub fn shutdown(&self) {
        self.shutdown.send_replace(true);
        self.engine.begin_shutdown();
    }

    /// Makes a profile and returns its id.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`] and what else the store says.
    pub async fn create_profile(&self, profile: NewProfile) -> Result<String, ServiceError> {
        let id = IdKind::Profile.mint()?;
        let profile = Profile {
            id: id.clone(),
            name: profile.name,
            primary_provider: profile.primary_provider,
            fallback_providers: profile.fallback_providers,
            mcp_servers: Vec::new(),
            allowed_tools: profile.allowed_tools,
            available_sandboxes: Vec::new(),
            limits: KeyLimits::default(),
            deleted: false,
        };
        self.engine.store().put_profile(profile, now()).await?;
        Ok(id)
    }

    /// The id of the profile with this name, if there is one that was not deleted.
    ///
    /// # Errors
    /// What the store says.
    pub async fn profile_named(&self, name: &str) -> Result<Option<String>, ServiceError> {
        let found = self.engine.store().profile_named(name).await?;
        Ok(found.filter(|profile| !profile.deleted).map(|profile| profile.id))
    }

    /// Mints a client key for a profile. Its plaintext is in the answer and nowhere else.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] when there is no such profile, and what else the store says.
    pub async fn create_client_key(
        &self,
        name: &str,
        profile_id: &str,
    ) -> Result<ClientKeyMade, ServiceError> {
        let key = NewKey::mint(Role::Client)?;
        let id = IdKind::Key.mint()?;
        let new = NewClientKey {
            id: id.clone(),
            name: name.to_owned(),
            display_prefix: key.display_prefix.clone(),
            hash: key.hash.clone(),
            profile_id: profile_id.to_owned(),
            limits: KeyLimits::default(),
        };
        self.engine.store().add_client_key(new, now()).await?;
        Ok(ClientKeyMade { id, key: key.plaintext })
    }

    /// The store, for management beyond these calls.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        self.engine.store()
    }
}

async fn listen(addr: SocketAddr) -> Result<TcpListener, ServiceError> {
    TcpListener::bind(addr).await.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ServiceError::PortInUse { addr },
        _ => ServiceError::Listen { addr, source },
    })
}

/// A client key that was just made.
#[derive(Debug, Clone)]
pub struct ClientKeyMade {
    /// Its id, as events show it.
    pub id: String,
    /// The key itself. Show it once; it cannot be read again.
    pub key: broca_proto::Secret,
}

fn now() -> WallTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    WallTime(since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX)))
}
