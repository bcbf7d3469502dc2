//! The configuration file (session service §12): MCP servers, providers, telemetry, and settings of the service.
//!
//! Faults are told by line, never with what is written there: it may be a secret.

use super::template::Template;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What stands for a secret in [`ConfigFile::redacted`].
const BULLETS: &str = "••••••••";

/// The most bytes that a file may have.
const MOST_BYTES: u64 = 4 * 1024 * 1024;

/// What a configuration file says. The default is that of an empty one.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct ConfigFile {
    /// `[[mcp.servers]]`, sorted by name.
    pub mcp_servers: Vec<McpServer>,
    /// `[[providers.entries]]`, in the order of the file.
    pub providers: Vec<ProviderEntry>,
    /// `[telemetry]`.
    pub telemetry: Telemetry,
    /// `[service]`: settings by the name of their variable in lower case, each with its line.
    pub(super) service: BTreeMap<String, (String, usize)>,
}

/// An MCP server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct McpServer {
    /// Its name, unique among them.
    pub name: String,
    /// How it is spoken to.
    pub transport: Transport,
    /// The program of a `stdio` server.
    pub command: Option<Template>,
    /// The program's arguments.
    pub args: Vec<Template>,
    /// Where an `http` or `sse` server is.
    pub url: Option<Template>,
    /// The headers of its requests.
    pub headers: BTreeMap<String, Template>,
}

/// How an MCP server is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// A program that is started.
    Stdio,
    /// One POST for each message.
    Http,
    /// The same, with answers as server-sent events.
    Sse,
}

impl Transport {
    /// The word in the file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::Http => "http",
            Self::Sse => "sse",
        }
    }
}

/// A provider of model answers. Profiles name it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProviderEntry {
    /// Its name, unique among them.
    pub name: String,
    /// The kind of wire that it speaks.
    pub provider: ProviderKind,
    /// Where it is; absent for the vendor's own address.
    pub base_url: Option<String>,
    /// The model's name; for `scripted` the path of a script, or nothing for the built-in rules.
    pub model: String,
    /// Its key, resolved for each call; absent for servers without keys.
    pub auth_token: Option<Template>,
    /// The most tokens of an answer. Default 4096.
    pub max_tokens: u64,
}

/// A kind of wire, not a vendor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProviderKind {
    /// Anthropic's Messages.
    Anthropic,
    /// OpenAI's Chat Completions, and every server that speaks it.
    OpenAi,
    /// The built-in model that plays scripts.
    Scripted,
}

impl ProviderKind {
    /// The word in the file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::OpenAi => "openai",
            Self::Scripted => "scripted",
        }
    }

    /// Where the vendor is.
    const fn standard_base_url(self) -> &'static str {
        match self {
            Self::Anthropic => crate::models::unbuilt::ANTHROPIC_BASE_URL,
            Self::OpenAi => crate::models::openai::DEFAULT_BASE_URL,
            Self::Scripted => "scripted://",
        }
    }
}

/// What is exported about the service, and where to.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Telemetry {
    /// Whether anything is exported. Default false.
    pub enabled: bool,
    /// The collector.
    pub otlp_endpoint: Option<Template>,
    /// The headers of requests to it, resolved at the start.
    pub otlp_headers: BTreeMap<String, Template>,
    /// The share of the traces begun here that is kept, from 0 to 1. Default 1.
    pub sample_ratio: f64,
    /// What the service is called there. Default `baesrv`.
    pub service_name: String,
    /// Whether traces are exported. Default true.
    pub traces: bool,
    /// Whether metrics are exported. Default true.
    pub metrics: bool,
    /// The metrics that are not exported, by name.
    pub disabled_metrics: Vec<String>,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            enabled: false,
            otlp_endpoint: None,
            otlp_headers: BTreeMap::new(),
            sample_ratio: 1.0,
            service_name: "baesrv".to_owned(),
            traces: true,
            metrics: true,
            disabled_metrics: Vec::new(),
        }
    }
}

/// Why a configuration file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigFileError {
    /// It is there and cannot be read.
    #[error("the configuration file {path} cannot be read: {why}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        why: String,
    },
    /// It says something wrong.
    #[error("{path}, line {line}: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where.
        line: usize,
        /// What is wrong, and what it should look like.
        reason: String,
    },
}

