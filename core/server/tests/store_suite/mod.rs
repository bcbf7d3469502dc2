//! What every store must do, verb by verb. A second store runs the same suite.
#![allow(dead_code, clippy::unwrap_used, reason = "tests; each binary uses a part of it")]

mod directory;

use broca_proto::Json;
use broca_proto::run::log::{compose_request, provider_message};
use broca_proto::run::quota::KeyLimits;
use broca_proto::session::event::EventType;
use broca_server::keys::{IdKind, KeyHash, NewKey, Role, display_prefix};
use broca_server::store::{
    Closing, Elided, Epoch, Join, LoggedApproval, MessageAnswer, MessageNote, MessageOutcome,
    MetadataChange, NamedMessage, NewClientKey, NewEvent, NewSession, OpenApproval, OverviewPage,
    PageLimit, Pause, Profile, Registration, Seq, SessionState, Store, StoreError, ToolLists,
    WallTime,
};
use std::sync::Arc;

pub(crate) const NOW: WallTime = WallTime(1_783_362_370_000);

/// An event without anything special.
pub(crate) fn event(event_type: &str, payload: &str) -> NewEvent {
    NewEvent {
        id: IdKind::Event.mint().unwrap(),
        client_key_id: Some("key_a".to_owned()),
        event_type: event_type.to_owned(),
        payload: payload.to_owned(),
        elided: None,
    }
}

/// Opens a session for `key_a`; gives its id and the hash of its session key.
pub(crate) async fn open(store: &dyn Store) -> (String, KeyHash) {
    let id = IdKind::Session.mint().unwrap();
    let key = NewKey::mint(Role::Session).unwrap();
    let session = NewSession {
        id: id.clone(),
        profile_id: "pro_1".to_owned(),
        creator: "key_a".to_owned(),
        client_version: Some("test/1".to_owned()),
        settings: None,
        metadata: None,
    };
    let first = event("session.open", "{}");
    let hash = key.hash.clone();
    let stored =
        store.open_session(session, ToolLists::default(), key.hash, first, NOW).await.unwrap();
    assert_eq!(stored.seq, Seq(1));
    (id, hash)
}

pub(crate) fn pause_of(owner: &str, deadline: i64) -> Pause {
    Pause {
        owner: owner.to_owned(),
        began: WallTime(deadline - 100),
        deadline: WallTime(deadline),
        expected: vec!["tu_0".to_owned(), "tu_1".to_owned()],
        stashed: r#"[{"type":"tool_result","tool_use_id":"tu_1"}]"#.to_owned(),
        progress: r#"{"rounds":2}"#.to_owned(),
    }
}

/// The types of a session's events, with their numbers checked to be dense.
pub(crate) async fn log(store: &dyn Store, session: &str) -> Vec<String> {
    let page = store.page(session, Seq::START, PageLimit::events(100_000)).await.unwrap();
    assert!(!page.more);
    for (place, event) in (1..).zip(&page.events) {
        assert_eq!(event.seq, Seq(place));
    }
    page.events.into_iter().map(|event| event.event_type).collect()
}

/// Runs everything.
pub(crate) async fn suite(store: Arc<dyn Store>) {
    let store = store.as_ref();
    profiles_and_client_keys(store).await;
    opening_and_joining(store).await;
    refused_opens(store).await;
    drivers_and_tools(store).await;
    closing(store).await;
    pages_and_positions(store).await;
    elided_messages(store).await;
    gates(store).await;
    pauses(store).await;
    messages_by_id(store).await;
    metadata(store).await;
    sessions_of_a_client(store).await;
    approvals(store).await;
    unknown_sessions(store).await;
    directory::suite(store).await;
    store.probe().await.unwrap();
    let counters = store.counters().await.unwrap();
    assert!(counters.sessions > 5 && counters.events > 10);
}

