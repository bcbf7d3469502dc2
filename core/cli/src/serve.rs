//! `broca serve`: the bundled session service in the foreground.

use crate::arguments::{AdminAddress, ServeArguments};
use crate::fault::{Fault, written};
use crate::input;
use crate::interrupt::Interrupts;
use crate::key::{self, Offer};
use crate::place::StateFolder;
use broca::Json;
use broca_server::config::{ConfigFile, UnsetVariable};
use broca_server::models::catalog::{self, ModelOptions};
use broca_server::store::StoreError;
use broca_server::{AdminKey, Config, ConfigError, Service, ServiceError};
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::TcpListener;
use tracing_subscriber::EnvFilter;

/// Where the service listens with `--dev`.
const DEV_ADDR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// Where its admin port is then.
const DEV_ADMIN_ADDR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8081);

/// The settings that may stand in the configuration file and are read by the command itself.
const READ_HERE: &[&str] = &["log"];

/// Runs the command.
pub(crate) async fn run(arguments: ServeArguments) -> Result<(), Fault> {
    let file = config_file(arguments.config.as_deref())?;
    log_to_stderr(arguments.log.as_deref(), &file)?;
    let mut interrupts = Interrupts::listen()?;
    let input_end = if arguments.end_with_input { Some(input::end()?) } else { None };
    let folder = if arguments.dev { Some(StateFolder::find(variable)?) } else { None };
    let chain = Chain::of(&arguments, &file)?;
    let config = config(&arguments, file, folder.as_ref())?;
    if arguments.check_config {
        return checked(&config, arguments.json);
    }
    if let Some(folder) = &folder {
        folder.create()?;
    }
    chain.warn_without_keys();
    let may_move = arguments.dev && config.admin.addr == Some(DEV_ADMIN_ADDR);
    let tools = broca_server::tools::built_in();
    let named = arguments.dev || arguments.db.is_some();
    let opening = Service::open(config, chain.models, tools).await;
    let service = opening.map_err(|e| not_opened(e, named))?;
    let offer = chain.offer;
    key::refresh_profile(&service, &offer, arguments.dev).await?;
    let key_file = match &folder {
        Some(folder) => {
            let profile = key::profile(&service, &offer).await?;
            let (driver, watcher) = (folder.key_file(), folder.watch_key_file());
            key::keep(&service, &profile, "dev", folder, &driver).await?;
            key::keep(&service, &profile, "dev-watch", folder, &watcher).await?;
            Some(driver)
        }
        None => {
            if !key::any(&service).await? {
                let _reader_gone = writeln!(
                    io::stderr().lock(),
                    "broca: this database has no keys yet, so nobody can use it; end the service and run: broca key create NAME"
                );
            }
            None
        }
    };
    let admin_port = bind_admin(&service, may_move).await?;
    let admin_key_file = match &admin_port {
        Some(_) => admin_key(&service, &arguments, folder.as_ref()).await?,
        None => None,
    };
    let listener = service.bind().await?;
    let admin = admin_port.as_ref().map(address_of).transpose()?;
    let ready = Ready {
        addr: address_of(&listener)?,
        key_file,
        admin,
        admin_key_file,
        json: arguments.json,
    };
    if let Some(folder) = &folder {
        folder.write(&folder.url_file(), &ready.url())?;
        if let Some(url) = ready.admin_url() {
            folder.write(&folder.admin_url_file(), &url)?;
        }
        ready.warn_if_open();
    }
    ready.tell()?;
    {
        let serving = async {
            let managing = async {
                if let Some(listener) = admin_port {
                    service.serve_admin(listener).await;
                }
            };
            tokio::join!(service.serve(listener), managing)
        };
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            _ = &mut serving => {}
            () = told_to_end(&mut interrupts, input_end) => {
                service.shutdown();
                tokio::select! {
                    _ = &mut serving => {}
                    _ = interrupts.next() => return Err(Fault::interrupted("ended at once; turns were cut")),
                }
            }
        }
    }
    if let Some(folder) = &folder {
        folder.remove_if(&folder.url_file(), &ready.url());
        if let Some(url) = ready.admin_url() {
            folder.remove_if(&folder.admin_url_file(), &url);
        }
    }
    Ok(())
}

/// What `--check-config` says of a configuration that is good.
fn checked(config: &Config, json: bool) -> Result<(), Fault> {
    let mut out = io::stdout().lock();
    let (providers, servers) = (config.file.providers.len(), config.file.mcp_servers.len());
    if json {
        let number = |count: usize| Json::integer(i64::try_from(count).unwrap_or(i64::MAX));
        let members = [("providers", &number(providers)), ("mcp_servers", &number(servers))];
        return written(crate::view::write_object(&mut out, "configuration", &members));
    }
    written(writeln!(
        out,
        "broca: the configuration is good: {providers} providers, {servers} MCP servers"
    ))
}