/// What is wrong, and at which line.
#[derive(Debug, PartialEq, Eq)]
struct Wrong {
    line: usize,
    reason: String,
}

impl ConfigFile {
    /// Reads a file. One that is not there is an empty one.
    ///
    /// # Errors
    /// [`ConfigFileError`].
    pub fn load(path: &Path) -> Result<Self, ConfigFileError> {
        let unreadable = |why: String| ConfigFileError::Unreadable { path: path.to_owned(), why };
        match std::fs::metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(unreadable(error.to_string())),
            Ok(about) if about.is_dir() => return Err(unreadable("it is a folder".to_owned())),
            Ok(about) if about.len() > MOST_BYTES => {
                return Err(unreadable(format!("it is larger than {MOST_BYTES} bytes")));
            }
            Ok(_) => {}
        }
        let text = std::fs::read_to_string(path).map_err(|e| unreadable(e.to_string()))?;
        Self::parse(&text).map_err(|Wrong { line, reason }| ConfigFileError::Malformed {
            path: path.to_owned(),
            line,
            reason,
        })
    }

    fn parse(text: &str) -> Result<Self, Wrong> {
        let read = Reader { text };
        let whole = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            read.wrong(at..at, format!("this is no TOML: {}", error.message()))
        })?;
        let mut file = Self::default();
        let top = whole.get_ref();
        if let Some(mcp) = read.table(top, "mcp")? {
            mcp.only(&["servers"])?;
            file.mcp_servers = read_mcp(&mcp)?;
            file.mcp_servers.sort_by(|a, b| a.name.cmp(&b.name));
        }
        if let Some(providers) = read.table(top, "providers")? {
            file.providers = read_providers(&providers)?;
        }
        if let Some(telemetry) = read.table(top, "telemetry")? {
            file.telemetry = read_telemetry(&telemetry)?;
        }
        if let Some(service) = read.table(top, "service")? {
            file.service = read_service(&service)?;
        }
        Ok(file)
    }

    /// A setting of `[service]` as it is written there, by the name of its variable in lower case.
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.service.get(name).map(|(value, _)| value.as_str())
    }

    /// The file as the operator is shown it: every secret value replaced, lists sorted by name.
    pub(crate) fn redacted(&self) -> Redacted<'_> {
        let secret = |(name, _): (&String, &Template)| (name.clone(), BULLETS);
        let servers = self.mcp_servers.iter().map(|server| RedactedServer {
            args: server.args.iter().map(|arg| arg.written().expose()).collect(),
            command: server.command.as_ref().map(|command| command.written().expose()),
            headers: server.headers.iter().map(secret).collect(),
            name: &server.name,
            transport: server.transport.as_str(),
            url: server.url.as_ref().map(|url| without_secrets(url.written().expose())),
        });
        let mut entries: Vec<RedactedProvider<'_>> = self
            .providers
            .iter()
            .map(|entry| RedactedProvider {
                auth_token: entry.auth_token.as_ref().map(|_| BULLETS),
                base_url: entry.effective_base_url(),
                model: &entry.model,
                name: &entry.name,
                provider: entry.provider.as_str(),
            })
            .collect();
        entries.sort_by_key(|entry| entry.name);
        let telemetry = &self.telemetry;
        let endpoint = telemetry.otlp_endpoint.as_ref();
        Redacted {
            mcp: RedactedMcp { servers: servers.collect() },
            providers: RedactedProviders { entries },
            telemetry: RedactedTelemetry {
                enabled: telemetry.enabled,
                metrics: RedactedMetrics {
                    disabled: &telemetry.disabled_metrics,
                    enabled: telemetry.metrics,
                },
                otlp_endpoint: endpoint.map(|url| without_secrets(url.written().expose())),
                otlp_headers: telemetry.otlp_headers.iter().map(secret).collect(),
                sample_ratio: telemetry.sample_ratio,
                service_name: &telemetry.service_name,
                traces: RedactedTraces { enabled: telemetry.traces },
            },
        }
    }
}

