//! A service in the process, a model that does what the test says, and the participants of sessions.

pub use crate::wire::*;
use broca_proto::Json;
use broca_proto::provider::unit::ErrorClass;
use broca_proto::session::content::Block;
use broca_server::models::{
    Delta, DeltaSink, Model, ModelDescription, ModelFailure, ModelFuture, ModelReply, ModelRequest,
    TokenUsage,
};
use broca_server::tools::{Clock, ServerTool};
use broca_server::{AdminKey, Config, Models, NewProfile, Service};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// What the model does when it is asked.
pub struct Step {
    hold: Option<oneshot::Receiver<()>>,
    deltas: Vec<Delta>,
    outcome: Result<Vec<Value>, ModelFailure>,
    panics: bool,
}

/// A model under the control of the test; without a step it says "ok".
pub struct Stub {
    name: String,
    steps: Mutex<VecDeque<Step>>,
    asked: Mutex<Vec<ModelRequest>>,
    calls: watch::Sender<usize>,
}

impl Stub {
    pub fn new(name: &str) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            steps: Mutex::default(),
            asked: Mutex::default(),
            calls: watch::channel(0).0,
        })
    }

    fn push(&self, hold: Option<oneshot::Receiver<()>>, outcome: Result<Vec<Value>, ModelFailure>) {
        self.steps.lock().unwrap().push_back(Step {
            hold,
            deltas: Vec::new(),
            outcome,
            panics: false,
        });
    }

    pub fn say(&self, text: &str) {
        self.push(None, Ok(vec![json!({"type": "text", "text": text})]));
    }

    pub fn blocks(&self, blocks: Value) {
        self.push(None, Ok(blocks.as_array().unwrap().clone()));
    }

    /// Calls tools: (id, name).
    pub fn call(&self, calls: &[(&str, &str)]) {
        self.push(None, Ok(tool_uses(calls)));
    }

    pub fn fail(&self, status: u16) {
        let failure =
            ModelFailure::new(ErrorClass::Transient, format!("provider returned HTTP {status}"));
        self.push(None, Err(failure.with_status(status).with_body("sorry")));
    }

    /// Fails, and asks to be left alone for a while.
    pub fn refuse(&self, status: u16, retry_after: Duration) {
        let failure = ModelFailure::new(ErrorClass::Transient, "slow down").with_status(status);
        self.push(None, Err(ModelFailure { retry_after: Some(retry_after), ..failure }));
    }

    /// Fails in a way that no further try cures.
    pub fn fail_for_good(&self, status: u16) {
        let failure = ModelFailure::new(ErrorClass::Permanent, "no such model");
        self.push(None, Err(failure.with_status(status)));
    }

    /// Says `text` once the sender fires; never when it is forgotten, at once when it is dropped.
    pub fn hold(&self, text: &str) -> oneshot::Sender<()> {
        let (release, held) = oneshot::channel();
        self.push(Some(held), Ok(vec![json!({"type": "text", "text": text})]));
        release
    }

    /// Panics when it is asked.
    pub fn panic(&self) {
        self.say("never said");
        self.steps.lock().unwrap().back_mut().unwrap().panics = true;
    }

    /// Shows these deltas in the next step that was added.
    pub fn showing(&self, deltas: &[&str]) {
        let mut steps = self.steps.lock().unwrap();
        let deltas = deltas.iter().map(|text| Delta::Text((*text).to_owned()));
        steps.back_mut().unwrap().deltas.extend(deltas);
    }

    /// Waits until the model was asked `n` times.
    pub async fn was_asked(&self, n: usize) {
        let mut calls = self.calls.subscribe();
        soon("a call of the model", calls.wait_for(|calls| *calls >= n)).await.unwrap();
    }

    pub fn calls(&self) -> usize {
        *self.calls.borrow()
    }

    /// The messages of the `n`th request.
    pub fn messages(&self, n: usize) -> Value {
        let asked = self.asked.lock().unwrap();
        let texts: Vec<String> =
            asked[n].messages.iter().map(|m| m.to_json().as_str().to_owned()).collect();
        serde_json::from_str(&format!("[{}]", texts.join(","))).unwrap()
    }

    /// System prompt and options of the `n`th request.
    pub fn generation(&self, n: usize) -> Value {
        let asked = self.asked.lock().unwrap();
        serde_json::from_str(asked[n].generation.to_json().as_str()).unwrap()
    }

    /// Whether images and files of the `n`th request were for the model.
    pub fn takes_media(&self, n: usize) -> bool {
        self.asked.lock().unwrap()[n].media
    }

    /// The names of the tools in the `n`th request.
    pub fn tools(&self, n: usize) -> Vec<String> {
        self.asked.lock().unwrap()[n].tools.iter().map(|tool| tool.name.clone()).collect()
    }
}

