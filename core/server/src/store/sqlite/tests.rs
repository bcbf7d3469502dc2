//! What can only be seen from inside: a disk that turns read-only, a group with one bad verb.

use super::*;
use crate::keys::{NewKey, Role};

const NOW: WallTime = WallTime(1_000);

fn event(payload: &str) -> NewEvent {
    NewEvent {
        id: "evt_1".to_owned(),
        client_key_id: None,
        event_type: "tool.call".to_owned(),
        payload: payload.to_owned(),
        elided: None,
    }
}

fn store() -> (tempfile::TempDir, SqliteStore) {
    let folder = tempfile::tempdir().unwrap();
    let settings = SqliteSettings {
        last_use_resolution: Duration::from_millis(100),
        ..SqliteSettings::new(folder.path().join("x.db"))
    };
    let store = SqliteStore::open(&settings).unwrap();
    (folder, store)
}

async fn open(store: &SqliteStore, id: &str) -> KeyHash {
    let key = NewKey::mint(Role::Session).unwrap().hash;
    let session = NewSession {
        id: id.to_owned(),
        profile_id: "pro_1".to_owned(),
        creator: "key_a".to_owned(),
        client_version: None,
        settings: None,
        metadata: None,
    };
    store.open_session(session, ToolLists::default(), key.clone(), event("{}"), NOW).await.unwrap();
    key
}

#[tokio::test]
async fn a_read_only_disk_refuses_writes_with_a_cure_and_reads_go_on() {
    let (folder, store) = store();
    open(&store, "ses_1").await;
    store.write(|db| Ok(db.pragma_update(None, "query_only", true)?)).await.unwrap();
    let refused = store.append("ses_1", None, vec![event("{}")], NOW).await.unwrap_err();
    assert_eq!(refused, StoreError::ReadOnly);
    assert!(refused.to_string().contains("check the mount and the permissions"));
    assert_eq!(store.probe().await, Err(StoreError::ReadOnly));
    assert_eq!(store.last_position("ses_1").await, Ok(Seq(1)));
    drop(store);
    let store = SqliteStore::open(&SqliteSettings::new(folder.path().join("x.db"))).unwrap();
    assert_eq!(store.last_position("ses_1").await, Ok(Seq(1)));
    store.append("ses_1", None, vec![event("{}")], NOW).await.unwrap();
}

