//! Accepts connections and serves them until the shutdown.

use super::patient::Patient;
use crate::config::Config;
use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// How long to wait after an accept that failed for want of resources, such as file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `router` until `shutdown` turns true, then lets the open requests finish. Dropped, it cuts them.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    config: &Config,
    mut shutdown: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(config.max_connections.max(1)));
    let mut connections = JoinSet::new();
    let mut is_refused = false;
    loop {
        let place = tokio::select! {
            place = Arc::clone(&places).acquire_owned() => place,
            () = turned_true(&mut shutdown) => break,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = turned_true(&mut shutdown) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                is_refused = false;
                let serving = connection(stream, router.clone(), config, shutdown.clone());
                connections.spawn(async move {
                    serving.await;
                    drop(place);
                });
            }
            Err(error) => {
                // Once for each shortage: it may last, and the log is bounded too.
                if !std::mem::replace(&mut is_refused, true) {
                    tracing::warn!(%error, "a connection could not be accepted");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

fn connection(
    stream: TcpStream,
    router: Router,
    config: &Config,
    mut shutdown: watch::Receiver<bool>,
) -> impl Future<Output = ()> + Send + 'static {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(config.head_timeout)
        .max_buf_size(config.max_head_bytes.max(8 * 1024));
    let stream = Patient::new(stream, config.write_timeout);
    let has_asked = Arc::new(AtomicBool::new(false));
    let (asked, router) = (Arc::clone(&has_asked), TowerToHyperService::new(router));
    let service = service_fn(move |request| {
        asked.store(true, Ordering::Relaxed);
        router.call(request)
    });
    let serving = http.serve_connection(TokioIo::new(stream), service);
    async move {
        tokio::pin!(serving);
        let ended = tokio::select! {
            ended = serving.as_mut() => ended,
            () = turned_true(&mut shutdown) => {
                if !has_asked.load(Ordering::Relaxed) {
                    // Between requests hyper closes by itself, but it would wait for the first one.
                    return;
                }
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended early");
        }
    }
}

/// Waits until the flag is up, or its owner is gone.
async fn turned_true(flag: &mut watch::Receiver<bool>) {
    // An error means that the service was dropped: that ends it too.
    let _ = flag.wait_for(|up| *up).await;
}
