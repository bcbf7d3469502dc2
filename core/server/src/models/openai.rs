//! OpenAI Chat Completions over HTTP, streamed; also every local server that speaks it.
//!
//! One connection for each attempt. The body goes through the reader of
//! [`broca_proto::provider::openai_chat`]; here are only sockets, TLS, timeouts and what a failed attempt looks like.

mod answer;
mod connection;
mod retry_after;

use super::{
    DeltaSink, Model, ModelDescription, ModelFailure, ModelFuture, ModelReply, ModelRequest,
};
use crate::config::Template;
use answer::Gathered;
use broca_proto::provider::openai_chat::request::ChatRequest;
use broca_proto::provider::openai_chat::{ChatReader, ChatSettings, failure_of_body, read_whole};
use broca_proto::provider::unit::ErrorClass;
use broca_proto::{Json, Secret};
use bytes::Bytes;
use connection::{Connection, SENDING, sending, timed_out, unavailable};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

/// Where OpenAI itself is.
pub const DEFAULT_BASE_URL: &str = "https://api.openai.com";

/// How a Chat Completions server is reached and read.
#[derive(Debug, Clone)]
pub struct OpenAiSettings {
    /// `http://…` or `https://…`; `/v1/chat/completions` is appended, or only `/chat/completions` where it ends in `/v1`.
    pub base_url: String,
    /// The model's name.
    pub model: String,
    /// The environment variable that holds the key, read for each attempt; none for servers without keys.
    pub key_env: Option<String>,
    /// The key as the configuration file writes it, resolved for each attempt; it wins over `key_env`.
    pub key: Option<Template>,
    /// The most tokens of an answer. Default 4096.
    pub max_tokens: u64,
    /// The member that says so; `max_completion_tokens` for models that refuse the older `max_tokens`.
    pub max_tokens_member: String,
    /// From the start of the attempt to a connection, TLS included. Default 10 s.
    pub connect_timeout: Duration,
    /// From the start of the attempt to the first byte of the answer. Default 60 s.
    pub first_byte_timeout: Duration,
    /// The longest time between two lines of the answer. Default 120 s.
    pub silence_timeout: Duration,
    /// The most bytes kept of a body that is not a stream. Default 1 MiB for errors; a whole answer may have
    /// [`ChatSettings::max_message`].
    pub max_error_body: usize,
    /// How the stream is read.
    pub chat: ChatSettings,
}

/// A Chat Completions server as a [`Model`].
#[derive(Debug)]
pub struct OpenAi {
    settings: OpenAiSettings,
    uri: Uri,
    host: String,
    port: u16,
    tls: bool,
    tls_config: OnceLock<Arc<ClientConfig>>,
}

/// Why a base URL cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BaseUrlError {
    /// It is no URL with a scheme and a host.
    #[error(
        "the base URL is not a URL; write it like http://127.0.0.1:11434 or {DEFAULT_BASE_URL}"
    )]
    Malformed,
    /// The scheme is not http or https.
    #[error("the base URL must begin with http:// or https://")]
    Scheme,
    /// It holds a user name or password.
    #[error(
        "the base URL must not hold a user name or password; name the variable that holds the key"
    )]
    UserInfo,
    /// It holds a query.
    #[error("the base URL must not hold a query")]
    Query,
}

impl OpenAiSettings {
    /// The defaults for a model at a server; no key.
    #[must_use]
    pub fn new(base_url: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            model: model.into(),
            key_env: None,
            key: None,
            max_tokens: 4096,
            max_tokens_member: "max_tokens".to_owned(),
            connect_timeout: Duration::from_secs(10),
            first_byte_timeout: Duration::from_secs(60),
            silence_timeout: Duration::from_secs(120),
            max_error_body: 1 << 20,
            chat: ChatSettings::default(),
        }
    }
}

