//! `broca serve`: the bundled session service in the foreground.

use crate::arguments::ServeArguments;
use crate::fault::{Fault, written};
use crate::input;
use crate::interrupt::Interrupts;
use crate::key;
use crate::place::StateFolder;
use broca::Json;
use broca_server::models::catalog::{self, ModelOptions};
use broca_server::store::StoreError;
use broca_server::{Config, Service, ServiceError};
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// Where the service listens with `--dev`.
const DEV_ADDR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// Runs the command.
pub(crate) async fn run(arguments: ServeArguments) -> Result<(), Fault> {
    log_to_stderr(arguments.log.as_deref())?;
    let mut interrupts = Interrupts::listen()?;
    let input_end = if arguments.end_with_input { Some(input::end()?) } else { None };
    let folder = if arguments.dev { Some(StateFolder::find(variable)?) } else { None };
    let config = config(&arguments, folder.as_ref())?;
    let chain = Chain::of(&arguments)?;
    if let Some(folder) = &folder {
        folder.create()?;
    }
    chain.warn_without_keys();
    let tools = broca_server::tools::built_in();
    let named = arguments.dev || arguments.db.is_some();
    let opening = Service::open(config, chain.models, tools).await;
    let service = opening.map_err(|e| not_opened(e, named))?;
    let fallbacks = chain.fallbacks;
    let key_file = match &folder {
        Some(folder) => {
            let profile = key::profile(&service, Some(&fallbacks)).await?;
            let (driver, watcher) = (folder.key_file(), folder.watch_key_file());
            key::keep(&service, &profile, "dev", folder, &driver).await?;
            key::keep(&service, &profile, "dev-watch", folder, &watcher).await?;
            Some(driver)
        }
        None => {
            key::refresh_profile(&service, &fallbacks).await?;
            if !key::any(&service).await? {
                let _reader_gone = writeln!(
                    io::stderr().lock(),
                    "broca: this database has no keys yet, so nobody can use it; end the service and run: broca key create NAME"
                );
            }
            None
        }
    };
    let listener = service.bind().await?;
    let addr = listener.local_addr().map_err(|e| {
        Fault::failed(format!("the listener has no address: {e}"), "try another --addr")
    })?;
    let ready = Ready { addr, key_file, json: arguments.json };
    if let Some(folder) = &folder {
        folder.write(&folder.url_file(), &ready.url())?;
        ready.warn_if_open();
    }
    ready.tell()?;
    {
        let serving = service.serve(listener);
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            () = &mut serving => {}
            () = told_to_end(&mut interrupts, input_end) => {
                service.shutdown();
                tokio::select! {
                    () = &mut serving => {}
                    _ = interrupts.next() => return Err(Fault::interrupted("ended at once; turns were cut")),
                }
            }
        }
    }
    if let Some(folder) = &folder {
        folder.remove_if(&folder.url_file(), &ready.url());
    }
    Ok(())
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Waits for a signal or, if that is asked for, for the end of the input.
async fn told_to_end(
    interrupts: &mut Interrupts,
    input_end: Option<tokio::sync::oneshot::Receiver<()>>,
) {
    let input_ended = async {
        match input_end {
            // A thread that is gone reads no more.
            Some(end) => end.await.unwrap_or_default(),
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = interrupts.next() => {}
        () = input_ended => {}
    }
}

fn config(arguments: &ServeArguments, folder: Option<&StateFolder>) -> Result<Config, Fault> {
    let mut config = Config::from_env().map_err(|e| Fault::usage(e.to_string(), ""))?;
    let is_set =
        |name: &str| ["BROCA_", "BAE_"].iter().any(|p| variable(&format!("{p}{name}")).is_some());
    if let Some(folder) = folder {
        if !is_set("ADDR") {
            config.addr = DEV_ADDR;
        }
        if !is_set("DB_PATH") {
            config.db_path = folder.database();
        }
    }
    config.addr = arguments.addr.unwrap_or(config.addr);
    if let Some(path) = &arguments.db {
        config.db_path = path.clone();
    }
    if let Some(seconds) = arguments.turn_timeout {
        config.turn_timeout = Duration::from_secs(seconds);
    }
    if let Some(seconds) = arguments.shutdown_timeout {
        config.shutdown_timeout = Duration::from_secs(seconds);
    }
    Ok(config)
}

/// The models in the order in which they are tried, by the names that the profile uses.
struct Chain {
    models: BTreeMap<String, std::sync::Arc<dyn broca_server::models::Model>>,
    fallbacks: Vec<String>,
    /// Models whose key is in no variable, and that variable.
    without_key: Vec<(String, String)>,
}

impl Chain {
    fn of(arguments: &ServeArguments) -> Result<Self, Fault> {
        let standard = ["scripted".to_owned()];
        let names = if arguments.model.is_empty() { &standard[..] } else { &arguments.model[..] };
        let options = ModelOptions {
            base_url: arguments.base_url.clone(),
            key_env: arguments.model_key_env.clone(),
            max_tokens: arguments.max_tokens,
        };
        let is_remote = |name: &String| name.starts_with("openai");
        let some_remote = names.iter().any(is_remote);
        let key_env = key_variable(&options);
        let is_set = |name: &str| variable(name).is_some_and(|key| !key.trim().is_empty());
        let missing = key_env.filter(|name| !is_set(name));
        let mut chain =
            Self { models: BTreeMap::new(), fallbacks: Vec::new(), without_key: Vec::new() };
        for (place, name) in names.iter().enumerate() {
            // The options of remote models are no fault of a scripted one beside them.
            let none = ModelOptions::default();
            let options = if is_remote(name) || !some_remote { &options } else { &none };
            let model =
                catalog::open(name, options).map_err(|e| Fault::usage(e.to_string(), ""))?;
            let role = match place {
                0 => key::PRIMARY_MODEL.to_owned(),
                n => format!("fallback-{n}"),
            };
            if place > 0 {
                chain.fallbacks.push(role.clone());
            }
            if let Some(missing) = missing.filter(|_| is_remote(name)) {
                chain.without_key.push((name.clone(), missing.to_owned()));
            }
            chain.models.insert(role, model);
        }
        Ok(chain)
    }

    /// One line for each model that cannot work as long as this process lives: its environment stays as it is.
    fn warn_without_keys(&self) {
        for (model, variable) in &self.without_key {
            let _reader_gone = writeln!(
                io::stderr().lock(),
                "broca: {variable} is not set, so {model} will refuse every message; it is read from the environment of this process: end it, set {variable} and start again"
            );
        }
    }
}

/// The variable that holds the key of the `openai:` models, if they are asked with one.
fn key_variable(options: &ModelOptions) -> Option<&str> {
    let standard = options.base_url.is_none().then_some(catalog::DEFAULT_KEY_ENV);
    options.key_env.as_deref().or(standard)
}

/// What is told when the service listens.
struct Ready {
    addr: SocketAddr,
    /// Where the driver's key lies.
    key_file: Option<PathBuf>,
    json: bool,
}

impl Ready {
    /// Where clients on this machine find the service.
    fn url(&self) -> String {
        let ip = match self.addr.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        format!("http://{}", SocketAddr::new(ip, self.addr.port()))
    }

    fn warn_if_open(&self) {
        if !self.addr.ip().is_loopback() {
            let _reader_gone = writeln!(
                io::stderr().lock(),
                "broca: --dev listens on {}, beyond this machine, without TLS; use --addr 127.0.0.1:{} unless that is meant",
                self.addr,
                self.addr.port(),
            );
        }
    }

    fn tell(&self) -> Result<(), Fault> {
        let mut out = io::stdout().lock();
        if self.json {
            let url = Json::string(&self.url());
            let file = self.key_file.as_ref().map(|file| file.display().to_string());
            let file = file.map_or_else(Json::null, |file| Json::string(&file));
            let members = [("url", &url), ("key_file", &file)];
            return written(crate::view::write_object(&mut out, "listening", &members));
        }
        let mut text = format!("broca: listening on {}\n", self.url());
        if let Some(file) = &self.key_file {
            text.push_str(&self.lines_to_paste(file));
        }
        written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
    }

    /// For a second terminal. The key itself is not shown: it would stay in the terminal's memory.
    fn lines_to_paste(&self, key_file: &Path) -> String {
        let (url, key) = (self.url(), quoted(key_file));
        format!(
            "\nPaste this into another terminal:\n  export BROCA_URL={url}\n  export BROCA_CLIENT_KEY=\"$(cat {key})\"\n  broca chat 'What time is it? Ask the clock.'\n\nCtrl-C ends the service.\n"
        )
    }
}

/// A path as a word of the shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

fn log_to_stderr(filter: Option<&str>) -> Result<(), Fault> {
    let given =
        filter.map(str::to_owned).or_else(|| variable("BROCA_LOG")).or_else(|| variable("BAE_LOG"));
    let filter = EnvFilter::try_new(given.as_deref().unwrap_or("warn")).map_err(|e| {
        Fault::usage(
            format!("the log filter cannot be read: {e}"),
            "write for example --log info, or --log broca_server=debug",
        )
    })?;
    let plain = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(!plain && io::stderr().is_terminal())
        .try_init()
        .map_err(|e| Fault::failed(format!("the log cannot be set up: {e}"), ""))
}

/// The database that a command without the service works on.
pub(crate) fn database(
    dev: bool,
    given: Option<PathBuf>,
) -> Result<(Config, Option<StateFolder>), Fault> {
    let mut config = Config::from_env().map_err(|e| Fault::usage(e.to_string(), ""))?;
    let folder = if dev { Some(StateFolder::find(variable)?) } else { None };
    if let Some(folder) = &folder {
        folder.create()?;
        config.db_path = folder.database();
    }
    config.db_path = given.unwrap_or(config.db_path);
    Ok((config, folder))
}

/// Why the service could not be opened. Whoever has not `named` a database learns how.
pub(crate) fn not_opened(error: ServiceError, named: bool) -> Fault {
    match error {
        ServiceError::Store(StoreError::CannotOpen { .. }) if !named => Fault::failed(
            error.to_string(),
            "--db PATH names one, and --dev keeps one in your state folder",
        ),
        error => error.into(),
    }
}