impl ProviderEntry {
    /// Where it is, its own address or the vendor's.
    #[must_use]
    pub fn effective_base_url(&self) -> &str {
        self.base_url.as_deref().unwrap_or_else(|| self.provider.standard_base_url())
    }
}

/// A URL without what may be a secret in it: user name and password, and the query.
fn without_secrets(url: &str) -> String {
    let (url, query) = url.split_once('?').map_or((url, ""), |(url, _)| (url, BULLETS));
    let mark = if query.is_empty() { "" } else { "?" };
    let start = url.find("://").map_or(0, |at| at + 3);
    let (scheme, rest) = url.split_at(start);
    let authority = rest.split('/').next().unwrap_or_default();
    match authority.rfind('@') {
        Some(at) => format!("{scheme}{BULLETS}{}{mark}{query}", &rest[at..]),
        None => format!("{scheme}{rest}{mark}{query}"),
    }
}

#[derive(Serialize)]
pub(crate) struct Redacted<'a> {
    mcp: RedactedMcp<'a>,
    providers: RedactedProviders<'a>,
    telemetry: RedactedTelemetry<'a>,
}

#[derive(Serialize)]
struct RedactedMcp<'a> {
    servers: Vec<RedactedServer<'a>>,
}

#[derive(Serialize)]
struct RedactedServer<'a> {
    args: Vec<&'a str>,
    command: Option<&'a str>,
    headers: BTreeMap<String, &'static str>,
    name: &'a str,
    transport: &'static str,
    url: Option<String>,
}

#[derive(Serialize)]
struct RedactedProviders<'a> {
    entries: Vec<RedactedProvider<'a>>,
}

#[derive(Serialize)]
struct RedactedProvider<'a> {
    auth_token: Option<&'static str>,
    base_url: &'a str,
    model: &'a str,
    name: &'a str,
    provider: &'static str,
}

#[derive(Serialize)]
struct RedactedTelemetry<'a> {
    enabled: bool,
    metrics: RedactedMetrics<'a>,
    otlp_endpoint: Option<String>,
    otlp_headers: BTreeMap<String, &'static str>,
    sample_ratio: f64,
    service_name: &'a str,
    traces: RedactedTraces,
}

#[derive(Serialize)]
struct RedactedMetrics<'a> {
    disabled: &'a [String],
    enabled: bool,
}

#[derive(Serialize)]
struct RedactedTraces {
    enabled: bool,
}

fn read_mcp(mcp: &Table<'_>) -> Result<Vec<McpServer>, Wrong> {
    let mut servers = Vec::new();
    let mut names = BTreeSet::new();
    for server in mcp.tables("servers")? {
        server.only(&["name", "transport", "command", "args", "url", "headers"])?;
        let name = server.unique_name(&mut names)?;
        let transport = match server.needed_text("transport")?.as_str() {
            "stdio" => Transport::Stdio,
            "http" => Transport::Http,
            "sse" => Transport::Sse,
            _ => return Err(server.at("transport", "must be \"stdio\", \"http\" or \"sse\"")),
        };
        let (command, url) = (server.template("command")?, server.template("url")?);
        match transport {
            Transport::Stdio if command.is_none() => {
                return Err(server.wrong("a stdio server needs a command"));
            }
            Transport::Http | Transport::Sse if url.is_none() => {
                return Err(server.wrong("an http or sse server needs a url"));
            }
            _ => {}
        }
        let args = server.templates("args")?;
        let headers = server.template_map("headers")?;
        servers.push(McpServer { name, transport, command, args, url, headers });
    }
    Ok(servers)
}