pub fn tool_uses(calls: &[(&str, &str)]) -> Vec<Value> {
    let call =
        |(id, name): &(&str, &str)| json!({"type":"tool_use","id":id,"name":name,"input":{"q":1}});
    calls.iter().map(call).collect()
}

impl Model for Stub {
    fn describe(&self) -> ModelDescription {
        ModelDescription {
            provider: self.name.clone(),
            base_url: format!("stub://{}", self.name),
            model: "stub-1".to_owned(),
            max_tokens: 64,
        }
    }

    fn call<'a>(&'a self, request: &'a ModelRequest, sink: &'a dyn DeltaSink) -> ModelFuture<'a> {
        self.asked.lock().unwrap().push(request.clone());
        let step = self.steps.lock().unwrap().pop_front();
        Box::pin(async move {
            let step = step.unwrap_or_else(|| Step {
                hold: None,
                deltas: Vec::new(),
                outcome: Ok(vec![json!({"type":"text","text":"ok"})]),
                panics: false,
            });
            assert!(!step.panics, "the model panics, as it was told");
            for delta in step.deltas {
                sink.delta(delta);
            }
            self.calls.send_modify(|calls| *calls += 1);
            if let Some(hold) = step.hold {
                let _ = hold.await;
            }
            let blocks = step.outcome?;
            let json = |value: &Value| Json::parse(value.to_string()).unwrap();
            Ok(ModelReply {
                content: blocks.iter().map(|block| Block::read(json(block))).collect(),
                body: json(&json!({"stub": true})),
                usage: Some(TokenUsage { input_tokens: 3, output_tokens: 2 }),
                finish_reason: "stop".to_owned(),
                truncated: false,
                warnings: 0,
            })
        })
    }
}

/// A service on a port of its own, with its database in a folder that goes with it.
pub struct World {
    pub addr: SocketAddr,
    pub service: Arc<Service>,
    pub main: Arc<Stub>,
    pub spare: Arc<Stub>,
    pub profile: String,
    pub config: Config,
    folder: Arc<tempfile::TempDir>,
    serving: JoinHandle<()>,
}

