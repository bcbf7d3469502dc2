//! Everything that can be set about a client, with its default.

use broca_proto::Secret;
use broca_proto::session::approval::Approvals;
use broca_proto::session::budget::Budget;
use broca_proto::session::feature::Features;
use broca_proto::session::ndjson::DEFAULT_MAX_LINE_BYTES;
use broca_proto::session::subscription::ReconnectPolicy;
use broca_proto::session::turn::CallLimits;

/// How one client behaves. Times are milliseconds, sizes bytes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// The service: `http://host:port` or `https://…`, with a path prefix if it has one.
    pub base_url: String,
    /// The client key.
    pub client_key: Secret,
    /// A version text of the application, shown in the session's log.
    pub client_version: Option<String>,
    /// The `User-Agent` header. Default `broca/VERSION`.
    pub user_agent: String,
    /// Features to ask for where the service has them. Default: all that this client understands.
    pub features: Features,
    /// The longest line of a stream. Default 16 MiB.
    pub max_line_bytes: usize,
    /// The largest answer of a REST call. Default 64 MiB.
    pub max_answer_bytes: usize,
    /// Time to find the host's addresses and to connect; and, before that, time until one of the connections
    /// is free when all are in use. Default 10 s.
    pub connect_timeout_ms: u64,
    /// Time from the request to the head of its answer. Default 30 s.
    pub head_timeout_ms: u64,
    /// Time for a whole REST call. Default 60 s.
    pub rest_timeout_ms: u64,
    /// Silence on a stream after which it counts as dead; `None`: never, silence is normal. Default `None`.
    pub silence_timeout_ms: Option<u64>,
    /// Signs of life of a service that gives them (`heartbeat`) that must be missing on a stream before it counts as dead,
    /// unless `silence_timeout_ms` says when; 0: never. Default 3.
    pub silence_intervals: u32,
    /// Bytes of the events of one request that are kept for the reply where the service does not send them twice
    /// (`lean-result`). Of a longer one the reply lists the last events. Default 64 MiB.
    pub reply_bytes: usize,
    /// A turn whose stream broke is looked for in the session's log. Without news in it for this time the turn is given
    /// up, and its outcome is unknown; 0: it is not looked for. Default 120 s.
    pub recovery_timeout_ms: u64,
    /// As long as the service cannot be reached for that, it is tried again for at most this time; and for as long without
    /// news for events that a slow application has left in the log (`step_buffer_bytes`). Default 10 s.
    pub reach_timeout_ms: u64,
    /// What the log holds already of such a turn must begin to come within this time once it is read, so that the turn is not
    /// given up before; and within it of a turn that the service says it has broken off. Default 2 s.
    pub replay_timeout_ms: u64,
    /// Time for an answer to `session.cancel` before the stream is dropped. Default 5 s.
    pub cancel_timeout_ms: u64,
    /// A turn that was left by another program and still runs is given up after this time without an event. Default 5 min.
    pub resume_wait_ms: u64,
    /// Delay before the next address is tried beside the first. Default 250 ms.
    pub eyeballs_delay_ms: u64,
    /// A message is not sent on a connection that was idle for longer. Default 4 s.
    pub idle_reuse_ms: u64,
    /// An idle connection is closed after this time. Default 60 s.
    pub idle_close_ms: u64,
    /// Connections at once; one more is always there for cancelling, holding and consenting. Default 6.
    pub max_connections: usize,
    /// Bytes of steps that wait for the application before display deltas are dropped (with a Gap). Default 1 MiB.
    pub delta_buffer_bytes: usize,
    /// Bytes of steps that wait for the application before events are left in the log, to be read from there when half of them
    /// are taken: the stream of a subscription is given up until then, that of a turn is read on for its outcome. As many may
    /// wait behind what a turn has left in the log, such as calls of tools; a stream that brings more is left unread.
    /// Default 64 MiB.
    pub step_buffer_bytes: usize,
    /// How long a paused turn is held at most while its tools run or a person decides, where the service can; it has a bound
    /// of its own (`max_hold_ms`). `None`: pauses are not held, and what is open at the service's deadline has failed.
    /// Default 24 h.
    pub hold_ms: Option<u64>,
    /// What one turn may spend. A turn that needs more ends with `loop_limit`; its open calls get results that say so, and buy
    /// no model round. Default: no limits.
    pub turn_budget: Budget,
    /// What all turns of the session may spend together, those of programs that had it before included.
    pub session_budget: Budget,
    /// How calls of tools are run. `pause_ms` is what holds where the service does not say.
    pub calls: CallLimits,
    /// Which tools of the service a person is asked for before they run, in sessions that this client opens (feature
    /// `approve`); the service's operator may require more. Where the service does not offer it, such a session is not
    /// opened. Default: none.
    pub approvals: Approvals,
    /// How a lost subscription is taken up again.
    pub reconnect: ReconnectPolicy,
    /// Ask the application before each message leaves, and tell it what came (`Sending`, `Received`). Default off.
    pub hooks: bool,
    /// Time for the application's answer to `Sending`. Default 30 s.
    pub hook_timeout_ms: u64,
}

impl Config {
    /// The defaults, for this service and key.
    #[must_use]
    pub fn new(base_url: impl Into<String>, client_key: impl Into<Secret>) -> Self {
        Self {
            base_url: base_url.into(),
            client_key: client_key.into(),
            client_version: None,
            user_agent: concat!("broca/", env!("CARGO_PKG_VERSION")).to_owned(),
            features: Features::UNDERSTOOD,
            max_line_bytes: DEFAULT_MAX_LINE_BYTES,
            max_answer_bytes: 64 * 1024 * 1024,
            connect_timeout_ms: 10_000,
            head_timeout_ms: 30_000,
            rest_timeout_ms: 60_000,
            silence_timeout_ms: None,
            silence_intervals: 3,
            reply_bytes: 64 * 1024 * 1024,
            recovery_timeout_ms: 120_000,
            reach_timeout_ms: 10_000,
            replay_timeout_ms: 2_000,
            cancel_timeout_ms: 5_000,
            resume_wait_ms: 300_000,
            eyeballs_delay_ms: 250,
            idle_reuse_ms: 4_000,
            idle_close_ms: 60_000,
            max_connections: 6,
            delta_buffer_bytes: 1024 * 1024,
            step_buffer_bytes: 64 * 1024 * 1024,
            hold_ms: Some(24 * 60 * 60 * 1_000),
            turn_budget: Budget::default(),
            session_budget: Budget::default(),
            calls: CallLimits::default(),
            approvals: Approvals::default(),
            reconnect: ReconnectPolicy::default(),
            hooks: false,
            hook_timeout_ms: 30_000,
        }
    }
}
