//! An engine without sockets and clock, for playing vectors: tests/vectors_child.c is its program.
//!
//! What goes in is typed, steps come out as the steps that every program gets, and effects as lines of the
//! protocol in `core/vectors/README.md`, because a program in C never sees one.

use crate::answer::trace_of;
use crate::boundary::{call, given, given_mut, invalid, output, value};
use crate::cast;
use crate::failure::Failure;
use crate::hub::{Hub, Setup};
use crate::operation::{Kind, Operation};
use crate::session::Attached;
use crate::status::Status;
use crate::step::Step;
use crate::text::{Bytes, Text};
use broca::engine::Command;
use broca::tls::{Connector, Trust};
use broca_bridge::layout::{self, FieldType};
use broca_bridge::{Accepted, Batch, ChatStream, Error, Handle, Record, Time, command, options};
use std::collections::HashMap;
use std::ffi::c_char;
use std::fmt::Write;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::sync::Arc;

type Err<'a> = Option<&'a mut MaybeUninit<Option<Box<Failure>>>>;

/// An engine, and the operations that were begun.
pub struct TestEngine {
    session: Arc<Attached>,
    operations: HashMap<u64, Arc<Operation>>,
    effects: Text,
}

/// The answer of a provider.
pub struct TestChat {
    stream: ChatStream,
    taken: Text,
}

impl TestEngine {
    fn new(json: &[u8], seed: u64, wall_ms: u64) -> Result<Self, Error> {
        let (config, environment) = options::read(json)?;
        let handle = Arc::new(Handle::new(json, seed, wall_ms)?);
        // The client that every session belongs to; nobody moves it.
        let connector = Connector::new(Trust::default().with_platform_roots(false));
        let hub = Arc::new(Hub::new(Setup { config, environment, connector }));
        let session = Attached::of(hub, handle);
        Ok(Self { session, operations: HashMap::new(), effects: Text::default() })
    }

    fn handle(&self) -> &Handle {
        self.session.handle()
    }
}

/// Makes an engine with options as JSON.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_testing_engine_new(
    json: *const c_char,
    json_len: usize,
    seed: u64,
    wall_ms: u64,
    engine: Option<&mut MaybeUninit<Option<Box<TestEngine>>>>,
    err: Err<'_>,
) -> Status {
    call(err, || {
        let engine = output("engine", engine)?;
        // SAFETY: the caller says what `json` and `json_len` are, as everywhere.
        let json = unsafe { cast::bytes("json", json, json_len) }?;
        *engine = Some(Box::new(TestEngine::new(json, seed, wall_ms)?));
        Ok(())
    })
}

/// Frees an engine. NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn broca_testing_engine_free(engine: Option<Box<TestEngine>>) {
    value(|| drop(engine));
}

/// Begins an operation that a JSON object describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_testing_engine_command(
    engine: Option<&mut TestEngine>,
    now: u64,
    json: *const c_char,
    json_len: usize,
    traceparent: *const c_char,
    traceparent_len: usize,
    tracestate: *const c_char,
    tracestate_len: usize,
    op: Option<&mut MaybeUninit<u64>>,
    err: Err<'_>,
) -> Status {
    call(err, || {
        let op = output("op", op)?;
        let engine = given_mut("engine", engine)?;
        // SAFETY: the caller says what `json` and `json_len` are.
        let json = unsafe { cast::bytes("json", json, json_len) }?;
        // SAFETY: the same of `traceparent`.
        let parent = unsafe { cast::text("traceparent", traceparent, traceparent_len) }?;
        // SAFETY: the same of `tracestate`.
        let state = unsafe { cast::text("tracestate", tracestate, tracestate_len) }?;
        let command = command::read(json)?;
        let kind = match &command {
            Command::Send { .. } => Kind::Turn,
            Command::Subscribe { .. } => Kind::Subscription,
            _ => Kind::Request,
        };
        let time = Time::from_millis(now);
        *op = engine.handle().begin(command, trace_of(parent, state), time)?;
        let operation = Operation::without_hub(&engine.session, kind, *op);
        engine.operations.insert(*op, operation);
        Ok(())
    })
}

/// Ends an operation early.
#[unsafe(no_mangle)]
pub extern "C" fn broca_testing_engine_cancel(
    engine: Option<&TestEngine>,
    now: u64,
    op: u64,
    err: Err<'_>,
) -> Status {
    call(err, || given("engine", engine)?.handle().cancel(op, Time::from_millis(now)))
}

