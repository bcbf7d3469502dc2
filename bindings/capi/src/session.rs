//! Sessions. What begins with `start` does not wait and gives a request; the others wait.

use crate::answer::trace_of;
use crate::boundary::{call, given, invalid, output, value};
use crate::cast;
use crate::client::Client;
use crate::failure::Failure;
use crate::hub::Hub;
use crate::operation::{Kind, Operation};
use crate::request::Request;
use crate::status::Status;
use crate::step::Step;
use crate::subscription::Subscription;
use crate::text::{Bytes, Text};
use crate::tool::{Tool, declared};
use crate::turn::{OnStep, Turn, reply};
use broca::engine::Command;
use broca::proto::session::content::Message;
use broca::proto::session::ids::{Cursor, SessionId};
use broca_bridge::layout::finished;
use broca_bridge::{Error, Handle, Record, Trace, command};
use broca_proto::Json;
use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::{Arc, OnceLock};

/// A session, as a program holds it.
pub struct Session(Arc<Attached>);

impl Session {
    pub(crate) fn new(attached: Arc<Attached>) -> Self {
        Self(attached)
    }

    pub(crate) fn attached(&self) -> &Arc<Attached> {
        &self.0
    }

    pub(crate) fn start(&self, command: Command) -> Result<Box<Request>, Error> {
        let operation = Operation::begin(&self.0, command, Trace::default(), Kind::Request)?;
        Ok(Box::new(Request::new(operation)))
    }

    pub(crate) fn run(&self, command: Command) -> Result<Box<Step>, Error> {
        Operation::begin(&self.0, command, Trace::default(), Kind::Request)?.outcome()
    }

    fn send(&self, message: Message, trace: Trace) -> Result<Box<Turn>, Error> {
        let command = Command::Send { message };
        Ok(Box::new(Turn::new(Operation::begin(&self.0, command, trace, Kind::Turn)?)))
    }

    fn subscribe(&self, from: Option<Cursor>) -> Result<Box<Subscription>, Error> {
        let command = Command::Subscribe { from };
        let trace = Trace::default();
        let operation = Operation::begin(&self.0, command, trace, Kind::Subscription)?;
        Ok(Box::new(Subscription::new(operation)))
    }
}

/// A session among those of its client: what its operations and steps hold on to.
pub(crate) struct Attached {
    hub: Arc<Hub>,
    key: u64,
    handle: Arc<Handle>,
    opened: OnceLock<Opened>,
}

/// What is known of a session once it is open.
#[derive(Default)]
struct Opened {
    id: Text,
    profile: Text,
    features: Text,
    meta: Text,
}

impl Attached {
    pub(crate) fn new(hub: &Arc<Hub>) -> Result<Arc<Self>, Error> {
        let (key, handle) = hub.engine()?;
        Ok(Arc::new(Self { hub: Arc::clone(hub), key, handle, opened: OnceLock::new() }))
    }

    /// A session that its client does not know: nobody moves it but the test that made its engine.
    #[cfg(feature = "testing")]
    pub(crate) fn of(hub: Arc<Hub>, handle: Arc<Handle>) -> Arc<Self> {
        Arc::new(Self { hub, key: 0, handle, opened: OnceLock::new() })
    }

    pub(crate) fn hub(&self) -> &Hub {
        &self.hub
    }

    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Keeps what the end of the first operation tells of the session.
    pub(crate) fn opened(&self, record: &Record<'_>) {
        if record.text(finished::outcome) != Some("opened") {
            return;
        }
        let value = record.bytes(finished::value).and_then(|v| Json::parse(v.to_vec()).ok());
        let Some(value) = value else { return };
        let json = |name: &str| {
            value.member(name).map(|json| Text::new(json.as_bytes())).unwrap_or_default()
        };
        let id = value.member("session_id").and_then(|json| json.to_text()).unwrap_or_default();
        // Told once: a session opens once.
        let _known = self.opened.set(Opened {
            id: Text::new(id.as_bytes()),
            profile: json("profile"),
            features: json("features"),
            meta: json("meta"),
        });
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.hub.remove(self.key);
    }
}

