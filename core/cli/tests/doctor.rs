//! `broca doctor`: each kind of trouble is told in its line, with the cure, and no key is printed.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod command;

use command::{Ended, Service, Talk, answering, broca, run};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::{Arc, mpsc};

const PAGE: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<html></html>";

/// What a check said: its level, what was found and the cure.
fn said(ended: &Ended, check: &str) -> (String, String, String) {
    let objects = ended.objects();
    let found = objects.iter().find(|object| object["check"] == check);
    let object = found.unwrap_or_else(|| panic!("no check {check}: {ended:?}"));
    let text = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
    (text("level"), text("found"), text("cure"))
}

/// The check that failed, with what it found; there is one, and the exit code and the summary say so.
fn failed(ended: &Ended) -> (String, String, String) {
    assert_eq!((ended.code, ended.err.as_str()), (Some(1), ""), "{ended:?}");
    let objects = ended.objects();
    let summary = objects.last().unwrap();
    assert_eq!((&summary["type"], &summary["failed"]), (&json!("summary"), &json!(1)), "{ended:?}");
    let mut failed = objects.iter().filter(|object| object["level"] == "failed");
    let check = failed.next().unwrap()["check"].as_str().unwrap().to_owned();
    let (_, found, cure) = said(ended, &check);
    (check, found, cure)
}

#[test]
fn a_healthy_service_passes_and_its_session_is_closed_again() {
    let service = Service::start(&[]);
    let ended = run(&mut service.broca(&["doctor", "--json"]));
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended:?}");
    let objects = ended.objects();
    let checks: Vec<&Value> = objects.iter().map(|object| &object["check"]).collect();
    let expected = [
        "proxy",
        "name",
        "connection",
        "http",
        "clock",
        "service",
        "features",
        "key",
        "session",
        "headers",
        "stream",
    ];
    assert_eq!(checks[..checks.len() - 1], expected.map(|check| json!(check)).each_ref()[..]);
    for check in expected {
        assert_eq!(said(&ended, check).0, "ok", "{ended:?}");
    }
    let (_, found, _) = said(&ended, "session");
    let session = found.split_whitespace().last().unwrap();
    let watched = run(&mut service.broca(&["watch", session]));
    assert!(watched.error_line().contains("the session is over"), "{watched:?}");
}

