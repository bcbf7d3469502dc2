//! What becomes of errors: one line with the cure, and an exit code.

use broca::{Error, ErrorKind, Json};
use std::io::Write;
use std::process::ExitCode;

/// The longest line an error is told in, in characters.
const MAX_LINE_CHARS: usize = 1_000;

/// What a program learns from the exit code. They are documented in `broca --help`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 0: ended early by a reader that wanted no more, which is no failure.
    Quiet,
    /// 1: what was asked for failed.
    Failed,
    /// 2: the command was used wrongly.
    Usage,
    /// 3: no session service could be reached.
    Unreachable,
    /// 4: the service refused: the key, or what its profile allows.
    Refused,
    /// 130: interrupted from the keyboard.
    Interrupted,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Quiet => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Unreachable => 3,
            Exit::Refused => 4,
            Exit::Interrupted => 130,
        })
    }
}

/// An error on its way to the person.
#[derive(Debug, Clone)]
pub struct Fault {
    /// The exit code.
    pub exit: Exit,
    /// What went wrong; nothing when there is nothing to tell.
    what: String,
    /// What to do about it.
    cure: String,
    kind: ErrorKind,
    retry: broca::Retry,
    /// Nothing more can come after this.
    leaving: bool,
}

impl Fault {
    /// Something failed.
    pub fn failed(what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self::new(Exit::Failed, ErrorKind::Internal, what, cure)
    }

    /// The command was used wrongly.
    pub fn usage(what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self::new(Exit::Usage, ErrorKind::InvalidArgument, what, cure)
    }

    /// The service refused the key.
    pub(crate) fn refused(what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self::new(Exit::Refused, ErrorKind::Unauthorized, what, cure)
    }

    /// Interrupted from the keyboard, or told to end.
    #[must_use]
    pub fn interrupted(what: impl Into<String>) -> Self {
        Self::new(Exit::Interrupted, ErrorKind::Cancelled, what, "")
    }

    /// The reader of the output has gone: nothing to tell, and nobody to tell it to.
    #[must_use]
    pub fn quiet() -> Self {
        Self::new(Exit::Quiet, ErrorKind::Closed, "", "")
    }

    /// The same, and the program must end with it.
    #[must_use]
    pub fn leaving(mut self) -> Self {
        self.leaving = true;
        self
    }

    /// Whether a conversation cannot go on after this.
    #[must_use]
    pub fn ends_a_conversation(&self) -> bool {
        self.leaving
            || self.exit == Exit::Quiet
            || matches!(
                self.kind,
                ErrorKind::SessionClosed | ErrorKind::Unauthorized | ErrorKind::Closed
            )
    }

    /// What became of an error where this command has better words for it: its kind and its retry, the exit code 1.
    pub(crate) fn of(error: &Error, what: impl Into<String>, cure: impl Into<String>) -> Self {
        let fault = Self::new(Exit::Failed, error.kind(), what, cure);
        Self { retry: error.retry(), ..fault }
    }

    fn new(exit: Exit, kind: ErrorKind, what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self {
            exit,
            what: what.into(),
            cure: cure.into(),
            kind,
            retry: kind.retry(),
            leaving: false,
        }
    }

    /// What went wrong, and what to do about it, which may be nothing.
    pub(crate) fn parts(&self) -> (&str, &str) {
        (&self.what, &self.cure)
    }

