//! How sessions stand, what is kept with them, and which ones a client has: for services that offer `metadata`.

use crate::boundary::{call, given, invalid, output};
use crate::cast;
use crate::client::Client;
use crate::failure::Failure;
use crate::operation::{Kind, Operation};
use crate::request::Request;
use crate::session::{Attached, Session};
use crate::status::Status;
use crate::step::Step;
use crate::tool::{Tool, declared};
use broca::engine::Command;
use broca_bridge::{Error, Trace};
use broca_proto::Json;
use std::ffi::c_char;
use std::mem::MaybeUninit;

/// The command that opens a session with metadata.
///
/// # Safety
/// As for [`cast::bytes`] and [`cast::objects`].
unsafe fn open(
    tools: *const *const Tool,
    tool_count: usize,
    metadata: *const c_char,
    metadata_len: usize,
) -> Result<Command, Error> {
    // SAFETY: the caller's promise is the same.
    let metadata = unsafe { object(metadata, metadata_len) }?;
    // SAFETY: the caller's promise is the same.
    let tools = unsafe { declared(tools, tool_count) }?;
    Ok(Command::Open { tools, metadata: Some(metadata) })
}

/// The command that changes what is kept with a session.
///
/// # Safety
/// As for [`cast::bytes`].
unsafe fn update(
    metadata: *const c_char,
    metadata_len: usize,
    version: Option<&u64>,
) -> Result<Command, Error> {
    // SAFETY: the caller's promise is the same.
    let metadata = unsafe { object(metadata, metadata_len) }?;
    Ok(Command::Update { metadata, version: version.copied() })
}

/// The command that lists sessions.
///
/// # Safety
/// As for [`cast::text`].
unsafe fn sessions(cursor: *const c_char, cursor_len: usize, limit: u32) -> Result<Command, Error> {
    // SAFETY: the caller's promise is the same.
    let cursor = unsafe { cast::text("cursor", cursor, cursor_len) }?;
    Ok(Command::Sessions {
        cursor: (!cursor.is_empty()).then(|| cursor.to_owned()),
        limit: (limit > 0).then_some(limit),
    })
}

/// # Safety
/// As for [`cast::bytes`].
unsafe fn object(metadata: *const c_char, metadata_len: usize) -> Result<Json, Error> {
    // SAFETY: the caller's promise is the same.
    let text = unsafe { cast::bytes("metadata", metadata, metadata_len) }?;
    Json::parse(text.to_vec()).map_err(|_| invalid("the metadata is not JSON"))
}

/// Opens a session with these tools and with metadata (JSON, an object) that is kept with it, and waits until it is open. Where the
/// service keeps none, nothing is opened: `BROCA_E_NOT_OFFERED`.
///
/// Ownership: returns `session` owned: free it with `broca_session_free`. Borrows `client` and the tools; copies `metadata`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_client_open_with_metadata(
    client: Option<&Client>,
    tools: *const *const Tool,
    tool_count: usize,
    metadata: *const c_char,
    metadata_len: usize,
    session: Option<&mut MaybeUninit<Option<Box<Session>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let session = output("session", session)?;
        let client = given("client", client)?;
        // SAFETY: the header says what `tools`, `metadata` and what stands beside them are.
        let command = unsafe { open(tools, tool_count, metadata, metadata_len) }?;
        *session = Some(client.start(command)?);
        Ok(())
    })
}

/// Begins to open a session with these tools and metadata; see `broca_client_open_with_metadata`.
///
/// Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session` and the tools; copies `metadata`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_session_start_open_with_metadata(
    session: Option<&Session>,
    tools: *const *const Tool,
    tool_count: usize,
    metadata: *const c_char,
    metadata_len: usize,
    request: Option<&mut MaybeUninit<Option<Box<Request>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let request = output("request", request)?;
        let session = given("session", session)?;
        // SAFETY: the header says what `tools`, `metadata` and what stands beside them are.
        let command = unsafe { open(tools, tool_count, metadata, metadata_len) }?;
        *request = Some(session.start(command)?);
        Ok(())
    })
}

