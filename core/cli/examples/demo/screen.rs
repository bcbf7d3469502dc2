//! What the person sees: every line says who speaks.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

/// The longest line that is not the model's, in characters.
const WIDTH: usize = 100;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaker {
    Demo,
    Service,
    Rust,
    Python,
    C,
    Node,
    Model,
    Observer,
    Check,
}

impl Speaker {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Demo => "demo",
            Self::Service => "service",
            Self::Rust => "Rust",
            Self::Python => "Python",
            Self::C => "C",
            Self::Node => "Node",
            Self::Model => "model",
            Self::Observer => "observer",
            Self::Check => "check",
        }
    }

    const fn colour(self) -> &'static str {
        match self {
            Self::Demo | Self::Service => "\u{1b}[0m",
            Self::Rust => "\u{1b}[36m",
            Self::Python => "\u{1b}[35m",
            Self::C => "\u{1b}[33m",
            Self::Node => "\u{1b}[34m",
            Self::Model => "\u{1b}[1m",
            Self::Observer => "\u{1b}[2m",
            Self::Check => "\u{1b}[32m",
        }
    }
}

/// The output, shared by everybody who speaks.
pub(crate) struct Screen {
    colour: bool,
    /// In whose turn words of the model stand in an open line.
    open: Mutex<Option<Speaker>>,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { colour: !plain && io::stdout().is_terminal(), open: Mutex::new(None) }
    }

    /// One line.
    pub(crate) fn say(&self, speaker: Speaker, text: &str) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = io::stdout().lock();
        let ended = if open.take().is_some() { "\n" } else { "" };
        let shown: String = harmless(text).chars().take(WIDTH).collect();
        let cut = if shown.chars().count() < text.chars().count() { "…" } else { "" };
        let _reader_gone =
            writeln!(out, "{ended}{}{shown}{cut}{}", self.head(speaker), self.normal());
    }

    /// Words of the model in somebody's turn, as they come.
    pub(crate) fn words(&self, turn: Speaker, text: &str) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = io::stdout().lock();
        let head = self.head(Speaker::Model);
        let mut shown = String::new();
        if open.is_some_and(|other| other != turn) {
            *open = None;
            shown.push('\n');
        }
        for (at, line) in harmless(text).split('\n').enumerate() {
            if at > 0 && open.take().is_some() {
                shown.push('\n');
            }
            if !line.is_empty() {
                if open.is_none() {
                    shown.push_str(&head);
                    *open = Some(turn);
                }
                shown.push_str(line);
            }
        }
        let _reader_gone = write!(out, "{shown}{}", self.normal()).and_then(|()| out.flush());
    }

    /// Ends an open line.
    pub(crate) fn close(&self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.take().is_some() {
            let _reader_gone = writeln!(io::stdout().lock());
        }
    }

    fn head(&self, speaker: Speaker) -> String {
        let colour = if self.colour { speaker.colour() } else { "" };
        format!("{colour}{:<8} | ", speaker.name())
    }

    const fn normal(&self) -> &'static str {
        if self.colour { "\u{1b}[0m" } else { "" }
    }
}

/// What the file holds must not steer the terminal.
fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect()
}