impl World {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(set: impl FnOnce(&mut Config)) -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let mut config = Config::default();
        config.addr = SocketAddr::from(([127, 0, 0, 1], 0));
        config.admin.addr = Some(config.addr);
        config.db_path = folder.path().join("broca.db");
        set(&mut config);
        Self::start(config, folder, None).await.furnished().await
    }

    /// A service over a store of the test's own.
    pub async fn over(config: Config, store: Arc<dyn broca_server::store::Store>) -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let (main, spare) = (Stub::new("main"), Stub::new("spare"));
        let (models, tools) = equipment(&main, &spare);
        let service = Service::over(config.clone(), store, models, tools).await.unwrap();
        Self::serve(service, config, folder, main, spare).await.furnished().await
    }

    /// A service whose main model is one of the test's own.
    pub async fn asking(model: Arc<dyn Model>, set: impl FnOnce(&mut Config)) -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let mut config = Config::default();
        config.addr = SocketAddr::from(([127, 0, 0, 1], 0));
        config.admin.addr = Some(config.addr);
        config.db_path = folder.path().join("broca.db");
        set(&mut config);
        let (main, spare) = (Stub::new("main"), Stub::new("spare"));
        let (mut models, tools) = equipment(&main, &spare);
        models.insert("main".to_owned(), model);
        let service = Service::open(config.clone(), models, tools).await.unwrap();
        Self::serve(service, config, folder, main, spare).await.furnished().await
    }

    async fn furnished(self) -> Self {
        let mut world = self;
        let profile = NewProfile {
            fallback_providers: vec!["spare".to_owned(), "ghost".to_owned()],
            ..NewProfile::permissive("main", "main")
        };
        world.profile = world.service.create_profile(profile).await.unwrap();
        world
    }

    async fn start(
        config: Config,
        folder: Arc<tempfile::TempDir>,
        stubs: Option<(Arc<Stub>, Arc<Stub>)>,
    ) -> Self {
        let (main, spare) = stubs.unwrap_or_else(|| (Stub::new("main"), Stub::new("spare")));
        let (models, tools) = equipment(&main, &spare);
        let service = Service::open(config.clone(), models, tools).await.unwrap();
        Self::serve(service, config, folder, main, spare).await
    }

    async fn serve(
        service: Service,
        config: Config,
        folder: Arc<tempfile::TempDir>,
        main: Arc<Stub>,
        spare: Arc<Stub>,
    ) -> Self {
        let service = Arc::new(service);
        let listener = service.bind().await.unwrap();
        let addr = listener.local_addr().unwrap();
        let served = Arc::clone(&service);
        let serving = tokio::spawn(async move { served.serve(listener).await });
        let profile = String::new();
        Self { addr, service, main, spare, profile, config, folder, serving }
    }

    /// A service on a database that is there, such as that of a process that was killed.
    pub async fn on(folder: tempfile::TempDir) -> Self {
        let mut config = Config::default();
        config.addr = SocketAddr::from(([127, 0, 0, 1], 0));
        config.admin.addr = Some(config.addr);
        config.db_path = folder.path().join("broca.db");
        Self::start(config, Arc::new(folder), None).await
    }

    /// The service goes down in order and comes back on the same database.
    pub async fn restart(self) -> Self {
        let Self { service, main, spare, profile, config, folder, serving, .. } = self;
        service.shutdown();
        soon("the shutdown", serving).await.unwrap();
        drop(service);
        // The last task that uses the database lets go of it shortly after.
        let began = std::time::Instant::now();
        let settings = broca_server::store::SqliteSettings::new(&config.db_path);
        while broca_server::store::SqliteStore::open(&settings).is_err() {
            assert!(began.elapsed() < PATIENCE, "the database stays in use");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut world = Self::start(config, folder, Some((main, spare))).await;
        world.profile = profile;
        world
    }

    /// The service goes down; what is left of it when the task that served has ended.
    pub async fn stop(self) -> Arc<Service> {
        self.service.shutdown();
        soon("the shutdown", self.serving).await.unwrap();
        self.service
    }

    /// A new client key: its id and plaintext.
    pub async fn key(&self) -> (String, String) {
        let made = self.service.create_client_key("test", &self.profile).await.unwrap();
        (made.id, made.key.expose().to_owned())
    }

    /// A new client that opens a session with these client tools and registers as a driver.
    pub async fn driver(&self, tools: &[&str]) -> Driver {
        let observer = self.open(tools).await;
        observer.register().await;
        observer
    }

    /// A new client that opens a session.
    pub async fn open(&self, tools: &[&str]) -> Driver {
        let (id, key) = self.key().await;
        let opened = self.post("/api/v1/sessions", &key, &open_body(tools)).await;
        assert_eq!(opened.status, 201, "{}", opened.text());
        Driver::of(self.addr, id, key, &opened.json())
    }

    /// A new client that opens a session with a body and features of its own.
    pub async fn open_with(&self, features: &str, body: &Value) -> Result<Driver, Answer> {
        let (id, key) = self.key().await;
        let mut headers = bearer(&key);
        headers.push(("Broca-Features".to_owned(), features.to_owned()));
        let body = body.to_string();
        let opened = exchange(self.addr, "POST", "/api/v1/sessions", &headers, Some(&body)).await;
        if opened.status != 201 {
            return Err(opened);
        }
        let driver = Driver::of(self.addr, id, key, &opened.json());
        driver.register().await;
        Ok(driver)
    }

    /// Another client that joins.
    pub async fn join(&self, other: &Driver, tools: &[&str]) -> Driver {
        let (id, key) = self.key().await;
        let path = format!("/api/v1/sessions/{}/join", other.session);
        let joined = self.post(&path, &key, &open_body(tools)).await;
        assert_eq!(joined.status, 201, "{}", joined.text());
        Driver::of(self.addr, id, key, &joined.json())
    }

    pub async fn post(&self, path: &str, key: &str, body: &Value) -> Answer {
        exchange(self.addr, "POST", path, &bearer(key), Some(&body.to_string())).await
    }

    pub async fn get(&self, path: &str, key: &str) -> Answer {
        exchange(self.addr, "GET", path, &bearer(key), None).await
    }

    /// The admin port, opened, and its key.
    pub async fn admin(&self) -> Admin {
        let made = self.service.establish_admin_key(false).await.unwrap();
        let AdminKey::Written(file) = made else { panic!("{made:?}") };
        let key = std::fs::read_to_string(file).unwrap().trim().to_owned();
        self.admin_with(key).await
    }

    /// The admin port, opened, for a key from before.
    pub async fn admin_with(&self, key: String) -> Admin {
        let listener = self.service.bind_admin().await.unwrap().unwrap();
        let addr = listener.local_addr().unwrap();
        let service = Arc::clone(&self.service);
        tokio::spawn(async move { service.serve_admin(listener).await });
        Admin { addr, key }
    }
}

