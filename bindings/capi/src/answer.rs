//! Answers to what the program is asked: tool calls, approvals, messages about to leave.
//!
//! A step carries its question. It may go to another thread, be answered there and be freed there.

use crate::boundary::{call, given, optional, usage};
use crate::cast;
use crate::failure::Failure;
use crate::operation::DROPPED_CALL;
use crate::status::Status;
use crate::step::Step;
use broca_bridge::layout::{approval, sending, tool_call};
use broca_bridge::{Accepted, Answer, Error, Trace, command};
use broca_proto::Json;
use std::ffi::c_char;
use std::mem::MaybeUninit;

/// Whoever lets go of a question without an answer.
pub(crate) fn let_go(step: &Step) {
    if step.is_answered() || !step.operation().hub().is_here() {
        return;
    }
    let answer = match step.kind() {
        tool_call::NUMBER => Answer::Fail(DROPPED_CALL.to_owned()),
        approval::NUMBER => Answer::Deny("the program let go of the question".to_owned()),
        _ => Answer::Refuse("the program let go of the message".to_owned()),
    };
    // Nobody hears whether it came in time.
    drop(give(step, answer));
}

/// Gives an answer; true when it was taken, false when it came too late.
pub(crate) fn give(step: &Step, answer: Answer) -> Result<bool, Error> {
    let question = step.question().ok_or_else(|| usage("the step asks nothing"))?;
    let session = step.operation().session();
    let accepted = session
        .hub()
        .with(session.key(), |_, now| session.handle().answer(question, answer, now))??;
    step.set_answered();
    Ok(accepted == Accepted::Taken)
}

/// The common way of all answers.
fn answer(
    step: Option<&Step>,
    wanted: u32,
    accepted: Option<&mut MaybeUninit<i32>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
    make: impl FnOnce() -> Result<Answer, Error>,
) -> Status {
    call(err, || {
        let accepted = optional(accepted);
        let step = given("step", step)?;
        if step.kind() != wanted {
            let what = broca_bridge::layout::kind(wanted).map_or("question", |kind| kind.name);
            return Err(usage(format!("the step is no {what}")));
        }
        let taken = give(step, make()?)?;
        if let Some(accepted) = accepted {
            *accepted = i32::from(taken);
        }
        Ok(())
    })
}

/// Answers a tool call with its result: JSON, either a string or an array of content blocks. `accepted` may be NULL; it
/// becomes 1, or 0 when the call already had its result and the answer changes nothing.
///
/// Ownership: borrows `step`; copies `json`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_call_complete(
    step: Option<&Step>,
    json: *const c_char,
    json_len: usize,
    accepted: Option<&mut MaybeUninit<i32>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    answer(step, tool_call::NUMBER, accepted, err, || {
        // SAFETY: the header says what `json` and `json_len` are.
        command::answer("complete", Some(unsafe { cast::bytes("json", json, json_len) }?), None)
    })
}

/// Answers a tool call with a text.
///
/// Ownership: borrows `step`; copies `text`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_call_complete_text(
    step: Option<&Step>,
    text: *const c_char,
    text_len: usize,
    accepted: Option<&mut MaybeUninit<i32>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    answer(step, tool_call::NUMBER, accepted, err, || {
        // SAFETY: the header says what `text` and `text_len` are.
        let text = unsafe { cast::text("text", text, text_len) }?;
        Ok(Answer::Complete(Json::string(text)))
    })
}

/// Answers that a tool failed; the model reads the text.
///
/// Ownership: borrows `step`; copies `text`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_call_fail(
    step: Option<&Step>,
    text: *const c_char,
    text_len: usize,
    accepted: Option<&mut MaybeUninit<i32>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    answer(step, tool_call::NUMBER, accepted, err, || {
        // SAFETY: the header says what `text` and `text_len` are.
        Ok(Answer::Fail(unsafe { cast::text("text", text, text_len) }?.to_owned()))
    })
}

/// Lets a call run as it is. The first answer counts.
///
/// Ownership: borrows `step`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_approval_allow(
    step: Option<&Step>,
    accepted: Option<&mut MaybeUninit<i32>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    answer(step, approval::NUMBER, accepted, err, || Ok(Answer::Allow))
}

/// Lets a call run with narrower arguments, a JSON object. What the rules of the tool do not admit is a denial.
///
/// Ownership: borrows `step`; copies `input`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_approval_allow_narrowed(
    step: Option<&Step>,
    input: *const c_char,
    input_len: usize,
    accepted: Option<&mut MaybeUninit<i32>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    answer(step, approval::NUMBER, accepted, err, || {
        // SAFETY: the header says what `input` and `input_len` are.
        let input = unsafe { cast::bytes("input", input, input_len) }?;
        command::answer("allow_narrowed", Some(input), None)
    })
}

/// Does not let a call run; the model reads the reason.
///
/// Ownership: borrows `step`; copies `reason`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_approval_deny(
    step: Option<&Step>,
    reason: *const c_char,
    reason_len: usize,
    accepted: Option<&mut MaybeUninit<i32>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    answer(step, approval::NUMBER, accepted, err, || {
        // SAFETY: the header says what `reason` and `reason_len` are.
        Ok(Answer::Deny(unsafe { cast::text("reason", reason, reason_len) }?.to_owned()))
    })
}

/// Lets a message leave: as it is when `message` is empty, or this one (JSON, as `broca_step_message` shows it). Trace
/// headers may be empty: then those of the turn go with it.
///
/// Ownership: borrows `step`; copies the texts.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_sending_send(
    step: Option<&Step>,
    message: *const c_char,
    message_len: usize,
    traceparent: *const c_char,
    traceparent_len: usize,
    tracestate: *const c_char,
    tracestate_len: usize,
    accepted: Option<&mut MaybeUninit<i32>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    answer(step, sending::NUMBER, accepted, err, || {
        // SAFETY: the header says what `message` and `message_len` are.
        let message = unsafe { cast::bytes("message", message, message_len) }?;
        // SAFETY: the same of `traceparent`.
        let parent = unsafe { cast::text("traceparent", traceparent, traceparent_len) }?;
        // SAFETY: the same of `tracestate`.
        let state = unsafe { cast::text("tracestate", tracestate, tracestate_len) }?;
        let trace = (!parent.is_empty()).then(|| trace_of(parent, state));
        command::answer("send", Some(message).filter(|json| !json.is_empty()), trace)
    })
}

/// Does not let a message leave: the turn ends with `BROCA_E_HOOK` and this reason.
///
/// Ownership: borrows `step`; copies `reason`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_sending_refuse(
    step: Option<&Step>,
    reason: *const c_char,
    reason_len: usize,
    accepted: Option<&mut MaybeUninit<i32>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    answer(step, sending::NUMBER, accepted, err, || {
        // SAFETY: the header says what `reason` and `reason_len` are.
        Ok(Answer::Refuse(unsafe { cast::text("reason", reason, reason_len) }?.to_owned()))
    })
}

/// Trace headers; an empty text is none.
pub(crate) fn trace_of(parent: &str, state: &str) -> Trace {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Trace { traceparent: given(parent), tracestate: given(state) }
}
