//! What an operator lists and changes: profiles, client keys, sessions, the admin key.

use super::{NOW, event, log, open};
use broca_proto::run::quota::KeyLimits;
use broca_server::keys::{IdKind, KeyHash, NewKey, Role};
use broca_server::store::{
    Closing, Join, ListPlace, NewAdminKey, NewClientKey, NewSession, Profile, Rotation,
    SessionState, Store, StoreError, ToolLists, WallTime,
};

const LATER: WallTime = WallTime(NOW.0 + 5_000);

pub(super) async fn suite(store: &dyn Store) {
    profiles(store).await;
    client_keys(store).await;
    revoked_keys(store).await;
    sessions(store).await;
    admin_keys(store).await;
    limits(store).await;
}

fn profile(name: &str) -> Profile {
    Profile {
        id: format!("pro_{name}"),
        name: name.to_owned(),
        primary_provider: "scripted".to_owned(),
        fallback_providers: vec![],
        mcp_servers: vec![],
        allowed_tools: vec![],
        available_sandboxes: vec![],
        limits: KeyLimits::default(),
        deleted: false,
    }
}

/// Adds a client key; gives the hash of its plaintext.
async fn add(store: &dyn Store, id: &str, profile_id: &str) -> KeyHash {
    let key = NewKey::mint(Role::Client).unwrap();
    let new = NewClientKey {
        id: id.to_owned(),
        name: format!("name of {id}"),
        display_prefix: key.display_prefix,
        hash: key.hash.clone(),
        profile_id: profile_id.to_owned(),
        limits: KeyLimits::default(),
    };
    store.add_client_key(new, NOW).await.unwrap();
    key.hash
}

async fn profiles(store: &dyn Store) {
    let unknown = StoreError::Unknown { what: "profile" };
    for name in ["x", "y", "z"] {
        store.put_profile(profile(name), NOW).await.unwrap();
    }
    let mut changed = profile("y");
    changed.name = "yy".to_owned();
    changed.allowed_tools = vec!["clock".to_owned()];
    let record = store.replace_profile(changed.clone(), LATER).await.unwrap();
    assert_eq!((record.created_at, record.updated_at), (NOW, LATER));
    assert_eq!(record.profile, changed);
    assert_eq!(store.profile_record("pro_y").await.unwrap(), Some(record));
    let taken = Profile { name: "x".to_owned(), ..changed };
    assert_eq!(store.replace_profile(taken, LATER).await, Err(StoreError::NameTaken));
    assert_eq!(store.replace_profile(profile("none"), NOW).await, Err(unknown.clone()));

    add(store, "key_of_z", "pro_z").await;
    assert_eq!(store.delete_profile("pro_z", NOW).await, Err(StoreError::ProfileInUse { keys: 1 }));
    store.revoke_client_key("key_of_z", NOW).await.unwrap();
    store.delete_profile("pro_z", NOW).await.unwrap();
    assert_eq!(store.delete_profile("pro_z", NOW).await, Err(unknown.clone()));
    assert_eq!(store.replace_profile(profile("z"), NOW).await, Err(unknown));
    assert_eq!(store.profile_record("pro_z").await, Ok(None));
    assert!(store.profile("pro_z").await.unwrap().unwrap().deleted);
    let again = Profile { id: "pro_other".to_owned(), ..profile("z") };
    assert_eq!(store.put_profile(again, NOW).await, Err(StoreError::NameTaken));

    let mut names = Vec::new();
    let mut place = Some(ListPlace::START);
    while let Some(after) = place {
        let page = store.profiles(after, 1).await.unwrap();
        assert_eq!(page.items.len(), 1, "a page is full while there is more");
        names.extend(page.items.into_iter().map(|record| record.profile.name));
        place = page.next;
    }
    assert_eq!(names, ["main", "x", "yy"]);
}