/// Answers a question at a time of the test's: `word` and `value` are those of every binding. `step`, if it is there, asked
/// it, and counts as answered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_testing_engine_answer(
    engine: Option<&TestEngine>,
    now: u64,
    question: u64,
    step: Option<&Step>,
    word: *const c_char,
    word_len: usize,
    value: *const c_char,
    value_len: usize,
    traceparent: *const c_char,
    traceparent_len: usize,
    tracestate: *const c_char,
    tracestate_len: usize,
    accepted: Option<&mut MaybeUninit<i32>>,
    err: Err<'_>,
) -> Status {
    call(err, || {
        let accepted = output("accepted", accepted)?;
        let engine = given("engine", engine)?;
        // SAFETY: the caller says what `word` and `word_len` are.
        let word = unsafe { cast::text("word", word, word_len) }?;
        let value = match value.is_null() {
            true => None,
            // SAFETY: the same of `value`.
            false => Some(unsafe { cast::bytes("value", value, value_len) }?),
        };
        // SAFETY: the same of `traceparent`.
        let parent = unsafe { cast::text("traceparent", traceparent, traceparent_len) }?;
        // SAFETY: the same of `tracestate`.
        let state = unsafe { cast::text("tracestate", tracestate, tracestate_len) }?;
        let trace = (!parent.is_empty()).then(|| trace_of(parent, state));
        let answer = command::answer(word, value, trace)?;
        let taken = engine.handle().answer(question, answer, Time::from_millis(now))?;
        step.iter().for_each(|step| step.set_answered());
        *accepted = i32::from(taken == Accepted::Taken);
        Ok(())
    })
}

/// A name was resolved to addresses that spaces separate or, when `why` is not NULL, was not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_testing_engine_resolved(
    engine: Option<&TestEngine>,
    now: u64,
    req: u64,
    addresses: *const c_char,
    addresses_len: usize,
    why: *const c_char,
    why_len: usize,
    err: Err<'_>,
) -> Status {
    call(err, || {
        let engine = given("engine", engine)?;
        // SAFETY: the caller says what `addresses` and `addresses_len` are.
        let addresses = unsafe { cast::text("addresses", addresses, addresses_len) }?;
        let answer = if why.is_null() {
            let parse = |word: &str| {
                word.parse::<IpAddr>().map_err(|_| invalid(format!("\"{word}\" is no address")))
            };
            Ok(addresses.split_whitespace().map(parse).collect::<Result<_, _>>()?)
        } else {
            // SAFETY: the same of `why`.
            Err(unsafe { cast::text("why", why, why_len) }?.to_owned())
        };
        engine.handle().resolved(req, answer, Time::from_millis(now))
    })
}

/// A connection is open.
#[unsafe(no_mangle)]
pub extern "C" fn broca_testing_engine_connected(
    engine: Option<&TestEngine>,
    now: u64,
    conn: u64,
    err: Err<'_>,
) -> Status {
    call(err, || given("engine", engine)?.handle().connected(conn, Time::from_millis(now)))
}

/// TLS was started in a tunnel.
#[unsafe(no_mangle)]
pub extern "C" fn broca_testing_engine_tls_started(
    engine: Option<&TestEngine>,
    now: u64,
    conn: u64,
    err: Err<'_>,
) -> Status {
    call(err, || given("engine", engine)?.handle().tls_started(conn, Time::from_millis(now)))
}

/// Bytes came.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_testing_engine_data(
    engine: Option<&TestEngine>,
    now: u64,
    conn: u64,
    data: *const c_char,
    data_len: usize,
    err: Err<'_>,
) -> Status {
    call(err, || {
        // SAFETY: the caller says what `data` and `data_len` are.
        let data = unsafe { cast::bytes("data", data, data_len) }?;
        given("engine", engine)?.handle().data(conn, data, Time::from_millis(now))
    })
}

/// The socket took so many bytes.
#[unsafe(no_mangle)]
pub extern "C" fn broca_testing_engine_written(
    engine: Option<&TestEngine>,
    now: u64,
    conn: u64,
    size: usize,
    err: Err<'_>,
) -> Status {
    call(err, || given("engine", engine)?.handle().written(conn, size, Time::from_millis(now)))
}

/// A connection is gone; `why` is a word.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_testing_engine_closed(
    engine: Option<&TestEngine>,
    now: u64,
    conn: u64,
    why: *const c_char,
    why_len: usize,
    err: Err<'_>,
) -> Status {
    call(err, || {
        // SAFETY: the caller says what `why` and `why_len` are.
        let why = command::close_reason(unsafe { cast::text("why", why, why_len) }?)?;
        given("engine", engine)?.handle().closed(conn, why, Time::from_millis(now))
    })
}

/// The timer has gone off.
#[unsafe(no_mangle)]
pub extern "C" fn broca_testing_engine_timeout(
    engine: Option<&TestEngine>,
    now: u64,
    err: Err<'_>,
) -> Status {
    call(err, || given("engine", engine)?.handle().timeout(Time::from_millis(now)))
}