/// The id of a session that a program names.
pub(crate) fn id_of(id: &str) -> Result<SessionId, Error> {
    if id.is_empty() {
        return Err(invalid("the id of the session is empty"));
    }
    Ok(id.into())
}

/// Makes a session that is not open yet: for programs with an event loop, which open it with `broca_session_start_open`, `_join`,
/// `_observe` or `_attach`. The others use `broca_client_open` and its like.
///
/// Ownership: returns `session` owned: free it with `broca_session_free`. Borrows `client`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_session_new(
    client: Option<&Client>,
    session: Option<&mut MaybeUninit<Option<Box<Session>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let session = output("session", session)?;
        *session = Some(Box::new(Session(Attached::new(given("client", client)?.hub())?)));
        Ok(())
    })
}

/// Begins to open a session with these tools.
///
/// Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session` and the tools.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_session_start_open(
    session: Option<&Session>,
    tools: *const *const Tool,
    tool_count: usize,
    request: Option<&mut MaybeUninit<Option<Box<Request>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let request = output("request", request)?;
        let session = given("session", session)?;
        // SAFETY: the header says what `tools` and `tool_count` are.
        let tools = unsafe { declared(tools, tool_count) }?;
        *request = Some(session.start(Command::Open { tools, metadata: None })?);
        Ok(())
    })
}

/// Begins to join a session as a driver with these tools.
///
/// Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session` and the tools; copies `id`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_session_start_join(
    session: Option<&Session>,
    id: *const c_char,
    id_len: usize,
    tools: *const *const Tool,
    tool_count: usize,
    request: Option<&mut MaybeUninit<Option<Box<Request>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let request = output("request", request)?;
        let session = given("session", session)?;
        // SAFETY: the header says what `id` and `id_len` are.
        let session_id = id_of(unsafe { cast::text("id", id, id_len) }?)?;
        // SAFETY: the header says what `tools` and `tool_count` are.
        let tools = unsafe { declared(tools, tool_count) }?;
        *request = Some(session.start(Command::Join { session_id, tools })?);
        Ok(())
    })
}

/// Begins to join a session to watch it.
///
/// Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session`; copies `id`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_session_start_observe(
    session: Option<&Session>,
    id: *const c_char,
    id_len: usize,
    request: Option<&mut MaybeUninit<Option<Box<Request>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let request = output("request", request)?;
        let session = given("session", session)?;
        // SAFETY: the header says what `id` and `id_len` are.
        let session_id = id_of(unsafe { cast::text("id", id, id_len) }?)?;
        *request = Some(session.start(Command::Observe { session_id })?);
        Ok(())
    })
}

/// Begins to ask what the service is and can do.
///
/// Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_session_start_meta(
    session: Option<&Session>,
    request: Option<&mut MaybeUninit<Option<Box<Request>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let request = output("request", request)?;
        *request = Some(given("session", session)?.start(Command::Meta)?);
        Ok(())
    })
}

/// Begins to read a page of the session's log: from its start when `cursor` is empty, with at most `limit` events (0: as many as
/// the service likes). The events come as steps of the request; the step that finishes it tells with
/// `broca_step_next_cursor` where the next page begins.
///
/// Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session`; copies `cursor`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_session_history(
    session: Option<&Session>,
    cursor: *const c_char,
    cursor_len: usize,
    limit: u32,
    request: Option<&mut MaybeUninit<Option<Box<Request>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let request = output("request", request)?;
        let session = given("session", session)?;
        // SAFETY: the header says what `cursor` and `cursor_len` are.
        let cursor = unsafe { cast::text("cursor", cursor, cursor_len) }?;
        *request = Some(session.start(Command::History {
            cursor: (!cursor.is_empty()).then(|| cursor.to_owned()),
            limit: (limit > 0).then_some(limit),
        })?);
        Ok(())
    })
}

