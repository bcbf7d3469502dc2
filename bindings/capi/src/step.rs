//! Steps: what an operation brings, one after the other.
//!
//! A step is a view of a record. A text is copied, with its NUL, when it is asked for; the few that nearly everybody asks for
//! are copied at once.

use crate::answer;
use crate::boundary::{call, given, output, value};
use crate::failure::{Failure, of_record};
use crate::operation::Operation;
use crate::status::Status;
use crate::text::{Bytes, Text};
use broca_bridge::layout::{
    HEAD_WORDS, approval, approval_withdrawn, delta, done, event, failed, finished, gap,
    notification, received, sending, status, tool_call, tool_cancel, tool_settled, warning,
};
use broca_bridge::{Batch, Error, Record};
use broca_proto::Json;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Something the session logged: `id`, `type`, `session_id`, `client_key_id`, `created_at`, `payload`, `json`. Types of the
/// future come, too.
pub const BROCA_STEP_EVENT: i32 = 1;
/// A notification that this version does not know: `name`, `json`.
pub const BROCA_STEP_NOTIFICATION: i32 = 2;
/// A piece of what is being produced, for display; lossy by contract: `delta_kind`, `text`, `link`.
pub const BROCA_STEP_DELTA: i32 = 3;
/// Something was lost: `gap_reason`, `count`, `limit`, `cursor`, `after`.
pub const BROCA_STEP_GAP: i32 = 4;
/// Run this tool, then answer with `broca_call_complete` or `broca_call_fail`: `name`, `input`, `call`, `tool_use_id`,
/// `idempotency_key`, `may_have_run`. Calls that may run at the same time come together.
pub const BROCA_STEP_TOOL_CALL: i32 = 5;
/// Stop the tool of this `call` if you can; its answer no longer counts, or only for a moment.
pub const BROCA_STEP_TOOL_CANCEL: i32 = 6;
/// A call has its one result: `tool_use_id`, `name`, `outcome`.
pub const BROCA_STEP_TOOL_SETTLED: i32 = 7;
/// Somebody has to allow this call first; answer with `broca_approval_allow`, `broca_approval_allow_narrowed` or
/// `broca_approval_deny`. It has what a tool call has, and `server_side`.
pub const BROCA_STEP_APPROVAL: i32 = 8;
/// The question about this `call` no longer matters.
pub const BROCA_STEP_APPROVAL_WITHDRAWN: i32 = 9;
/// Where the operation stands: `state`, for `reconnecting` also `delay_ms`, `error_kind`, `why`, and for `queued` perhaps
/// `position`, `waiting`, `why`.
pub const BROCA_STEP_STATUS: i32 = 10;
/// Something odd that does not end the stream: `category`, `message`.
pub const BROCA_STEP_WARNING: i32 = 11;
/// A message is about to leave; answer with `broca_sending_send` or `broca_sending_refuse`. Only with the option `hooks`:
/// `round`, `message`, `call`.
pub const BROCA_STEP_SENDING: i32 = 12;
/// The answer to a message. Only with the option `hooks`: `round`, `message`.
pub const BROCA_STEP_RECEIVED: i32 = 13;
/// The turn is done: `text`, `message`, `usage`, `rounds`, `tool_calls`, `session_spent`, `events`.
pub const BROCA_STEP_DONE: i32 = 14;
/// The operation is over; nothing follows: `outcome`, `value`. Turns and subscriptions show it only in `broca_io_next`.
pub const BROCA_STEP_FINISHED: i32 = 15;
/// The operation is over with an error; nothing follows: `broca_step_error`. Only `broca_io_next` shows it.
pub const BROCA_STEP_FAILED: i32 = 16;

/// A piece of the answer.
pub const BROCA_DELTA_TEXT: i32 = 0;
/// A piece of the model's reasoning.
pub const BROCA_DELTA_REASONING: i32 = 1;
/// A piece of the arguments of a tool call, as JSON text.
pub const BROCA_DELTA_TOOL_INPUT: i32 = 2;
/// Everything partial shown so far is void: the attempt failed or was replaced.
pub const BROCA_DELTA_RESET: i32 = 3;

