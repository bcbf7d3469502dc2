//! Every limit, timeout and default of the service, in one place; [`file`] is where an operator writes them down.

mod file;
mod template;

use broca_proto::session::approval::Ask;
use broca_proto::session::feature::Features;
pub use file::{
    ConfigFile, ConfigFileError, McpServer, ProviderEntry, ProviderKind, Telemetry, Transport,
};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
pub use template::{Template, UnsetVariable};

/// What a service is told when it starts. `Config::default()` is the documented standard; each field
/// may be set on its own.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Where the client port listens. Default `0.0.0.0:8080`. Environment `BROCA_ADDR`, `BAE_ADDR`.
    pub addr: SocketAddr,
    /// The database file. Default `/var/lib/bae/bae.db`. Environment `BROCA_DB_PATH`, `BAE_DB_PATH`.
    pub db_path: PathBuf,
    /// How long a paused turn waits for its results. Default 120 s. Environment `BROCA_TURN_TIMEOUT`,
    /// `BAE_TURN_TIMEOUT`, whole seconds.
    pub turn_timeout: Duration,
    /// How long `session.hold` may keep a pause after it began. Default a day; zero renews nothing. Environment
    /// `BROCA_MAX_HOLD`, whole seconds.
    pub max_hold: Duration,
    /// How long running turns may go on after a shutdown began. Default 30 s. Environment
    /// `BROCA_SHUTDOWN_TIMEOUT`, `BAE_SHUTDOWN_TIMEOUT`, whole seconds.
    pub shutdown_timeout: Duration,
    /// The largest request body in bytes; above it 413. Default 16 MiB.
    pub max_request_bytes: usize,
    /// The largest request head in bytes; above it 431. Default 64 KiB, at least 8 KiB.
    pub max_head_bytes: usize,
    /// How long a client may take to send a request's head, an idle connection included. Default 60 s.
    pub head_timeout: Duration,
    /// How long a client may take to send a request's body. Default 60 s.
    pub body_timeout: Duration,
    /// How long a client may leave its answer unread before the connection is cut. Default 300 s.
    pub write_timeout: Duration,
    /// Connections open at once; more wait in the listen queue. Default 8192.
    pub max_connections: usize,
    /// Model rounds in one `session.sendMessage`. Default 8.
    pub max_rounds: u32,
    /// How often one provider is tried again in a round of a turn that asked for `keep-open`. Default 2.
    pub provider_retries: u32,
    /// The wait before the first of these tries; it doubles each time. Default 0.5 s. Environment
    /// `BROCA_PROVIDER_RETRY_BASE`, whole milliseconds.
    pub provider_retry_base: Duration,
    /// The longest such wait, also where a provider asks for a longer one. Default 30 s. Environment
    /// `BROCA_PROVIDER_RETRY_CAP`, whole milliseconds.
    pub provider_retry_cap: Duration,
    /// How fan-out is bounded.
    pub hub: HubLimits,
    /// Items on a page of `GET …/events` when the request does not say. Default 50.
    pub page_default: u32,
    /// The largest page of `GET …/events`; larger wishes are clamped. Default 200.
    pub page_max: u32,
    /// Bytes of payload on one page of `GET …/events`; a page may hold fewer items for it. Default 8 MiB.
    pub page_bytes: usize,
    /// Events read at once while a subscription replays. Default 200.
    pub replay_page: u32,
    /// Bytes of payload read at once while a subscription replays. Default 1 MiB.
    pub replay_bytes: usize,
    /// How long a queued call whose message has an id keeps its place after its stream has gone, so that its sender can come
    /// back. Default 10 s. Environment `BROCA_QUEUE_GRACE`, whole seconds.
    pub queue_grace: Duration,
    /// The service's own tools that a person is asked for before they run, in every session that is opened from now on.
    /// None by default. Environment `BROCA_ASK_APPROVAL`: names separated by commas, or `*` for all.
    pub ask_approval: Ask,
    /// How long such a question waits for its answer; then the call is denied. Default 600 s. Environment
    /// `BROCA_APPROVAL_TIMEOUT`, whole seconds.
    pub approval_timeout: Duration,
    /// How many ids of messages one session remembers, the newest first. Default 1024.
    pub message_ids: u32,
    /// Bytes of JSON text that a session's metadata may have. Default 16 KiB.
    pub max_metadata: usize,
    /// Members that a session's metadata may have. Default 64.
    pub max_metadata_keys: u32,
    /// Calls that may wait at the gate of one session; one more is answered `-32000`. Default 1024.
    pub max_waiters: usize,
    /// Silence after which a bare newline is written on queued calls and subscriptions; none by default.
    pub heartbeat: Option<Duration>,
    /// Silence after which a stream that asked for the feature `heartbeat` gets its notification. Default 10 s; zero
    /// turns the feature off.
    pub heartbeat_notice: Duration,
    /// How long the old plaintext of a client key is good after its rotation, unless the request says. Default an hour.
    /// Environment `BROCA_KEY_OVERLAP`, whole seconds.
    pub key_overlap: Duration,
    /// The admin port.
    pub admin: AdminSettings,
    /// What the configuration file says beside settings. Default: an empty file.
    pub file: ConfigFile,
}