/// The operator.
pub struct Admin {
    pub addr: SocketAddr,
    pub key: String,
}

impl Admin {
    pub async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        let path = format!("/admin/v1{path}");
        let body = body.map(|body| body.to_string());
        exchange(self.addr, method, &path, &bearer(&self.key), body.as_deref()).await
    }

    pub async fn get(&self, path: &str) -> Value {
        let answer = self.call("GET", path, None).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.call("POST", path, Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.call("DELETE", path, None).await
    }

    /// A list, page by page.
    pub async fn list(&self, path: &str, limit: usize) -> Vec<Value> {
        let mut items = Vec::new();
        let mut cursor = String::new();
        let mark = if path.contains('?') { '&' } else { '?' };
        loop {
            let page = self.get(&format!("{path}{mark}limit={limit}&cursor={cursor}")).await;
            items.extend(page["items"].as_array().unwrap().iter().cloned());
            match page["next_cursor"].as_str() {
                Some(next) => cursor = next.to_owned(),
                None => return items,
            }
        }
    }
}

fn equipment(main: &Arc<Stub>, spare: &Arc<Stub>) -> (Models, Vec<Arc<dyn ServerTool>>) {
    let mut models = Models::new();
    models.insert("main".to_owned(), main.clone());
    models.insert("spare".to_owned(), spare.clone());
    let clock = Clock::new(|| "2026-07-06T18:26:10.5Z".parse().unwrap());
    (models, vec![Arc::new(clock)])
}

fn open_body(tools: &[&str]) -> Value {
    let tool =
        |name: &&str| json!({"name": name, "description": "d", "input_schema": {"type":"object"}});
    json!({"client_version": "t/1", "tools": tools.iter().map(tool).collect::<Vec<_>>()})
}

pub fn bearer(key: &str) -> Vec<(String, String)> {
    vec![
        ("Authorization".to_owned(), format!("Bearer {key}")),
        ("Content-Type".to_owned(), "application/json".to_owned()),
    ]
}

/// A participant of a session.
#[derive(Clone)]
pub struct Driver {
    addr: SocketAddr,
    pub key_id: String,
    pub client_key: String,
    pub session: String,
    pub session_key: String,
}

impl Driver {
    fn of(addr: SocketAddr, key_id: String, client_key: String, opened: &Value) -> Self {
        let text = |name: &str| opened[name].as_str().unwrap().to_owned();
        let (session, session_key) = (text("session_id"), text("session_key"));
        Self { addr, key_id, client_key, session, session_key }
    }

    /// What another process needs to be this participant.
    pub fn written(&self) -> Value {
        json!({"addr": self.addr.to_string(), "key_id": self.key_id, "client_key": self.client_key,
               "session_id": self.session, "session_key": self.session_key})
    }

    /// The participant that another process has written down.
    pub fn read(written: &Value) -> Self {
        let text = |name: &str| written[name].as_str().unwrap().to_owned();
        Self::of(text("addr").parse().unwrap(), text("key_id"), text("client_key"), written)
    }