#[tokio::test]
async fn space_that_returns_makes_the_same_store_work_again() {
    let (_folder, store) = store();
    open(&store, "ses_1").await;
    let limit = |pages: u32| {
        store.write(move |db| {
            Ok(db.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?)
        })
    };
    limit(1).await.unwrap(); // SQLite takes what is used as the least.
    let big = format!(r#"{{"x":"{}"}}"#, "y".repeat(100_000));
    assert_eq!(store.append("ses_1", None, vec![event(&big)], NOW).await, Err(StoreError::Full));
    limit(100_000).await.unwrap();
    let stored = store.append("ses_1", None, vec![event(&big)], NOW).await.unwrap();
    assert_eq!(stored[0].seq, Seq(2));
}

#[tokio::test]
async fn a_verb_that_fails_half_way_leaves_its_neighbours_in_the_group_alone() {
    let (_folder, store) = store();
    open(&store, "ses_1").await;
    let good = || store.append("ses_1", None, vec![event("{}")], NOW);
    let bad = store.write(|db| -> Result<(), StoreError> {
        events::append(db, 1, vec![event("{}")], NOW)?;
        Err(StoreError::LeaseLost)
    });
    let slow = store.write(|_| {
        // Lets the others gather behind this one.
        std::thread::sleep(Duration::from_millis(50));
        Ok(())
    });
    let (_, first, bad, second) = tokio::join!(slow, good(), bad, good());
    assert_eq!(bad, Err(StoreError::LeaseLost));
    assert_eq!((first.unwrap()[0].seq, second.unwrap()[0].seq), (Seq(2), Seq(3)));
    assert_eq!(store.last_position("ses_1").await, Ok(Seq(3)));
}

#[tokio::test]
async fn a_transaction_that_is_gone_fails_the_whole_group_and_nothing_of_it_happened() {
    let (_folder, store) = store();
    open(&store, "ses_1").await;
    let slow = store.write(|_| {
        std::thread::sleep(Duration::from_millis(50));
        Ok(())
    });
    let good = store.append("ses_1", None, vec![event("{}")], NOW);
    // As SQLite itself does on some faults of the disk.
    let gone = store.write(|db| -> Result<(), StoreError> {
        db.execute_batch("ROLLBACK")?;
        Err(StoreError::Full)
    });
    let (_, good, gone) = tokio::join!(slow, good, gone);
    assert_eq!(gone, Err(StoreError::Full));
    assert_eq!(good, Err(StoreError::Full));
    assert_eq!(store.last_position("ses_1").await, Ok(Seq(1)));
    store.append("ses_1", None, vec![event("{}")], NOW).await.unwrap();
}

#[tokio::test]
async fn the_last_use_of_a_key_is_written_with_the_next_commit_and_not_more_often_than_asked() {
    let (_folder, store) = store();
    let key = open(&store, "ses_1").await;
    let last_use = || {
        store.read(|db| {
            let sql = "SELECT last_used_at FROM session_keys";
            Ok(db.query_row(sql, [], |row| row.get::<_, Option<i64>>(0))?)
        })
    };
    for now in [2_000, 2_050] {
        store.session_key("ses_1", key.clone(), WallTime(now)).await.unwrap();
    }
    assert_eq!(last_use().await, Ok(None));
    store.append("ses_1", None, vec![event("{}")], NOW).await.unwrap();
    assert_eq!(last_use().await, Ok(Some(2_000)));
    store.session_key("ses_1", key, WallTime(2_100)).await.unwrap();
    store.append("ses_1", None, vec![event("{}")], NOW).await.unwrap();
    assert_eq!(last_use().await, Ok(Some(2_100)));
}

#[tokio::test]
async fn a_dropped_store_has_written_what_it_was_given() {
    let (folder, store) = store();
    open(&store, "ses_1").await;
    // The caller goes away before the answer.
    let mut asked = store.append("ses_1", None, vec![event("{}")], NOW);
    let _ = futures_util::FutureExt::now_or_never(&mut asked);
    drop(asked);
    drop(store);
    let store = SqliteStore::open(&SqliteSettings::new(folder.path().join("x.db"))).unwrap();
    assert_eq!(store.last_position("ses_1").await, Ok(Seq(2)));
}

#[tokio::test]
async fn messages_and_places_are_found_by_an_index() {
    let (_folder, store) = store();
    let plan = |sql: &'static str| {
        store.read(move |db| {
            let mut sql = db.prepare(&format!("EXPLAIN QUERY PLAN {sql}"))?;
            let rows = sql.query_map([], |row| row.get::<_, String>(3))?;
            Ok(rows.collect::<Result<Vec<_>, _>>()?.join("; "))
        })
    };
    let page = plan("SELECT payload FROM events WHERE session = 1 AND seq > 1 ORDER BY seq");
    assert!(page.await.unwrap().contains("USING INDEX events_by_session (session=? AND seq>?)"));
    let key = plan(
        "SELECT k.hash FROM sessions s JOIN session_keys k ON k.session = s.number AND k.hash = 'x'
         WHERE s.id = 'y' AND k.revoked_at IS NULL",
    );
    assert!(!key.await.unwrap().contains("SCAN"));
    let oldest = plan(
        "SELECT number FROM messages WHERE session = 1 ORDER BY number DESC LIMIT 1 OFFSET 1024",
    );
    let oldest = oldest.await.unwrap();
    assert!(
        oldest.contains("messages_by_age (session=?)") && !oldest.contains("B-TREE"),
        "{oldest}"
    );
}