/// Display pieces, `count` of them; the whole message still comes.
pub const BROCA_GAP_DELTAS: i32 = 0;
/// One line of `count` bytes where `limit` are allowed.
pub const BROCA_GAP_LINE: i32 = 1;
/// The service does not know `cursor`; it begins again at the start of its log.
pub const BROCA_GAP_CURSOR: i32 = 2;
/// Whatever happened while the stream was away, before the first event.
pub const BROCA_GAP_UNSEEN: i32 = 3;

/// Texts that a record has at most.
const FIELDS: usize = 7;

/// One step of an operation.
pub struct Step {
    operation: Arc<Operation>,
    batch: Arc<Batch>,
    at: usize,
    kind: u32,
    answered: AtomicBool,
    near: Near,
    far: OnceLock<Box<[OnceLock<Text>; FIELDS]>>,
}

/// Texts that nearly everybody asks for, copied when the step is made: no memory of their own, and nothing to wait for.
struct Near {
    /// Where each text begins, and how long it is; `ELSEWHERE` when it is not here.
    places: [(u8, u8); FIELDS],
    bytes: [u8; NEAR_BYTES],
}

const NEAR_BYTES: usize = 112;
const ELSEWHERE: u8 = u8::MAX;

impl Near {
    fn new(record: Option<Record<'_>>, fields: &[usize]) -> Self {
        let mut near = Self { places: [(ELSEWHERE, 0); FIELDS], bytes: [0; NEAR_BYTES] };
        let mut from = 0;
        for field in fields {
            let Some(text) = record.and_then(|record| record.bytes(*field)) else { continue };
            // The zero behind it is there already.
            let (Some(into), Ok(at), Ok(len)) = (
                near.bytes
                    .get_mut(from..from + text.len())
                    .filter(|_| from + text.len() < NEAR_BYTES),
                u8::try_from(from),
                u8::try_from(text.len()),
            ) else {
                continue;
            };
            into.copy_from_slice(text);
            near.places[place(*field)] = (at, len);
            from += text.len() + 1;
        }
        near
    }

    fn text(&self, place: usize) -> Option<Bytes> {
        let (at, len) = self.places[place];
        let text = self.bytes.get(usize::from(at)..)?;
        (at != ELSEWHERE).then(|| Bytes { data: text.as_ptr().cast(), len: usize::from(len) })
    }
}

/// Texts are two words long, so half the distance from the head names each once.
const fn place(field: usize) -> usize {
    (field - HEAD_WORDS) / 2
}

impl Step {
    pub(crate) fn new(operation: &Arc<Operation>, batch: &Arc<Batch>, at: usize) -> Self {
        let record = batch.record(at);
        let kind = record.map_or(0, |record| record.kind());
        let fields: &[usize] = match kind {
            event::NUMBER => &[event::id, event::event_type],
            delta::NUMBER => &[delta::text, delta::link],
            _ => &[],
        };
        Self {
            near: Near::new(record, fields),
            operation: Arc::clone(operation),
            batch: Arc::clone(batch),
            at,
            kind,
            answered: AtomicBool::new(false),
            far: OnceLock::new(),
        }
    }

    pub(crate) fn kind(&self) -> u32 {
        self.kind
    }

    pub(crate) fn operation(&self) -> &Arc<Operation> {
        &self.operation
    }

    pub(crate) fn record(&self) -> Option<Record<'_>> {
        self.batch.record(self.at)
    }

    /// Which question it asks.
    pub(crate) fn question(&self) -> Option<u64> {
        let field = match self.kind {
            tool_call::NUMBER => tool_call::call,
            tool_cancel::NUMBER => tool_cancel::call,
            approval::NUMBER => approval::call,
            approval_withdrawn::NUMBER => approval_withdrawn::call,
            sending::NUMBER => sending::call,
            _ => return None,
        };
        self.record()?.number(field)
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Acquire)
    }

    pub(crate) fn set_answered(&self) {
        self.answered.store(true, Ordering::Release);
    }

    pub(crate) fn to_error(&self) -> Error {
        match self.record() {
            Some(record) => of_record(&record),
            None => Error::new(broca_bridge::ErrorKind::Internal, "a step without its record"),
        }
    }

    /// A text of the record.
    fn text(&self, field: usize) -> Bytes {
        if let Some(text) = self.near.text(place(field)) {
            return text;
        }
        match self.record().and_then(|record| record.bytes(field)) {
            Some(bytes) => self.far(place(field)).get_or_init(|| Text::new(bytes)).bytes(),
            None => Bytes::NONE,
        }
    }

    fn far(&self, place: usize) -> &OnceLock<Text> {
        let far = self.far.get_or_init(|| Box::new([const { OnceLock::new() }; FIELDS]));
        &far[place.min(FIELDS - 1)]
    }

    fn number(&self, field: usize) -> Option<u64> {
        self.record()?.number(field)
    }

    fn word(&self, field: usize) -> u32 {
        self.record().map_or(0, |record| record.word(field))
    }
}