impl OpenAi {
    /// Checks the settings; nothing is sent.
    ///
    /// # Errors
    /// [`BaseUrlError`] when the base URL cannot be used.
    pub fn new(settings: OpenAiSettings) -> Result<Self, BaseUrlError> {
        let base = settings.base_url.trim_end_matches('/');
        let path = if base.ends_with("/v1") { "/chat/completions" } else { "/v1/chat/completions" };
        let uri: Uri = format!("{base}{path}").parse().map_err(|_| BaseUrlError::Malformed)?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            Some(_) => return Err(BaseUrlError::Scheme),
            None => return Err(BaseUrlError::Malformed),
        };
        if base.contains(['?', '#']) {
            return Err(BaseUrlError::Query);
        }
        let authority = uri.authority().ok_or(BaseUrlError::Malformed)?;
        if authority.as_str().contains('@') {
            return Err(BaseUrlError::UserInfo);
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        Ok(Self { settings, uri, host, port, tls, tls_config: OnceLock::new() })
    }

    async fn attempt(
        &self,
        request: &ModelRequest,
        sink: &dyn DeltaSink,
    ) -> Result<ModelReply, ModelFailure> {
        let started = Instant::now();
        let key = self.key()?;
        let request = self.http_request(request, key)?;
        let first_byte = started + self.settings.first_byte_timeout;
        let connect = (started + self.settings.connect_timeout).min(first_byte);
        let connection = match timeout_at(connect, self.connect()).await {
            Ok(connection) => connection?,
            Err(_) => {
                return Err(unavailable("no connection in time", self.settings.connect_timeout));
            }
        };
        let answer = timeout_at(first_byte, connection.send(request)).await;
        let (response, _guard) = match answer {
            Ok(answer) => answer?,
            Err(_) => {
                let limit = self.settings.first_byte_timeout;
                return Err(timed_out("the provider sent no answer", limit, None));
            }
        };
        let status = response.status().as_u16();
        if response.status().is_success() {
            self.read_answer(status, response, sink).await
        } else {
            let retry_after = retry_after::read(response.headers(), SystemTime::now());
            let body = self.collect(response, self.settings.max_error_body, Vec::new()).await;
            let body = body.unwrap_or_else(|(body, _)| body);
            let found = failure_of_body(status, &body);
            let mut failure =
                ModelFailure::new(found.class, format!("provider returned HTTP {status}"));
            (failure.retryable, failure.retry_after) = (found.retryable, retry_after);
            Err(failure.with_status(status).with_body(String::from_utf8_lossy(&body)))
        }
    }

    /// The key, read now: it may have been set or changed since the start.
    fn key(&self) -> Result<Option<Secret>, ModelFailure> {
        if let Some(key) = &self.settings.key {
            let resolved = key.resolve(|name| std::env::var(name).ok());
            return resolved.map(Some).map_err(|unset| {
                let words =
                    format!("{unset}; set it to the provider's key and start the service again");
                ModelFailure::new(ErrorClass::Auth, words)
            });
        }
        let Some(name) = &self.settings.key_env else { return Ok(None) };
        match std::env::var(name) {
            Ok(key) if !key.trim().is_empty() => Ok(Some(Secret::new(key.trim()))),
            _ => {
                let words = format!(
                    "environment variable {name} is not set; set it to the provider's key and start the service again"
                );
                Err(ModelFailure::new(ErrorClass::Auth, words))
            }
        }
    }

