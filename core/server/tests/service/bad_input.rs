//! Bad input and bad luck: sizes, slowness, ports, databases, disks.

use crate::harness::*;
use broca_server::{Config, Models, Service, ServiceError};
use serde_json::json;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn config(db: &Path) -> Config {
    let mut config = Config::default();
    config.addr = SocketAddr::from(([127, 0, 0, 1], 0));
    config.db_path = db.to_owned();
    config
}

async fn open(config: Config) -> Result<Service, ServiceError> {
    Service::open(config, Models::new(), Vec::new()).await
}

#[tokio::test]
async fn a_body_over_the_limit_is_a_problem_document_announced_or_not() {
    let world = World::with(|c| c.max_request_bytes = 1000).await;
    let driver = world.driver(&[]).await;
    let big = json!({"jsonrpc":"2.0","id":1,"method":"x","params":"y".repeat(2000)}).to_string();
    let announced = driver.raw(&big).await;
    assert_eq!(announced.status, 413);
    let problem = announced.json();
    assert_eq!(problem["type"], "payload_too_large");
    assert_eq!(problem["status"], 413);
    let mut socket = TcpStream::connect(world.addr).await.unwrap();
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {}\r\nTransfer-Encoding: chunked\r\n\r\n",
        driver.path("/rpc"),
        driver.session_key
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..4 {
        socket.write_all(format!("1f4\r\n{}\r\n", "z".repeat(500)).as_bytes()).await.unwrap();
    }
    let stream = soon("the answer", Stream::read_head(socket, false)).await;
    assert_eq!(stream.status, 413);
    assert!(driver.ask("small").await["result"].is_object());
}

#[tokio::test]
async fn a_body_that_does_not_come_is_given_up() {
    let world = World::with(|c| c.body_timeout = Duration::from_millis(100)).await;
    let driver = world.driver(&[]).await;
    let mut socket = TcpStream::connect(world.addr).await.unwrap();
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {}\r\nContent-Length: 50\r\n\r\n{{",
        driver.path("/rpc"),
        driver.session_key
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let stream = soon("the answer", Stream::read_head(socket, false)).await;
    assert_eq!(stream.status, 408);
}

#[tokio::test]
async fn a_head_that_does_not_come_ends_the_connection() {
    let world = World::with(|c| c.head_timeout = Duration::from_millis(100)).await;
    let mut socket = TcpStream::connect(world.addr).await.unwrap();
    socket.write_all(b"GET /healthz HTTP/1.1\r\nHos").await.unwrap();
    let mut rest = Vec::new();
    soon("the end of the connection", socket.read_to_end(&mut rest)).await.unwrap();
}

#[tokio::test]
async fn a_port_in_use_is_named_with_the_cure() {
    let folder = tempfile::tempdir().unwrap();
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = config(&folder.path().join("a.db"));
    config.addr = taken.local_addr().unwrap();
    let service = open(config.clone()).await.unwrap();
    let error = service.bind().await.unwrap_err();
    assert!(matches!(error, ServiceError::PortInUse { .. }));
    let text = error.to_string();
    assert!(text.contains(&config.addr.to_string()) && text.contains("another address"), "{text}");
}

#[tokio::test]
async fn databases_that_cannot_be_used_are_refused_with_the_cure_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let foreign = folder.path().join("foreign.db");
    std::fs::write(&foreign, "this is a diary, not a database, and it is long enough").unwrap();
    let error = open(config(&foreign)).await.err().unwrap().to_string();
    assert!(error.contains("not a database of this service"), "{error}");
    assert!(std::fs::read_to_string(&foreign).unwrap().starts_with("this is a diary"));
    let missing = open(config(&folder.path().join("no/such/folder/a.db"))).await;
    let error = missing.err().unwrap().to_string();
    assert!(error.contains("cannot open the database"), "{error}");
    let shared = folder.path().join("shared.db");
    let _first = open(config(&shared)).await.unwrap();
    let error = open(config(&shared)).await.err().unwrap().to_string();
    assert!(error.contains("in use by another service"), "{error}");
}

#[tokio::test]
async fn a_full_disk_ends_the_turn_with_an_internal_error_and_shows_nothing_that_is_not_stored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.db");
    let mut settings = broca_server::store::SqliteSettings::new(&path);
    settings.max_bytes = Some(1 << 20);
    let store = broca_server::store::SqliteStore::open(&settings).unwrap();
    let world = World::over(config(&path), std::sync::Arc::new(store)).await;
    let driver = world.driver(&[]).await;
    let mut watching = driver.subscribe(None).await;
    driver.ask("small").await;
    let huge = "x".repeat(2 << 20);
    let terminal = driver.ask(huge).await;
    assert_eq!(terminal["error"], json!({"code": -32603, "message": "Internal error"}));
    // Reading goes on, and so does what fits.
    let log = driver.log().await;
    assert_eq!(log.len(), 6);
    assert!(driver.ask("small again").await["result"].is_object());
    driver.close().await;
    let seen = watching.rest().await;
    let shown: Vec<_> = seen.iter().map(|line| &line["params"]["id"]).collect();
    let log = driver.log().await;
    let stored: Vec<_> = log[2..].iter().map(|event| &event["id"]).collect();
    assert_eq!(shown, stored);
}

#[tokio::test]
async fn keys_are_in_no_file_of_the_service() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let store =
        broca_server::store::SqliteStore::open(&broca_server::store::SqliteSettings::new(&path));
    let world = World::over(config(&path), std::sync::Arc::new(store.unwrap())).await;
    let driver = world.driver(&[]).await;
    driver.ask("x").await;
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        for key in [&driver.client_key, &driver.session_key] {
            let found = bytes.windows(key.len()).any(|window| window == key.as_bytes());
            assert!(!found);
        }
    }
}

#[tokio::test]
async fn a_model_that_panics_ends_its_turn_and_nothing_else() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    world.main.panic();
    let terminal = driver.ask("x").await;
    assert_eq!(terminal["error"], json!({"code": -32603, "message": "Internal error"}));
    assert!(driver.ask("y").await["result"].is_object());
}

#[tokio::test]
async fn a_client_that_never_reads_its_answer_loses_its_connection_and_nothing_else() {
    let world = World::with(|c| c.write_timeout = Duration::from_millis(1500)).await;
    let driver = world.driver(&[]).await;
    let long = "x".repeat(2 << 20);
    for _ in 0..3 {
        driver.ask(json!([{"type":"note","text":long.clone()}])).await;
    }
    // Replays far more than the sockets between take.
    let mut stuck = driver.subscribe(Some("")).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let cut = tokio::spawn(async move { while stuck.stream.piece().await.is_some() {} });
    assert!(soon("the cut", cut).await.is_err(), "the stream came to an orderly end");
    assert!(driver.ask("x").await["result"].is_object());
}