async fn profiles_and_client_keys(store: &dyn Store) {
    let profile = Profile {
        id: "pro_1".to_owned(),
        name: "main".to_owned(),
        primary_provider: "scripted".to_owned(),
        fallback_providers: vec!["b".to_owned(), "c".to_owned()],
        mcp_servers: vec![],
        allowed_tools: vec!["*".to_owned()],
        available_sandboxes: vec!["img:1".to_owned()],
        limits: KeyLimits::default(),
        deleted: false,
    };
    store.put_profile(profile.clone(), NOW).await.unwrap();
    assert_eq!(store.profile("pro_1").await.unwrap(), Some(profile.clone()));
    assert_eq!(store.profile_named("main").await.unwrap(), Some(profile.clone()));
    assert_eq!(store.profile("pro_2").await.unwrap(), None);

    let gone = Profile { deleted: true, ..profile.clone() };
    store.put_profile(gone.clone(), NOW).await.unwrap();
    assert_eq!(store.profile("pro_1").await.unwrap(), Some(gone));
    let second = Profile { id: "pro_2".to_owned(), ..profile.clone() };
    assert_eq!(store.put_profile(second, NOW).await, Err(StoreError::NameTaken));
    store.put_profile(profile, NOW).await.unwrap();

    let key = NewKey::mint(Role::Client).unwrap();
    let text = key.plaintext.expose().to_owned();
    let new = NewClientKey {
        id: "key_a".to_owned(),
        name: "laptop".to_owned(),
        display_prefix: display_prefix(&text),
        hash: key.hash,
        profile_id: "pro_1".to_owned(),
        limits: KeyLimits::default(),
    };
    let dangling = NewClientKey { profile_id: "pro_9".to_owned(), ..new.clone() };
    let refused = store.add_client_key(dangling, NOW).await;
    assert_eq!(refused, Err(StoreError::Unknown { what: "profile" }));
    store.add_client_key(new, NOW).await.unwrap();
    let found = store.client_key(KeyHash::of(&text), NOW).await.unwrap().unwrap();
    assert_eq!((found.id.as_str(), found.profile_id.as_str()), ("key_a", "pro_1"));
    assert_eq!(store.client_key(KeyHash::of("bae_other"), NOW).await, Ok(None));
}

async fn opening_and_joining(store: &dyn Store) {
    let (id, hash) = open(store).await;
    let (other, _) = open(store).await;
    let session = store.session(&id).await.unwrap().unwrap();
    assert_eq!(session.state, SessionState::Open);
    assert_eq!((session.created_at, session.closed_at), (NOW, None));
    assert_eq!((session.creator.as_str(), session.last_seq), ("key_a", Seq(1)));
    let known = store.session_key(&id, hash.clone(), NOW).await.unwrap();
    assert_eq!(known.as_deref(), Some("key_a"));
    // A valid key used on another session finds nothing, nor is it a client key.
    assert_eq!(store.session_key(&other, hash.clone(), NOW).await, Ok(None));
    assert_eq!(store.client_key(hash, NOW).await, Ok(None));

    let tools = r#"[{"name":"clock"}]"#.to_owned();
    let named = |tools: &str| Some(ToolLists { tools: tools.to_owned(), ..ToolLists::default() });
    // A join that names no tools leaves what was declared, nothing at first.
    for lists in [None, named("[]"), named(&tools), None] {
        let join = Join {
            session: id.clone(),
            client_key_id: "key_b".to_owned(),
            tools: lists,
            session_key: NewKey::mint(Role::Session).unwrap().hash,
            event: event("session.join", "{}"),
        };
        let hash = join.session_key.clone();
        store.join(join, NOW).await.unwrap();
        assert_eq!(store.session_key(&id, hash, NOW).await.unwrap().as_deref(), Some("key_b"));
    }
    assert_eq!(store.tools(&id, "key_b").await.unwrap().unwrap().tools, tools);
    assert_eq!(store.tools(&id, "key_c").await, Ok(None));
    let joins = ["session.join"; 4];
    assert_eq!(log(store, &id).await, [&["session.open"][..], &joins].concat());
}

async fn refused_opens(store: &dyn Store) {
    let id = IdKind::Session.mint().unwrap();
    let session = NewSession {
        id: id.clone(),
        profile_id: "pro_1".to_owned(),
        creator: "key_a".to_owned(),
        client_version: None,
        settings: None,
        metadata: None,
    };
    store.record_refused_open(session, event("session.error", "{}"), NOW).await.unwrap();
    let session = store.session(&id).await.unwrap().unwrap();
    assert_eq!((session.state, session.closed_at), (SessionState::Error, Some(NOW)));
    assert_eq!(log(store, &id).await, ["session.error"]);
}

