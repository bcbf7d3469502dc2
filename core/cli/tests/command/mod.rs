//! Runs the built command as a person or a program would: in a state folder of its own, with deadlines.
#![allow(dead_code, reason = "each test program uses a part of it")]

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Nothing here takes that long; what does, hangs.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The command with nothing of this machine's environment.
pub(crate) fn broca(state: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_broca"));
    command.env_clear();
    for name in ["PATH", "TMPDIR", "LLVM_PROFILE_FILE"] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    command.env("XDG_STATE_HOME", state).env("HOME", state).stdin(Stdio::null());
    command
}

/// What a command left behind.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    /// The lines of the output, each a JSON object.
    pub(crate) fn objects(&self) -> Vec<Value> {
        self.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The one line of an error, which is all there is on the error stream.
    pub(crate) fn error_line(&self) -> &str {
        let line = self.err.strip_suffix('\n').unwrap_or(&self.err);
        assert!(line.starts_with("broca: ") && !line.contains('\n'), "{self:?}");
        line
    }
}

/// Runs it to its end.
pub(crate) fn run(command: &mut Command) -> Ended {
    Talk::begin(command).end()
}

/// Runs it with this input.
pub(crate) fn run_with_input(command: &mut Command, input: &[u8]) -> Ended {
    let mut talk = Talk::begin(command.stdin(Stdio::piped()));
    talk.say_bytes(input);
    talk.end()
}

/// A command under way.
pub(crate) struct Talk {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    heard: String,
    err: Option<JoinHandle<String>>,
}

impl Talk {
    pub(crate) fn begin(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            loop {
                let mut line = Vec::new();
                if out.read_until(b'\n', &mut line).unwrap_or(0) == 0 {
                    return;
                }
                if sender.send(String::from_utf8(line).unwrap()).is_err() {
                    return;
                }
            }
        });
        let mut stderr = child.stderr.take().unwrap();
        let err = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _broken = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let stdin = child.stdin.take();
        Self { child, stdin, lines, heard: String::new(), err: Some(err) }
    }

    /// The next line of the output for which `wanted` holds; those before it are passed over.
    pub(crate) fn line(&mut self, wanted: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + DEADLINE;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.heard.push_str(&line);
                    if wanted(&line) {
                        return line.trim_end().to_owned();
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("no such line; heard:\n{}", self.heard),
                Err(RecvTimeoutError::Disconnected) => {
                    let (heard, err) = (self.heard.clone(), self.error_text());
                    panic!("ended without such a line; heard:\n{heard}\nerrors:\n{err}");
                }
            }
        }
    }

    /// The next object of this type.
    pub(crate) fn object(&mut self, kind: &str) -> Value {
        let begins = format!("{{\"type\":\"{kind}\"");
        serde_json::from_str(&self.line(|line| line.starts_with(&begins))).unwrap()
    }

    /// Types a line.
    pub(crate) fn say(&mut self, line: &str) {
        self.say_bytes(format!("{line}\n").as_bytes());
    }

    fn say_bytes(&mut self, bytes: &[u8]) {
        self.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    pub(crate) fn interrupt(&self) {
        self.signal(rustix::process::Signal::INT);
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Ends its input and waits for its end.
    pub(crate) fn end(mut self) -> Ended {
        self.stdin = None;
        self.wait()
    }

    /// Waits for its end while its input stays open.
    pub(crate) fn wait(mut self) -> Ended {
        let until = Instant::now() + DEADLINE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < until, "it hangs; heard:\n{}", self.heard);
            std::thread::sleep(Duration::from_millis(3));
        };
        let mut out = std::mem::take(&mut self.heard);
        out.extend(self.lines.iter());
        Ended { code: status.code(), out, err: self.error_text() }
    }

    fn error_text(&mut self) -> String {
        self.err.take().map(|err| err.join().unwrap()).unwrap_or_default()
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// `broca serve --dev` in a state folder of its own.
pub(crate) struct Service {
    pub(crate) url: String,
    pub(crate) state: tempfile::TempDir,
    talk: Talk,
}

impl Service {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), "127.0.0.1:0", arguments)
    }

    pub(crate) fn start_in(state: tempfile::TempDir, addr: &str, arguments: &[&str]) -> Self {
        let mut command = broca(state.path());
        command.args(["serve", "--dev", "--json", "--addr", addr]).args(arguments);
        let mut talk = Talk::begin(&mut command);
        let url = talk.object("listening")["url"].as_str().unwrap().to_owned();
        Self { url, state, talk }
    }

    /// With a model that follows this script.
    pub(crate) fn scripted(script: &str) -> Self {
        let state = tempfile::tempdir().unwrap();
        let file = state.path().join("script.json");
        std::fs::write(&file, script).unwrap();
        let model = format!("scripted:{}", file.display());
        Self::start_in(state, "127.0.0.1:0", &["--model", &model])
    }

    pub(crate) fn addr(&self) -> &str {
        self.url.strip_prefix("http://").unwrap()
    }

    pub(crate) fn key_file(&self) -> PathBuf {
        self.state.path().join("broca").join("client-key")
    }

    /// The command as a client of this service.
    pub(crate) fn broca(&self, arguments: &[&str]) -> Command {
        let mut command = broca(self.state.path());
        command.args(arguments);
        command
    }

    /// Opens a session, says something in it and returns its id.
    pub(crate) fn session(&self, message: &str) -> String {
        let ended = run(&mut self.broca(&["chat", "--json", message]));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.objects()[0]["session_id"].as_str().unwrap().to_owned()
    }

    /// Kills it as a loss of power would, and gives back what it kept.
    pub(crate) fn kill(mut self) -> tempfile::TempDir {
        self.talk.child.kill().unwrap();
        self.talk.child.wait().unwrap();
        self.state
    }

    /// Tells it to end.
    pub(crate) fn stop(self) -> (Ended, tempfile::TempDir) {
        self.talk.signal(rustix::process::Signal::TERM);
        (self.talk.end(), self.state)
    }
}

/// Answers every connection with these bytes, until the end of the test.
pub(crate) fn answering(answer: &'static [u8]) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 4096];
            let _request = stream.read(&mut head).unwrap_or(0);
            let _client_gone = stream.write_all(answer);
        }
    });
    url
}