fn read_providers(providers: &Table<'_>) -> Result<Vec<ProviderEntry>, Wrong> {
    let mut entries = Vec::new();
    let mut names = BTreeSet::new();
    for entry in providers.tables("entries")? {
        let name = entry.unique_name(&mut names)?;
        let provider = match entry.needed_text("provider")?.as_str() {
            "anthropic" => ProviderKind::Anthropic,
            "openai" => ProviderKind::OpenAi,
            "scripted" => ProviderKind::Scripted,
            _ => {
                let words = "must be \"anthropic\", \"openai\" or \"scripted\"";
                return Err(entry.at("provider", words));
            }
        };
        let model = match provider {
            ProviderKind::Scripted => entry.text("model")?.unwrap_or_default(),
            _ => entry.needed_text("model")?,
        };
        let max_tokens = match entry.whole("max_tokens")? {
            None => 4096,
            Some(0) => return Err(entry.at("max_tokens", "must be at least 1")),
            Some(most) => most,
        };
        entries.push(ProviderEntry {
            name,
            provider,
            base_url: entry.text("base_url")?,
            model,
            auth_token: entry.template("auth_token")?,
            max_tokens,
        });
    }
    Ok(entries)
}

fn read_telemetry(table: &Table<'_>) -> Result<Telemetry, Wrong> {
    table.only(&[
        "enabled",
        "otlp_endpoint",
        "otlp_headers",
        "sample_ratio",
        "service_name",
        "traces",
        "metrics",
    ])?;
    let mut telemetry = Telemetry::default();
    telemetry.enabled = table.flag("enabled")?.unwrap_or(telemetry.enabled);
    telemetry.otlp_endpoint = table.template("otlp_endpoint")?;
    telemetry.otlp_headers = table.template_map("otlp_headers")?;
    if let Some(ratio) = table.number("sample_ratio")? {
        if !(0.0..=1.0).contains(&ratio) {
            return Err(table.at("sample_ratio", "must be from 0 to 1"));
        }
        telemetry.sample_ratio = ratio;
    }
    if let Some(name) = table.text("service_name")? {
        telemetry.service_name = name;
    }
    if let Some(traces) = table.table("traces")? {
        traces.only(&["enabled"])?;
        telemetry.traces = traces.flag("enabled")?.unwrap_or(telemetry.traces);
    }
    if let Some(metrics) = table.table("metrics")? {
        metrics.only(&["enabled", "disabled"])?;
        telemetry.metrics = metrics.flag("enabled")?.unwrap_or(telemetry.metrics);
        telemetry.disabled_metrics = metrics.texts("disabled")?;
    }
    Ok(telemetry)
}

fn read_service(table: &Table<'_>) -> Result<BTreeMap<String, (String, usize)>, Wrong> {
    let mut settings = BTreeMap::new();
    for (key, value) in table.values {
        let line = table.read.line(key.span().start);
        let text = match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) if number.radix() == 10 => {
                number.as_str().replace('_', "").trim_start_matches('+').to_owned()
            }
            DeValue::Boolean(flag) => flag.to_string(),
            _ => {
                let reason =
                    format!("{} must be a whole number, a text, true or false", key.get_ref());
                return Err(Wrong { line, reason });
            }
        };
        settings.insert(key.get_ref().to_string(), (text, line));
    }
    Ok(settings)
}

/// Reads a document and knows its lines.
#[derive(Clone, Copy)]
struct Reader<'a> {
    text: &'a str,
}

impl<'a> Reader<'a> {
    fn line(self, at: usize) -> usize {
        let before = self.text.as_bytes().iter().take(at);
        1 + before.filter(|byte| **byte == b'\n').count()
    }

    fn wrong(self, at: Range<usize>, reason: impl Into<String>) -> Wrong {
        Wrong { line: self.line(at.start), reason: reason.into() }
    }

    fn table<'t>(self, values: &'t DeTable<'a>, name: &str) -> Result<Option<Table<'t>>, Wrong>
    where
        'a: 't,
    {
        let Some(value) = values.get(name) else { return Ok(None) };
        match value.get_ref() {
            DeValue::Table(values) => Ok(Some(Table { read: self, values, span: value.span() })),
            _ => Err(self.wrong(value.span(), format!("{name} must be a table"))),
        }
    }
}

/// A table of the document.
struct Table<'a> {
    read: Reader<'a>,
    values: &'a DeTable<'a>,
    span: Range<usize>,
}

impl<'a> Table<'a> {
    fn wrong(&self, reason: impl Into<String>) -> Wrong {
        self.read.wrong(self.span.clone(), reason)
    }

    fn at(&self, name: &str, reason: &str) -> Wrong {
        let span = self.values.get(name).map_or_else(|| self.span.clone(), Spanned::span);
        self.read.wrong(span, format!("{name} {reason}"))
    }

