//! TLS of both shells, with a certificate that only its maker trusts.
#![cfg(all(feature = "tokio", feature = "blocking"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

mod scripted_service;

use broca::tls::Trust;
use broca::tools::{NoArguments, Tool};
use broca::{Error, ErrorKind};
use scripted_service::{Service, calling, results, self_signed};
use std::time::Duration;

const BIG: usize = 700 * 1024;

fn big() -> Tool {
    Tool::blocking("big", "", |_: NoArguments| Ok::<_, String>("x".repeat(BIG)))
}

fn run_tokio(url: String, trust: Trust) -> Result<String, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let turn = async {
        let client = broca::tokio::Client::builder(url, "bae_key").trust(trust).build()?;
        let session = client.open().tool(big()).await?;
        let reply = session.ask("go").await?;
        session.close().await?;
        Ok(reply.text())
    };
    let limited = async { tokio::time::timeout(Duration::from_secs(60), turn).await };
    runtime.block_on(limited).expect("the test hangs")
}

fn run_blocking(url: String, trust: Trust) -> Result<String, Error> {
    let client = broca::blocking::Client::builder(url, "bae_key").trust(trust).build()?;
    let session = client.open().tool(big()).start()?;
    let reply = session.ask("go")?;
    session.close()?;
    Ok(reply.text())
}

type Run = fn(String, Trust) -> Result<String, Error>;
const SHELLS: [Run; 2] = [run_tokio, run_blocking];

#[test]
fn a_root_of_ones_own_is_trusted_and_large_messages_pass() {
    for run in SHELLS {
        let (pem, tls) = self_signed();
        let script = calling(&[("tu_1", "big", "{}")]);
        let service = Service::with("", Some(tls), "127.0.0.1:0", script);
        let trust = Trust::default().with_platform_roots(false).with_pem(pem.as_bytes()).unwrap();
        assert_eq!(run(service.url(), trust).unwrap(), "done");
        assert_eq!(results(&service)[0].1.len(), BIG);
    }
}

#[test]
fn an_unknown_certificate_is_refused_as_such() {
    for run in SHELLS {
        let ((_, tls), (other, _)) = (self_signed(), self_signed());
        let service = Service::with("", Some(tls), "127.0.0.1:0", |_, _| {});
        let trust = Trust::default().with_platform_roots(false).with_pem(other.as_bytes()).unwrap();
        let error = run(service.url(), trust).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Tls, "{error}");
        assert!(error.message().contains("not trusted"), "{error}");
        assert!(service.requests().is_empty(), "the key must not leave");
    }
}

#[test]
fn a_certificate_for_another_host_is_refused_as_such() {
    for run in SHELLS {
        let (pem, tls) = self_signed();
        let service = Service::with("", Some(tls), "127.0.0.1:0", |_, _| {});
        let trust = Trust::default().with_platform_roots(false).with_pem(pem.as_bytes()).unwrap();
        let url = format!("https://127.0.0.1:{}", service.addr().port());
        let error = run(url, trust).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Tls, "{error}");
        assert!(error.message().contains("another host"), "{error}");
    }
}

#[test]
fn a_service_without_tls_is_no_tls_service() {
    for run in SHELLS {
        let (pem, _) = self_signed();
        let service = Service::start(|_, _| {});
        let trust = Trust::default().with_platform_roots(false).with_pem(pem.as_bytes()).unwrap();
        let url = service.url().replace("http://", "https://");
        let error = run(url, trust).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Tls, "{error}");
    }
}