/// Where the admin port is, and who may use it (session service §13).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdminSettings {
    /// Where it listens, on a loopback address; nothing for no admin port. Default `127.0.0.1:8081`. Environment
    /// `BROCA_ADMIN_ADDR`, `BAE_ADMIN_ADDR`, with `off` for none.
    pub addr: Option<SocketAddr>,
    /// The file that a new admin key is written to. Default `admin-key.pem` beside the database. Environment
    /// `BROCA_ADMIN_KEY_FILE`, `BAE_ADMIN_KEY_FILE`.
    pub key_file: Option<PathBuf>,
    /// The file that the hash of an admin key is read from. Default `admin-key-hash.pem` beside the database.
    /// Environment `BROCA_ADMIN_KEY_HASH_FILE`, `BAE_ADMIN_KEY_HASH_FILE`.
    pub key_hash_file: Option<PathBuf>,
    /// Whether the admin port asks for no key. Default false. Environment `BROCA_DANGEROUSLY_DISABLE_ADMIN_AUTH`,
    /// `BAE_DANGEROUSLY_DISABLE_ADMIN_AUTH`, `1` or `true`.
    pub auth_disabled: bool,
}

impl Default for AdminSettings {
    fn default() -> Self {
        Self {
            addr: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 8081))),
            key_file: None,
            key_hash_file: None,
            auth_disabled: false,
        }
    }
}

/// How fan-out to readers is bounded (session service §10).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HubLimits {
    /// Events a reader may fall behind before it is dropped. Default 256.
    pub ring_events: usize,
    /// Lines that each stream may have on top of the ring. Default 64.
    pub stream_lines: usize,
    /// Bytes of events that one session keeps for its slowest reader, the largest event not counted. Default 32 MiB.
    pub ring_bytes: usize,
    /// Bytes of lines handed to the socket in one write. Default 64 KiB.
    pub batch_bytes: usize,
    /// Bytes of deltas that one reader's display lane holds; what is beyond is shed and told by a gap.
    /// Default 64 KiB.
    pub display_bytes: usize,
    /// Bytes up to which deltas of one message are joined while they wait. Default 4 KiB.
    pub display_join: usize,
}