async fn drivers_and_tools(store: &dyn Store) {
    let (id, _) = open(store).await;
    let register = || vec![event("session.driver.register", "{}")];
    for key in ["key_b", "key_a"] {
        let first = store.register_driver(&id, key, register(), NOW).await.unwrap();
        assert!(matches!(first, Registration::First(events) if events.len() == 1));
    }
    let again = store.register_driver(&id, "key_b", register(), NOW).await.unwrap();
    assert_eq!(again, Registration::Already);
    assert_eq!(store.drivers(&id).await.unwrap(), ["key_a", "key_b"]);
    assert_eq!(log(store, &id).await.len(), 3);
    store.replace_tools(&id, "key_a", r#"[{"name":"x"}]"#.to_owned()).await.unwrap();
    let lists = store.tools(&id, "key_a").await.unwrap().unwrap();
    assert_eq!((lists.tools.as_str(), lists.sandbox_tools.as_str()), (r#"[{"name":"x"}]"#, "[]"));
}

async fn closing(store: &dyn Store) {
    let (id, hash) = open(store).await;
    store.register_driver(&id, "key_a", vec![], NOW).await.unwrap();
    let lease = store.claim_gate(&id, "key_a", vec![], None, NOW).await.unwrap().epoch;
    let end = || vec![event("session.close", r#"{"reason":"client_close"}"#)];
    let closing = |lease| store.close(&id, lease, SessionState::Closed, end(), None, NOW);
    assert_eq!(closing(Some(Epoch(99))).await, Err(StoreError::LeaseLost));
    assert!(
        matches!(closing(None).await.unwrap(), Closing::Now(events) if events[0].seq == Seq(2))
    );
    assert_eq!(closing(None).await.unwrap(), Closing::Already(SessionState::Closed));
    let refused = StoreError::NotOpen { state: SessionState::Closed };
    let late = || vec![event("tool.call", "{}")];
    assert_eq!(store.append(&id, Some(lease), late(), NOW).await, Err(refused.clone()));
    assert_eq!(store.register_driver(&id, "key_a", vec![], NOW).await, Err(refused.clone()));
    assert_eq!(store.replace_tools(&id, "key_a", "[]".to_owned()).await, Err(refused.clone()));
    assert_eq!(store.claim_gate(&id, "key_a", vec![], None, NOW).await, Err(refused));
    assert!(store.drivers(&id).await.unwrap().is_empty());
    // Reports are still logged, and the session can still be read with its key.
    store.append(&id, None, vec![event("session.subagent.running", "{}")], NOW).await.unwrap();
    assert!(store.session_key(&id, hash, NOW).await.unwrap().is_some());
    assert_eq!(store.session(&id).await.unwrap().unwrap().closed_at, Some(NOW));
}

async fn pages_and_positions(store: &dyn Store) {
    let (id, _) = open(store).await;
    let (other, _) = open(store).await;
    let payload = r#"{"big":12345678901234567890,"text":"a\u0000b","x":1}"#;
    for _ in 0..9 {
        let stored = store.append(&id, None, vec![event("tool.call", payload)], NOW).await.unwrap();
        assert_eq!(stored[0].created_at, NOW);
    }
    let page = store.page(&id, Seq::START, PageLimit::events(4)).await.unwrap();
    assert!(page.more && page.events.len() == 4);
    let rest = store.page(&id, page.events[3].seq, PageLimit::events(6)).await.unwrap();
    assert!(!rest.more && rest.events.len() == 6);
    assert_eq!(rest.events[5].payload, payload);
    assert_eq!(rest.events[5].client_key_id.as_deref(), Some("key_a"));
    let last = &rest.events[5];
    assert_eq!(store.position_of(&id, &last.id).await, Ok(Some(Seq(10))));
    assert_eq!(store.position_of(&other, &last.id).await, Ok(None));
    assert_eq!(store.last_position(&id).await, Ok(Seq(10)));
    let small = PageLimit { events: 50, bytes: 2 * payload.len() + 10 };
    let page = store.page(&id, Seq(1), small).await.unwrap();
    assert!(page.more && page.events.len() == 2);
    let page = store.page(&id, Seq(1), PageLimit { events: 50, bytes: 0 }).await.unwrap();
    assert!(page.more && page.events.len() == 1);
    let page = store.page(&id, Seq(u64::MAX), PageLimit::events(1)).await.unwrap();
    assert!(!page.more && page.events.is_empty());
    assert_eq!(store.append(&id, None, vec![], NOW).await, Ok(vec![]));
}

async fn elided_messages(store: &dyn Store) {
    let (id, _) = open(store).await;
    let payloads = [
        ("client.message.send", r#"{"content":"read it","role":"user"}"#),
        (
            "server.message.send",
            r#"{"content":[{"dispatch":"client","id":"t","input":{"n":1e400},"name":"f","type":"tool_use"}],"role":"assistant"}"#,
        ),
    ];
    let tail = r#"[{"content":"only here","role":"assistant"}]"#;
    let request = |from| NewEvent {
        elided: Some(Elided { from, tail: tail.to_owned() }),
        ..event("provider.request", r#"{"attempt":0,"model":"m"}"#)
    };
    let mut events: Vec<NewEvent> = Vec::new();
    for (event_type, payload) in payloads {
        events.extend([event(event_type, payload), request(Seq::START)]);
    }
    events.push(request(Seq(3)));
    store.append(&id, None, events, NOW).await.unwrap();

    let history: Vec<Json> = payloads
        .iter()
        .map(|(event_type, payload)| {
            provider_message(&Json::parse(*payload).unwrap(), &EventType::parse(event_type))
        })
        .collect();
    let live = |history: &[Json]| {
        let payload = Json::parse(r#"{"attempt":0,"model":"m"}"#).unwrap();
        compose_request(&payload, history, &Json::parse(tail).unwrap()).as_str().to_owned()
    };
    let page = store.page(&id, Seq::START, PageLimit::events(50)).await.unwrap();
    assert_eq!(page.events[2].payload, live(&history[..1]));
    assert_eq!(page.events[4].payload, live(&history));
    assert_eq!(page.events[5].payload, live(&history[1..]));
    // The same when the page begins behind the messages.
    let page = store.page(&id, Seq(4), PageLimit::events(1)).await.unwrap();
    assert_eq!(page.events[0].payload, live(&history));
    assert!(
        !page.events[0].payload.contains("dispatch") && page.events[0].payload.contains("1e400")
    );

    let messages = store.messages(&id, Seq::START, Seq(u64::MAX)).await.unwrap();
    let seqs: Vec<Seq> = messages.iter().map(|message| message.seq).collect();
    assert_eq!(seqs, [Seq(2), Seq(4)]);
    assert_eq!(messages[1].payload, payloads[1].1);
    assert_eq!(store.messages(&id, Seq(3), Seq(3)).await, Ok(vec![]));
}

async fn gates(store: &dyn Store) {
    let (id, _) = open(store).await;
    let send = || vec![event("client.message.send", "{}")];
    let first = store.claim_gate(&id, "key_a", send(), None, NOW).await.unwrap();
    assert_eq!(first.events[0].seq, Seq(2));
    store.append(&id, Some(first.epoch), send(), NOW).await.unwrap();
    let second = store.claim_gate(&id, "key_b", vec![], None, NOW).await.unwrap();
    assert!(second.epoch > first.epoch);
    let lost = Err(StoreError::LeaseLost);
    assert_eq!(store.append(&id, Some(first.epoch), send(), NOW).await, lost);
    assert_eq!(store.release_gate(&id, first.epoch, send(), None, NOW).await, lost);
    let pause = pause_of("key_a", 1);
    assert_eq!(store.park(&id, first.epoch, pause, send(), None, NOW).await, lost);
    store.release_gate(&id, second.epoch, send(), None, NOW).await.unwrap();
    assert_eq!(store.append(&id, Some(second.epoch), send(), NOW).await, lost);
    assert_eq!(store.last_position(&id).await, Ok(Seq(4)));
    let third = store.claim_gate(&id, "key_a", vec![], None, NOW).await.unwrap();
    assert!(third.epoch > second.epoch);
}

async fn pauses(store: &dyn Store) {
    let (id, _) = open(store).await;
    let send = |word: &str| vec![event(word, "{}")];
    let lease = store.claim_gate(&id, "key_a", vec![], None, NOW).await.unwrap().epoch;
    assert_eq!(store.pause(&id).await, Ok(None));
    let pause = pause_of("key_a", 500);
    store.park(&id, lease, pause.clone(), send("server.message.send"), None, NOW).await.unwrap();
    let parked = store.pause(&id).await.unwrap().unwrap();
    assert_eq!((&parked.pause, &parked.session), (&pause, &id));
    assert!(store.all_pauses().await.unwrap().contains(&parked));
    assert_eq!(store.append(&id, Some(lease), send("x"), NOW).await, Err(StoreError::LeaseLost));
    assert_eq!(store.claim_gate(&id, "key_b", vec![], None, NOW).await, Err(StoreError::Parked));
    let not_owner = store.resume(&id, "key_b", parked.epoch, send("x"), None, NOW).await;
    assert_eq!(not_owner, Err(StoreError::NotOwner));

    assert_eq!(store.hold(&id, "key_b", WallTime(900)).await, Err(StoreError::NotOwner));
    for (wish, deadline) in [(900, 900), (700, 900)] {
        store.hold(&id, "key_a", WallTime(wish)).await.unwrap();
        let held = store.pause(&id).await.unwrap().unwrap();
        assert_eq!((held.epoch, held.pause.deadline), (parked.epoch, WallTime(deadline)));
        assert_eq!(held.pause.began, pause.began);
    }

    let resumed =
        store.resume(&id, "key_a", parked.epoch, send("client.message.send"), None, NOW).await;
    let resumed = resumed.unwrap();
    assert!(resumed.epoch > lease && resumed.events.len() == 1);
    let again = store.resume(&id, "key_a", parked.epoch, send("x"), None, NOW).await;
    assert_eq!(again, Err(StoreError::NotParked));
    assert_eq!(store.hold(&id, "key_a", WallTime(900)).await, Err(StoreError::NotParked));

    store.park(&id, resumed.epoch, pause, vec![], None, NOW).await.unwrap();
    // One who read the earlier pause cannot take over the later one.
    let stale = store.take_over(&id, "key_b", parked.epoch, send("x"), None, NOW).await;
    assert_eq!(stale, Err(StoreError::NotParked));
    let later = store.pause(&id).await.unwrap().unwrap().epoch;
    let taken =
        store.take_over(&id, "key_b", later, send("session.error"), None, NOW).await.unwrap();
    assert_eq!(store.pause(&id).await, Ok(None));
    store.append(&id, Some(taken.epoch), send("provider.request"), NOW).await.unwrap();
    assert_eq!(
        log(store, &id).await[1..],
        ["server.message.send", "client.message.send", "session.error", "provider.request"]
    );
    store.park(&id, taken.epoch, pause_of("key_b", 9), vec![], None, NOW).await.unwrap();
    store.close(&id, None, SessionState::Closed, vec![], None, NOW).await.unwrap();
    assert_eq!(store.pause(&id).await, Ok(None));
}

async fn approvals(store: &dyn Store) {
    let (id, _) = open(store).await;
    let (other, _) = open(store).await;
    let requested = |call: &str| {
        event("session.approval.requested", &format!(r#"{{"name":"n","tool_use_id":"{call}"}}"#))
    };
    let resolved = |call: &str, decision: &str| {
        let payload = format!(r#"{{"decision":"{decision}","tool_use_id":"{call}"}}"#);
        event("session.approval.resolved", &payload)
    };
    let log = async |session: &str, event| {
        store.append(session, None, vec![event], NOW).await.unwrap();
    };
    let found = async |call: &str| store.approval(&id, call).await.unwrap();
    assert_eq!(found("t1").await, None);
    log(&id, requested("t1")).await;
    assert_eq!(
        found("t1").await,
        Some(LoggedApproval { owner: "key_a".to_owned(), resolved: None })
    );
    assert_eq!(store.approval(&other, "t1").await, Ok(None));
    log(&id, event("session.join", "{}")).await;
    let open =
        OpenApproval { session: id.clone(), owner: "key_a".to_owned(), call: "t1".to_owned() };
    assert_eq!(store.open_approvals().await, Ok(vec![open]));
    log(&id, resolved("t1", "deny")).await;
    assert_eq!(store.open_approvals().await, Ok(Vec::new()));
    log(&id, requested("t2")).await;
    log(&id, resolved("t2", "allow")).await;
    assert!(found("t1").await.unwrap().resolved.unwrap().contains("deny"));
    // An id that comes again means its newest question.
    log(&id, requested("t1")).await;
    assert_eq!(found("t1").await.unwrap().resolved, None);
    log(&other, requested("t9")).await;
    assert_eq!(store.open_approvals().await.unwrap().len(), 2);
    log(&id, resolved("t1", "allow")).await;
    log(&other, resolved("t9", "allow")).await;
    assert!(found("t1").await.unwrap().resolved.unwrap().contains("allow"));
}

async fn messages_by_id(store: &dyn Store) {
    let (id, _) = open(store).await;
    let (other, _) = open(store).await;
    let named = |sender: &str, name: &str| NamedMessage {
        sender: sender.to_owned(),
        id: name.to_owned(),
        digest: format!("digest of {name}"),
        keep: 3,
    };
    let note = |name: &str, outcome| Some(MessageNote { message: named("key_a", name), outcome });
    let send = || vec![event("client.message.send", "{}"), event("provider.request", "{}")];
    let end = || vec![event("server.message.send", "{}")];
    let known = async |name: &str| store.known_message(&id, "key_a", name).await.unwrap();
    assert_eq!(known("m-1").await, None);

    let lease = store.claim_gate(&id, "key_a", send(), note("m-1", None), NOW).await.unwrap().epoch;
    let begun = known("m-1").await.unwrap();
    assert_eq!((begun.digest.as_str(), begun.epoch), ("digest of m-1", Some(lease)));
    assert_eq!(begun.outcome, None);
    assert_eq!(store.known_message(&id, "key_b", "m-1").await, Ok(None));
    assert_eq!(store.known_message(&other, "key_a", "m-1").await, Ok(None));
    // Somebody joins in between: that event is none of the call's.
    store.append(&id, None, vec![event("session.join", "{}")], NOW).await.unwrap();
    let outcome = |spans: &[(u64, u64)], answer| MessageOutcome {
        spans: spans.iter().map(|(from, to)| (Seq(*from), Seq(*to))).collect(),
        answer,
    };
    let logged = |spans: &[(u64, u64)]| Some(outcome(spans, MessageAnswer::Logged));
    let pause = pause_of("key_a", 500);
    store.park(&id, lease, pause, end(), note("m-1", logged(&[(2, 3)])), NOW).await.unwrap();
    let parked = known("m-1").await.unwrap();
    assert_eq!((parked.outcome, parked.epoch), (logged(&[(2, 3), (5, 5)]), Some(lease)));

    let epoch = store.pause(&id).await.unwrap().unwrap().epoch;
    assert_eq!(epoch, lease, "the pause is that of the call");
    let resumed = store.resume(&id, "key_a", epoch, send(), note("m-2", None), NOW).await.unwrap();
    let refused = store.release_gate(&id, lease, end(), note("m-2", logged(&[])), NOW).await;
    assert_eq!(refused, Err(StoreError::LeaseLost));
    assert_eq!(known("m-2").await.unwrap().outcome, None, "what fails changes nothing");
    let ended = note("m-2", logged(&[(6, 7)]));
    store.release_gate(&id, resumed.epoch, end(), ended, NOW).await.unwrap();
    assert_eq!(known("m-2").await.unwrap().outcome, logged(&[(6, 8)]));

    let failed = MessageAnswer::Failed { code: -32021, message: "turn cancelled".to_owned() };
    let never_began = note("m-3", Some(outcome(&[], failed.clone()))).unwrap();
    store.note_message(&id, never_began).await.unwrap();
    let cancelled = known("m-3").await.unwrap();
    assert_eq!((cancelled.epoch, cancelled.outcome), (None, Some(outcome(&[], failed))));

    let unlogged = MessageAnswer::Unlogged(r#"{"role":"assistant","content":[]}"#.to_owned());
    let lease = store.claim_gate(&id, "key_a", send(), note("m-4", None), NOW).await.unwrap().epoch;
    assert_eq!(known("m-1").await, None, "the newest three are remembered");
    assert!(known("m-2").await.is_some());
    let over = note("m-4", Some(outcome(&[(9, 10)], unlogged.clone())));
    let events = vec![event("session.error", "{}")];
    store.close(&id, Some(lease), SessionState::Error, events, over, NOW).await.unwrap();
    assert_eq!(known("m-4").await.unwrap().outcome, Some(outcome(&[(9, 11)], unlogged)));
}

async fn metadata(store: &dyn Store) {
    let (id, _) = open(store).await;
    let told = || async { store.overview(&id).await.unwrap().unwrap() };
    let begun = told().await;
    assert_eq!((begun.metadata.as_str(), begun.metadata_version), ("{}", 0));
    assert_eq!(begun.session, store.session(&id).await.unwrap().unwrap());
    let updated = || event("session.metadata.updated", "{}");
    let change = |was: u64, text: &str| {
        store.change_metadata(&id, was, text.to_owned(), updated(), WallTime(9_000))
    };
    let done = match change(0, r#"{"a":1}"#).await.unwrap() {
        MetadataChange::Now(stored) => Some(stored),
        MetadataChange::Behind => None,
    };
    let stored = done.unwrap();
    assert_eq!(change(0, r#"{"b":1}"#).await, Ok(MetadataChange::Behind));
    let now = told().await;
    assert_eq!((now.metadata.as_str(), now.metadata_version), (r#"{"a":1}"#, 1));
    assert_eq!(now.last_event, Some((stored.event.id, WallTime(9_000))));
    assert_eq!(now.session.last_seq, stored.seq, "a change that was behind logged nothing");
    store.register_driver(&id, "key_b", vec![], NOW).await.unwrap();
    assert_eq!(told().await.drivers, ["key_b"]);
    store.close(&id, None, SessionState::Closed, vec![], None, NOW).await.unwrap();
    let over = StoreError::NotOpen { state: SessionState::Closed };
    assert_eq!(change(1, "{}").await, Err(over));
    assert_eq!(told().await.metadata, r#"{"a":1}"#);
}

async fn sessions_of_a_client(store: &dyn Store) {
    let mut opened = Vec::new();
    for kept in [None, Some(r#"{"n":2}"#), None] {
        let session = NewSession {
            id: format!("ses_of_{}", opened.len()),
            profile_id: "pro_1".to_owned(),
            creator: "key_lists".to_owned(),
            client_version: None,
            settings: None,
            metadata: kept.map(str::to_owned),
        };
        opened.push(session.id.clone());
        let key = NewKey::mint(Role::Session).unwrap().hash;
        let first = event("session.open", "{}");
        store.open_session(session, ToolLists::default(), key, first, NOW).await.unwrap();
    }
    let (joined, _) = open(store).await;
    let join = Join {
        session: joined.clone(),
        client_key_id: "key_lists".to_owned(),
        tools: None,
        session_key: NewKey::mint(Role::Session).unwrap().hash,
        event: event("session.join", "{}"),
    };
    store.join(join, NOW).await.unwrap();
    let page = store.sessions_of("key_lists", None, 2).await.unwrap();
    let ids = |page: &OverviewPage| -> Vec<String> {
        page.items.iter().map(|item| item.session.id.clone()).collect()
    };
    assert_eq!((ids(&page), page.more), (vec![joined, opened[2].clone()], true));
    let page = store.sessions_of("key_lists", Some(&opened[2]), 2).await.unwrap();
    assert_eq!((ids(&page), page.more), (vec![opened[1].clone(), opened[0].clone()], false));
    assert_eq!(page.items[0].metadata, r#"{"n":2}"#);
    let unknown = StoreError::Unknown { what: "session" };
    let (other, _) = open(store).await;
    for foreign in [other.as_str(), "ses_none"] {
        let refused = store.sessions_of("key_lists", Some(foreign), 2).await;
        assert_eq!(refused, Err(unknown.clone()), "{foreign}");
    }
    assert_eq!(store.sessions_of("key_nobody", None, 2).await, Ok(OverviewPage::default()));
}

async fn unknown_sessions(store: &dyn Store) {
    let unknown = StoreError::Unknown { what: "session" };
    assert_eq!(store.known_message("ses_none", "k", "m").await, Err(unknown.clone()));
    assert_eq!(store.session("ses_none").await, Ok(None));
    assert_eq!(store.append("ses_none", None, vec![], NOW).await, Err(unknown.clone()));
    assert_eq!(store.claim_gate("ses_none", "k", vec![], None, NOW).await, Err(unknown.clone()));
    assert_eq!(store.page("ses_none", Seq::START, PageLimit::events(1)).await, Err(unknown));
}
