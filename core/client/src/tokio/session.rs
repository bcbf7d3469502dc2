//! Clients and sessions.

use super::driver::Shared;
use super::operation::{Attached, Operation};
use super::reading::{History, Subscription};
use super::running::Hooks;
use super::sessions::Sessions;
use super::turn::Turn;
use crate::engine::{Command, Outcome, Reply, Trace};
use crate::info;
use crate::setup::{ClientBuilder, Setup};
use crate::steps::{Approval, Decision, IntoMessage, Received, Sending};
use crate::tools::{Tool, ToolSet};
use broca_proto::session::approval::Approvals;
use broca_proto::session::budget::Spent;
use broca_proto::session::ids::{Cursor, SessionId};
use broca_proto::session::info::SessionInfo;
use broca_proto::session::rest::{Meta, Participants};
use broca_proto::session::saved::SavedSession;
use broca_proto::{Error, ErrorKind, Json, Secret};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

/// A service and a key: where sessions come from. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    setup: Setup,
}

impl Client {
    /// A client of the service at `base_url` (`http://host:port` or `https://…`) with the defaults.
    ///
    /// # Errors
    /// See [`ClientBuilder::build`].
    pub fn new(base_url: impl Into<String>, client_key: impl Into<Secret>) -> Result<Self, Error> {
        Self::builder(base_url, client_key).build()
    }

    /// A client with settings of its own.
    pub fn builder(
        base_url: impl Into<String>,
        client_key: impl Into<Secret>,
    ) -> ClientBuilder<Self> {
        ClientBuilder::new(base_url, client_key)
    }

    /// Opens a session. Await what comes back.
    pub fn open(&self) -> Opening {
        Opening::new(self.setup.clone(), Way::Open)
    }

    /// Joins a session as a driver. Await what comes back.
    pub fn join(&self, session: impl Into<SessionId>) -> Opening {
        Opening::new(self.setup.clone(), Way::Join(session.into()))
    }

    /// Joins a session to watch it, without registering. Await what comes back.
    pub fn observe(&self, session: impl Into<SessionId>) -> Opening {
        Opening::new(self.setup.clone(), Way::Observe(session.into()))
    }

    /// Goes on with a session that another program has saved, in this language or another: registers again, declares
    /// the tools that are brought here, and reads the log. Await what comes back. Then [`Session::resume`] takes up the turn that
    /// was left, if there is one.
    pub fn attach(&self, saved: SavedSession) -> Opening {
        Opening::new(self.setup.clone(), Way::Attach(Box::new(saved)))
    }

    /// The sessions that this client's key has opened or joined, the newest first.
    ///
    /// # Errors
    /// `not_offered`, with the first of them, where the service does not list sessions (feature `metadata`); `usage` outside a tokio runtime.
    pub fn sessions(&self) -> Result<Sessions, Error> {
        Ok(Sessions::new(attach(&self.setup, false)?))
    }

    /// What the service is and can do.
    ///
    /// # Errors
    /// What the request failed with.
    pub async fn meta(&self) -> Result<Meta, Error> {
        let attached = attach(&self.setup, false)?;
        meta(&attached).await
    }
}

impl From<Setup> for Client {
    fn from(setup: Setup) -> Self {
        Self { setup }
    }
}

/// A session about to be opened, joined or observed. Nothing is sent before it is awaited.
#[must_use = "nothing is sent before it is awaited"]
pub struct Opening {
    setup: Setup,
    way: Way,
    tools: Vec<Tool>,
    metadata: Option<Json>,
    hooks: Hooks,
}

enum Way {
    Open,
    Join(SessionId),
    Observe(SessionId),
    Attach(Box<SavedSession>),
}

impl Opening {
    fn new(setup: Setup, way: Way) -> Self {
        Self { setup, way, tools: Vec::new(), metadata: None, hooks: Hooks::default() }
    }

    /// Brings a tool.
    pub fn tool(mut self, tool: Tool) -> Self {
        self.tools.push(tool);
        self
    }

    /// Brings tools.
    pub fn tools(mut self, tools: impl IntoIterator<Item = Tool>) -> Self {
        self.tools.extend(tools);
        self
    }

    /// What is kept with a session that is opened, from the beginning: a JSON object; see [`Session::update`].
    pub fn metadata(mut self, metadata: Json) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// Which tools of the service a person is asked for before they run, in the session that is opened (feature `approve`); in place
    /// of [`Config::approvals`](crate::engine::Config).
    pub fn approvals(mut self, approvals: Approvals) -> Self {
        self.setup.config.approvals = approvals;
        self
    }

