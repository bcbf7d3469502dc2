//! `broca proxy`: a proxy for tests that breaks connections on demand, driven by lines of JSON.

use crate::arguments::ProxyArguments;
use crate::fault::{Fault, written};
use crate::input;
use crate::interrupt::Interrupts;
use broca::Json;
use broca_chaos::{ChaosProxy, command};
use std::io::{self, Write};
use std::net::SocketAddr;

/// The longest command, in bytes. None needs a hundredth of it.
const MAX_COMMAND: u64 = 64 * 1024;

/// Runs the command until its input ends, or until it is told to end.
pub(crate) async fn run(arguments: ProxyArguments) -> Result<(), Fault> {
    let mut interrupts = Interrupts::listen()?;
    let targets = resolved(&arguments.upstream).await?;
    let proxy = ChaosProxy::listen(arguments.listen, targets).map_err(|e| {
        Fault::failed(
            format!("the proxy cannot listen on {}: {e}", arguments.listen),
            "choose another --listen; port 0 takes a free one",
        )
    })?;
    let (url, address) = (Json::string(&proxy.url()), Json::string(&proxy.address().to_string()));
    let members = [("url", &url), ("address", &address)];
    written(crate::view::write_object(&mut io::stdout().lock(), "listening", &members))?;
    let mut lines = input::lines(MAX_COMMAND)?;
    loop {
        let line = tokio::select! {
            line = lines.recv() => line,
            _ = interrupts.next() => return Ok(()),
        };
        let Some(line) = line else { return Ok(()) };
        let line = line.map_err(|e| Fault::failed(format!("the input cannot be read: {e}"), ""))?;
        if line.len() as u64 == MAX_COMMAND && !line.ends_with(b"\n") {
            return Err(Fault::usage(
                format!("a command is longer than {MAX_COMMAND} bytes"),
                "write one JSON object per line",
            ));
        }
        let line = String::from_utf8_lossy(&line);
        if line.trim().is_empty() {
            continue;
        }
        let answer = command::answer(&proxy, &line);
        let mut out = io::stdout().lock();
        written(writeln!(out, "{answer}").and_then(|()| out.flush()))?;
    }
}

/// The addresses of the service, in the order in which they are tried.
async fn resolved(upstream: &str) -> Result<Vec<SocketAddr>, Fault> {
    let found = tokio::net::lookup_host(upstream).await.map_err(|e| {
        Fault::usage(
            format!("--upstream {upstream}: {e}"),
            "it must be a host and a port, such as 127.0.0.1:8080",
        )
    })?;
    Ok(found.collect())
}
