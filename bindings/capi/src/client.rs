//! Clients: a service, a key, and the sockets of all sessions that come from it.

use crate::boundary::{call, given, output, value};
use crate::cast;
use crate::failure::Failure;
use crate::hub::Hub;
use crate::operation::{Kind, Operation};
use crate::options::Options;
use crate::session::{Attached, Session};
use crate::status::Status;
use crate::step::Step;
use crate::text::{Bytes, Text};
use crate::tool::{Tool, declared};
use broca::engine::Command;
use broca_bridge::{Error, Trace};
use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// For people who look for a fault of the library.
pub const BROCA_LOG_DEBUG: i32 = 0;
/// Worth knowing.
pub const BROCA_LOG_INFO: i32 = 1;
/// Something is odd.
pub const BROCA_LOG_WARNING: i32 = 2;

/// A client.
pub struct Client {
    hub: Arc<Hub>,
    log: Mutex<Text>,
}

impl Client {
    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    pub(crate) fn start(&self, command: Command) -> Result<Box<Session>, Error> {
        let session = Attached::new(&self.hub)?;
        Operation::begin(&session, command, Trace::default(), Kind::Request)?.outcome()?;
        Ok(Box::new(Session::new(session)))
    }
}

/// Makes a client. Nothing is sent yet.
///
/// Ownership: returns `client` owned: free it with `broca_client_free`. Borrows `options`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_client_new(
    options: Option<&Options>,
    client: Option<&mut MaybeUninit<Option<Box<Client>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let client = output("client", client)?;
        let hub = Arc::new(Hub::new(given("options", options)?.setup()?));
        *client = Some(Box::new(Client { hub, log: Mutex::default() }));
        Ok(())
    })
}

/// The sockets of the client, for a program with an event loop of its own.
///
/// Ownership: returns borrowed from `client` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_client_io(client: Option<&Client>) -> *mut Hub {
    client.map_or(ptr::null_mut(), |client| Arc::as_ptr(&client.hub).cast_mut())
}

/// Opens a session with these tools, and waits until it is open.
///
/// Ownership: returns `session` owned: free it with `broca_session_free`. Borrows `client` and the tools.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_client_open(
    client: Option<&Client>,
    tools: *const *const Tool,
    tool_count: usize,
    session: Option<&mut MaybeUninit<Option<Box<Session>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let session = output("session", session)?;
        let client = given("client", client)?;
        // SAFETY: the header says what `tools` and `tool_count` are.
        let tools = unsafe { declared(tools, tool_count) }?;
        *session = Some(client.start(Command::Open { tools, metadata: None })?);
        Ok(())
    })
}

/// Joins a session as a driver with these tools, and waits until that is done.
///
/// Ownership: returns `session` owned: free it with `broca_session_free`. Borrows `client` and the tools; copies `id`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_client_join(
    client: Option<&Client>,
    id: *const c_char,
    id_len: usize,
    tools: *const *const Tool,
    tool_count: usize,
    session: Option<&mut MaybeUninit<Option<Box<Session>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let session = output("session", session)?;
        let client = given("client", client)?;
        // SAFETY: the header says what `id` and `id_len` are.
        let id = unsafe { cast::text("id", id, id_len) }?;
        let session_id = crate::session::id_of(id)?;
        // SAFETY: the header says what `tools` and `tool_count` are.
        let tools = unsafe { declared(tools, tool_count) }?;
        *session = Some(client.start(Command::Join { session_id, tools })?);
        Ok(())
    })
}

/// Joins a session to watch it, without registering as a driver, and waits until that is done.
///
/// Ownership: returns `session` owned: free it with `broca_session_free`. Borrows `client`; copies `id`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_client_observe(
    client: Option<&Client>,
    id: *const c_char,
    id_len: usize,
    session: Option<&mut MaybeUninit<Option<Box<Session>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let session = output("session", session)?;
        let client = given("client", client)?;
        // SAFETY: the header says what `id` and `id_len` are.
        let id = unsafe { cast::text("id", id, id_len) }?;
        let session_id = crate::session::id_of(id)?;
        *session = Some(client.start(Command::Observe { session_id })?);
        Ok(())
    })
}

/// Asks what the service is and can do, and waits for it: `broca_step_value` of the step is its JSON.
///
/// Ownership: returns `step` owned: free it with `broca_step_free`. Borrows `client`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_client_meta(
    client: Option<&Client>,
    step: Option<&mut MaybeUninit<Option<Box<Step>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let step = output("step", step)?;
        let session = Attached::new(given("client", client)?.hub())?;
        let request = Operation::begin(&session, Command::Meta, Trace::default(), Kind::Request)?;
        *step = Some(request.outcome()?);
        Ok(())
    })
}

/// Takes the oldest log record that waits: `BROCA_LOG_…` and a sentence without keys or payloads. Without one, `message`
/// is nothing. At most 256 wait; older ones are dropped and counted.
///
/// Ownership: returns `message` borrowed from `client` until the next call of this function. Borrows `client`.
/// Threads: not concurrently with itself on one object.
#[unsafe(no_mangle)]
pub extern "C" fn broca_client_next_log(
    client: Option<&Client>,
    level: Option<&mut MaybeUninit<i32>>,
    message: Option<&mut MaybeUninit<Bytes>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let (level, message) = (output("level", level), output("message", message));
        let (level, message) = (level?, message?);
        let client = given("client", client)?;
        if let Some(record) = client.hub.next_log()? {
            let mut text = client.log.lock().unwrap_or_else(PoisonError::into_inner);
            text.set(record.message.as_bytes());
            (*level, *message) = (record.level, text.bytes());
        }
        Ok(())
    })
}

/// Frees a client. NULL is fine. Its sessions and whatever they have under way stay until they are freed, too; its
/// `broca_io` does not.
///
/// Ownership: takes `client`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_client_free(client: Option<Box<Client>>) {
    value(|| match client {
        // In a child of a fork everything belongs to the parent.
        Some(client) if !client.hub.is_here() => std::mem::forget(client),
        client => drop(client),
    });
}
