//! What a chat reads: messages, and answers to what it asks.

use crate::arguments::ChatArguments;
use crate::fault::Fault;
use std::io::{self, BufRead, IsTerminal, Read};
use tokio::sync::mpsc;

/// The longest message that is read, in bytes.
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// Where messages come from.
pub(crate) enum Source {
    /// There is one.
    Message(String),
    /// Each line is one.
    Lines {
        /// A person sits there.
        prompt: bool,
    },
}

impl Source {
    pub(crate) fn of(arguments: &ChatArguments) -> Result<Self, Fault> {
        let words = arguments.message.join(" ");
        let terminal = io::stdin().is_terminal();
        if !words.is_empty() && words != "-" {
            return Ok(Self::Message(words));
        }
        if words.is_empty() && (terminal || arguments.interactive) {
            return Ok(Self::Lines { prompt: terminal });
        }
        let mut bytes = Vec::new();
        let bound = MAX_MESSAGE_BYTES as u64 + 1;
        io::stdin().lock().take(bound).read_to_end(&mut bytes).map_err(no_input)?;
        let message = message_of(bytes)?;
        if message.trim().is_empty() {
            return Err(Fault::usage(
                "there is no message",
                "say broca chat 'MESSAGE', or pipe one in",
            ));
        }
        Ok(Self::Message(message))
    }
}

/// Lines of the input, read from the moment at which the first one is wanted.
#[derive(Debug, Default)]
pub(crate) struct Lines(Option<mpsc::Receiver<Result<String, Fault>>>);

impl Lines {
    /// The next line; nothing at the end of the input. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> Result<Option<String>, Fault> {
        self.0.get_or_insert_with(read_lines).recv().await.transpose()
    }
}

/// Reads lines on a thread of its own: a terminal cannot be read otherwise without holding up
/// everything else. One line at a time is read ahead.
fn read_lines() -> mpsc::Receiver<Result<String, Fault>> {
    let (lines, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        loop {
            let mut bytes = Vec::new();
            let bound = MAX_MESSAGE_BYTES as u64 + 1;
            let line = match input.by_ref().take(bound).read_until(b'\n', &mut bytes) {
                Ok(0) => return,
                Ok(_) => message_of(bytes),
                Err(e) => Err(no_input(e)),
            };
            let over = line.is_err();
            if lines.blocking_send(line).is_err() || over {
                return;
            }
        }
    });
    receiver
}

fn message_of(mut bytes: Vec<u8>) -> Result<String, Fault> {
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(Fault::usage(
            format!("the message is longer than {MAX_MESSAGE_BYTES} bytes"),
            "shorten it, or bring a tool that reads it",
        ));
    }
    while bytes.last().is_some_and(|last| matches!(last, b'\n' | b'\r')) {
        bytes.pop();
    }
    String::from_utf8(bytes)
        .map_err(|_| Fault::usage("the message is no UTF-8 text", "convert it first, with iconv"))
}

fn no_input(error: io::Error) -> Fault {
    Fault::failed(format!("the input cannot be read: {error}"), "check where it comes from")
}