impl Default for HubLimits {
    fn default() -> Self {
        Self {
            ring_events: 256,
            stream_lines: 64,
            ring_bytes: 32 * 1024 * 1024,
            batch_bytes: 64 * 1024,
            display_bytes: 64 * 1024,
            display_join: 4 * 1024,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            addr: SocketAddr::from(([0, 0, 0, 0], 8080)),
            db_path: PathBuf::from("/var/lib/bae/bae.db"),
            turn_timeout: Duration::from_secs(120),
            max_hold: Duration::from_secs(86_400),
            shutdown_timeout: Duration::from_secs(30),
            max_request_bytes: 16 * 1024 * 1024,
            max_head_bytes: 64 * 1024,
            head_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(300),
            max_connections: 8192,
            max_rounds: 8,
            provider_retries: 2,
            provider_retry_base: Duration::from_millis(500),
            provider_retry_cap: Duration::from_secs(30),
            hub: HubLimits::default(),
            page_default: 50,
            page_max: 200,
            page_bytes: 8 * 1024 * 1024,
            replay_page: 200,
            replay_bytes: 1024 * 1024,
            queue_grace: Duration::from_secs(10),
            ask_approval: Ask::Nobody,
            approval_timeout: Duration::from_secs(600),
            message_ids: 1024,
            max_metadata: 16 * 1024,
            max_metadata_keys: 64,
            max_waiters: 1024,
            heartbeat: None,
            heartbeat_notice: Duration::from_secs(10),
            key_overlap: Duration::from_secs(3600),
            admin: AdminSettings::default(),
            file: ConfigFile::default(),
        }
    }
}

/// The longest time that a setting may name: a year.
pub const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The most bytes that a setting may name: 1 GiB.
pub const MOST_BYTES: u64 = 1 << 30;

/// The largest count that a setting may name.
pub const MOST: u64 = 1 << 20;

/// A setting that cannot be read, or that is out of its bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {reason}")]
pub struct ConfigError {
    /// The variable.
    pub name: String,
    /// What is wrong with its value, and what it should look like.
    pub reason: String,
}