/// Begins to ask who drives the session.
///
/// Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_session_start_participants(
    session: Option<&Session>,
    request: Option<&mut MaybeUninit<Option<Box<Request>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let request = output("request", request)?;
        *request = Some(given("session", session)?.start(Command::Participants)?);
        Ok(())
    })
}

/// Asks who drives the session, and waits for it: `broca_step_value` of the step is the JSON.
///
/// Ownership: returns `step` owned: free it with `broca_step_free`. Borrows `session`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_session_participants(
    session: Option<&Session>,
    step: Option<&mut MaybeUninit<Option<Box<Step>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let step = output("step", step)?;
        *step = Some(given("session", session)?.run(Command::Participants)?);
        Ok(())
    })
}

/// Begins to replace the tools, from the next turn on.
///
/// Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session` and the tools.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_session_start_update_tools(
    session: Option<&Session>,
    tools: *const *const Tool,
    tool_count: usize,
    request: Option<&mut MaybeUninit<Option<Box<Request>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let request = output("request", request)?;
        let session = given("session", session)?;
        // SAFETY: the header says what `tools` and `tool_count` are.
        let tools = unsafe { declared(tools, tool_count) }?;
        *request = Some(session.start(Command::UpdateTools { tools })?);
        Ok(())
    })
}

/// Replaces the tools, from the next turn on, and waits until that is done. If it fails, the old ones stay.
///
/// Ownership: borrows `session` and the tools.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_session_update_tools(
    session: Option<&Session>,
    tools: *const *const Tool,
    tool_count: usize,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let session = given("session", session)?;
        // SAFETY: the header says what `tools` and `tool_count` are.
        let tools = unsafe { declared(tools, tool_count) }?;
        session.run(Command::UpdateTools { tools }).map(drop)
    })
}

/// Begins to close the session for everybody. One that is closed already is no error.
///
/// Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_session_start_close(
    session: Option<&Session>,
    request: Option<&mut MaybeUninit<Option<Box<Request>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let request = output("request", request)?;
        *request = Some(given("session", session)?.start(Command::Close)?);
        Ok(())
    })
}

/// Closes the session for everybody, and waits until that is done. One that is closed already is no error.
///
/// Ownership: borrows `session`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_session_close(
    session: Option<&Session>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || given("session", session)?.run(Command::Close).map(drop))
}

/// Starts a turn with a text. Nothing is waited for. Turns of one session run one after the other.
///
/// Ownership: returns `turn` owned: free it with `broca_turn_free`. Borrows `session`; copies `text`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_session_send(
    session: Option<&Session>,
    text: *const c_char,
    text_len: usize,
    turn: Option<&mut MaybeUninit<Option<Box<Turn>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let turn = output("turn", turn)?;
        let session = given("session", session)?;
        // SAFETY: the header says what `text` and `text_len` are.
        let text = unsafe { cast::text("text", text, text_len) }?;
        *turn = Some(session.send(Message::user(text), Trace::default())?);
        Ok(())
    })
}

/// Starts a turn with a message as JSON: a string, an array of content blocks, or an object with `content`. The trace headers
/// (W3C Trace Context) go with every request of the turn; they may be empty.
///
/// Ownership: returns `turn` owned: free it with `broca_turn_free`. Borrows `session`; copies the texts.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_session_send_message(
    session: Option<&Session>,
    message: *const c_char,
    message_len: usize,
    traceparent: *const c_char,
    traceparent_len: usize,
    tracestate: *const c_char,
    tracestate_len: usize,
    turn: Option<&mut MaybeUninit<Option<Box<Turn>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let turn = output("turn", turn)?;
        let session = given("session", session)?;
        // SAFETY: the header says what `message` and `message_len` are.
        let message = unsafe { cast::bytes("message", message, message_len) }?;
        // SAFETY: the same of `traceparent`.
        let parent = unsafe { cast::text("traceparent", traceparent, traceparent_len) }?;
        // SAFETY: the same of `tracestate`.
        let state = unsafe { cast::text("tracestate", tracestate, tracestate_len) }?;
        let message = Json::parse(message.to_vec())
            .map_err(|_| invalid("the message is not JSON; broca_session_send takes plain text"))?;
        let message = command::read_message(&message)?;
        *turn = Some(session.send(message, trace_of(parent, state))?);
        Ok(())
    })
}

