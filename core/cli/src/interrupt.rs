//! Ctrl-C and the wish of the system that this program should end.

use crate::fault::Fault;

/// What came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// Ctrl-C.
    Keyboard,
    /// The system wants the program to end, or the terminal is gone.
    End,
}

/// Waits for signals; from now on none of them ends the program by itself.
pub(crate) struct Interrupts {
    #[cfg(unix)]
    keyboard: tokio::signal::unix::Signal,
    #[cfg(unix)]
    end: tokio::signal::unix::Signal,
    #[cfg(unix)]
    hang_up: tokio::signal::unix::Signal,
    #[cfg(windows)]
    keyboard: tokio::signal::windows::CtrlC,
    #[cfg(windows)]
    end: tokio::signal::windows::CtrlClose,
}

impl Interrupts {
    #[cfg(unix)]
    pub(crate) fn listen() -> Result<Self, Fault> {
        use tokio::signal::unix::{SignalKind, signal};
        let begin = |kind| signal(kind).map_err(no_signals);
        Ok(Self {
            keyboard: begin(SignalKind::interrupt())?,
            end: begin(SignalKind::terminate())?,
            hang_up: begin(SignalKind::hangup())?,
        })
    }

    #[cfg(windows)]
    pub(crate) fn listen() -> Result<Self, Fault> {
        use tokio::signal::windows::{ctrl_c, ctrl_close};
        Ok(Self { keyboard: ctrl_c().map_err(no_signals)?, end: ctrl_close().map_err(no_signals)? })
    }

    /// The next one. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> Interrupt {
        #[cfg(unix)]
        tokio::select! {
            _ = self.keyboard.recv() => Interrupt::Keyboard,
            _ = self.end.recv() => Interrupt::End,
            _ = self.hang_up.recv() => Interrupt::End,
        }
        #[cfg(windows)]
        tokio::select! {
            _ = self.keyboard.recv() => Interrupt::Keyboard,
            _ = self.end.recv() => Interrupt::End,
        }
    }
}

fn no_signals(error: std::io::Error) -> Fault {
    Fault::failed(format!("signals cannot be waited for: {error}"), "free some descriptors")
}