impl Config {
    /// The defaults, overridden by environment variables (session service §12): `BROCA_` or `BAE_` and the
    /// field's name in capitals, times in whole seconds where the field does not say otherwise. Where both spellings are set, `BROCA_…` wins.
    ///
    /// # Errors
    /// [`ConfigError`] naming the first variable whose value cannot be read.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// As [`Config::from_env`], with the variables looked up by `variable`.
    ///
    /// # Errors
    /// As [`Config::from_env`].
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        Self::from_sources(variable, ConfigFile::default(), &[])
    }

    /// As [`Config::from_env`], with the variables looked up by `variable`, and the table `[service]` of a file for what no
    /// variable says. A key of that table is the name of a variable in lower case, without its prefix. `others` are
    /// the names, so written, of settings that may stand there and are read by somebody else.
    ///
    /// # Errors
    /// As [`Config::from_env`]; also for a key of `[service]` that nobody knows.
    pub fn from_sources(
        variable: impl Fn(&str) -> Option<String>,
        file: ConfigFile,
        others: &[&str],
    ) -> Result<Self, ConfigError> {
        let known = others.iter().map(|name| (*name).to_owned()).collect();
        let read = Variables { variable: &variable, file: &file, known: RefCell::new(known) };
        let mut config = Self::read(&read)?;
        let known = read.known.into_inner();
        if let Some((name, (_, line))) = file.service.iter().find(|(n, _)| !known.contains(*n)) {
            let name = format!("line {line} of the configuration file, [service] {name}");
            let reason = "there is no such setting; docs/operate.md lists them".to_owned();
            return Err(ConfigError { name, reason });
        }
        config.file = file;
        config.check()?;
        Ok(config)
    }

    fn read(read: &Variables<'_>) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        read.address("ADDR", &mut config.addr)?;
        if let Some((_, value)) = read.find("DB_PATH") {
            config.db_path = PathBuf::from(value);
        }
        for (name, setting) in [
            ("TURN_TIMEOUT", &mut config.turn_timeout),
            ("MAX_HOLD", &mut config.max_hold),
            ("SHUTDOWN_TIMEOUT", &mut config.shutdown_timeout),
            ("HEAD_TIMEOUT", &mut config.head_timeout),
            ("BODY_TIMEOUT", &mut config.body_timeout),
            ("WRITE_TIMEOUT", &mut config.write_timeout),
            ("HEARTBEAT_NOTICE", &mut config.heartbeat_notice),
            ("QUEUE_GRACE", &mut config.queue_grace),
            ("KEY_OVERLAP", &mut config.key_overlap),
            ("APPROVAL_TIMEOUT", &mut config.approval_timeout),
        ] {
            if let Some(seconds) = read.number(name)? {
                *setting = Duration::from_secs(seconds);
            }
        }
        if let Some((_, words)) = read.find("ASK_APPROVAL") {
            config.ask_approval = Ask::parse(&words);
        }
        if let Some(seconds) = read.number("HEARTBEAT")? {
            config.heartbeat = (seconds > 0).then(|| Duration::from_secs(seconds));
        }
        for (name, setting) in [
            ("PROVIDER_RETRY_BASE", &mut config.provider_retry_base),
            ("PROVIDER_RETRY_CAP", &mut config.provider_retry_cap),
        ] {
            if let Some(ms) = read.number(name)? {
                *setting = Duration::from_millis(ms);
            }
        }
        for (name, setting) in [
            ("MAX_REQUEST_BYTES", &mut config.max_request_bytes),
            ("MAX_HEAD_BYTES", &mut config.max_head_bytes),
            ("MAX_CONNECTIONS", &mut config.max_connections),
            ("MAX_WAITERS", &mut config.max_waiters),
            ("MAX_METADATA", &mut config.max_metadata),
            ("PAGE_BYTES", &mut config.page_bytes),
            ("REPLAY_BYTES", &mut config.replay_bytes),
            ("RING_EVENTS", &mut config.hub.ring_events),
            ("STREAM_LINES", &mut config.hub.stream_lines),
            ("RING_BYTES", &mut config.hub.ring_bytes),
            ("BATCH_BYTES", &mut config.hub.batch_bytes),
            ("DISPLAY_BYTES", &mut config.hub.display_bytes),
            ("DISPLAY_JOIN", &mut config.hub.display_join),
        ] {
            if let Some(number) = read.number(name)? {
                *setting = number;
            }
        }
        for (name, setting) in [
            ("MAX_ROUNDS", &mut config.max_rounds),
            ("MESSAGE_IDS", &mut config.message_ids),
            ("MAX_METADATA_KEYS", &mut config.max_metadata_keys),
            ("PROVIDER_RETRIES", &mut config.provider_retries),
            ("PAGE_DEFAULT", &mut config.page_default),
            ("PAGE_MAX", &mut config.page_max),
            ("REPLAY_PAGE", &mut config.replay_page),
        ] {
            if let Some(number) = read.number(name)? {
                *setting = number;
            }
        }
        if let Some((name, value)) = read.find("ADMIN_ADDR") {
            config.admin.addr = match value.as_str() {
                "off" => None,
                _ => Some(address(name, &value)?),
            };
        }
        for (name, setting) in [
            ("ADMIN_KEY_FILE", &mut config.admin.key_file),
            ("ADMIN_KEY_HASH_FILE", &mut config.admin.key_hash_file),
        ] {
            if let Some((_, value)) = read.find(name) {
                *setting = Some(PathBuf::from(value));
            }
        }
        if let Some((name, value)) = read.find("DANGEROUSLY_DISABLE_ADMIN_AUTH") {
            config.admin.auth_disabled = match value.as_str() {
                "1" | "true" => true,
                "0" | "false" | "" => false,
                _ => {
                    let reason = "must be 1, true, 0 or false".to_owned();
                    return Err(ConfigError { name, reason });
                }
            };
        }
        Ok(config)
    }

    /// The file that a new admin key is written to.
    #[must_use]
    pub fn admin_key_file(&self) -> PathBuf {
        let beside = || self.db_path.with_file_name("admin-key.pem");
        self.admin.key_file.clone().unwrap_or_else(beside)
    }

    /// The file that the hash of an admin key is read from, if it is there.
    #[must_use]
    pub fn admin_key_hash_file(&self) -> PathBuf {
        let beside = || self.db_path.with_file_name("admin-key-hash.pem");
        self.admin.key_hash_file.clone().unwrap_or_else(beside)
    }

    /// The features beyond the plain contract that a service with these settings has.
    #[must_use]
    pub const fn offered(&self) -> Features {
        Features { heartbeat: !self.heartbeat_notice.is_zero(), ..Features::OFFERED }
    }

    /// Checks that every setting is one that the service can work with: times of at most [`LONGEST`], sizes of at
    /// most [`MOST_BYTES`], counts of at most [`MOST`], and no zero where nothing would ever move.
    ///
    /// # Errors
    /// [`ConfigError`] naming the first setting that is out of its bounds, by its variable.
    pub fn check(&self) -> Result<(), ConfigError> {
        let hub = &self.hub;
        if self.admin.addr.is_some_and(|addr| !addr.ip().is_loopback()) {
            let reason = "must be an address of this machine alone, such as 127.0.0.1:8081; put a tunnel in front to \
                          reach it from elsewhere";
            let name = "BROCA_ADMIN_ADDR".to_owned();
            return Err(ConfigError { name, reason: reason.to_owned() });
        }
        for (name, time) in [
            ("TURN_TIMEOUT", self.turn_timeout),
            ("MAX_HOLD", self.max_hold),
            ("SHUTDOWN_TIMEOUT", self.shutdown_timeout),
            ("HEAD_TIMEOUT", self.head_timeout),
            ("BODY_TIMEOUT", self.body_timeout),
            ("WRITE_TIMEOUT", self.write_timeout),
            ("PROVIDER_RETRY_BASE", self.provider_retry_base),
            ("PROVIDER_RETRY_CAP", self.provider_retry_cap),
            ("HEARTBEAT", self.heartbeat.unwrap_or(LONGEST)),
            ("HEARTBEAT_NOTICE", self.heartbeat_notice),
            ("QUEUE_GRACE", self.queue_grace),
            ("KEY_OVERLAP", self.key_overlap),
            ("APPROVAL_TIMEOUT", self.approval_timeout),
        ] {
            if time > LONGEST {
                let reason = format!("must be at most {} seconds, a year", LONGEST.as_secs());
                return Err(ConfigError { name: format!("BROCA_{name}"), reason });
            }
        }
        let many = |number: usize| number as u64;
        for (name, number, least, most) in [
            ("HEARTBEAT", self.heartbeat.map_or(1, |h| u64::from(!h.is_zero())), 1, MOST),
            ("MAX_REQUEST_BYTES", many(self.max_request_bytes), 1, MOST_BYTES),
            ("MAX_HEAD_BYTES", many(self.max_head_bytes), 0, MOST_BYTES),
            ("MAX_CONNECTIONS", many(self.max_connections), 1, MOST),
            ("MAX_WAITERS", many(self.max_waiters), 0, MOST),
            ("MAX_ROUNDS", self.max_rounds.into(), 1, MOST),
            ("MESSAGE_IDS", self.message_ids.into(), 1, MOST),
            ("MAX_METADATA", many(self.max_metadata), 2, MOST_BYTES),
            ("MAX_METADATA_KEYS", self.max_metadata_keys.into(), 0, MOST),
            ("PROVIDER_RETRIES", self.provider_retries.into(), 0, MOST),
            ("PAGE_DEFAULT", self.page_default.into(), 1, MOST),
            ("PAGE_MAX", self.page_max.into(), 1, MOST),
            ("PAGE_BYTES", many(self.page_bytes), 1, MOST_BYTES),
            ("REPLAY_PAGE", self.replay_page.into(), 1, MOST),
            ("REPLAY_BYTES", many(self.replay_bytes), 1, MOST_BYTES),
            ("RING_EVENTS", many(hub.ring_events), 1, MOST),
            ("STREAM_LINES", many(hub.stream_lines), 0, MOST),
            ("RING_BYTES", many(hub.ring_bytes), 1, MOST_BYTES),
            ("BATCH_BYTES", many(hub.batch_bytes), 1, MOST_BYTES),
            ("DISPLAY_BYTES", many(hub.display_bytes), 0, MOST_BYTES),
            ("DISPLAY_JOIN", many(hub.display_join), 0, MOST_BYTES),
        ] {
            if !(least..=most).contains(&number) {
                let reason = format!("must be from {least} to {most}");
                return Err(ConfigError { name: format!("BROCA_{name}"), reason });
            }
        }
        Ok(())
    }
}

