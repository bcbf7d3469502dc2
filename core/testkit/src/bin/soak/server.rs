//! A service of the run's own: a process with its state in a folder that is deleted afterwards.

use broca::Json;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use tempfile::TempDir;

/// How long the service may take to say where it listens.
const START: Duration = Duration::from_secs(30);

/// The service; ended when dropped.
pub(crate) struct Server {
    process: Child,
    url: String,
    key_file: PathBuf,
    _state: TempDir,
}

impl Server {
    /// Starts `broca serve --dev` on a free port.
    pub(crate) fn start(path: Option<String>) -> Result<Self, String> {
        let program = path.or_else(|| std::env::var("BROCA_BIN").ok()).or_else(beside_this_one);
        let program = program.unwrap_or_else(|| "broca".to_owned());
        let state = TempDir::new().map_err(|e| format!("no folder for the service: {e}"))?;
        let mut process = Command::new(&program)
            .args(["serve", "--dev", "--json", "--addr", "127.0.0.1:0"])
            .env("XDG_STATE_HOME", state.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| {
                format!("{program} cannot be started: {e}; name its path or set BROCA_BIN")
            })?;
        let told = first_line(&mut process);
        let mut server =
            Self { process, url: String::new(), key_file: PathBuf::new(), _state: state };
        let line = told?;
        let line = Json::parse(line).map_err(|e| format!("the service's first line: {e}"))?;
        let member = |name: &str| {
            let text = line.member(name).and_then(|value| value.to_text());
            text.ok_or_else(|| format!("the service's first line has no \"{name}\""))
        };
        server.url = member("url")?;
        server.key_file = member("key_file")?.into();
        Ok(server)
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn address(&self) -> Result<SocketAddr, String> {
        let address = self.url.trim_start_matches("http://");
        address.parse().map_err(|_| format!("the service listens at {address}, no address"))
    }

    pub(crate) fn driver_key(&self) -> Result<String, String> {
        read_key(&self.key_file)
    }

    /// Observers have a key of their own: joining with a driver's takes that driver's tools away.
    pub(crate) fn watch_key(&self) -> Result<String, String> {
        read_key(&self.key_file.with_file_name("watch-key"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended on its own; then there is nothing to end.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The `broca` that was built together with this program.
fn beside_this_one() -> Option<String> {
    let broca = std::env::current_exe().ok()?.with_file_name("broca");
    broca.is_file().then(|| broca.display().to_string())
}

fn read_key(file: &std::path::Path) -> Result<String, String> {
    let key = std::fs::read_to_string(file);
    key.map(|key| key.trim().to_owned()).map_err(|e| format!("{}: {e}", file.display()))
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
        Ok(Ok(line)) if !line.is_empty() => Ok(line),
        Ok(Ok(_)) => Err("the service ended before it listened".to_owned()),
        Ok(Err(e)) => Err(format!("the service's output: {e}")),
        Err(_) => Err("the service did not say in time where it listens".to_owned()),
    }
}
