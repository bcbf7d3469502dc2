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
    DriverA,
    DriverB,
    Model,
    Observer,
    Check,
}

impl Speaker {
    const fn name(self) -> &'static str {
        match self {
            Self::Demo => "demo",
            Self::Service => "service",
            Self::DriverA => "driver A",
            Self::DriverB => "driver B",
            Self::Model => "model",
            Self::Observer => "observer",
            Self::Check => "check",
        }
    }

    const fn colour(self) -> &'static str {
        match self {
            Self::Demo | Self::Service => "\u{1b}[0m",
            Self::DriverA => "\u{1b}[36m",
            Self::DriverB => "\u{1b}[35m",
            Self::Model => "\u{1b}[1m",
            Self::Observer => "\u{1b}[2m",
            Self::Check => "\u{1b}[32m",
        }
    }
}

/// The output, shared by everybody who speaks.
pub(crate) struct Screen {
    colour: bool,
    /// Words of the model stand in an open line.
    open: Mutex<bool>,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { colour: !plain && io::stdout().is_terminal(), open: Mutex::new(false) }
    }

    /// One line.
    pub(crate) fn say(&self, speaker: Speaker, text: &str) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = io::stdout().lock();
        let ended = if std::mem::take(&mut *open) { "\n" } else { "" };
        let shown: String = harmless(text).chars().take(WIDTH).collect();
        let cut = if shown.chars().count() < text.chars().count() { "…" } else { "" };
        let _reader_gone =
            writeln!(out, "{ended}{}{shown}{cut}{}", self.head(speaker), self.normal());
    }

    /// Words of the model, as they come.
    pub(crate) fn words(&self, text: &str) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = io::stdout().lock();
        let head = self.head(Speaker::Model);
        let mut shown = String::new();
        for (at, line) in harmless(text).split('\n').enumerate() {
            if at > 0 && std::mem::take(&mut *open) {
                shown.push('\n');
            }
            if !line.is_empty() {
                if !*open {
                    shown.push_str(&head);
                    *open = true;
                }
                shown.push_str(line);
            }
        }
        let _reader_gone = write!(out, "{shown}{}", self.normal()).and_then(|()| out.flush());
    }

    /// Ends an open line.
    pub(crate) fn close(&self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut *open) {
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
