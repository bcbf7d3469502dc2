//! Sessions that outlive their program: saved here, attached to by the next program, and their turn taken up.

use crate::boundary::{call, given, output, value};
use crate::cast;
use crate::client::Client;
use crate::failure::Failure;
use crate::operation::Operation;
use crate::request::Request;
use crate::session::Session;
use crate::status::Status;
use crate::text::Bytes;
use crate::tool::{Tool, declared};
use crate::turn::Turn;
use broca::engine::Command;
use broca::proto::session::saved::SavedSession;
use broca_bridge::Error;
use broca_proto::Secret;
use std::ffi::c_char;
use std::mem::MaybeUninit;

/// A session as a text that outlives its program. The text is a secret: it holds the key of the session and results of tools. Its
/// memory is overwritten when it is freed.
pub struct Saved {
    /// With the NUL that follows it.
    text: Secret,
}

impl Saved {
    fn new(text: &Secret) -> Self {
        let text = text.expose();
        // All the room at once: memory that is moved from is not overwritten.
        let mut ended = String::with_capacity(text.len() + 1);
        ended.push_str(text);
        ended.push('\0');
        Self { text: Secret::new(ended) }
    }

    fn bytes(&self) -> Bytes {
        let text = self.text.expose();
        Bytes { data: text.as_ptr().cast(), len: text.len() - 1 }
    }
}

/// The command that attaches to a saved session.
///
/// # Safety
/// As for [`cast::bytes`] and [`cast::objects`].
unsafe fn attach(
    saved: *const c_char,
    saved_len: usize,
    tools: *const *const Tool,
    tool_count: usize,
) -> Result<Command, Error> {
    // SAFETY: the caller's promise is the same.
    let saved = unsafe { cast::bytes("saved", saved, saved_len) }?;
    let saved = Box::new(SavedSession::parse(saved)?);
    // SAFETY: the caller's promise is the same.
    let tools = unsafe { declared(tools, tool_count) }?;
    Ok(Command::Attach { saved, tools })
}

/// Saves the session, so that another program can go on with it (`broca_client_attach`), in this language or another: at any
/// time, also in the middle of a turn, whose finished results are kept. Nothing is waited for, in either style, and the session goes on.
/// A session that is only observed cannot be saved.
///
/// Ownership: returns `saved` owned: free it with `broca_saved_free`. Borrows `session`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_session_save(
    session: Option<&Session>,
    saved: Option<&mut MaybeUninit<Option<Box<Saved>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let saved = output("saved", saved)?;
        let session = given("session", session)?.attached();
        let text = session.hub().at_once(|_, _| session.handle().save())??;
        *saved = Some(Box::new(Saved::new(&text)));
        Ok(())
    })
}

/// The text of a saved session: JSON, the same in every language (docs/attach.md). Keep it as keys are kept, such as in a file that
/// nobody else may read, and never log it.
///
/// Ownership: returns borrowed from `saved` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_saved_text(saved: Option<&Saved>) -> Bytes {
    value(|| saved.map(Saved::bytes).unwrap_or_default())
}

/// Frees a saved session and overwrites its memory. NULL is fine.
///
/// Ownership: takes `saved`.
/// Threads: any, but not while another uses it.
#[unsafe(no_mangle)]
pub extern "C" fn broca_saved_free(saved: Option<Box<Saved>>) {
    value(|| drop(saved));
}

/// Goes on with a session that another program has saved, and waits until that is done: registers again, declares the tools that
/// are brought here (without any, those of before stay) and reads the log. `saved` is what `broca_saved_text` gave, or another
/// language's `save`. Then `broca_session_resume` takes up the turn that was left, if there is one. See to it that the
/// program before is gone.
///
/// Ownership: returns `session` owned: free it with `broca_session_free`. Borrows `client` and the tools; copies `saved`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_client_attach(
    client: Option<&Client>,
    saved: *const c_char,
    saved_len: usize,
    tools: *const *const Tool,
    tool_count: usize,
    session: Option<&mut MaybeUninit<Option<Box<Session>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let session = output("session", session)?;
        let client = given("client", client)?;
        // SAFETY: the header says what `saved`, `tools` and what stands beside them are.
        let command = unsafe { attach(saved, saved_len, tools, tool_count) }?;
        *session = Some(client.start(command)?);
        Ok(())
    })
}

/// Begins to go on with a session that another program has saved; see `broca_client_attach`.
///
/// Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session` and the tools; copies `saved`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_session_start_attach(
    session: Option<&Session>,
    saved: *const c_char,
    saved_len: usize,
    tools: *const *const Tool,
    tool_count: usize,
    request: Option<&mut MaybeUninit<Option<Box<Request>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let request = output("request", request)?;
        let session = given("session", session)?;
        // SAFETY: the header says what `saved`, `tools` and what stands beside them are.
        let command = unsafe { attach(saved, saved_len, tools, tool_count) }?;
        *request = Some(session.start(command)?);
        Ok(())
    })
}

/// Takes up the turn that the program before this one has left: it brings the events that were missed, asks again for what is
/// still open (`broca_step_may_have_run`) and ends like any other turn. Nothing is waited for. `turn` is NULL when no turn waits,
/// or it was taken up already. A message that is sent instead gives that turn up.
///
/// Ownership: returns `turn` owned: free it with `broca_turn_free`. Borrows `session`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_session_resume(
    session: Option<&Session>,
    turn: Option<&mut MaybeUninit<Option<Box<Turn>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let turn = output("turn", turn)?;
        let begun = Operation::resume(given("session", session)?.attached())?;
        *turn = begun.map(|operation| Box::new(Turn::new(operation)));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nul_follows_the_text_and_is_not_counted() {
        let saved = Saved::new(&Secret::new("{}"));
        assert_eq!((saved.bytes().len, saved.text.expose()), (2, "{}\0"));
    }
}