/// Asks how the session stands, also after its end, and waits for it: `broca_step_value` of the step is the JSON, with
/// `state`, `turn`, `drivers`, `metadata`, `metadata_version`, `last_event_id` and more (docs/wire.md). Where the service does not
/// tell: `BROCA_E_NOT_OFFERED`.
///
/// Ownership: returns `step` owned: free it with `broca_step_free`. Borrows `session`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_session_info(
    session: Option<&Session>,
    step: Option<&mut MaybeUninit<Option<Box<Step>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let step = output("step", step)?;
        *step = Some(given("session", session)?.run(Command::Info)?);
        Ok(())
    })
}

/// Begins to ask how the session stands; see `broca_session_info`.
///
/// Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_session_start_info(
    session: Option<&Session>,
    request: Option<&mut MaybeUninit<Option<Box<Request>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let request = output("request", request)?;
        *request = Some(given("session", session)?.start(Command::Info)?);
        Ok(())
    })
}

/// Changes what is kept with the session, and waits until that is done: `metadata` is a JSON merge patch, an object whose
/// members replace those of before; null takes one away. `version` may be NULL; else only that `metadata_version` is changed, and
/// another one is `BROCA_E_API` of the type `version_conflict`. `broca_step_value` of the step tells how the session stands then.
///
/// Ownership: returns `step` owned: free it with `broca_step_free`. Borrows `session` and `version`; copies `metadata`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_session_update(
    session: Option<&Session>,
    metadata: *const c_char,
    metadata_len: usize,
    version: Option<&u64>,
    step: Option<&mut MaybeUninit<Option<Box<Step>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let step = output("step", step)?;
        let session = given("session", session)?;
        // SAFETY: the header says what `metadata` and `metadata_len` are.
        *step = Some(session.run(unsafe { update(metadata, metadata_len, version) }?)?);
        Ok(())
    })
}

/// Begins to change what is kept with the session; see `broca_session_update`.
///
/// Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session` and `version`; copies `metadata`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_session_start_update(
    session: Option<&Session>,
    metadata: *const c_char,
    metadata_len: usize,
    version: Option<&u64>,
    request: Option<&mut MaybeUninit<Option<Box<Request>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let request = output("request", request)?;
        let session = given("session", session)?;
        // SAFETY: the header says what `metadata` and `metadata_len` are.
        *request = Some(session.start(unsafe { update(metadata, metadata_len, version) }?)?);
        Ok(())
    })
}

/// Lists the sessions that the client's key has opened or joined, the newest first, and waits for it: a page that begins with the
/// newest when `cursor` is empty, with at most `limit` sessions (0: as many as the service likes). `broca_step_value` of the
/// step is JSON, whose `items` are as `broca_session_info` tells them; `broca_step_next_cursor` says where the next page begins.
///
/// Ownership: returns `step` owned: free it with `broca_step_free`. Borrows `client`; copies `cursor`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_client_sessions(
    client: Option<&Client>,
    cursor: *const c_char,
    cursor_len: usize,
    limit: u32,
    step: Option<&mut MaybeUninit<Option<Box<Step>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let step = output("step", step)?;
        let client = given("client", client)?;
        // SAFETY: the header says what `cursor` and `cursor_len` are.
        let command = unsafe { sessions(cursor, cursor_len, limit) }?;
        let asking = Attached::new(client.hub())?;
        let request = Operation::begin(&asking, command, Trace::default(), Kind::Request)?;
        *step = Some(request.outcome()?);
        Ok(())
    })
}

/// Begins to list the sessions of the client; see `broca_client_sessions`. The session need not be open.
///
/// Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session`; copies `cursor`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_session_start_sessions(
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
        *request = Some(session.start(unsafe { sessions(cursor, cursor_len, limit) }?)?);
        Ok(())
    })
}
