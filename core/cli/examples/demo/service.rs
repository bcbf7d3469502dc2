//! The session service as a process: the `broca` command, a state folder that is thrown away, keys for
//! every client.

use crate::Trouble;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the service may take to end.
const END_WITHIN: Duration = Duration::from_secs(10);

/// A running service. Dropped, it is killed, and its folder removed.
pub(crate) struct ServiceProcess {
    pub(crate) url: String,
    pub(crate) keys: Keys,
    process: Child,
    /// What it keeps, for as long as this lives.
    _state: tempfile::TempDir,
}

/// A key for each client: a key is one participant.
pub(crate) struct Keys {
    pub(crate) rust: String,
    pub(crate) python: String,
    pub(crate) c: String,
    pub(crate) node: String,
    pub(crate) observer: String,
}

impl ServiceProcess {
    /// Starts it with a model that follows this script, and waits until it listens.
    pub(crate) fn start(script: &str) -> Result<Self, Trouble> {
        let state = tempfile::Builder::new().prefix("broca-demo-").tempdir();
        let state = state.map_err(|e| Trouble(format!("no folder for the service: {e}")))?;
        let script_file = state.path().join("script.json");
        fs::write(&script_file, script)
            .map_err(|e| Trouble(format!("the script cannot be written: {e}")))?;
        let broca = find_broca();
        let make = |name| make_key(&broca, state.path(), name);
        let keys = Keys {
            rust: make("Rust")?,
            python: make("Python")?,
            c: make("C")?,
            node: make("Node")?,
            observer: make("observer")?,
        };
        let mut process = command(&broca, state.path())
            .args([
                "serve",
                "--dev",
                "--json",
                "--addr",
                "127.0.0.1:0",
                "--end-with-input",
                "--model",
            ])
            .arg(format!("scripted:{}", script_file.display()))
            // Open for as long as this program lives, however it ends.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| not_started(&broca, &e))?;
        let ready = read_line(&mut process);
        let url = serde_json::from_str::<serde_json::Value>(&ready)
            .ok()
            .and_then(|ready| Some(ready["url"].as_str()?.to_owned()));
        let this = Self { url: url.clone().unwrap_or_default(), keys, process, _state: state };
        match url {
            Some(_) => Ok(this),
            None => Err(Trouble("the service did not start; its own line above says why".into())),
        }
    }

    /// Asks it to end and waits for it.
    pub(crate) fn stop(mut self) -> Result<(), Trouble> {
        #[cfg(unix)]
        if let Some(pid) =
            i32::try_from(self.process.id()).ok().and_then(rustix::process::Pid::from_raw)
        {
            // Gone already is found out below.
            let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        #[cfg(not(unix))]
        let _gone = self.process.kill();
        let until = Instant::now() + END_WITHIN;
        loop {
            match self.process.try_wait() {
                Ok(Some(status)) if status.success() || cfg!(not(unix)) => return Ok(()),
                Ok(Some(status)) => {
                    return Err(Trouble(format!("the service ended badly: {status}")));
                }
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
                Ok(None) => {
                    return Err(Trouble("the service did not end when it was told to".into()));
                }
                Err(e) => return Err(Trouble(format!("the service cannot be waited for: {e}"))),
            }
        }
    }
}

impl Drop for ServiceProcess {
    fn drop(&mut self) {
        // After an orderly end there is nothing left to kill.
        let _gone = self.process.kill();
        let _gone = self.process.wait();
    }
}

fn make_key(broca: &Path, state: &Path, name: &str) -> Result<String, Trouble> {
    let made = command(broca, state)
        .args(["key", "create", "--dev", name])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| not_started(broca, &e))?;
    if !made.status.success() {
        return Err(Trouble("no key could be made; the line above says why".into()));
    }
    Ok(String::from_utf8_lossy(&made.stdout).trim().to_owned())
}

/// The command in a world of its own: nothing of the person's own service is touched.
fn command(broca: &Path, state: &Path) -> Command {
    let mut command = Command::new(broca);
    command.env("XDG_STATE_HOME", state);
    for name in ["ADDR", "DB_PATH", "LOG", "TURN_TIMEOUT", "SHUTDOWN_TIMEOUT"] {
        command.env_remove(format!("BROCA_{name}")).env_remove(format!("BAE_{name}"));
    }
    command
}

fn read_line(process: &mut Child) -> String {
    let mut line = String::new();
    if let Some(out) = process.stdout.take() {
        let mut out = BufReader::new(out.take(64 * 1024));
        // An end without a line is told by the caller.
        let _ended = out.read_line(&mut line);
    }
    line
}

/// The command that was built beside this program, else the one on the PATH.
fn find_broca() -> PathBuf {
    let name = format!("broca{}", std::env::consts::EXE_SUFFIX);
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent).and_then(Path::parent);
    let beside = beside.map(|folder| folder.join(&name)).filter(|path| path.is_file());
    beside.unwrap_or_else(|| PathBuf::from(name))
}

fn not_started(broca: &Path, error: &std::io::Error) -> Trouble {
    let broca = broca.display();
    Trouble(format!("{broca} cannot be started: {error}; build it with: cargo build -p broca-cli"))
}