    /// Sees, and may change, each message before it leaves. An error ends the turn with a `hook` error of its text.
    pub fn on_sending<E, R>(mut self, hook: impl Fn(Sending) -> R + Send + Sync + 'static) -> Self
    where
        E: fmt::Display,
        R: Future<Output = Result<Sending, E>> + Send + 'static,
    {
        self.hooks.sending = Some(Arc::new(move |sending| {
            let running = hook(sending);
            Box::pin(async move { running.await.map_err(|e| e.to_string()) })
        }));
        self
    }

    /// Sees each answer of the service. Called while the turn is polled; it must not block.
    pub fn on_received(mut self, hook: impl Fn(&Received) + Send + Sync + 'static) -> Self {
        self.hooks.received = Some(Arc::new(hook));
        self
    }

    /// Decides about approvals in [`Session::ask`] and [`Turn::reply`], where nobody sees the steps.
    pub fn on_approval<R>(mut self, hook: impl Fn(Approval) -> R + Send + Sync + 'static) -> Self
    where
        R: Future<Output = Decision> + Send + 'static,
    {
        self.hooks.approval = Some(Arc::new(move |approval| Box::pin(hook(approval))));
        self
    }

    async fn run(self) -> Result<Session, Error> {
        let Self { setup, way, tools, metadata, hooks } = self;
        if metadata.is_some() && !matches!(way, Way::Open) {
            let message = "metadata is said when a session is opened; a session that is there takes an update";
            return Err(Error::new(ErrorKind::Usage, message));
        }
        let tools = Arc::new(ToolSet::new(tools, true)?);
        let attached = attach(&setup, hooks.sending.is_some() || hooks.received.is_some())?;
        let command = match way {
            Way::Open => Command::Open { tools: tools.declared(), metadata },
            Way::Join(session_id) => Command::Join { session_id, tools: tools.declared() },
            Way::Observe(session_id) => Command::Observe { session_id },
            Way::Attach(saved) => Command::Attach { saved, tools: tools.declared() },
        };
        match Operation::run(&attached, command).await? {
            Outcome::Opened { session_id, profile, .. } => Ok(Session(Arc::new(Inner {
                attached,
                id: session_id,
                profile,
                tools: Mutex::new(tools),
                hooks: Arc::new(hooks),
            }))),
            _ => Err(unexpected("opening a session")),
        }
    }
}

impl IntoFuture for Opening {
    type Output = Result<Session, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").field("tools", &self.tools).finish_non_exhaustive()
    }
}

/// A session. Cheap to clone; all clones are the same session.
#[derive(Clone)]
pub struct Session(Arc<Inner>);

struct Inner {
    attached: Arc<Attached>,
    id: SessionId,
    profile: Json,
    tools: Mutex<Arc<ToolSet>>,
    hooks: Arc<Hooks>,
}

impl Session {
    /// The session's id.
    #[must_use]
    pub fn id(&self) -> &SessionId {
        &self.0.id
    }

    /// The profile as the service shows it, raw.
    #[must_use]
    pub fn profile(&self) -> &Json {
        &self.0.profile
    }

    /// Starts a turn. Turns of one session run one after the other. What is wrong with the call itself is the
    /// turn's first and only item.
    pub fn send(&self, message: impl IntoMessage) -> Turn {
        self.send_traced(message, Trace::default())
    }

    /// As [`Session::send`], with trace headers of the application's own tracing on every request of the turn.
    pub fn send_traced(&self, message: impl IntoMessage, trace: Trace) -> Turn {
        let command = Command::Send { message: message.into_message() };
        let begun = Operation::begin(&self.0.attached, command, trace);
        Turn::new(begun, self.tools(), Arc::clone(&self.0.hooks))
    }

    /// Sends a message and drives the turn to its reply; see [`Turn::reply`].
    ///
    /// # Errors
    /// What the turn failed with.
    pub async fn ask(&self, message: impl IntoMessage) -> Result<Reply, Error> {
        self.send(message).reply().await
    }

    /// Takes up the turn that the program before this one has left, if there is one and it was not taken up yet: it shows the
    /// events that were missed, asks for what is still open ([`ToolCall::may_have_run`](crate::engine::ToolCall::may_have_run)) and
    /// ends like any other turn. A message that is sent instead leads with results for the calls that were open.
    #[must_use]
    pub fn resume(&self) -> Option<Turn> {
        if !self.0.attached.0.with(|state, _| state.engine.is_pending()) {
            return None;
        }
        let begun = Operation::begin(&self.0.attached, Command::Resume, Trace::default());
        Some(Turn::new(begun, self.tools(), Arc::clone(&self.0.hooks)))
    }

    /// The session as a value that outlives this program, at any time, also in the middle of a turn. It holds the session's key
    /// and results of tools: keep it as one keeps keys.
    ///
    /// # Errors
    /// `usage` for a session that is only observed.
    pub fn save(&self) -> Result<SavedSession, Error> {
        self.0.attached.0.with(|state, _| state.engine.save())
    }