#[test]
fn people_get_a_line_for_each_check_and_no_key() {
    let service = Service::start(&[]);
    let key = fs::read_to_string(service.key_file()).unwrap();
    let ended = run(&mut service.broca(&["doctor"]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines: Vec<&str> = ended.out.lines().collect();
    assert_eq!(lines.len(), 12, "{ended:?}");
    assert!(lines[..11].iter().all(|line| line.starts_with("ok ")), "{ended:?}");
    assert_eq!(lines[11], "all is well");
    assert!(!ended.out.contains(key.trim()));
}

#[test]
fn what_is_wrong_with_a_key_is_told_without_the_key() {
    let service = Service::start(&[]);
    for (key, check, part) in [
        ("bae_0123456789abcdef0123456789abcdef", "session", "invalid client key"),
        ("two words", "key", "no key has"),
        ("", "key", "the client key is empty"),
    ] {
        let ended =
            run(&mut service.broca(&["doctor", "--json", "--url", &service.url, "--key", key]));
        let (at, found, cure) = failed(&ended);
        assert!(at == check && found.contains(part) && !cure.is_empty(), "{ended:?}");
        assert!(key.is_empty() || !ended.out.contains(key), "{ended:?}");
    }
    let elsewhere = tempfile::tempdir().unwrap();
    let ended = run(broca(elsewhere.path()).args(["doctor", "--json", "--url", &service.url]));
    let (check, found, cure) = failed(&ended);
    assert!(check == "key" && found.contains("no key was given"), "{ended:?}");
    assert!(cure.contains("--key-file"), "{ended:?}");
}

#[test]
fn nobody_who_listens_another_protocol_and_a_page_are_told_apart() {
    let state = tempfile::tempdir().unwrap();
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let page = answering(PAGE);
    let other = answering(b"SSH-2.0-something\r\n");
    let json = answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}");
    let secure = answering(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    let secure = secure.replace("http://", "https://");
    for (url, check, part, cure) in [
        (format!("http://{unused}"), "connection", "refused", "broca serve --dev"),
        (page, "service", "an HTML page answers", "broca serve prints"),
        (other, "http", "does not speak HTTP", ""),
        (json, "service", "answered 404", "broca serve prints"),
        (secure, "tls", "TLS failed", "http://"),
        ("http://nowhere.invalid".to_owned(), "name", "nowhere.invalid", "spelling"),
    ] {
        let ended = run(broca(state.path()).args([
            "doctor",
            "--json",
            "--url",
            &url,
            "--key",
            "bae_x",
            "--timeout",
            "20",
        ]));
        let (at, found, told) = failed(&ended);
        assert_eq!(at, check, "{url}: {ended:?}");
        assert!(found.contains(part) && told.contains(cure), "{url}: {ended:?}");
        // There is nothing to open a session with.
        assert!(!ended.out.contains(r#""check":"session""#), "{url}: {ended:?}");
    }
}

#[test]
fn a_proxy_that_holds_a_stream_back_is_found() {
    let service = Service::start(&[]);
    let mut proxy = service.broca(&["proxy", "--upstream", service.addr()]);
    let mut proxy = Talk::begin(proxy.stdin(Stdio::piped()));
    let url = proxy.object("listening")["url"].as_str().unwrap().to_owned();
    let doctor = ["doctor", "--json", "--timeout", "2", "--url", &url];
    let ended = run(&mut service.broca(&doctor));
    assert_eq!((ended.code, said(&ended, "stream").0.as_str()), (Some(0), "ok"), "{ended:?}");
    for request in ["session.subscribe", "/"] {
        proxy.say(&json!({"all": {"buffer": true, "request": request}}).to_string());
        assert!(proxy.line(|_| true).contains(r#""ok":true"#));
        let (check, found, cure) = failed(&run(&mut service.broca(&doctor)));
        assert_eq!(check, "stream");
        assert!(found.contains("lines are held back: nothing within 2 s"), "{found}");
        assert!(cure.contains("proxy_buffering off"), "{cure}");
    }
}

#[test]
fn a_service_with_another_time_and_without_features_is_warned_of() {
    let url = answering(
        b"HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Type: application/json\r\nContent-Length: 42\r\n\r\n{\"version\":\"9.1.0\",\"api_versions\":[\"v1\"] }",
    );
    let state = tempfile::tempdir().unwrap();
    let ended =
        run(broca(state.path()).args(["doctor", "--json", "--url", &url, "--key", "bae_x"]));
    let (level, found, cure) = said(&ended, "clock");
    assert!(level == "warning" && found.contains("s behind this one"), "{ended:?}");
    assert!(cure.contains("NTP"), "{ended:?}");
    let (level, found, _) = said(&ended, "features");
    assert!(level == "warning" && found.contains("not announced: display"), "{ended:?}");
    assert!(said(&ended, "service").1.contains("version 9.1.0, API v1"), "{ended:?}");
    // It opens no session, which is told too.
    assert_eq!(failed(&ended).0, "session");
}

/// A page behind TLS whose certificate is for localhost, signed by nobody but itself; its port and the certificate.
fn behind_tls() -> (u16, String) {
    let made =
        rcgen::generate_simple_self_signed(["localhost".to_owned(), "service.test".to_owned()])
            .unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let connection = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = rustls::StreamOwned::new(connection, socket.unwrap());
            // A client that trusts nobody goes away.
            if stream.read(&mut [0; 4096]).is_ok() {
                stream.write_all(PAGE).unwrap();
                stream.conn.send_close_notify();
                stream.flush().unwrap();
            }
        }
    });
    (port, made.cert.pem())
}

#[test]
fn a_certificate_is_trusted_or_not_for_a_reason() {
    let (port, pem) = behind_tls();
    let state = tempfile::tempdir().unwrap();
    let roots = state.path().join("roots.pem");
    fs::write(&roots, pem).unwrap();
    let (_, other) = behind_tls();
    let others = state.path().join("others.pem");
    fs::write(&others, other).unwrap();
    for (host, trusted, check, part, cure) in [
        ("localhost", &others, "tls", "the certificate is not trusted", "SSL_CERT_FILE"),
        ("127.0.0.1", &roots, "tls", "for another host", "use the name"),
        ("localhost", &roots, "service", "an HTML page", ""),
    ] {
        let url = format!("https://{host}:{port}");
        let mut doctor = broca(state.path());
        doctor.args(["doctor", "--json", "--url", &url, "--key", "bae_x"]);
        let ended = run(doctor.env("SSL_CERT_FILE", trusted));
        let (at, found, told) = failed(&ended);
        assert!(at == check && found.contains(part) && told.contains(cure), "{ended:?}");
    }
}

/// Carries bytes both ways, those of the client changed, until one side ends.
fn carry(client: TcpStream, server: TcpStream, change: fn(&mut [u8])) {
    let copy = |mut from: TcpStream, mut to: TcpStream, change: fn(&mut [u8])| {
        let mut bytes = [0; 65_536];
        while let Ok(size @ 1..) = from.read(&mut bytes) {
            change(&mut bytes[..size]);
            if to.write_all(&bytes[..size]).is_err() {
                break;
            }
        }
        // Either side may be gone.
        let _ = to.shutdown(Shutdown::Both);
    };
    let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
    std::thread::spawn(move || copy(back.0, back.1, |_| {}));
    copy(client, server, change);
}

/// A proxy that gives a tunnel to this port, whatever the name, or else refuses with a status; the requests that it got.
fn tunnelling(port: Option<u16>) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (told, heard) = mpsc::channel();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                client.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            // The test has read what it wanted.
            let _ = told.send(String::from_utf8(head).unwrap());
            let Some(port) = port else {
                client.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").unwrap();
                continue;
            };
            let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
            client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").unwrap();
            std::thread::spawn(move || carry(client, server, |_| {}));
        }
    });
    (format!("http://me:hidden@{address}"), heard)
}

