//! A child process that is asked one thing after the other.

use super::line::Reply;
use std::cell::RefCell;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time that one answer may take. Cases are small and machines are busy.
const PATIENCE: Duration = Duration::from_secs(120);
/// The longest time until a child ends whose input has ended.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// A language's package in a process of its own, as a surface to play on.
#[derive(Debug)]
pub struct Through {
    process: Rc<RefCell<Process>>,
}

impl Through {
    /// Starts the command; its words are separated by spaces.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(command: &str) -> Result<Self, String> {
        Self::start_with(command, PATIENCE)
    }

    /// The same with another bound for each answer.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_with(command: &str, patience: Duration) -> Result<Self, String> {
        let process = Process::start(command, patience)?;
        Ok(Self { process: Rc::new(RefCell::new(process)) })
    }

    /// Ends the child: its input ends, and it must end well.
    ///
    /// # Errors
    /// How else it ended.
    pub fn finish(self) -> Result<(), String> {
        self.process.borrow_mut().finish()
    }

    pub(super) fn process(&self) -> Rc<RefCell<Process>> {
        Rc::clone(&self.process)
    }
}

#[derive(Debug)]
pub(super) struct Process {
    watched: Arc<Watched>,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    lost: Option<String>,
}

/// What the watchdog sees. It ends a child that does not answer, so that whoever reads its output sees the end.
#[derive(Debug)]
struct Watched {
    child: Mutex<Child>,
    since: Mutex<Option<Instant>>,
}

impl Process {
    fn start(command: &str, patience: Duration) -> Result<Self, String> {
        let mut words = command.split_whitespace();
        let program = words.next().ok_or("there is no command to play through")?;
        let child =
            Command::new(program).args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|e| format!("{program} cannot be started: {e}"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("{program} has no input or no output"));
        };
        let watched = Arc::new(Watched { child: Mutex::new(child), since: Mutex::new(None) });
        let weak = Arc::downgrade(&watched);
        thread::spawn(move || watch(&weak, patience));
        Ok(Self {
            watched,
            input: Some(input),
            output: BufReader::with_capacity(256 * 1024, output),
            lost: None,
        })
    }

    /// Asks for something, and gives the lines of the answer.
    ///
    /// Neither side can block the other for ever: the child writes only when it has read a whole line, and this side
    /// writes only when it has read a whole answer.
    pub(super) fn ask(&mut self, request: &str) -> Result<Vec<Reply>, String> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        *lock(&self.watched.since) = Some(Instant::now());
        let answered = self.exchange(request);
        let late = lock(&self.watched.since).take().is_none();
        answered.map_err(|fault| {
            let verb = request.split(' ').next().unwrap_or_default();
            let why = match fault {
                Fault::Said(what) => what,
                Fault::Gone(_) if late => "it did not answer in time".to_owned(),
                Fault::Gone(cause) => match self.status() {
                    Some(status) => format!("it ended with {status}"),
                    None => format!("its pipes broke: {cause}"),
                },
            };
            let lost = format!("the child that plays was asked \"{verb}\": {why}");
            self.lost = Some(lost.clone());
            lost
        })
    }

    pub(super) fn lost(&self) -> Option<String> {
        self.lost.clone()
    }

    fn exchange(&mut self, request: &str) -> Result<Vec<Reply>, Fault> {
        let input = self.input.as_mut().ok_or_else(|| Fault::Said("it was ended".to_owned()))?;
        input.write_all(request.as_bytes())?;
        input.write_all(b"\n")?;
        input.flush()?;
        let mut replies = Vec::new();
        let mut line = String::new();
        loop {
            line.clear();
            if self.output.read_line(&mut line)? == 0 {
                return Err(Fault::Gone(io::ErrorKind::UnexpectedEof.into()));
            }
            match line.trim_end_matches(['\n', '\r']) {
                "." => return Ok(replies),
                said => replies.push(Reply::read(said).map_err(Fault::Said)?),
            }
        }
    }

    /// How the child ended; a child whose output has ended is given a moment for it.
    fn status(&mut self) -> Option<ExitStatus> {
        self.input = None;
        let until = Instant::now() + END_PATIENCE;
        loop {
            let ended = lock(&self.watched.child).try_wait();
            match ended {
                Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(5)),
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }

    fn finish(&mut self) -> Result<(), String> {
        match self.status() {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("the child that plays ended with {status}")),
            None => Err("the child that plays did not end with its input".to_owned()),
        }
    }
}

/// A child never outlives what is played through it.
impl Drop for Process {
    fn drop(&mut self) {
        self.input = None;
        let mut child = lock(&self.watched.child);
        // It may have ended long ago; then there is nothing to end.
        if !matches!(child.try_wait(), Ok(Some(_))) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

enum Fault {
    /// It said what cannot be understood.
    Said(String),
    /// It is gone.
    Gone(io::Error),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidData => Self::Said("its output is not text".to_owned()),
            _ => Self::Gone(error),
        }
    }
}

fn watch(watched: &Weak<Watched>, patience: Duration) {
    loop {
        thread::sleep(patience.min(Duration::from_secs(1)) / 2);
        let Some(watched) = watched.upgrade() else { return };
        let mut since = lock(&watched.since);
        if since.is_some_and(|since| since.elapsed() > patience) {
            // Taken: it was ended for being late.
            *since = None;
            let _ = lock(&watched.child).kill();
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
