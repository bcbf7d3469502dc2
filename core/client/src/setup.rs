//! What a client is made of, whichever shell drives it: configuration, trust, and what the machine
//! gives to an engine at its start (seed, wall clock, proxy variables).

use crate::engine::{Config, Engine, Environment, LogRecord};
use crate::tls::{Connector, Trust};
use broca_proto::{Error, ErrorKind, Secret};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Where log records go.
pub(crate) type LogSink = Arc<dyn Fn(&LogRecord) + Send + Sync>;

/// Gives the value of an environment variable.
type Variables = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Everything about a client before it is made. `C` is the client of a shell.
///
/// ```
/// # #[cfg(feature = "tokio")] {
/// use broca::tokio::Client;
///
/// let client = Client::builder("http://127.0.0.1:8080", "bae_0123")
///     .configure(|config| config.connect_timeout_ms = 3_000)
///     .build()?;
/// # }
/// # Ok::<(), broca_proto::Error>(())
/// ```
pub struct ClientBuilder<C> {
    config: Config,
    trust: Trust,
    variables: Option<Variables>,
    log: Option<LogSink>,
    client: PhantomData<fn() -> C>,
}

impl<C: From<Setup>> ClientBuilder<C> {
    pub(crate) fn new(base_url: impl Into<String>, client_key: impl Into<Secret>) -> Self {
        Self {
            config: Config::new(base_url, client_key),
            trust: Trust::default(),
            variables: Some(Arc::new(|name| std::env::var(name).ok())),
            log: None,
            client: PhantomData,
        }
    }

    /// Changes the configuration: timeouts, limits, features.
    #[must_use]
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// Whom TLS trusts. Default: the platform's roots.
    #[must_use]
    pub fn trust(mut self, trust: Trust) -> Self {
        self.trust = trust;
        self
    }

    /// Whether the proxy variables of the environment count. Default: they do.
    #[must_use]
    pub fn proxy_from_environment(mut self, obeyed: bool) -> Self {
        if !obeyed {
            self.variables = None;
        }
        self
    }

    /// Where proxy variables (`http_proxy`, `https_proxy`, `all_proxy`, `no_proxy`) come from instead of
    /// the environment: gives the value of a name.
    #[must_use]
    pub fn proxy_from(
        mut self,
        variable: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.variables = Some(Arc::new(variable));
        self
    }

    /// Where log records go: never keys, never payloads. Called from whatever thread or task moves the engine; it
    /// must not block. Default: nowhere.
    #[must_use]
    pub fn log(mut self, sink: impl Fn(&LogRecord) + Send + Sync + 'static) -> Self {
        self.log = Some(Arc::new(sink));
        self
    }

    /// Makes the client. Nothing is sent yet.
    ///
    /// # Errors
    /// `invalid_argument` for a URL or a value that cannot be used, `tls` when an https URL is given and
    /// nothing is trusted.
    pub fn build(self) -> Result<C, Error> {
        let Self { config, trust, variables, log, .. } = self;
        let connector = Arc::new(Connector::new(trust));
        let setup = Setup { config, connector, variables, log };
        // What is wrong with the configuration shows here, not at the first session.
        setup.engine()?;
        if setup.config.base_url.trim_start().to_ascii_lowercase().starts_with("https") {
            setup.connector.prepare()?;
        }
        Ok(setup.into())
    }
}

impl<C> fmt::Debug for ClientBuilder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("config", &self.config).finish_non_exhaustive()
    }
}

/// A client's parts.
#[derive(Clone)]
pub struct Setup {
    pub(crate) config: Config,
    pub(crate) connector: Arc<Connector>,
    variables: Option<Variables>,
    pub(crate) log: Option<LogSink>,
}

impl Setup {
    /// A new engine, with this machine's randomness, clock and environment.
    pub(crate) fn engine(&self) -> Result<Engine, Error> {
        self.engine_with(&self.config)
    }

    /// A new engine with a configuration of its own.
    pub(crate) fn engine_with(&self, config: &Config) -> Result<Engine, Error> {
        let seed = getrandom::u64().map_err(|e| {
            Error::new(ErrorKind::Internal, format!("the system gives no randomness: {e}"))
        })?;
        let variable = |name: &str| self.variables.as_ref().and_then(|of| of(name));
        Engine::new(config.clone(), seed, wall_ms(), Environment::from_vars(variable))
    }
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The wall clock: milliseconds since 1970.
pub(crate) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