async fn client_keys(store: &dyn Store) {
    let old = add(store, "key_turning", "pro_x").await;
    let deleted = NewClientKey {
        id: "key_none".to_owned(),
        name: "n".to_owned(),
        display_prefix: "p".to_owned(),
        hash: old.clone(),
        profile_id: "pro_z".to_owned(),
        limits: KeyLimits::default(),
    };
    let refused = store.add_client_key(deleted, NOW).await;
    assert_eq!(refused, Err(StoreError::Unknown { what: "profile" }));

    let rotation = |until: i64| {
        let key = NewKey::mint(Role::Client).unwrap();
        let (id, previous_until) = ("key_turning".to_owned(), WallTime(until));
        Rotation { id, display_prefix: key.display_prefix, hash: key.hash, previous_until }
    };
    let first = rotation(NOW.0 + 100);
    let record = store.rotate_client_key(first.clone(), NOW).await.unwrap();
    assert_eq!(record.display_prefix, first.display_prefix);
    assert_eq!(record.previous_until, Some(WallTime(NOW.0 + 100)));
    let opens = async |hash: &KeyHash, at: i64| {
        store.client_key(hash.clone(), WallTime(at)).await.unwrap().map(|key| key.id)
    };
    let turning = Some("key_turning".to_owned());
    assert_eq!(opens(&first.hash, NOW.0).await, turning);
    assert_eq!(opens(&old, NOW.0 + 99).await, turning, "both are good for a while");
    assert_eq!(opens(&old, NOW.0 + 100).await, None, "until its time");
    // A second rotation ends what is older still; one without overlap leaves the new one alone.
    let second = rotation(NOW.0 + 200);
    store.rotate_client_key(second.clone(), NOW).await.unwrap();
    assert_eq!(opens(&old, NOW.0).await, None);
    assert_eq!(opens(&first.hash, NOW.0).await, turning);
    let third = rotation(NOW.0);
    let record = store.rotate_client_key(third.clone(), NOW).await.unwrap();
    assert_eq!(record.previous_until, None);
    assert_eq!(opens(&second.hash, NOW.0).await, None);
    assert_eq!(opens(&third.hash, NOW.0).await, turning);
    let unknown = Rotation { id: "key_none".to_owned(), ..third };
    let refused = store.rotate_client_key(unknown, NOW).await;
    assert_eq!(refused, Err(StoreError::Unknown { what: "key" }));

    let listed = store.client_keys(ListPlace::START, 100).await.unwrap();
    let ids: Vec<_> = listed.items.iter().map(|key| key.id.as_str()).collect();
    assert_eq!(ids, ["key_a", "key_turning"]);
    assert_eq!(listed.next, None);
    let first = store.client_keys(ListPlace::START, 1).await.unwrap();
    assert_eq!(first.items[0].id, "key_a");
    let second = store.client_keys(first.next.unwrap(), 1).await.unwrap();
    assert_eq!((second.items[0].id.as_str(), second.next), ("key_turning", None));
    assert_eq!(store.client_key_record("key_of_z").await, Ok(None));
}

/// Opens a session as this client key; gives its id and the hash of its session key.
async fn open_as(store: &dyn Store, creator: &str) -> Result<(String, KeyHash), StoreError> {
    let id = IdKind::Session.mint().unwrap();
    let key = NewKey::mint(Role::Session).unwrap();
    let session = NewSession {
        id: id.clone(),
        profile_id: "pro_x".to_owned(),
        creator: creator.to_owned(),
        client_version: None,
        settings: None,
        metadata: None,
    };
    let first = event("session.open", "{}");
    store.open_session(session, ToolLists::default(), key.hash.clone(), first, NOW).await?;
    Ok((id, key.hash))
}

async fn join_as(store: &dyn Store, session: &str, who: &str) -> Result<KeyHash, StoreError> {
    let join = Join {
        session: session.to_owned(),
        client_key_id: who.to_owned(),
        tools: None,
        session_key: NewKey::mint(Role::Session).unwrap().hash,
        event: event("session.join", "{}"),
    };
    let hash = join.session_key.clone();
    store.join(join, NOW).await?;
    Ok(hash)
}

async fn revoked_keys(store: &dyn Store) {
    let hash = add(store, "key_one", "pro_x").await;
    add(store, "key_two", "pro_x").await;
    let (alone, alone_key) = open_as(store, "key_one").await.unwrap();
    let (shared, one_key) = open_as(store, "key_one").await.unwrap();
    let two_key = join_as(store, &shared, "key_two").await.unwrap();
    let (over, _) = open_as(store, "key_one").await.unwrap();
    store.close(&over, None, SessionState::Closed, vec![], None, NOW).await.unwrap();

    assert_eq!(store.abandoned_sessions().await.unwrap(), Vec::<String>::new());
    let left = store.revoke_client_key("key_one", NOW).await.unwrap();
    assert_eq!(left, std::slice::from_ref(&alone));
    assert_eq!(store.abandoned_sessions().await.unwrap(), std::slice::from_ref(&alone));
    assert_eq!(store.client_key(hash, NOW).await, Ok(None));
    assert_eq!(store.session_key(&alone, alone_key, NOW).await, Ok(None));
    assert_eq!(store.session_key(&shared, one_key, NOW).await, Ok(None));
    let two = store.session_key(&shared, two_key, NOW).await.unwrap();
    assert_eq!(two.as_deref(), Some("key_two"));
    let refused = store.revoke_client_key("key_one", NOW).await;
    assert_eq!(refused, Err(StoreError::Unknown { what: "key" }));
    // What was under way when the key was revoked does not get through.
    assert_eq!(open_as(store, "key_one").await.unwrap_err(), StoreError::Revoked);
    assert_eq!(join_as(store, &shared, "key_one").await.unwrap_err(), StoreError::Revoked);

    let close = || vec![event("session.close", "{}")];
    let closed = store.close_abandoned(&alone, close(), NOW).await.unwrap();
    assert!(matches!(closed, Closing::Now(events) if events.len() == 1));
    let again = store.close_abandoned(&alone, close(), NOW).await.unwrap();
    assert_eq!(again, Closing::Already(SessionState::Closed));
    let shared_stays = store.close_abandoned(&shared, close(), NOW).await.unwrap();
    assert_eq!(shared_stays, Closing::Already(SessionState::Open));
    assert_eq!(log(store, &alone).await, ["session.open", "session.close"]);
    assert_eq!(log(store, &shared).await, ["session.open", "session.join"]);
    assert_eq!(store.abandoned_sessions().await.unwrap(), Vec::<String>::new());
}

