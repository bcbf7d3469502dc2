//! The plain session service, as its contract and its weak points are written down: no features; drivers, gate and pauses
//! live in memory; a caller that is gone takes its turn with it; one wrong result ends the session.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use crate::scripted_service::{Answer, Asked, Service};
use serde_json::{Value, json};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// How often a stream looks for what is new.
const LOOK: Duration = Duration::from_millis(5);

/// A session in its service.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) log: Vec<Value>,
    pub(crate) is_registered: bool,
    /// The calls of the paused turn.
    pub(crate) pause: Option<Vec<String>>,
    /// `open`, `closed` or `error`.
    pub(crate) state: &'static str,
    /// Streams of subscriptions that began before this many closes, cuts of the service's own, end without a word.
    ended: u64,
    /// Subscriptions are told that they lag, so many times.
    pub(crate) lags: u64,
    calls: u64,
}

/// The service, and what a test may do to it.
pub(crate) struct Plain {
    pub(crate) service: Service,
    pub(crate) state: Arc<Mutex<State>>,
    go: Arc<(Mutex<bool>, Condvar)>,
}

impl Plain {
    pub(crate) fn start() -> Self {
        let state = Arc::new(Mutex::new(State { state: "open", ..State::default() }));
        let go = Arc::new((Mutex::new(false), Condvar::new()));
        let (theirs, going) = (Arc::clone(&state), Arc::clone(&go));
        let service = Service::start(move |asked, answer| serve(&theirs, &going, asked, answer));
        Self { service, state, go }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Lets turns that wait (`slow`) go on.
    pub(crate) fn go(&self) {
        *self.go.0.lock().unwrap() = true;
        self.go.1.notify_all();
    }

    /// A restart: what is in memory is gone, and so is every connection.
    pub(crate) fn restart(&self) {
        {
            let mut state = self.state();
            state.is_registered = false;
            state.pause = None;
            state.ended += 1;
        }
        self.service.cut_all();
    }

    /// The contents of the messages that clients sent, as the log has them.
    pub(crate) fn said(&self) -> Vec<Value> {
        let state = self.state();
        let said = state.log.iter().filter(|event| event["event_type"] == "client.message.send");
        said.map(|event| event["payload"]["content"].clone()).collect()
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        let id = |event: &Value| event["id"].as_str().unwrap().to_owned();
        self.state().log.iter().map(id).collect()
    }
}

impl State {
    pub(crate) fn add(&mut self, event_type: &str, payload: Value) -> Value {
        let event = json!({"client_key_id": "key_1", "created_at": "2030-01-01T00:00:00.000Z",
            "event_type": event_type, "id": format!("evt_{}", self.log.len()), "payload": payload,
            "session_id": "ses_1"});
        self.log.push(event.clone());
        event
    }
}

fn notification(event: &Value) -> String {
    json!({"jsonrpc": "2.0", "method": "session.event", "params": event}).to_string()
}

fn serve(
    state: &Mutex<State>,
    go: &(Mutex<bool>, Condvar),
    asked: &Asked,
    answer: &mut Answer<'_>,
) {
    let json = "application/json";
    let mut now = state.lock().unwrap();
    match asked.method.as_deref() {
        Some("session.registerDriver") if now.state == "open" => {
            let registered = std::mem::replace(&mut now.is_registered, true);
            if !registered {
                now.add("session.driver.register", json!({}));
            }
        }
        Some("session.sendMessage") => {
            drop(now);
            send(state, go, asked, answer);
        }
        Some("session.subscribe") => {
            drop(now);
            subscribe(state, asked, answer);
        }
        Some("session.registerDriver" | "session.updateClientTools") => {}
        Some(method) => answer.error(-32601, &format!("Method not found: {method}")),
        None if asked.line == "GET /api/v1/meta" => {
            answer.respond("200 OK", json, r#"{"version":"0.1.0","api_versions":["v1"]}"#);
        }
        None if asked.line == "POST /api/v1/sessions" => drop(now.add("session.open", json!({}))),
        None if asked.line.ends_with("/join") => drop(now.add("session.join", json!({}))),
        None if asked.line.starts_with("DELETE ") => {
            now.state = "closed";
            // Cancellation wins the race: no subscriber ever sees the line.
            now.ended += 1;
            now.add("session.close", json!({"reason": "client_close"}));
        }
        None if asked.line.contains("/events") => {
            let items = json!({"items": now.log, "next_cursor": null}).to_string();
            answer.respond("200 OK", json, &items);
        }
        None => {}
    }
}

/// The blocks of a message; a string is one.
fn blocks(content: &Value) -> Vec<Value> {
    match content {
        Value::String(text) => vec![json!({"type": "text", "text": text})],
        other => other.as_array().cloned().unwrap_or_default(),
    }
}

fn send(state: &Mutex<State>, go: &(Mutex<bool>, Condvar), asked: &Asked, answer: &mut Answer<'_>) {
    let mut now = state.lock().unwrap();
    if !now.is_registered {
        return answer.error(-32001, "call session.registerDriver before session.sendMessage");
    }
    if now.state != "open" {
        let message = format!("session is {}, not open", now.state);
        return answer.error(-32000, &message);
    }
    let body: Value = serde_json::from_str(&asked.body).unwrap();
    let message = &body["params"]["message"];
    let given = blocks(&message["content"]);
    let ids: Vec<String> = given
        .iter()
        .filter(|block| block["type"] == "tool_result")
        .map(|block| block["tool_use_id"].as_str().unwrap().to_owned())
        .collect();
    let mut content = given.clone();
    match now.pause.take() {
        None if !ids.is_empty() => {
            return answer.error(-32000, "tool result merge invalid: no paused turn is awaiting tool results (it may have timed out and been retired)");
        }
        Some(open) if ids.is_empty() => {
            let abandoned = |id: &String| {
                json!({"type": "tool_result", "tool_use_id": id, "is_error": true,
                    "content": "Client tool call was abandoned before returning a result."})
            };
            content = open.iter().map(abandoned).chain(given.clone()).collect();
        }
        Some(open) if open != ids => {
            now.add("session.error", json!({"reason": "tool_result_merge_invalid", "detail": "x"}));
            now.state = "error";
            return answer
                .error(-32000, "tool result merge invalid: the ids are not those of the pause");
        }
        _ => {}
    }
    let text: String = given.iter().filter_map(|block| block["text"].as_str()).collect();
    // Withheld from the caller's own stream.
    let content = if ids.is_empty() && content == given {
        message["content"].clone()
    } else {
        json!(content)
    };
    let first = now.add("client.message.send", json!({"role": "user", "content": content}));
    let mut events = vec![first];
    let request = now.add("provider.request", json!({"attempt": 0, "kind": "primary"}));
    drop(now);
    answer.line(&notification(&request));
    events.push(request);
    if text.contains("cut") {
        return answer.cut();
    }
    if text.contains("lag") {
        return answer.line(r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"lagged; reconnect with since_event_id"}}"#);
    }
    if text.contains("slow") {
        let (gone, changed) = go;
        drop(changed.wait_while(gone.lock().unwrap(), |gone| !*gone).unwrap());
    }
    if text.contains("junk") {
        answer.line("this is no JSON");
        answer.line(r#"{"jsonrpc":"2.0","method":"session.unheard","params":{"of":1}}"#);
    }
    let mut now = state.lock().unwrap();
    let say = |text: &str| json!([{"type": "text", "text": text}]);
    let content = if text.contains("tool") {
        now.calls += 1;
        let call = |number: u64| {
            json!({"type": "tool_use", "id": format!("tu_{}_{number}", now.calls), "name": "effect",
                "input": {}, "dispatch": "client"})
        };
        let calls: Vec<Value> = (0..if text.contains("two") { 2 } else { 1 }).map(call).collect();
        let ids = calls.iter().map(|call| call["id"].as_str().unwrap().to_owned()).collect();
        now.pause = Some(ids);
        json!(calls)
    } else if ids.is_empty() || !text.is_empty() {
        say("hello")
    } else {
        say("done")
    };
    let reply = json!({"role": "assistant", "content": content});
    if text.contains("novel") {
        events.push(now.add("session.novelty", json!({"of": "tomorrow"})));
    }
    events.push(now.add("server.message.send", reply.clone()));
    drop(now);
    if text.contains("unread") {
        return answer.cut();
    }
    events[2..].iter().for_each(|event| answer.line(&notification(event)));
    answer.result(&json!({"message": reply, "events": events}).to_string());
}

fn subscribe(state: &Mutex<State>, asked: &Asked, answer: &mut Answer<'_>) {
    let body: Value = serde_json::from_str(&asked.body).unwrap();
    let ended = state.lock().unwrap().ended;
    let mut next = {
        let log = &state.lock().unwrap().log;
        match body["params"]["since_event_id"].as_str() {
            None => log.len(),
            // An id that is unknown replays everything.
            Some(id) => log.iter().position(|event| event["id"] == id).map_or(0, |at| at + 1),
        }
    };
    // The head comes at once, before there is anything to tell.
    answer.line("");
    loop {
        let (new, is_lagged, is_ended) = {
            let mut now = state.lock().unwrap();
            let is_lagged = now.lags > 0 && next > 0;
            now.lags -= u64::from(is_lagged);
            (now.log[next..].to_vec(), is_lagged, now.ended != ended)
        };
        if is_ended {
            return;
        }
        next += new.len();
        new.iter().for_each(|event| answer.line(&notification(event)));
        if is_lagged {
            return answer.line(r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"lagged; reconnect with since_event_id"}}"#);
        }
        // The test's client reads over blank lines; this one only finds out whether it is there.
        if new.is_empty() && !answer.peer_is_there() {
            return answer.cut();
        }
        std::thread::sleep(LOOK);
    }
}
