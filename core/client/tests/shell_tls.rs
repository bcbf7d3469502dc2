//! TLS of both shells, with a certificate that only its maker trusts.
#![cfg(all(feature = "tokio", feature = "blocking"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

mod scripted_service;

use broca::tls::Trust;
use broca::tools::{NoArguments, Tool};
use broca::{Error, ErrorKind};
use scripted_service::{Service, calling, results, self_signed};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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

/// A proxy that opens tunnels and counts them.
fn proxy() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let tunnels = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tunnels);
    std::thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                client.read_exact(&mut byte).unwrap();
                head.extend_from_slice(&byte);
            }
            let head = String::from_utf8(head).unwrap();
            let target = head.strip_prefix("CONNECT ").unwrap().split(' ').next().unwrap();
            let mut server =
                TcpStream::connect(target.replace("service.test", "127.0.0.1")).unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").unwrap();
            let mut back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut back.0, &mut back.1));
            std::thread::spawn(move || std::io::copy(&mut client, &mut server));
        }
    });
    (url, tunnels)
}

#[test]
fn tls_is_spoken_through_the_tunnel_of_a_proxy() {
    let (pem, tls) = self_signed();
    let service = Service::with("", Some(tls), "127.0.0.1:0", |_, _| {});
    let trust = Trust::default().with_platform_roots(false).with_pem(pem.as_bytes()).unwrap();
    let (url, tunnels) = proxy();
    let variables = move |name: &str| (name == "https_proxy").then(|| url.clone());

    // Nobody but the proxy knows this name.
    let address = service.url().replace("localhost", "service.test");

    let client = broca::blocking::Client::builder(&address, "bae_key")
        .trust(trust.clone())
        .proxy_from(variables.clone())
        .build()
        .unwrap();
    let session = client.open().start().unwrap();
    assert_eq!(session.ask("hi").unwrap().text(), "hello");
    let after_blocking = tunnels.load(Ordering::SeqCst);
    assert!(after_blocking > 0);

    let client = broca::tokio::Client::builder(&address, "bae_key")
        .trust(trust)
        .proxy_from(variables)
        .build()
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let session = client.open().await.unwrap();
        assert_eq!(session.ask("hi").await.unwrap().text(), "hello");
    });
    assert!(tunnels.load(Ordering::SeqCst) > after_blocking);
}