async fn sessions(store: &dyn Store) {
    let (newest, _) = open(store).await;
    let mut all = Vec::new();
    let mut place = Some(ListPlace::START);
    while let Some(after) = place {
        let page = store.sessions(None, after, 3).await.unwrap();
        all.extend(page.items);
        place = page.next;
    }
    assert_eq!(all.last().unwrap().id, newest, "oldest first");
    assert_eq!(all.last().unwrap(), &store.session(&newest).await.unwrap().unwrap());
    let mut counted = 0;
    for state in [SessionState::Open, SessionState::Closed, SessionState::Error] {
        let page = store.sessions(Some(state), ListPlace::START, 1_000).await.unwrap();
        assert!(!page.items.is_empty() && page.next.is_none(), "{state}");
        assert!(page.items.iter().all(|session| session.state == state), "{state}");
        counted += page.items.len();
    }
    assert_eq!(counted, all.len());
}

async fn admin_keys(store: &dyn Store) {
    let new = |name: &str| {
        let key = NewKey::mint(Role::Admin).unwrap();
        let (id, name) = (format!("key_{name}"), name.to_owned());
        NewAdminKey { id, name, display_prefix: key.display_prefix, hash: key.hash }
    };
    assert_eq!(store.has_admin_key().await, Ok(false));
    let (first, second) = (new("first"), new("second"));
    store.put_admin_key(first.clone(), NOW).await.unwrap();
    assert_eq!(store.has_admin_key().await, Ok(true));
    let opens = async |key: &NewAdminKey| store.admin_key(key.hash.clone()).await.unwrap();
    assert_eq!(opens(&first).await.as_deref(), Some("key_first"));
    assert_eq!(opens(&second).await, None);
    store.put_admin_key(second.clone(), NOW).await.unwrap();
    assert_eq!(opens(&first).await, None, "one takes the other's place");
    assert_eq!(opens(&second).await.as_deref(), Some("key_second"));
    // Neither kind of key is the other.
    assert_eq!(store.client_key(second.hash, NOW).await, Ok(None));
}

async fn limits(store: &dyn Store) {
    let none = KeyLimits::default();
    add(store, "key_free", "pro_x").await;
    add(store, "key_bound", "pro_x").await;
    assert_eq!(store.key_limits().await.unwrap(), []);
    let own = KeyLimits { open_sessions: Some(2), ..none };
    let record = store.change_client_key("key_bound", "bound", own).await.unwrap();
    assert_eq!((record.name.as_str(), record.limits), ("bound", own));
    assert_eq!(store.key_limits().await.unwrap(), [("key_bound".to_owned(), own)]);
    let refused = store.change_client_key("key_none", "n", own).await;
    assert_eq!(refused, Err(StoreError::Unknown { what: "key" }));
    // Those of the profile hold for each of its keys, where the key has none.
    let of_profile = KeyLimits { open_sessions: Some(9), tokens_per_day: Some(5), ..none };
    let limited = Profile { limits: of_profile, ..profile("x") };
    assert_eq!(store.replace_profile(limited, NOW).await.unwrap().profile.limits, of_profile);
    let all = store.key_limits().await.unwrap();
    let of = |id: &str| all.iter().find(|(key, _)| key == id).map(|(_, limits)| *limits);
    assert_eq!(of("key_free"), Some(of_profile));
    assert_eq!(of("key_bound"), Some(KeyLimits { open_sessions: Some(2), ..of_profile }));
    store.revoke_client_key("key_free", NOW).await.unwrap();
    assert!(store.key_limits().await.unwrap().iter().all(|(key, _)| key != "key_free"));

    let (first, _) = open_as(store, "key_bound").await.unwrap();
    open_as(store, "key_bound").await.unwrap();
    assert_eq!(store.open_sessions_of("key_bound").await, Ok(2));
    store.close(&first, None, SessionState::Closed, vec![], None, NOW).await.unwrap();
    assert_eq!(store.open_sessions_of("key_bound").await, Ok(1));

    assert_eq!(store.tokens_of("key_bound", 7).await, Ok(0));
    store.count_tokens("key_bound", 7, 10).await.unwrap();
    store.count_tokens("key_bound", 7, 5).await.unwrap();
    assert_eq!(store.tokens_of("key_bound", 7).await, Ok(15));
    assert_eq!(store.tokens_of("key_bound", 8).await, Ok(0));
    store.count_tokens("key_bound", 8, 1).await.unwrap();
    assert_eq!(store.tokens_of("key_bound", 8).await, Ok(1));
}