    fn http_request(
        &self,
        request: &ModelRequest,
        key: Option<Secret>,
    ) -> Result<Request<Full<Bytes>>, ModelFailure> {
        let body = ChatRequest {
            model: &self.settings.model,
            max_tokens: request.max_tokens.unwrap_or(self.settings.max_tokens),
            max_tokens_member: &self.settings.max_tokens_member,
            messages: &request.messages,
            tools: &request.tools,
            generation: &request.generation,
            media: request.media,
        };
        let fault = |words: &str| ModelFailure::new(ErrorClass::Permanent, words);
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let host = self.uri.authority().map_or("", |authority| authority.as_str());
        let mut http = Request::post(path)
            .header(header::HOST, host)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "text/event-stream, application/json")
            .header(header::USER_AGENT, concat!("broca/", env!("CARGO_PKG_VERSION")));
        if let Some(key) = key {
            let value = format!("Bearer {}", key.expose());
            let mut value = HeaderValue::from_str(&value).map_err(|_| {
                fault("the provider's key holds characters that no header can carry; check the variable")
            })?;
            value.set_sensitive(true);
            http = http.header(header::AUTHORIZATION, value);
        }
        http.body(Full::new(body.body().into_bytes()))
            .map_err(|_| fault("the request to the provider cannot be written"))
    }

    async fn connect(&self) -> Result<Connection, ModelFailure> {
        let addresses = tokio::net::lookup_host((self.host.as_str(), self.port)).await;
        let addresses =
            addresses.map_err(|e| sending(&format!("{} cannot be resolved", self.host), &e))?;
        let mut last = None;
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => return self.open(stream).await,
                Err(e) => last = Some(e),
            }
        }
        let place = format!("cannot connect to {}:{}", self.host, self.port);
        Err(match last {
            Some(e) => sending(&place, &e),
            None => {
                ModelFailure::new(ErrorClass::ProviderUnavailable, format!("{SENDING}: {place}"))
            }
        })
    }

    async fn open(&self, stream: TcpStream) -> Result<Connection, ModelFailure> {
        if let Err(e) = stream.set_nodelay(true) {
            tracing::debug!(error = %e, "nodelay could not be set");
        }
        if !self.tls {
            return Connection::start(TokioIo::new(stream)).await;
        }
        let name =
            ServerName::try_from(self.host.clone()).map_err(|e| sending("no TLS name", &e))?;
        let connector = TlsConnector::from(self.tls_config().await?);
        let stream = connector.connect(name, stream).await.map_err(|e| {
            let words = format!("{SENDING}: TLS with {} failed: {e}", self.host);
            ModelFailure::new(ErrorClass::ProviderUnavailable, words)
        })?;
        Connection::start(TokioIo::new(stream)).await
    }

    /// The platform's trust store, read once and away from the event loop.
    async fn tls_config(&self) -> Result<Arc<ClientConfig>, ModelFailure> {
        if let Some(config) = self.tls_config.get() {
            return Ok(Arc::clone(config));
        }
        let fault = |words: String| ModelFailure::new(ErrorClass::Permanent, words);
        let found = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await;
        let found = found.map_err(|e| fault(format!("the trust store cannot be read: {e}")))?;
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            return Err(fault(
                "no trusted certificates are installed; install ca-certificates".to_owned(),
            ));
        }
        let config =
            ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(|e| fault(format!("TLS cannot be set up: {e}")))?
                .with_root_certificates(roots)
                .with_no_client_auth();
        Ok(Arc::clone(self.tls_config.get_or_init(|| Arc::new(config))))
    }

    async fn read_answer(
        &self,
        status: u16,
        mut response: Response<Incoming>,
        sink: &dyn DeltaSink,
    ) -> Result<ModelReply, ModelFailure> {
        let kind = response.headers().get(header::CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or("").to_ascii_lowercase();
        let mut head = Vec::new();
        let streamed = if kind.contains("event-stream") {
            true
        } else {
            // Proxies and small servers get the type wrong: the first byte that is not blank decides.
            while head.iter().all(u8::is_ascii_whitespace) {
                match self
                    .next_data(&mut response, Instant::now() + self.settings.silence_timeout)
                    .await?
                {
                    Some(data) => head.extend_from_slice(&data),
                    None => break,
                }
            }
            let first = head.iter().find(|byte| !byte.is_ascii_whitespace());
            first.is_some_and(|byte| !b"{[<".contains(byte)) && !kind.contains("html")
        };
        if streamed {
            self.read_stream(status, head, response, sink).await
        } else {
            self.read_body(status, head, response, sink).await
        }
    }

    async fn read_stream(
        &self,
        status: u16,
        head: Vec<u8>,
        mut response: Response<Incoming>,
        sink: &dyn DeltaSink,
    ) -> Result<ModelReply, ModelFailure> {
        let mut reader = ChatReader::new(self.settings.chat.clone());
        let mut gathered = Gathered::default();
        reader.handle_input(&head);
        let mut lines = reader.lines();
        let mut deadline = Instant::now() + self.settings.silence_timeout;
        loop {
            while let Some(unit) = reader.poll_unit() {
                gathered.take(unit, sink);
            }
            if reader.is_finished() {
                break;
            }
            match self.next_data(&mut response, deadline).await {
                Ok(Some(data)) => reader.handle_input(&data),
                Ok(None) => reader.handle_end(),
                Err(failure) if failure.status.is_some() => return Err(failure),
                Err(_) => reader.handle_broken(),
            }
            if reader.lines() > lines {
                lines = reader.lines();
                deadline = Instant::now() + self.settings.silence_timeout;
            }
        }
        let warnings = reader.warnings().iter().map(|warning| warning.times).sum();
        gathered.reply(status, None, warnings)
    }

    /// An answer that is not streamed: a whole completion, an error with status 200, or a page.
    async fn read_body(
        &self,
        status: u16,
        head: Vec<u8>,
        response: Response<Incoming>,
        sink: &dyn DeltaSink,
    ) -> Result<ModelReply, ModelFailure> {
        let limit = self.settings.chat.max_message;
        let body = match self.collect(response, limit, head).await {
            Ok(body) => body,
            Err((_, why)) => return Err(why.with_status(status)),
        };
        let Ok(json) = Json::parse(body.clone()) else {
            let kept = &body[..body.len().min(self.settings.max_error_body)];
            let words = format!(
                "provider returned HTTP {status} with a body that is not JSON; is the base URL that of a Chat Completions server?"
            );
            let failure = ModelFailure::new(ErrorClass::Permanent, words);
            return Err(failure.with_status(status).with_body(String::from_utf8_lossy(kept)));
        };
        let (units, warnings) = read_whole(&body, &self.settings.chat);
        let mut gathered = Gathered::default();
        for unit in units {
            gathered.take(unit, sink);
        }
        let warnings = warnings.iter().map(|warning| warning.times).sum();
        gathered.reply(status, Some(json), warnings)
    }

    /// The next piece of the body. A failure with a status is silence; one without is a broken connection.
    async fn next_data(
        &self,
        response: &mut Response<Incoming>,
        deadline: Instant,
    ) -> Result<Option<Bytes>, ModelFailure> {
        let status = response.status().as_u16();
        loop {
            let Ok(frame) = timeout_at(deadline, response.body_mut().frame()).await else {
                let limit = self.settings.silence_timeout;
                return Err(timed_out("the provider fell silent", limit, Some(status)));
            };
            match frame {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(e)) => return Err(sending("the connection broke", &e)),
            }
        }
    }

    /// The rest of a body, at most `limit` bytes; on failure what had come of it.
    async fn collect(
        &self,
        mut response: Response<Incoming>,
        limit: usize,
        mut body: Vec<u8>,
    ) -> Result<Vec<u8>, (Vec<u8>, ModelFailure)> {
        loop {
            let deadline = Instant::now() + self.settings.silence_timeout;
            match self.next_data(&mut response, deadline).await {
                Ok(None) if body.len() <= limit => return Ok(body),
                Ok(data) if body.len() + data.as_ref().map_or(0, Bytes::len) > limit => {
                    body.extend_from_slice(&data.unwrap_or_default());
                    body.truncate(limit);
                    let words = format!("the provider's answer is larger than {limit} bytes");
                    return Err((body, ModelFailure::new(ErrorClass::Permanent, words)));
                }
                Ok(data) => body.extend_from_slice(&data.unwrap_or_default()),
                Err(failure) => return Err((body, failure)),
            }
        }
    }
}

impl Model for OpenAi {
    fn describe(&self) -> ModelDescription {
        ModelDescription {
            provider: "openai".to_owned(),
            base_url: self.settings.base_url.clone(),
            model: self.settings.model.clone(),
            max_tokens: self.settings.max_tokens,
        }
    }

    fn call<'a>(&'a self, request: &'a ModelRequest, sink: &'a dyn DeltaSink) -> ModelFuture<'a> {
        Box::pin(self.attempt(request, sink))
    }
}

#[cfg(test)]
mod tests;
