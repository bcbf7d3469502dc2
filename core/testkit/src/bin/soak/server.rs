//! A service of the run's own: a process that is killed and started again on one database, in a folder that is deleted
//! afterwards.

use broca::Json;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long the service may take to say where it listens.
const START: Duration = Duration::from_secs(60);

/// How long its port may stay in use by what is left of the process before it.
const PORT: Duration = Duration::from_secs(20);

/// The service; ended when dropped.
pub(crate) struct Server {
    program: String,
    script: PathBuf,
    address: SocketAddr,
    process: Mutex<Child>,
    pid: AtomicU32,
    keys: Vec<String>,
    watch_key: String,
    state: TempDir,
}

impl Server {
    /// Starts `broca serve --dev` on a free port, with this script of its model and so many keys for drivers.
    pub(crate) fn start(
        path: Option<String>,
        script: &str,
        drivers: usize,
    ) -> Result<Self, String> {
        let program = path.or_else(|| std::env::var("BROCA_BIN").ok()).or_else(beside_this_one);
        let program = program.unwrap_or_else(|| "broca".to_owned());
        let state = TempDir::new().map_err(|e| format!("no folder for the service: {e}"))?;
        let script_file = state.path().join("script.json");
        fs::write(&script_file, script).map_err(|e| format!("the script: {e}"))?;
        let database = state.path().join("broca.db");
        let create = |number: usize| {
            let mut command = command(&program, state.path());
            let name = format!("driver-{number}");
            command.args(["key", "create", &name, "--db"]).arg(&database);
            let made = command.output().map_err(|e| cannot_start(&program, &e))?;
            let key = String::from_utf8_lossy(&made.stdout).trim().to_owned();
            if made.status.success() { Ok(key) } else { Err("a key could not be made".to_owned()) }
        };
        let keys = (0..drivers).map(create).collect::<Result<_, String>>()?;
        let (process, told) = launch(&program, state.path(), &script_file, "127.0.0.1:0")?;
        let pid = AtomicU32::new(process.id());
        let process = Mutex::new(process);
        let line = Json::parse(told).map_err(|e| format!("the service's first line: {e}"))?;
        let member = |name: &str| {
            let text = line.member(name).and_then(|value| value.to_text());
            text.ok_or_else(|| format!("the service's first line has no \"{name}\""))
        };
        let url = member("url")?;
        let address = url.trim_start_matches("http://").parse();
        let address = address.map_err(|_| format!("the service listens at {url}, no address"))?;
        let watch_key = PathBuf::from(member("key_file")?).with_file_name("watch-key");
        let watch_key = fs::read_to_string(&watch_key).map_err(|e| format!("watch-key: {e}"))?;
        let watch_key = watch_key.trim().to_owned();
        Ok(Self { program, script: script_file, address, process, pid, keys, watch_key, state })
    }

    /// Kills it as a loss of power would, waits, and starts it again at the same place.
    pub(crate) fn restart(&self, pause: Duration) -> Result<(), String> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.kill().map_err(|e| format!("the service cannot be killed: {e}"))?;
        let status = process.wait().map_err(|e| format!("the service: {e}"))?;
        if status.code().is_some() {
            return Err(format!("the service had ended by itself: {status}"));
        }
        std::thread::sleep(pause);
        let until = Instant::now() + PORT;
        loop {
            let at = self.address.to_string();
            match launch(&self.program, self.state.path(), &self.script, &at) {
                Ok((started, _)) => {
                    self.pid.store(started.id(), Ordering::SeqCst);
                    *process = started;
                    return Ok(());
                }
                Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(50)),
                Err(error) => return Err(format!("after a restart: {error}")),
            }
        }
    }

    /// The process that serves now.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.load(Ordering::SeqCst)
    }

    /// Its database, for whoever looks into a run that failed.
    pub(crate) fn database(&self) -> PathBuf {
        self.state.path().join("broca.db")
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The key of this driver.
    pub(crate) fn key(&self, driver: usize) -> &str {
        self.keys.get(driver).map_or("", String::as_str)
    }

    /// Observers have a key of their own: joining with a driver's takes that driver's tools away.
    pub(crate) fn watch_key(&self) -> &str {
        &self.watch_key
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        // It may have ended on its own; then there is nothing to end.
        let _ = process.kill();
        let _ = process.wait();
    }
}

/// The command without what the environment would make of it.
fn command(program: &str, state: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars() {
        if name.starts_with("BROCA_") || name.starts_with("BAE_") {
            command.env_remove(name);
        }
    }
    command.env("XDG_STATE_HOME", state).stdin(Stdio::null());
    command
}

fn launch(
    program: &str,
    state: &Path,
    script: &Path,
    address: &str,
) -> Result<(Child, String), String> {
    let mut command = command(program, state);
    // The write end of its input is ours alone: it ends with us, however we end.
    command.args(["serve", "--dev", "--json", "--end-with-input", "--addr", address, "--db"]);
    command.stdin(Stdio::piped());
    command.arg(state.join("broca.db")).arg("--model");
    command.arg(format!("scripted:{}", script.display()));
    let seconds = super::drivers::PAUSE.as_secs().to_string();
    command.env("BROCA_TURN_TIMEOUT", seconds).env("BROCA_HEARTBEAT_NOTICE", "1");
    let mut process =
        command.stdout(Stdio::piped()).spawn().map_err(|e| cannot_start(program, &e))?;
    match first_line(&mut process) {
        Ok(line) => Ok((process, line)),
        Err(error) => {
            // It may have ended on its own.
            let _ = process.kill();
            let _ = process.wait();
            Err(error)
        }
    }
}

fn cannot_start(program: &str, error: &std::io::Error) -> String {
    format!("{program} cannot be started: {error}; name its path or set BROCA_BIN")
}

/// The `broca` that was built together with this program.
fn beside_this_one() -> Option<String> {
    let broca = std::env::current_exe().ok()?.with_file_name("broca");
    broca.is_file().then(|| broca.display().to_string())
}

/// The first line that the service prints, read on a thread so that a silent one is noticed.
fn first_line(process: &mut Child) -> Result<String, String> {
    let out = process.stdout.take().ok_or("the service has no output")?;
    let (send, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut out = BufReader::new(out);
        let mut line = String::new();
        let read = out.read_line(&mut line).map(|_| line);
        // Nobody may be waiting any more.
        let _ = send.send(read);
        // What follows is read over, so that the service is never held up.
        let _ = std::io::copy(&mut out, &mut std::io::sink());
    });
    match told.recv_timeout(START) {
        Ok(Ok(line)) if line.contains("\"error\"") => Err(line),
        Ok(Ok(line)) if !line.is_empty() => Ok(line),
        Ok(Ok(_)) => Err("the service ended before it listened".to_owned()),
        Ok(Err(e)) => Err(format!("the service's output: {e}")),
        Err(_) => Err("the service did not say in time where it listens".to_owned()),
    }
}
