//! The standard input of a command that a program drives, read on a thread of its own.

use crate::fault::Fault;
use std::io::{self, BufRead, Read};
use tokio::sync::{mpsc, oneshot};

/// Lines of the input, each with its line feed if it has one. A line of `max` bytes without one is handed over as it
/// is, and what follows it as the next.
pub(crate) fn lines(max: u64) -> Result<mpsc::Receiver<io::Result<Vec<u8>>>, Fault> {
    let (sender, lines) = mpsc::channel(1);
    on_a_thread(move || {
        let mut input = io::stdin().lock();
        loop {
            let mut line = Vec::new();
            let outcome = (&mut input).take(max).read_until(b'\n', &mut line);
            let is_end = !matches!(outcome, Ok(1..));
            let line = outcome.map(|_| line);
            // At the end of the input there is nothing to hand over; and perhaps nobody waits any more.
            if matches!(&line, Ok(line) if line.is_empty())
                || sender.blocking_send(line).is_err()
                || is_end
            {
                return;
            }
        }
    })?;
    Ok(lines)
}

/// Hears when the input has ended, or cannot be read any more. What is written there is passed over.
pub(crate) fn end() -> Result<oneshot::Receiver<()>, Fault> {
    let (sender, end) = oneshot::channel();
    on_a_thread(move || {
        // Input that cannot be read has ended, too; and perhaps nobody waits any more.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = sender.send(());
    })?;
    Ok(end)
}

fn on_a_thread(work: impl FnOnce() + Send + 'static) -> Result<(), Fault> {
    let thread = std::thread::Builder::new().name("input".to_owned());
    thread.spawn(work).map(|_| ()).map_err(|e| {
        Fault::failed(
            format!("no thread can be started to read the input: {e}"),
            "free some memory",
        )
    })
}
