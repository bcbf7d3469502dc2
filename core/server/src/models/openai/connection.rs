//! One HTTP/1.1 connection for one attempt, and what is said when it fails.

use crate::models::ModelFailure;
use broca_proto::provider::unit::ErrorClass;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response};
use std::time::Duration;

pub(super) const SENDING: &str = "error sending request";

pub(super) fn sending(what: &str, cause: &dyn std::error::Error) -> ModelFailure {
    ModelFailure::new(ErrorClass::ProviderUnavailable, format!("{SENDING}: {what}: {cause}"))
}

pub(super) fn unavailable(what: &str, limit: Duration) -> ModelFailure {
    let words = format!("{SENDING}: {what} ({} ms)", limit.as_millis());
    ModelFailure::new(ErrorClass::ProviderUnavailable, words)
}

pub(super) fn timed_out(what: &str, limit: Duration, status: Option<u16>) -> ModelFailure {
    let words = format!("{what} for {} ms", limit.as_millis());
    ModelFailure { status, ..ModelFailure::new(ErrorClass::Transient, words) }
}

/// One HTTP/1.1 connection and the task that drives it; both end when it is dropped.
pub(super) struct Connection {
    sender: hyper::client::conn::http1::SendRequest<Full<Bytes>>,
    driver: DriverGuard,
}

pub(super) struct DriverGuard(tokio::task::JoinHandle<()>);

impl Connection {
    pub(super) async fn start<I>(io: I) -> Result<Self, ModelFailure>
    where
        I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    {
        let (sender, connection) = hyper::client::conn::http1::handshake(io)
            .await
            .map_err(|e| sending("the connection broke", &e))?;
        // What ends the connection is told by the response and its body; here it is only noted.
        let driver = tokio::spawn(async move {
            if let Err(e) = connection.await {
                tracing::debug!(error = %e, "a provider's connection ended");
            }
        });
        Ok(Self { sender, driver: DriverGuard(driver) })
    }

    pub(super) async fn send(
        mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<(Response<Incoming>, DriverGuard), ModelFailure> {
        let response = self.sender.send_request(request).await;
        let response = response.map_err(|e| sending("the connection broke", &e))?;
        Ok((response, self.driver))
    }
}

impl Drop for DriverGuard {
    fn drop(&mut self) {
        self.0.abort();
    }
}