    /// Refuses keys that nobody knows.
    fn only(&self, known: &[&str]) -> Result<(), Wrong> {
        let unknown = self.values.keys().find(|key| !known.contains(&key.get_ref().as_ref()));
        unknown.map_or(Ok(()), |key| {
            let reason = format!("unknown key {}; there are {}", key.get_ref(), known.join(", "));
            Err(self.read.wrong(key.span(), reason))
        })
    }

    fn value<T>(
        &self,
        name: &str,
        what: &str,
        read: impl FnOnce(&'a DeValue<'a>) -> Option<T>,
    ) -> Result<Option<T>, Wrong> {
        let Some(value) = self.values.get(name) else { return Ok(None) };
        match read(value.get_ref()) {
            Some(value) => Ok(Some(value)),
            None => Err(self.at(name, &format!("must be {what}"))),
        }
    }

    fn text(&self, name: &str) -> Result<Option<String>, Wrong> {
        self.value(name, "a text", |value| value.as_str().map(str::to_owned))
    }

    fn needed_text(&self, name: &str) -> Result<String, Wrong> {
        let text = self.text(name)?.ok_or_else(|| self.wrong(format!("{name} is missing")))?;
        if text.trim().is_empty() {
            return Err(self.at(name, "must not be blank"));
        }
        Ok(text)
    }

    fn unique_name(&self, names: &mut BTreeSet<String>) -> Result<String, Wrong> {
        let name = self.needed_text("name")?;
        if !names.insert(name.clone()) {
            return Err(self.at("name", "is there already; names must be unique"));
        }
        Ok(name)
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, Wrong> {
        self.value(name, "true or false", DeValue::as_bool)
    }

    fn whole(&self, name: &str) -> Result<Option<u64>, Wrong> {
        self.value(name, "a whole number that is not negative", |value| {
            let number = value.as_integer()?;
            u64::from_str_radix(&number.as_str().replace('_', ""), number.radix()).ok()
        })
    }

    fn number(&self, name: &str) -> Result<Option<f64>, Wrong> {
        self.value(name, "a number", |value| match value {
            DeValue::Float(number) => number.as_str().replace('_', "").parse().ok(),
            DeValue::Integer(number) => number.as_str().replace('_', "").parse().ok(),
            _ => None,
        })
    }

    fn template(&self, name: &str) -> Result<Option<Template>, Wrong> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        Template::parse(&text).map(Some).map_err(|why| self.at(name, &format!(": {why}")))
    }

    fn texts(&self, name: &str) -> Result<Vec<String>, Wrong> {
        let texts = self.value(name, "an array of texts", |value| {
            let texts = value.as_array()?.iter();
            texts.map(|text| text.get_ref().as_str().map(str::to_owned)).collect()
        })?;
        Ok(texts.unwrap_or_default())
    }

    fn templates(&self, name: &str) -> Result<Vec<Template>, Wrong> {
        let read = |text: String| Template::parse(&text);
        let templates: Result<_, _> = self.texts(name)?.into_iter().map(read).collect();
        templates.map_err(|why| self.at(name, &format!(": {why}")))
    }

    fn template_map(&self, name: &str) -> Result<BTreeMap<String, Template>, Wrong> {
        let mut map = BTreeMap::new();
        let Some(table) = self.table(name)? else { return Ok(map) };
        for key in table.values.keys() {
            let key = key.get_ref().as_ref();
            map.extend(table.template(key)?.map(|value| (key.to_owned(), value)));
        }
        Ok(map)
    }

    fn table(&self, name: &str) -> Result<Option<Self>, Wrong> {
        self.read.table(self.values, name)
    }

    fn tables(&self, name: &str) -> Result<Vec<Self>, Wrong> {
        let read = self.read;
        let tables = self.value(name, "an array of tables", |value| {
            let values = value.as_array()?.iter();
            let table = |value: &'a Spanned<DeValue<'a>>| {
                Some(Self { read, values: value.get_ref().as_table()?, span: value.span() })
            };
            values.map(table).collect()
        })?;
        Ok(tables.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