/// Sends a text and drives the turn to its end: the loop, driven for you. See `broca_turn_reply`.
///
/// Ownership: returns `done` owned: free it with `broca_step_free`. Borrows `session`; copies `text`. `on_step` is called
/// only before this returns.
/// Threads: any. `on_step` runs on the calling thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_session_ask(
    session: Option<&Session>,
    text: *const c_char,
    text_len: usize,
    on_step: OnStep,
    user_data: *mut c_void,
    done: Option<&mut MaybeUninit<Option<Box<Step>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let done = output("done", done)?;
        let session = given("session", session)?;
        // SAFETY: the header says what `text` and `text_len` are.
        let text = unsafe { cast::text("text", text, text_len) }?;
        let turn = session.send(Message::user(text), Trace::default())?;
        // SAFETY: the header says what `on_step` and `user_data` are.
        *done = Some(unsafe { reply(&turn, on_step, user_data) }?);
        Ok(())
    })
}

/// Watches the session, from now on.
///
/// Ownership: returns `subscription` owned: free it with `broca_subscription_free`. Borrows `session`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_session_subscribe(
    session: Option<&Session>,
    subscription: Option<&mut MaybeUninit<Option<Box<Subscription>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let subscription = output("subscription", subscription)?;
        *subscription = Some(given("session", session)?.subscribe(None)?);
        Ok(())
    })
}

/// Watches the session from a stored cursor; an empty one is the start of its log.
///
/// Ownership: returns `subscription` owned: free it with `broca_subscription_free`. Borrows `session`; copies `cursor`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_session_subscribe_from(
    session: Option<&Session>,
    cursor: *const c_char,
    cursor_len: usize,
    subscription: Option<&mut MaybeUninit<Option<Box<Subscription>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let subscription = output("subscription", subscription)?;
        let session = given("session", session)?;
        // SAFETY: the header says what `cursor` and `cursor_len` are.
        let cursor = unsafe { cast::text("cursor", cursor, cursor_len) }?;
        *subscription = Some(session.subscribe(Some(Cursor::from(cursor)))?);
        Ok(())
    })
}

/// Asks every turn of the session to end; each ends with `BROCA_E_CANCELLED`. Nothing is waited for.
///
/// Ownership: borrows `session`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_session_cancel(
    session: Option<&Session>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let session = given("session", session)?.attached();
        session.hub.with(session.key, |state, now| state.cancel_turns(session.key, now))?
    })
}

/// The id of the session; nothing before it is open.
///
/// Ownership: returns borrowed from `session` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_session_id(session: Option<&Session>) -> Bytes {
    known(session, |opened| &opened.id)
}

/// The profile of the session as the service shows it: JSON.
///
/// Ownership: returns borrowed from `session` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_session_profile(session: Option<&Session>) -> Bytes {
    known(session, |opened| &opened.profile)
}

/// The features that are in force, as a JSON array of words.
///
/// Ownership: returns borrowed from `session` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_session_features(session: Option<&Session>) -> Bytes {
    known(session, |opened| &opened.features)
}

/// What the service said of itself when the session was opened: JSON.
///
/// Ownership: returns borrowed from `session` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_session_meta(session: Option<&Session>) -> Bytes {
    known(session, |opened| &opened.meta)
}

fn known(session: Option<&Session>, text: impl FnOnce(&Opened) -> &Text) -> Bytes {
    value(|| {
        let opened = session.and_then(|session| session.0.opened.get());
        opened.map(|opened| text(opened).bytes()).unwrap_or_default()
    })
}

/// Frees a session; it is not closed, and others may go on with it. NULL is fine. What it has under way stays until that is
/// freed, too.
///
/// Ownership: takes `session`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_session_free(session: Option<Box<Session>>) {
    value(|| drop(session));
}