fn address_of(listener: &TcpListener) -> Result<SocketAddr, Fault> {
    listener.local_addr().map_err(|e| {
        Fault::failed(format!("the listener has no address: {e}"), "try another --addr")
    })
}

/// Listens on the admin port. With `--dev` another service may have the standard one: then any will do.
async fn bind_admin(service: &Service, may_move: bool) -> Result<Option<TcpListener>, Fault> {
    match service.bind_admin().await {
        Err(ServiceError::PortInUse { .. }) if may_move => {
            let any = SocketAddr::new(DEV_ADMIN_ADDR.ip(), 0);
            let bound = TcpListener::bind(any).await;
            bound.map(Some).map_err(|e| {
                Fault::failed(
                    format!("the admin port cannot be opened: {e}"),
                    "--admin-addr off goes without",
                )
            })
        }
        bound => Ok(bound?),
    }
}

/// Sees to it that there is an admin key; the file that holds it, as far as that is known.
async fn admin_key(
    service: &Service,
    arguments: &ServeArguments,
    folder: Option<&StateFolder>,
) -> Result<Option<PathBuf>, Fault> {
    let mut rotate = arguments.rotate_admin_key;
    let mut known = None;
    if let Some(folder) = folder.filter(|_| arguments.admin_key_file.is_none()) {
        // A development service can do with a new key when somebody lost the old one.
        known = Some(folder.admin_key_file());
        rotate |= match folder.kept_key(&folder.admin_key_file())? {
            Some(key) => !key::opens_admin_port(service, &key).await?,
            None => true,
        };
    }
    match service.establish_admin_key(rotate).await? {
        AdminKey::Written(path) => Ok(Some(path)),
        AdminKey::Kept | AdminKey::Ingested(_) => Ok(known),
        AdminKey::Disabled => {
            let _reader_gone = writeln!(
                io::stderr().lock(),
                "broca: the admin port asks for no key: everybody on this machine can manage the service"
            );
            Ok(None)
        }
    }
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

/// The configuration file of this start; an empty one when none is named.
pub(crate) fn config_file(given: Option<&Path>) -> Result<ConfigFile, Fault> {
    let set = || variable("BROCA_CONFIG").or_else(|| variable("BAE_CONFIG")).map(PathBuf::from);
    let Some(path) = given.map(Path::to_owned).or_else(set) else {
        return Ok(ConfigFile::default());
    };
    ConfigFile::load(&path).map_err(|e| Fault::usage(e.to_string(), ""))
}

/// The settings, options first, then variables, then the file.
fn config(
    arguments: &ServeArguments,
    file: ConfigFile,
    folder: Option<&StateFolder>,
) -> Result<Config, Fault> {
    let unusable = |e: ConfigError| Fault::usage(e.to_string(), "");
    let mut config = Config::from_sources(variable, file, READ_HERE).map_err(unusable)?;
    let is_set = |name: &str, config: &Config| {
        let set = |prefix: &&str| variable(&format!("{prefix}{name}")).is_some();
        ["BROCA_", "BAE_"].iter().any(set)
            || config.file.setting(&name.to_ascii_lowercase()).is_some()
    };
    if let Some(folder) = folder {
        if !is_set("ADDR", &config) {
            config.addr = DEV_ADDR;
        }
        if !is_set("DB_PATH", &config) {
            config.db_path = folder.database();
        }
        if !is_set("ADMIN_KEY_FILE", &config) {
            config.admin.key_file = Some(folder.admin_key_file());
        }
    }
    config.addr = arguments.addr.unwrap_or(config.addr);
    if let Some(path) = &arguments.db {
        config.db_path = path.clone();
    }
    if let Some(AdminAddress(addr)) = arguments.admin_addr {
        config.admin.addr = addr;
    } else if !is_set("ADMIN_ADDR", &config) {
        // Who lets the system choose one port means both; two development services must not get in each other's way.
        let standard =
            if folder.is_some() { config.addr == DEV_ADDR } else { config.addr.port() != 0 };
        let port = if standard { DEV_ADMIN_ADDR.port() } else { 0 };
        config.admin.addr = Some(SocketAddr::new(DEV_ADMIN_ADDR.ip(), port));
    }
    if let Some(path) = &arguments.admin_key_file {
        config.admin.key_file = Some(path.clone());
    }
    if let Some(path) = &arguments.admin_key_hash_file {
        config.admin.key_hash_file = Some(path.clone());
    }
    config.admin.auth_disabled |= arguments.dangerously_disable_admin_auth;
    if config.admin.auth_disabled && arguments.rotate_admin_key {
        return Err(Fault::usage(
            "a new admin key is to be made, and none is to be asked for",
            "leave out --rotate-admin-key or --dangerously-disable-admin-auth",
        ));
    }
    if let Some(seconds) = arguments.turn_timeout {
        config.turn_timeout = Duration::from_secs(seconds);
    }
    if let Some(seconds) = arguments.shutdown_timeout {
        config.shutdown_timeout = Duration::from_secs(seconds);
    }
    config.check().map_err(unusable)?;
    Ok(config)
}

/// The models by the names that profiles use.
struct Chain {
    models: BTreeMap<String, std::sync::Arc<dyn broca_server::models::Model>>,
    /// Those of the profile of the command line.
    offer: Offer,
    /// Models whose key is in no variable, and that variable.
    without_key: Vec<(String, String)>,
}

impl Chain {
    /// The models of the file, and those of the command line, which are there without a file too.
    fn of(arguments: &ServeArguments, file: &ConfigFile) -> Result<Self, Fault> {
        let mut chain =
            Self { models: BTreeMap::new(), offer: Offer::default(), without_key: Vec::new() };
        for entry in &file.providers {
            let model = catalog::configured(entry).map_err(|e| Fault::usage(e.to_string(), ""))?;
            chain.models.insert(entry.name.clone(), model);
            let key = entry.auth_token.as_ref().map(|token| token.resolve(variable));
            if let Some(Err(UnsetVariable(missing))) = key {
                chain.without_key.push((format!("provider {}", entry.name), missing));
            }
        }
        match file.providers.first() {
            Some(first) if arguments.model.is_empty() => {
                let needless = [
                    (arguments.base_url.is_some(), "--base-url"),
                    (arguments.model_key_env.is_some(), "--model-key-env"),
                    (arguments.max_tokens.is_some(), "--max-tokens"),
                ];
                if let Some((_, option)) = needless.into_iter().find(|(given, _)| *given) {
                    return Err(Fault::usage(
                        format!("{option} has no meaning without --model"),
                        "the configuration file says it for its own providers",
                    ));
                }
                chain.offer.primary.clone_from(&first.name);
            }
            _ => chain.add(arguments)?,
        }
        Ok(chain)
    }

    /// Adds the models of the command line, in the order in which they are tried.
    fn add(&mut self, arguments: &ServeArguments) -> Result<(), Fault> {
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
                self.offer.fallbacks.push(role.clone());
            }
            if let Some(missing) = missing.filter(|_| is_remote(name)) {
                self.without_key.push((name.clone(), missing.to_owned()));
            }
            self.models.insert(role, model);
        }
        Ok(())
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
    /// The admin port.
    admin: Option<SocketAddr>,
    /// Where the admin key lies, if that is known.
    admin_key_file: Option<PathBuf>,
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

    /// Where the operator finds the admin port.
    fn admin_url(&self) -> Option<String> {
        self.admin.map(|addr| format!("http://{addr}"))
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
            let path = |file: &Option<PathBuf>| {
                let file = file.as_ref().map(|file| file.display().to_string());
                file.map_or_else(Json::null, |file| Json::string(&file))
            };
            let url = Json::string(&self.url());
            let admin = self.admin_url().map_or_else(Json::null, |url| Json::string(&url));
            let members = [
                ("url", &url),
                ("key_file", &path(&self.key_file)),
                ("admin_url", &admin),
                ("admin_key_file", &path(&self.admin_key_file)),
            ];
            return written(crate::view::write_object(&mut out, "listening", &members));
        }
        let mut text = format!("broca: listening on {}\n", self.url());
        if let Some(url) = self.admin_url() {
            let file = self.admin_key_file.as_deref();
            let key =
                file.map_or_else(String::new, |file| format!(", its key in {}", quoted(file)));
            text.push_str(&format!("broca: admin port at {url}{key}\n"));
        }
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

fn log_to_stderr(option: Option<&str>, file: &ConfigFile) -> Result<(), Fault> {
    let given = option.map(str::to_owned);
    let given = given.or_else(|| variable("BROCA_LOG")).or_else(|| variable("BAE_LOG"));
    let given = given.or_else(|| file.setting("log").map(str::to_owned));
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
    let file = config_file(None)?;
    let config = Config::from_sources(variable, file, READ_HERE);
    let mut config = config.map_err(|e| Fault::usage(e.to_string(), ""))?;
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