/// All effects that wait, each a line of the protocol. Borrowed from the engine until the next call of this function.
#[unsafe(no_mangle)]
pub extern "C" fn broca_testing_engine_effects(
    engine: Option<&mut TestEngine>,
    lines: Option<&mut MaybeUninit<Bytes>>,
    err: Err<'_>,
) -> Status {
    call(err, || {
        let lines = output("lines", lines)?;
        let engine = given_mut("engine", engine)?;
        let mut batch = Batch::new();
        engine.handle().effects(&mut batch)?;
        let mut text = String::new();
        batch.records().for_each(|record| write_line(&record, &mut text));
        engine.effects.set(text.as_bytes());
        *lines = engine.effects.bytes();
        Ok(())
    })
}

/// Takes steps of an operation from the engine; `broca_testing_engine_next` hands them out. `over` becomes 1 when nothing
/// follows them.
#[unsafe(no_mangle)]
pub extern "C" fn broca_testing_engine_steps(
    engine: Option<&TestEngine>,
    op: u64,
    max_bytes: usize,
    over: Option<&mut MaybeUninit<i32>>,
    err: Err<'_>,
) -> Status {
    call(err, || {
        let over = output("over", over)?;
        let engine = given("engine", engine)?;
        let mut batch = Batch::new();
        *over = i32::from(engine.handle().steps(op, max_bytes, &mut batch)?);
        if let Some(operation) = engine.operations.get(&op) {
            operation.hold(batch);
        }
        Ok(())
    })
}

/// The next step that was taken, or NULL. It is the caller's.
#[unsafe(no_mangle)]
pub extern "C" fn broca_testing_engine_next(
    engine: Option<&TestEngine>,
    op: u64,
) -> Option<Box<Step>> {
    value(|| engine?.operations.get(&op)?.buffered())
}

/// Begins to read the answer of a provider that came with this HTTP status.
#[unsafe(no_mangle)]
pub extern "C" fn broca_testing_chat_new(status: u16) -> Option<Box<TestChat>> {
    value(|| Some(Box::new(TestChat { stream: ChatStream::new(status), taken: Text::default() })))
}

/// The next bytes of the body.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_testing_chat_data(
    chat: Option<&mut TestChat>,
    data: *const c_char,
    data_len: usize,
    err: Err<'_>,
) -> Status {
    call(err, || {
        // SAFETY: the caller says what `data` and `data_len` are.
        let data = unsafe { cast::bytes("data", data, data_len) }?;
        given_mut("chat", chat)?.stream.data(data);
        Ok(())
    })
}

/// The body ended: cleanly, or with its connection when `broken` is not 0.
#[unsafe(no_mangle)]
pub extern "C" fn broca_testing_chat_end(
    chat: Option<&mut TestChat>,
    broken: i32,
    err: Err<'_>,
) -> Status {
    call(err, || {
        let chat = given_mut("chat", chat)?;
        if broken == 0 {
            chat.stream.end();
        } else {
            chat.stream.broken();
        }
        Ok(())
    })
}

/// What came since the last call, as JSON. Borrowed from `chat` until the next call of this function.
#[unsafe(no_mangle)]
pub extern "C" fn broca_testing_chat_take(chat: Option<&mut TestChat>) -> Bytes {
    value(|| {
        let Some(chat) = chat else { return Bytes::NONE };
        let taken = chat.stream.take();
        chat.taken.set(taken.as_bytes());
        chat.taken.bytes()
    })
}

/// Frees the reader. NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn broca_testing_chat_free(chat: Option<Box<TestChat>>) {
    value(|| drop(chat));
}

/// A record as a line: `effect KIND name=word…`.
fn write_line(record: &Record<'_>, out: &mut String) {
    let Some(kind) = layout::kind(record.kind()) else { return };
    // Writing to a string cannot fail.
    let _ = write!(out, "effect {}", kind.name);
    for field in kind.fields {
        let _ = write!(out, " {}=", field.name);
        let number = match field.field_type {
            FieldType::Word => Some(record.word(field.at).into()),
            FieldType::Number => record.number(field.at),
            FieldType::Text | FieldType::Json | FieldType::Bytes => {
                match record.bytes(field.at) {
                    Some(bytes) => {
                        out.push('x');
                        for byte in bytes {
                            let _ = write!(out, "{byte:02x}");
                        }
                    }
                    None => out.push('-'),
                }
                continue;
            }
        };
        let _ = match number {
            Some(number) => write!(out, "{number}"),
            None => write!(out, "-"),
        };
    }
    out.push('\n');
}