#[test]
fn a_tunnel_through_a_proxy_is_gone_through_and_one_that_is_refused_is_told() {
    let (port, pem) = behind_tls();
    let state = tempfile::tempdir().unwrap();
    let roots = state.path().join("roots.pem");
    fs::write(&roots, pem).unwrap();
    let doctor = |proxy: &str| {
        let mut doctor = broca(state.path());
        doctor.args(["doctor", "--json", "--url", "https://service.test:8443", "--key", "bae_x"]);
        run(doctor.env("SSL_CERT_FILE", &roots).env("https_proxy", proxy))
    };
    let (proxy, heard) = tunnelling(Some(port));
    let ended = doctor(&proxy);
    assert_eq!(said(&ended, "tls").0, "ok", "{ended:?}");
    assert!(said(&ended, "tls").1.contains("good for service.test"), "{ended:?}");
    let (check, found, _) = failed(&ended);
    assert!(check == "service" && found.contains("an HTML page"), "{ended:?}");
    let asked = heard.recv().unwrap();
    assert!(asked.starts_with("CONNECT service.test:8443 HTTP/1.1\r\n"), "{asked}");
    // me:hidden
    assert!(asked.contains("Proxy-Authorization: Basic bWU6aGlkZGVu\r\n"), "{asked}");
    let (proxy, _heard) = tunnelling(None);
    let ended = doctor(&proxy);
    let (check, found, cure) = failed(&ended);
    assert!(check == "tls" && found.contains("no tunnel, but the status 403"), "{ended:?}");
    assert!(cure.contains("no_proxy") && !ended.out.contains("hidden"), "{ended:?}");
}

#[test]
fn a_proxy_that_takes_the_header_of_features_away_is_found() {
    let service = Service::start(&[]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let upstream = service.addr().to_owned();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(&upstream).unwrap());
            let without = |bytes: &mut [u8]| {
                let name = b"Broca-Features:";
                while let Some(at) = bytes.windows(name.len()).position(|part| part == name) {
                    bytes[at..at + name.len()].copy_from_slice(b"X-Not-Forward:_");
                }
            };
            std::thread::spawn(move || carry(client, server, without));
        }
    });
    let ended = run(&mut service.broca(&["doctor", "--json", "--url", &url]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let (level, found, cure) = said(&ended, "headers");
    assert!(level == "warning" && found.contains("does not arrive"), "{ended:?}");
    assert!(cure.contains("Broca-Features"), "{ended:?}");
    assert_eq!(said(&ended, "stream").0, "ok", "{ended:?}");
}

#[test]
fn a_proxy_of_the_environment_is_named_without_its_password() {
    let service = Service::start(&[]);
    let proxy = format!("http://me:hidden@{}", service.addr());
    let key = service.key_file();
    let mut doctor = service.broca(&["doctor", "--json", "--url", "http://service.invalid"]);
    let ended = run(doctor.arg("--key-file").arg(key).env("http_proxy", &proxy));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let (level, found, _) = said(&ended, "proxy");
    assert!(level == "ok" && found.contains(&format!("http://{}", service.addr())), "{ended:?}");
    assert!(!ended.out.contains("hidden"), "{ended:?}");
    let mut doctor = service.broca(&["doctor", "--json", "--url", "http://service.invalid"]);
    let ended = run(doctor.args(["--key", "bae_x"]).env("http_proxy", "socks5://127.0.0.1:1"));
    let (check, found, _) = failed(&ended);
    assert!(check == "proxy" && found.contains("socks5"), "{ended:?}");
}

#[test]
fn wrong_usage_is_no_failed_check() {
    let state = tempfile::tempdir().unwrap();
    for arguments in [&["--url", "nonsense"][..], &["--timeout", "0"], &["ses_1"]] {
        let ended = run(broca(state.path()).arg("doctor").args(arguments));
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{ended:?}");
        assert!(ended.error_line().len() > 10);
    }
}

#[test]
fn an_interrupt_ends_the_checks() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let state = tempfile::tempdir().unwrap();
    let mut doctor = broca(state.path());
    doctor.args(["doctor", "--url", &url, "--key", "bae_x", "--timeout", "3600"]);
    let mut doctor = Talk::begin(&mut doctor);
    doctor.line(|line| line.starts_with("ok       connection"));
    doctor.interrupt();
    let ended = doctor.end();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    assert!(ended.error_line().contains("before the checks were done"));
}