fn address(name: String, value: &str) -> Result<SocketAddr, ConfigError> {
    let reason = "must be an address and a port, such as 127.0.0.1:8080";
    value.parse().map_err(|_| ConfigError { name, reason: reason.to_owned() })
}

/// Reads settings by name: variables under both spellings, then the file.
struct Variables<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    file: &'a ConfigFile,
    /// The names that were asked for, as the file writes them.
    known: RefCell<BTreeSet<String>>,
}

impl Variables<'_> {
    /// The variable's full name and its value.
    fn find(&self, name: &str) -> Option<(String, String)> {
        let spellings = [format!("BROCA_{name}"), format!("BAE_{name}")];
        let mut set = spellings.into_iter();
        let set = set.find_map(|full| (self.variable)(&full).map(|value| (full, value)));
        let key = name.to_ascii_lowercase();
        let written = || {
            let (value, line) = self.file.service.get(&key)?;
            let name = format!("line {line} of the configuration file, [service] {key}");
            Some((name, value.clone()))
        };
        let found = set.or_else(written);
        self.known.borrow_mut().insert(key);
        found
    }

    fn address(&self, name: &str, setting: &mut SocketAddr) -> Result<(), ConfigError> {
        if let Some((name, value)) = self.find(name) {
            *setting = address(name, &value)?;
        }
        Ok(())
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, ConfigError> {
        let Some((name, value)) = self.find(name) else { return Ok(None) };
        match value.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => {
                let reason = "must be a whole number that is not negative, such as 120";
                Err(ConfigError { name, reason: reason.to_owned() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::from_variables(|name| {
            pairs.iter().find(|(k, _)| *k == name).map(|(_, v)| (*v).to_owned())
        })
    }

    #[test]
    fn variables_override_defaults_and_the_own_spelling_wins() {
        let config = from(&[
            ("BAE_ADDR", "127.0.0.1:1"),
            ("BROCA_ADDR", "127.0.0.1:2"),
            ("BAE_TURN_TIMEOUT", "7"),
            ("BAE_DB_PATH", "/x/y.db"),
            ("BROCA_RING_EVENTS", "9"),
            ("BROCA_MAX_ROUNDS", "3"),
            ("BROCA_HEARTBEAT", "10"),
            ("BROCA_PROVIDER_RETRIES", "0"),
            ("BROCA_PROVIDER_RETRY_CAP", "1500"),
            ("BROCA_ASK_APPROVAL", "clock, find"),
            ("BROCA_APPROVAL_TIMEOUT", "3600"),
        ])
        .unwrap();
        assert_eq!(config.addr.port(), 2);
        assert_eq!(config.turn_timeout, Duration::from_secs(7));
        assert_eq!(config.db_path, PathBuf::from("/x/y.db"));
        assert_eq!((config.hub.ring_events, config.max_rounds), (9, 3));
        assert_eq!(config.ask_approval, Ask::Named(vec!["clock".to_owned(), "find".to_owned()]));
        assert_eq!(config.approval_timeout, Duration::from_secs(3600));
        assert_eq!(config.heartbeat, Some(Duration::from_secs(10)));
        let retries = (config.provider_retries, config.provider_retry_cap);
        assert_eq!(retries, (0, Duration::from_millis(1500)));
        assert_eq!(from(&[]).unwrap(), Config::default());
    }

    #[test]
    fn a_value_that_the_service_cannot_work_with_is_refused_with_its_bounds() {
        let endless = u64::MAX.to_string();
        for name in [
            "TURN_TIMEOUT",
            "MAX_HOLD",
            "SHUTDOWN_TIMEOUT",
            "HEAD_TIMEOUT",
            "BODY_TIMEOUT",
            "WRITE_TIMEOUT",
            "HEARTBEAT",
            "HEARTBEAT_NOTICE",
            "QUEUE_GRACE",
            "APPROVAL_TIMEOUT",
            "MESSAGE_IDS",
            "MAX_METADATA",
            "MAX_METADATA_KEYS",
            "MAX_REQUEST_BYTES",
            "MAX_HEAD_BYTES",
            "MAX_CONNECTIONS",
            "MAX_WAITERS",
            "PAGE_BYTES",
            "REPLAY_BYTES",
            "RING_EVENTS",
            "STREAM_LINES",
            "RING_BYTES",
            "BATCH_BYTES",
            "DISPLAY_BYTES",
            "DISPLAY_JOIN",
            "PROVIDER_RETRY_BASE",
            "PROVIDER_RETRY_CAP",
        ] {
            let name = format!("BROCA_{name}");
            let error = from(&[(&name, &endless)]).unwrap_err();
            assert_eq!(error.name, name);
            assert!(error.reason.starts_with("must be "), "{error}");
        }
        for name in ["BATCH_BYTES", "MAX_CONNECTIONS", "PAGE_MAX", "REPLAY_PAGE", "MAX_ROUNDS"] {
            assert!(from(&[(&format!("BROCA_{name}"), "0")]).is_err(), "{name}");
        }
        let spins = Config { heartbeat: Some(Duration::ZERO), ..Config::default() };
        assert_eq!(spins.check().unwrap_err().name, "BROCA_HEARTBEAT");
    }

    #[test]
    fn the_file_stands_behind_the_environment_and_its_unknown_settings_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("broca.toml");
        let sources = |text: &str, others: &[&str]| {
            std::fs::write(&path, text).unwrap();
            let file = ConfigFile::load(&path).unwrap();
            let set = |name: &str| (name == "BAE_TURN_TIMEOUT").then(|| "7".to_owned());
            Config::from_sources(set, file, others)
        };
        let text =
            "[service]\nturn_timeout = 5\nmax_hold = 60\nadmin_addr = \"off\"\nlog = \"info\"\n";
        let config = sources(text, &["log"]).unwrap();
        assert_eq!(config.turn_timeout, Duration::from_secs(7));
        assert_eq!(config.max_hold, Duration::from_secs(60));
        assert_eq!(config.admin.addr, None);
        let error = sources(text, &[]).unwrap_err().to_string();
        assert!(error.contains("line 5") && error.contains("[service] log"), "{error}");
        let error = sources("[service]\n\nmax_hold = \"long\"\n", &[]).unwrap_err().to_string();
        assert!(error.contains("line 3") && error.contains("whole number"), "{error}");
    }

    #[test]
    fn the_admin_port_stays_on_this_machine_and_its_files_lie_beside_the_database() {
        let config = from(&[("BAE_DB_PATH", "/x/y.db")]).unwrap();
        assert_eq!(config.admin.addr, Some("127.0.0.1:8081".parse().unwrap()));
        assert_eq!(config.admin_key_file(), PathBuf::from("/x/admin-key.pem"));
        assert_eq!(config.admin_key_hash_file(), PathBuf::from("/x/admin-key-hash.pem"));
        for (value, listens) in [("[::1]:1", true), ("off", false)] {
            let config = from(&[("BAE_ADMIN_ADDR", value)]).unwrap();
            assert_eq!(config.admin.addr.is_some(), listens);
        }
        for value in ["0.0.0.0:8081", "192.168.0.1:8081", "here"] {
            let error = from(&[("BROCA_ADMIN_ADDR", value)]).unwrap_err();
            assert_eq!(error.name, "BROCA_ADMIN_ADDR");
        }
        for (value, off) in [("1", true), ("true", true), ("0", false), ("false", false)] {
            let config = from(&[("BAE_DANGEROUSLY_DISABLE_ADMIN_AUTH", value)]).unwrap();
            assert_eq!(config.admin.auth_disabled, off);
        }
        assert!(from(&[("BAE_DANGEROUSLY_DISABLE_ADMIN_AUTH", "yes please")]).is_err());
    }

    #[test]
    fn a_value_that_cannot_be_read_is_named_with_the_cure() {
        let error = from(&[("BAE_TURN_TIMEOUT", "2m")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "BAE_TURN_TIMEOUT: must be a whole number that is not negative, such as 120"
        );
        assert_eq!(from(&[("BROCA_ADDR", "here")]).unwrap_err().name, "BROCA_ADDR");
    }
}