impl Drop for Step {
    /// Whoever lets go of a question has answered it.
    fn drop(&mut self) {
        if matches!(self.kind, tool_call::NUMBER | approval::NUMBER | sending::NUMBER) {
            answer::let_go(self);
        }
    }
}

/// The field of the first kind in the list that the step is of.
macro_rules! field {
    ($step:expr, $read:ident, $( $kind:ident . $field:ident ),+) => {
        value(|| {
            let Some(step) = $step else { return Default::default() };
            match step.kind {
                $( $kind::NUMBER => step.$read($kind::$field).into(), )+
                _ => Default::default(),
            }
        })
    };
}

/// What kind of step it is: `BROCA_STEP_…`; 0 for NULL. Pass over kinds that you do not know.
///
/// Ownership: borrows `step`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_kind(step: Option<&Step>) -> i32 {
    value(|| step.map_or(0, |step| step.kind.cast_signed()))
}

/// The number of the operation that the step belongs to: that of `broca_turn_id` and its like.
///
/// Ownership: borrows `step`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_operation(step: Option<&Step>) -> u64 {
    value(|| step.map_or(0, |step| step.operation.id()))
}

/// What the program attached to the operation with `broca_turn_set_data` and its like; NULL for nothing.
///
/// Ownership: the pointer is the program's.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_data(step: Option<&Step>) -> *mut c_void {
    step.map_or(ptr::null_mut(), |step| step.operation.data())
}

/// The id of an event: the cursor just after it.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_id(step: Option<&Step>) -> Bytes {
    field!(step, text, event.id)
}

/// The type of an event, such as `user.message`.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_type(step: Option<&Step>) -> Bytes {
    field!(step, text, event.event_type)
}

/// The session of an event.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_session_id(step: Option<&Step>) -> Bytes {
    field!(step, text, event.session_id)
}

/// The client key behind an event, if there is one.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_client_key_id(step: Option<&Step>) -> Bytes {
    field!(step, text, event.client_key_id)
}

/// When an event was logged, as the service wrote it (RFC 3339).
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_created_at(step: Option<&Step>) -> Bytes {
    field!(step, text, event.created_at)
}

/// What an event says: JSON, exactly as it came.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_payload(step: Option<&Step>) -> Bytes {
    field!(step, text, event.payload)
}

/// The whole of an event or of an unknown notification: JSON, exactly as it came.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_json(step: Option<&Step>) -> Bytes {
    field!(step, text, event.raw, notification.raw)
}

/// What a delta is a piece of: `BROCA_DELTA_…`.
///
/// Ownership: borrows `step`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_delta_kind(step: Option<&Step>) -> i32 {
    let kind: u32 = field!(step, word, delta.delta_kind);
    kind.cast_signed()
}

/// The piece of a delta; the answer of a turn that is done.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_text(step: Option<&Step>) -> Bytes {
    field!(step, text, delta.text, done.text)
}

/// The message that a delta belongs to or, for the arguments of a tool, the call.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_link(step: Option<&Step>) -> Bytes {
    field!(step, text, delta.link)
}

/// What a gap has swallowed: `BROCA_GAP_…`.
///
/// Ownership: borrows `step`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_gap_reason(step: Option<&Step>) -> i32 {
    let reason: u32 = field!(step, word, gap.lost);
    reason.cast_signed()
}

/// How many deltas, or how many bytes of a line, a gap has swallowed.
///
/// Ownership: borrows `step`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_count(step: Option<&Step>) -> u64 {
    let count: Option<u64> = field!(step, number, gap.count);
    count.unwrap_or_default()
}

/// The bound that a line of a gap exceeded: raise the option `max_line_bytes`.
///
/// Ownership: borrows `step`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_limit(step: Option<&Step>) -> u64 {
    let limit: Option<u64> = field!(step, number, gap.limit);
    limit.unwrap_or_default()
}

