//! What was acknowledged is on disk, however the process ends.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod store_suite;

use broca_server::store::{PageLimit, Seq, SqliteSettings, SqliteStore, Store};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use store_suite::{NOW, event, open};

const PATH: &str = "BROCA_TEST_CRASH_DB";

/// Not a test by itself: the process that is killed. It prints the session, then each number that
/// was acknowledged.
#[test]
fn appender_process() {
    let Ok(path) = std::env::var(PATH) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open(&SqliteSettings::new(path)).unwrap();
        let (id, _) = open(&store).await;
        let mut out = std::io::stderr();
        writeln!(out, "session {id}").unwrap();
        loop {
            let events = vec![event("tool.call", r#"{"x":1}"#), event("tool.result", "{}")];
            let stored = store.append(&id, None, events, NOW).await.unwrap();
            writeln!(out, "seq {}", stored[1].seq.0).unwrap();
        }
    });
}

#[tokio::test]
async fn a_killed_process_loses_nothing_that_it_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broca.db");
    for round in 1..=5 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "appender_process", "--nocapture"])
            .env(PATH, &path)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (mut session, mut acknowledged) = (String::new(), 0_u64);
        while acknowledged < 40 * round {
            let line = lines.next().unwrap().unwrap();
            match line.split_once(' ') {
                Some(("session", id)) => session = id.to_owned(),
                Some(("seq", seq)) => acknowledged = seq.parse().unwrap(),
                _ => {}
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines.map_while(Result::ok) {
            if let Some(seq) = line.strip_prefix("seq ") {
                acknowledged = seq.parse().unwrap_or(acknowledged);
            }
        }

        let store = SqliteStore::open(&SqliteSettings::new(&path)).unwrap();
        let page = store.page(&session, Seq::START, PageLimit::events(1 << 20)).await.unwrap();
        let last = page.events.len() as u64;
        assert!(last >= acknowledged, "{acknowledged} acknowledged, {last} on disk");
        assert_eq!(last % 2, 1, "the two events of an append are there together or not at all");
        for (place, event) in (1..).zip(&page.events) {
            assert_eq!(event.seq, Seq(place));
        }
    }
}
