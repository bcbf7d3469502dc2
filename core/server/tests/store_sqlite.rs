//! The SQLite store: the suite, many sessions at once, restarts, and files that are not right.

#![allow(clippy::unwrap_used, reason = "tests")]

mod store_suite;

use broca_server::store::{
    Epoch, PageLimit, Registration, Seq, SqliteSettings, SqliteStore, Store, StoreError, WallTime,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store_suite::{NOW, event, log, open, pause_of};

fn at(path: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(&SqliteSettings::new(path))
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broca.db");
    (folder, path)
}

#[tokio::test]
async fn the_store_in_a_file_does_what_every_store_must() {
    let (_folder, path) = folder();
    store_suite::suite(Arc::new(at(&path).unwrap())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_sessions_append_at_once_and_each_log_is_dense() {
    let (_folder, path) = folder();
    let store: Arc<dyn Store> = Arc::new(at(&path).unwrap());
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let (id, _) = open(store.as_ref()).await;
                for _ in 0..10 {
                    let both = vec![event("tool.call", "{}"), event("tool.result", "{}")];
                    store.append(&id, None, both, NOW).await.unwrap();
                }
                assert_eq!(log(store.as_ref(), &id).await.len(), 21);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(store.counters().await.unwrap().events, 64 * 21);
}

#[tokio::test]
async fn a_store_that_was_closed_in_order_is_one_file() {
    let (folder, path) = folder();
    let store = at(&path).unwrap();
    let (id, _) = open(&store).await;
    drop(store);
    let left = std::fs::read_dir(folder.path()).unwrap();
    let left: Vec<String> =
        left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!left.iter().any(|name| name.ends_with("-wal")), "{left:?}");
    let copy = folder.path().join("copy.db");
    std::fs::copy(&path, &copy).unwrap();
    assert!(at(&copy).unwrap().session(&id).await.unwrap().is_some());
}

#[cfg(unix)]
#[tokio::test]
async fn nothing_is_acknowledged_once_the_file_or_its_log_is_no_longer_there() {
    for gone in ["broca.db", "broca.db-wal"] {
        let (folder, path) = folder();
        let store: Arc<dyn Store> = Arc::new(at(&path).unwrap());
        let (id, _) = open(store.as_ref()).await;
        let append = || store.append(&id, None, vec![event("tool.call", "{}")], NOW);
        append().await.unwrap();
        let (here, there) = (folder.path().join(gone), folder.path().join("elsewhere"));
        std::fs::rename(&here, &there).unwrap();
        assert_eq!(append().await.unwrap_err(), StoreError::Gone, "{gone} removed");
        std::fs::copy(&there, &here).unwrap();
        assert_eq!(append().await.unwrap_err(), StoreError::Gone, "{gone} replaced");
        std::fs::rename(&there, &here).unwrap();
        append().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_to_one_session_at_once_never_share_a_number() {
    let (_folder, path) = folder();
    let store: Arc<dyn Store> = Arc::new(at(&path).unwrap());
    let (id, _) = open(store.as_ref()).await;
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let (store, id) = (Arc::clone(&store), id.clone());
            tokio::spawn(async move {
                let one = vec![event("tool.call", "{}")];
                store.append(&id, None, one, NOW).await.unwrap()[0].seq
            })
        })
        .collect();
    let mut seqs = Vec::new();
    for task in tasks {
        seqs.push(task.await.unwrap());
    }
    seqs.sort_unstable();
    assert_eq!(seqs, (2..=65).map(Seq).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_restart_keeps_drivers_and_pauses_and_frees_gates_that_were_held() {
    let (_folder, path) = folder();
    let store = at(&path).unwrap();
    let (running, _) = open(&store).await;
    let (paused, hash) = open(&store).await;
    store.register_driver(&paused, "key_a", vec![], NOW).await.unwrap();
    let held = store.claim_gate(&running, "key_a", vec![], None, NOW).await.unwrap().epoch;
    let lease = store.claim_gate(&paused, "key_a", vec![], None, NOW).await.unwrap().epoch;
    store.park(&paused, lease, pause_of("key_a", 77), vec![], None, NOW).await.unwrap();
    drop(store);

    let store = at(&path).unwrap();
    let late = store.append(&running, Some(held), vec![event("tool.call", "{}")], NOW).await;
    assert_eq!(late, Err(StoreError::LeaseLost));
    assert!(store.claim_gate(&running, "key_b", vec![], None, NOW).await.unwrap().epoch > held);
    assert_eq!(store.drivers(&paused).await.unwrap(), ["key_a"]);
    let again = store.register_driver(&paused, "key_a", vec![], NOW).await;
    assert_eq!(again, Ok(Registration::Already));
    let pauses = store.all_pauses().await.unwrap();
    assert_eq!(pauses.len(), 1);
    assert_eq!(pauses[0].pause, pause_of("key_a", 77));
    store.resume(&paused, "key_a", pauses[0].epoch, vec![], None, NOW).await.unwrap();
    assert!(store.session_key(&paused, hash, NOW).await.unwrap().is_some());
}

#[tokio::test]
async fn a_full_database_refuses_writes_loses_nothing_and_works_again_with_space() {
    let (_folder, path) = folder();
    let settings = SqliteSettings { max_bytes: Some(256 << 10), ..SqliteSettings::new(&path) };
    let store = SqliteStore::open(&settings).unwrap();
    let (id, _) = open(&store).await;
    let payload = format!(r#"{{"x":"{}"}}"#, "y".repeat(20_000));
    let mut acknowledged = 1;
    let refused = loop {
        match store.append(&id, None, vec![event("tool.call", &payload)], NOW).await {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 100, "the limit never took effect");
    };
    assert_eq!(refused, StoreError::Full);
    assert_eq!(log(&store, &id).await.len(), acknowledged);
    store.probe().await.unwrap();
    drop(store);

    let store = at(&path).unwrap();
    store.append(&id, None, vec![event("tool.call", &payload)], NOW).await.unwrap();
    assert_eq!(log(&store, &id).await.len(), acknowledged + 1);
}

#[test]
fn a_second_service_on_the_same_file_is_refused_until_the_first_ends() {
    let (_folder, path) = folder();
    let first = at(&path).unwrap();
    let refused = at(&path).unwrap_err();
    assert_eq!(refused, StoreError::InUse { path: path.clone() });
    assert!(refused.to_string().contains("in use by another service"));
    drop(first);
    at(&path).unwrap();
}

#[test]
fn a_newer_database_is_named_with_both_versions_and_left_alone() {
    let (_folder, path) = folder();
    drop(at(&path).unwrap());
    let db = rusqlite::Connection::open(&path).unwrap();
    db.pragma_update(None, "user_version", 4000).unwrap();
    drop(db);
    let before = std::fs::read(&path).unwrap();
    let refused = at(&path).unwrap_err();
    assert!(matches!(refused, StoreError::Newer { found: 4000, ours: 1..4000, .. }), "{refused}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

/// A database as the first version made it, with a paused turn and a gate that was held.
fn first_version(path: &Path, more: &str) {
    let db = rusqlite::Connection::open(path).unwrap();
    db.execute_batch(include_str!("../src/store/sqlite/0001_spine.sql")).unwrap();
    db.execute_batch(
        r#"INSERT INTO sessions (id, profile_id, creator, state, created_at)
               VALUES ('ses_1', 'pro_1', 'key_a', 'open', 1), ('ses_2', 'pro_1', 'key_a', 'open', 1);
           INSERT INTO events (session, seq, id, event_type, created_at, payload)
               VALUES (1, 1, 'evt_1', 'session.open', 1, '{}');
           INSERT INTO gates (session, epoch, owner, held, pause_deadline, pause_expected,
                   pause_stashed, pause_progress)
               VALUES (1, 3, 'key_a', 0, 500, '["tu_0"]', '[]', '{}'),
                   (2, 1, 'key_a', 1, NULL, NULL, NULL, NULL);"#,
    )
    .unwrap();
    db.execute_batch(more).unwrap();
    db.pragma_update(None, "application_id", 0x4252_4f43).unwrap();
    db.pragma_update(None, "user_version", 1).unwrap();
}

#[tokio::test]
async fn a_database_of_the_first_version_opens_with_all_that_is_in_it() {
    let (_folder, path) = folder();
    first_version(&path, "");
    let store = at(&path).unwrap();
    let parked = store.all_pauses().await.unwrap().pop().unwrap();
    assert_eq!((parked.session.as_str(), parked.epoch), ("ses_1", Epoch(3)));
    assert_eq!((parked.pause.owner.as_str(), parked.pause.deadline), ("key_a", WallTime(500)));
    assert_eq!(parked.pause.began, WallTime(500), "nobody knows when it began");
    assert_eq!(log(&store, "ses_1").await, ["session.open"]);
    store.hold("ses_1", "key_a", WallTime(900)).await.unwrap();
    store.claim_gate("ses_2", "key_b", vec![], None, NOW).await.unwrap();
    let told = store.overview("ses_1").await.unwrap().unwrap();
    assert_eq!((told.metadata.as_str(), told.metadata_version), ("{}", 0));
    drop(store);
    let parked = at(&path).unwrap().all_pauses().await.unwrap().pop().unwrap();
    assert_eq!(parked.pause.deadline, WallTime(900));
}

#[tokio::test]
async fn a_database_that_cannot_be_brought_up_to_date_stays_as_it_was() {
    let (_folder, path) = folder();
    // The first step can be done, a later one cannot.
    first_version(&path, "CREATE TABLE messages (x)");
    assert!(at(&path).is_err());
    let db = rusqlite::Connection::open(&path).unwrap();
    let version: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(version, 1);
    assert!(db.prepare("SELECT pause_began FROM gates").is_err(), "nothing of it was done");
    // Once what stood in the way is gone, everything is done.
    db.execute_batch("DROP TABLE messages").unwrap();
    drop(db);
    assert_eq!(at(&path).unwrap().all_pauses().await.unwrap().len(), 1);
}

#[test]
fn files_of_others_are_refused_and_left_alone() {
    let (folder, path) = folder();
    std::fs::write(&path, "# notes, not a database\n").unwrap();
    assert!(matches!(
        at(&path).unwrap_err(),
        StoreError::Foreign { found: "not a SQLite file", .. }
    ));
    assert_eq!(std::fs::read(&path).unwrap(), b"# notes, not a database\n");

    let path = folder.path().join("theirs.db");
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute_batch("CREATE TABLE theirs (x)").unwrap();
    drop(db);
    let before = std::fs::read(&path).unwrap();
    assert!(matches!(at(&path).unwrap_err(), StoreError::Foreign { .. }));
    assert_eq!(std::fs::read(&path).unwrap(), before);
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert_eq!(names.len(), 2, "nothing was made beside them");
}

#[test]
fn a_missing_folder_or_a_folder_as_file_says_so() {
    let (folder, path) = folder();
    let missing = at(&path.join("deeper").join("x.db")).unwrap_err();
    assert!(missing.to_string().contains("its folder does not exist"), "{missing}");
    let is_folder = at(folder.path()).unwrap_err();
    assert!(is_folder.to_string().contains("it is a folder"), "{is_folder}");
}

#[cfg(unix)]
#[test]
fn a_new_database_can_be_read_by_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let (folder, path) = folder();
    let _store = at(&path).unwrap();
    for entry in std::fs::read_dir(folder.path()).unwrap().flatten() {
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
    }
}

#[tokio::test]
async fn the_log_grows_with_what_is_said_and_not_with_its_square() {
    let (_folder, path) = folder();
    let store = at(&path).unwrap();
    let (id, _) = open(&store).await;
    let text = format!(r#"{{"content":"{}","role":"user"}}"#, "z".repeat(500));
    for _ in 0..200 {
        let mut request = event("provider.request", "{}");
        request.elided =
            Some(broca_server::store::Elided { from: Seq::START, tail: "[]".to_owned() });
        let turn = vec![event("client.message.send", &text), request];
        store.append(&id, None, turn, NOW).await.unwrap();
    }
    let last = store.page(&id, Seq(400), PageLimit::events(1)).await.unwrap();
    assert!(last.events[0].payload.len() > 100_000, "written out on reading");
    drop(store);
    let size = std::fs::metadata(&path).unwrap().len();
    assert!(size < 400 << 10, "{size} bytes for 100 kB of messages");
}