/// The cursor that the service does not know.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_cursor(step: Option<&Step>) -> Bytes {
    field!(step, text, gap.cursor)
}

/// The cursor after which a gap lies.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_after(step: Option<&Step>) -> Bytes {
    field!(step, text, gap.after)
}

/// The number of a question: the same in a tool call and the cancel that follows it, in an approval and its withdrawal.
///
/// Ownership: borrows `step`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_call(step: Option<&Step>) -> u64 {
    value(|| step.and_then(Step::question).unwrap_or_default())
}

/// The id of a tool call in the conversation.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_tool_use_id(step: Option<&Step>) -> Bytes {
    field!(step, text, tool_call.tool_use_id, approval.tool_use_id, tool_settled.tool_use_id)
}

/// The name of a tool, or the method of an unknown notification.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_name(step: Option<&Step>) -> Bytes {
    field!(step, text, tool_call.name, approval.name, tool_settled.name, notification.method)
}

/// The arguments of a tool call: JSON, exactly as the model wrote it, or as an approval narrowed it.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_input(step: Option<&Step>) -> Bytes {
    field!(step, text, tool_call.input, approval.input)
}

/// The same for every attempt at this call, in every process, and never that of another: for what must not happen twice.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_idempotency_key(step: Option<&Step>) -> Bytes {
    field!(step, text, tool_call.idempotency_key, approval.idempotency_key)
}

/// Whether the program that had the session before may have run this call, or been asked to allow it, and nobody knows how far it
/// came: 1 or 0. Only in a turn that was taken up with `broca_session_resume`.
///
/// Ownership: borrows `step`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_may_have_run(step: Option<&Step>) -> i32 {
    let word: u32 = field!(step, word, tool_call.may_have_run, approval.may_have_run);
    i32::from(word != 0)
}

/// Whether the tool that an approval is about is the service's own, so that it runs there: 1 or 0.
///
/// Ownership: borrows `step`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_server_side(step: Option<&Step>) -> i32 {
    let word: u32 = field!(step, word, approval.server_side);
    i32::from(word != 0)
}

/// What became of a call (`done`, `failed`, `not_started`, `interrupted_may_have_run`, `timed_out_may_have_run`) or of an
/// operation that finished (`opened`, `replied`, `ended`, `page`, `participants`, `meta`, `updated`, `closed`).
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_outcome(step: Option<&Step>) -> Bytes {
    field!(step, text, tool_settled.outcome, finished.outcome)
}

/// What an operation that finished came to, as JSON: `{"next"}` of a page, `{"drivers"}`, the meta of the service.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_value(step: Option<&Step>) -> Bytes {
    field!(step, text, finished.value)
}

/// Where the next page of the history, or of a list of sessions, begins, of the step that finished a page; nothing after the last.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_next_cursor(step: Option<&Step>) -> Bytes {
    value(|| {
        let Some(step) = step.filter(|step| step.kind == finished::NUMBER) else {
            return Bytes::NONE;
        };
        let slot = step.far(FIELDS - 1);
        if let Some(text) = slot.get() {
            return text.bytes();
        }
        let json = step.record().and_then(|record| record.bytes(finished::value));
        let json = json.and_then(|bytes| Json::parse(bytes.to_vec()).ok());
        let next = |json: Json| json.member("next").or_else(|| json.member("next_cursor"));
        match json.and_then(|json| next(json)?.to_text()) {
            Some(next) => slot.get_or_init(|| Text::new(next.as_bytes())).bytes(),
            None => Bytes::NONE,
        }
    })
}

/// Where an operation stands: `queued`, `sent`, `connected` or `reconnecting`.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_state(step: Option<&Step>) -> Bytes {
    field!(step, text, status.state)
}

/// Milliseconds until the next try to reconnect.
///
/// Ownership: borrows `step`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_delay_ms(step: Option<&Step>) -> u64 {
    let delay: Option<u64> = field!(step, number, status.delay_ms);
    delay.unwrap_or_default()
}

/// The place of a message in the service's queue; 1 goes next. 0 where it is not told.
///
/// Ownership: borrows `step`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_position(step: Option<&Step>) -> u64 {
    let position: Option<u64> = field!(step, number, status.position);
    position.unwrap_or_default()
}