    /// The same participant after a restart.
    pub fn at(&self, world: &World) -> Self {
        Self { addr: world.addr, ..self.clone() }
    }

    pub fn path(&self, tail: &str) -> String {
        format!("/api/v1/sessions/{}{tail}", self.session)
    }

    pub async fn get(&self, tail: &str) -> Answer {
        exchange(self.addr, "GET", &self.path(tail), &bearer(&self.session_key), None).await
    }

    pub async fn close(&self) -> Answer {
        exchange(self.addr, "DELETE", &self.path(""), &bearer(&self.session_key), None).await
    }

    /// Sends a body to `/rpc` and reads the whole answer.
    pub async fn raw(&self, body: &str) -> Answer {
        exchange(self.addr, "POST", &self.path("/rpc"), &bearer(&self.session_key), Some(body))
            .await
    }

    /// Calls a method that answers with one line.
    pub async fn call(&self, method: &str, params: Value) -> Value {
        let body = json!({"jsonrpc":"2.0","id":1,"method":method,"params":params});
        let answer = self.raw(&body.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.lines().pop().unwrap()
    }

    /// Calls a method with features beyond the plain contract.
    pub async fn call_with(&self, features: &str, method: &str, params: Value) -> Value {
        self.open_stream(features, 1, method, params).await.rest().await.pop().unwrap()
    }

    pub async fn register(&self) {
        let answer = self.call("session.registerDriver", json!({})).await;
        assert_eq!(answer["result"], json!({"registered": true}), "{answer}");
    }

    /// Starts a method whose answer is a stream.
    pub async fn open_stream(&self, features: &str, id: i64, method: &str, params: Value) -> Lines {
        let body = json!({"jsonrpc":"2.0","id":id,"method":method,"params":params});
        let mut headers = bearer(&self.session_key);
        if !features.is_empty() {
            headers.push(("Broca-Features".to_owned(), features.to_owned()));
        }
        let path = self.path("/rpc");
        let stream = begin(self.addr, "POST", &path, &headers, Some(&body.to_string())).await;
        Lines::of(stream).await
    }

    pub async fn send(&self, content: impl Into<Value>) -> Lines {
        self.send_with("", 7, content).await
    }

    pub async fn send_with(&self, features: &str, id: i64, content: impl Into<Value>) -> Lines {
        let params = json!({"message": {"role": "user", "content": content.into()}});
        self.open_stream(features, id, "session.sendMessage", params).await
    }

    /// Sends a message and gives the terminal line.
    pub async fn ask(&self, content: impl Into<Value>) -> Value {
        self.send(content).await.rest().await.pop().unwrap()
    }

    pub async fn results(&self, ids: &[&str]) -> Lines {
        self.send(tool_results(ids)).await
    }

    pub async fn subscribe(&self, since: Option<&str>) -> Lines {
        self.subscribe_with("", since).await
    }

    pub async fn subscribe_with(&self, features: &str, since: Option<&str>) -> Lines {
        let params = since.map_or_else(|| json!({}), |id| json!({"since_event_id": id}));
        self.open_stream(features, 9, "session.subscribe", params).await
    }

    /// The whole log.
    pub async fn log(&self) -> Vec<Value> {
        let mut events = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = self.get(&format!("/events?limit=200&cursor={cursor}")).await.json();
            events.extend(page["items"].as_array().unwrap().iter().cloned());
            match page["next_cursor"].as_str() {
                Some(next) => cursor = next.to_owned(),
                None => return events,
            }
        }
    }

    pub async fn log_types(&self) -> Vec<String> {
        types(&self.log().await)
    }
}

pub fn tool_results(ids: &[&str]) -> Value {
    let result =
        |id: &&str| json!({"type":"tool_result","tool_use_id":id,"content":format!("r-{id}")});
    ids.iter().map(result).collect()
}

/// The types of events, given as views or as notification lines.
pub fn types(events: &[Value]) -> Vec<String> {
    let kind = |event: &Value| {
        let view = event.get("params").unwrap_or(event);
        view["event_type"].as_str().unwrap_or_default().to_owned()
    };
    events.iter().map(kind).filter(|kind| !kind.is_empty()).collect()
}