    /// What the turns of this session have spent so far, those of programs that had it before included.
    #[must_use]
    pub fn spent(&self) -> Spent {
        self.0.attached.0.with(|state, _| state.engine.spent())
    }

    /// Asks every turn of this session to end; each ends with a `cancelled` error. [`Turn::cancel`] also waits.
    pub fn cancel(&self) {
        self.0.attached.0.with(|state, now| state.cancel_turns(now));
    }

    /// Watches the session, from now on.
    pub fn subscribe(&self) -> Subscription {
        self.subscription(None)
    }

    /// Watches the session from a stored cursor; [`Cursor::start`] is the beginning of its log.
    pub fn subscribe_from(&self, cursor: Cursor) -> Subscription {
        self.subscription(Some(cursor))
    }

    /// The session's log.
    #[must_use]
    pub fn history(&self) -> History {
        History::new(Arc::clone(&self.0.attached))
    }

    /// Who drives the session.
    ///
    /// # Errors
    /// What the request failed with.
    pub async fn participants(&self) -> Result<Participants, Error> {
        match Operation::run(&self.0.attached, Command::Participants).await? {
            Outcome::Participants(participants) => Ok(participants),
            _ => Err(unexpected("asking for the participants")),
        }
    }

    /// How the session stands, also after its end: its state and turn, its drivers, how far its log has come, and what is kept
    /// with it.
    ///
    /// # Errors
    /// `not_offered` where the service does not tell (feature `metadata`), and what the request failed with.
    pub async fn info(&self) -> Result<SessionInfo, Error> {
        info::info(&Operation::run(&self.0.attached, Command::Info).await?)
    }

    /// Changes what is kept with the session, as a JSON merge patch (RFC 7396): an object in which `null` takes a member away.
    /// With a version ([`SessionInfo::metadata_version`]) only that version is changed. Gives how the session stands then.
    ///
    /// # Errors
    /// `not_offered` where the service keeps nothing (feature `metadata`), and what the request failed with: `api` of the type
    /// `version_conflict` when somebody else has changed it since.
    pub async fn update(&self, metadata: Json, version: Option<u64>) -> Result<SessionInfo, Error> {
        let command = Command::Update { metadata, version };
        info::info(&Operation::run(&self.0.attached, command).await?)
    }

    /// What the service is and can do.
    ///
    /// # Errors
    /// What the request failed with.
    pub async fn meta(&self) -> Result<Meta, Error> {
        meta(&self.0.attached).await
    }

    /// Replaces this client's tools, from the next turn on.
    ///
    /// # Errors
    /// `invalid_argument` for tools that cannot be used, and what the request failed with; the old tools stay then.
    pub async fn update_tools(&self, tools: impl IntoIterator<Item = Tool>) -> Result<(), Error> {
        let tools = Arc::new(ToolSet::new(tools.into_iter().collect(), true)?);
        let command = Command::UpdateTools { tools: tools.declared() };
        let Outcome::Updated = Operation::run(&self.0.attached, command).await? else {
            return Err(unexpected("replacing the tools"));
        };
        *self.0.tools.lock().unwrap_or_else(PoisonError::into_inner) = tools;
        Ok(())
    }

    /// Closes the session for everybody. One that is closed already is no error.
    ///
    /// # Errors
    /// What the request failed with.
    pub async fn close(&self) -> Result<(), Error> {
        match Operation::run(&self.0.attached, Command::Close).await? {
            Outcome::Closed => Ok(()),
            _ => Err(unexpected("closing the session")),
        }
    }

    fn subscription(&self, from: Option<Cursor>) -> Subscription {
        let command = Command::Subscribe { from: from.clone() };
        let begun = Operation::begin(&self.0.attached, command, Trace::default());
        Subscription::new(begun, from)
    }

    fn tools(&self) -> Arc<ToolSet> {
        Arc::clone(&self.0.tools.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({})", self.0.id)
    }
}

/// A new engine and its task.
fn attach(setup: &Setup, hooks: bool) -> Result<Arc<Attached>, Error> {
    let mut config = setup.config.clone();
    config.hooks |= hooks;
    let engine = setup.engine_with(&config)?;
    let Some(shared) = Shared::start(setup, engine) else {
        let message = "a session is opened inside a tokio runtime; broca::blocking needs none";
        return Err(Error::new(ErrorKind::Usage, message));
    };
    Ok(Arc::new(Attached(shared)))
}

async fn meta(attached: &Arc<Attached>) -> Result<Meta, Error> {
    match Operation::run(attached, Command::Meta).await? {
        Outcome::Meta(meta) => Ok(meta),
        _ => Err(unexpected("asking for the service's meta")),
    }
}

fn unexpected(doing: &str) -> Error {
    Error::new(ErrorKind::Internal, format!("{doing} came to the outcome of something else"))
}
