//! Child processes: servers that run as long as they are needed, contenders that print one line.

use crate::Failure;
use crate::meter::Measured;
use crate::programs::{Contender, last_line};
use crate::scale::Scale;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// The slowest contender needs some seconds; one that takes this long will never end.
const PATIENCE: Duration = Duration::from_secs(300);

/// One run of one contender against a fresh server.
pub(crate) fn measure(
    server: &str,
    contender: &Contender,
    scale: &Scale,
) -> Result<Measured, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["server", server]).stderr(Stdio::inherit());
    let mut server = Running::start(command, scale)?;
    let port = server.line()?.ok_or("the server did not start")?;
    let address = format!("http://127.0.0.1:{}", port.trim());
    let mut command = contender.program.command(&address)?;
    command.stderr(Stdio::piped());
    let mut running = Running::start(command, scale)?;
    let errors = running.errors();
    let Some(line) = running.line()? else {
        let errors = errors.recv().unwrap_or_default();
        eprint!("{errors}");
        return Err(
            format!("{} ended without a result: {}", contender.name, last_line(&errors)).into()
        );
    };
    serde_json::from_str(&line)
        .map_err(|e| format!("{} printed no result: {e}", contender.name).into())
}

/// A child process; ended when dropped.
struct Running {
    child: Child,
    output: Option<BufReader<ChildStdout>>,
}

impl Running {
    fn start(mut command: Command, scale: &Scale) -> Result<Self, Failure> {
        scale.tell(&mut command);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| {
                format!("{} did not start: {error}", command.get_program().display())
            })?;
        let output = child.stdout.take().map(BufReader::new);
        Ok(Self { child, output })
    }

    /// The first line that it prints; none if it ends without one.
    fn line(&mut self) -> Result<Option<String>, Failure> {
        let mut output = self.output.take().ok_or("the line was read already")?;
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = output.read_line(&mut line);
            // Nobody waits any more if the time was over.
            let _ = sender.send(read.map(|bytes| (bytes > 0).then_some(line)));
        });
        match receiver.recv_timeout(PATIENCE) {
            Ok(read) => Ok(read?),
            Err(_) => Err(format!("no result within {} s", PATIENCE.as_secs()).into()),
        }
    }

    /// All that it writes to its standard error, once it has ended.
    fn errors(&mut self) -> mpsc::Receiver<String> {
        let (sender, receiver) = mpsc::channel();
        if let Some(mut errors) = self.child.stderr.take() {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = errors.read_to_end(&mut text);
                let _ = sender.send(String::from_utf8_lossy(&text).into_owned());
            });
        }
        receiver
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended by itself; there is nothing more to do about it here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