    /// The line for the person, without a line end.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = format!("broca: {}", self.what);
        if !self.cure.is_empty() {
            line.push_str("; ");
            line.push_str(&self.cure);
        }
        one_line(&line, MAX_LINE_CHARS)
    }

    /// The object for a program: `{"type":"error","kind","code","message","retry"}`.
    #[must_use]
    pub fn json(&self) -> String {
        let (kind, message) = (self.kind.as_str(), one_line(&self.what, MAX_LINE_CHARS));
        let object = Json::object([
            ("type", &Json::string("error")),
            ("kind", &Json::string(kind)),
            ("code", &Json::integer(self.kind.code().into())),
            ("message", &Json::string(&message)),
            ("retry", &Json::string(self.retry.as_str())),
        ]);
        object.as_str().to_owned()
    }

    /// Tells it: one line on the error stream and, for a program, an object on the output too.
    pub fn report(&self, json: bool) {
        if self.what.is_empty() {
            return;
        }
        if json {
            let mut out = std::io::stdout().lock();
            let _reader_gone = writeln!(out, "{}", self.json()).and_then(|()| out.flush());
        }
        let _reader_gone = writeln!(std::io::stderr().lock(), "{}", self.line());
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let kind = error.kind();
        let (exit, cure) = match kind {
            ErrorKind::Connect => {
                (Exit::Unreachable, "a service of your own starts with: broca serve --dev")
            }
            ErrorKind::NotBroca => (
                Exit::Unreachable,
                "--url or BROCA_URL must be the address that broca serve prints",
            ),
            ErrorKind::Tls => (Exit::Unreachable, ""),
            ErrorKind::Unauthorized => (
                Exit::Refused,
                "it came from --key, --key-file, BROCA_CLIENT_KEY or your state folder",
            ),
            ErrorKind::ToolNotAllowed => {
                (Exit::Refused, "have the profile allow the tool, or leave it out")
            }
            ErrorKind::SessionClosed => (Exit::Failed, "broca chat without --session does"),
            ErrorKind::ProvidersFailed => (
                Exit::Failed,
                "broca serve takes these as --model, --base-url and OPENAI_API_KEY or --model-key-env",
            ),
            ErrorKind::Cancelled => (Exit::Interrupted, ""),
            ErrorKind::Usage | ErrorKind::InvalidArgument => (Exit::Usage, ""),
            ErrorKind::Api if refused(&error) => {
                (Exit::Refused, "use a key of the session's profile")
            }
            _ if kind.is(ErrorKind::Transport) || kind == ErrorKind::Timeout => {
                (Exit::Unreachable, "")
            }
            _ => (Exit::Failed, ""),
        };
        let mut fault = Self::new(exit, kind, error.message(), cure);
        fault.retry = error.retry();
        fault
    }
}

/// Whether a problem document says that the caller may not do this.
fn refused(error: &Error) -> bool {
    let status = error.details().and_then(|details| details.member("status"));
    status.is_some_and(|status| matches!(status.as_str(), "401" | "403"))
}

/// The outcome of writing to the standard output. A reader that has gone ends the program quietly.
///
/// # Errors
/// When the output could not be written.
pub fn written(result: std::io::Result<()>) -> Result<(), Fault> {
    result.map_err(|e| match e.kind() {
        std::io::ErrorKind::BrokenPipe => Fault::quiet(),
        _ => Fault::failed(
            format!("the output could not be written: {e}"),
            "check the disk or terminal it goes to",
        ),
    })
}

/// The text in one line of at most `max` characters: control characters become spaces.
#[must_use]
pub fn one_line(text: &str, max: usize) -> String {
    let mut line = String::with_capacity(text.len().min(max));
    let mut count = 0;
    let mut space = false;
    for c in text.trim().chars() {
        if c.is_control() || c.is_whitespace() {
            space = true;
            continue;
        }
        if space {
            line.push(' ');
            count += 1;
            space = false;
        }
        if count >= max {
            line.push('…');
            break;
        }
        line.push(c);
        count += 1;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_whatever_is_in_it() {
        let fault = Fault::failed("first\nsecond\u{1b}[31m third", "cure\r\n");
        assert_eq!(fault.line(), "broca: first second [31m third; cure");
        assert_eq!(Fault::failed("no cure", "").line(), "broca: no cure");
    }

    #[test]
    fn a_long_line_is_cut_with_a_mark() {
        assert_eq!(one_line("abcdef", 3), "abc…");
        assert_eq!(one_line("äöü", 3), "äöü");
        assert!(Fault::failed("x".repeat(9_999), "").line().chars().count() < 1_100);
    }

    #[test]
    fn kinds_have_their_exit_codes() {
        for (kind, exit) in [
            (ErrorKind::Connect, Exit::Unreachable),
            (ErrorKind::NotBroca, Exit::Unreachable),
            (ErrorKind::Timeout, Exit::Unreachable),
            (ErrorKind::Io, Exit::Unreachable),
            (ErrorKind::Unauthorized, Exit::Refused),
            (ErrorKind::ToolNotAllowed, Exit::Refused),
            (ErrorKind::InvalidArgument, Exit::Usage),
            (ErrorKind::Cancelled, Exit::Interrupted),
            (ErrorKind::ProvidersFailed, Exit::Failed),
        ] {
            assert_eq!(Fault::from(Error::new(kind, "x")).exit, exit, "{kind}");
        }
    }

    #[test]
    fn a_program_gets_the_row_of_the_table() {
        let fault = Fault::from(Error::new(ErrorKind::Connect, "nobody listens"));
        let json: serde_json::Value = serde_json::from_str(&fault.json()).unwrap();
        assert_eq!(json["kind"], "connect");
        assert_eq!(json["code"], -101);
        assert_eq!(json["retry"], "safe");
        assert_eq!(json["message"], "nobody listens");
    }
}