/// How many messages wait in the service's queue, this one included. 0 where it is not told.
///
/// Ownership: borrows `step`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_waiting(step: Option<&Step>) -> u64 {
    let waiting: Option<u64> = field!(step, number, status.waiting);
    waiting.unwrap_or_default()
}

/// The kind of the error that ended the stream before.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_error_kind(step: Option<&Step>) -> Bytes {
    field!(step, text, status.error_kind)
}

/// Why the stream ended before, or which place a message has in the service's queue, in words.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_why(step: Option<&Step>) -> Bytes {
    field!(step, text, status.why)
}

/// What a warning is about, as a word.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_category(step: Option<&Step>) -> Bytes {
    field!(step, text, warning.class)
}

/// The sentence of a warning; the message, as JSON, that is about to leave, that came, or that a turn ended with.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_message(step: Option<&Step>) -> Bytes {
    field!(step, text, warning.message, sending.message, received.message, done.message)
}

/// Which round of the turn a message belongs to, from 0; how many rounds a turn took that is done.
///
/// Ownership: borrows `step`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_rounds(step: Option<&Step>) -> u32 {
    field!(step, word, sending.round, received.round, done.rounds)
}

/// The tokens of all rounds of a turn: `{"input_tokens", "output_tokens"}` as JSON, or nothing when nobody counted.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_usage(step: Option<&Step>) -> Bytes {
    field!(step, text, done.usage)
}

/// How many calls of tools a turn made that is done.
///
/// Ownership: borrows `step`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_tool_calls(step: Option<&Step>) -> u32 {
    field!(step, word, done.tool_calls)
}

/// What all turns of the session have spent when a turn is done, those of programs that had it before included:
/// `{"rounds", "input_tokens", "output_tokens", "tool_calls"}` as JSON.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_session_spent(step: Option<&Step>) -> Bytes {
    field!(step, text, done.session)
}

/// The events of a turn that is done, as a JSON array.
///
/// Ownership: returns borrowed from `step` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_events(step: Option<&Step>) -> Bytes {
    field!(step, text, done.events)
}

/// The error that a failed operation ended with. For any other step the call fails with `BROCA_E_USAGE`.
///
/// Ownership: returns `error` owned: free it with `broca_error_free`. Borrows `step`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_error(
    step: Option<&Step>,
    error: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let error = output("error", error)?;
        let step = given("step", step)?;
        if step.kind != failed::NUMBER {
            return Err(crate::boundary::usage("the step is not that of a failed operation"));
        }
        *error = Some(Box::new(Failure::new(&step.to_error())));
        Ok(())
    })
}

/// Frees a step. NULL is fine. A tool call without an answer fails, an approval without one is denied, and a message
/// without one does not leave.
///
/// Ownership: takes `step`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_step_free(step: Option<Box<Step>>) {
    value(|| drop(step));
}

#[cfg(test)]
mod tests {
    use super::*;
    use broca_bridge::layout::{FieldType, KINDS};

    #[test]
    fn constants_are_the_numbers_of_the_layout() {
        let names = [
            "event",
            "notification",
            "delta",
            "gap",
            "tool_call",
            "tool_cancel",
            "tool_settled",
            "approval",
            "approval_withdrawn",
            "status",
            "warning",
            "sending",
            "received",
            "done",
            "finished",
            "failed",
        ];
        for (i, name) in names.iter().enumerate() {
            assert_eq!((KINDS[i].name, KINDS[i].number as usize), (*name, i + 1));
        }
        assert_eq!(BROCA_STEP_FAILED, failed::NUMBER.cast_signed());
    }

    #[test]
    fn every_text_of_a_step_has_a_place_of_its_own() {
        for kind in KINDS.iter().filter(|kind| kind.number <= failed::NUMBER) {
            let texts = kind
                .fields
                .iter()
                .filter(|field| !matches!(field.field_type, FieldType::Word | FieldType::Number));
            let mut places: Vec<usize> = texts.map(|field| place(field.at)).collect();
            let all = places.len();
            places.dedup();
            assert_eq!(places.len(), all, "{}", kind.name);
            assert!(places.iter().all(|place| *place < FIELDS), "{}", kind.name);
        }
        // The cursor of the next page has the last place, which no step that finishes uses.
        const { assert!(place(finished::value) < FIELDS - 1) };
    }
}
