//! Tools with handlers: the declaration from the handler's argument type, arguments decoded, results encoded,
//! faults and panics turned into texts that the model can read (design §4, guarantees 1 and 2).

use crate::engine;
use broca_proto::session::content::Content;
use broca_proto::session::narrow::{NarrowRule, NarrowRules};
use broca_proto::session::tool::Tool as Declared;
use broca_proto::session::turn::NO_RESULT;
use broca_proto::{Error, ErrorKind, Json};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// A tool of this program: what the model is told about it, and what runs when it is called.
///
/// ```
/// # use broca::tools::Tool;
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct ReadFile {
///     /// Path of the file, relative to the project.
///     path: String,
/// }
///
/// let tool = Tool::function("read_file", "Return the text of a file.", |args: ReadFile| async move {
///     std::fs::read_to_string(args.path)
/// })
/// .sequential();
/// ```
///
/// The arguments are a struct; its JSON Schema is what the model sees, doc comments included. A
/// handler returns anything that can be serialized: a string goes to the model as it is, everything
/// else as JSON text. An error's `Display` text, arguments that do not fit, and a panic become a failed call.
#[derive(Clone)]
pub struct Tool {
    declared: Declared,
    narrow: Vec<(String, NarrowRule)>,
    handler: Handler,
    fault: Option<String>,
}

/// How a tool's calls are answered.
#[derive(Clone)]
pub(crate) enum Handler {
    #[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "refused by the blocking shell"))]
    Async(Arc<AsyncHandler>),
    Blocking(Arc<BlockingHandler>),
    /// The application answers each [`ToolCall`](crate::steps::ToolCall) itself.
    Manual,
}

pub(crate) type Answered = Result<Json, String>;
pub(crate) type Running = Pin<Box<dyn Future<Output = Answered> + Send>>;
type AsyncHandler = dyn Fn(Json, ToolContext) -> Running + Send + Sync;
type BlockingHandler = dyn Fn(Json, ToolContext) -> Answered + Send + Sync;

/// The argument type of tools that take no arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct NoArguments {}

impl Tool {
    /// A tool run by an async function, as a task of its own.
    pub fn function<A, T, E, F, R>(
        name: impl Into<String>,
        description: impl Into<String>,
        run: F,
    ) -> Self
    where
        A: DeserializeOwned + JsonSchema,
        T: Serialize,
        E: fmt::Display,
        F: Fn(A) -> R + Send + Sync + 'static,
        R: Future<Output = Result<T, E>> + Send + 'static,
    {
        Self::function_with_context(name, description, move |arguments, _| run(arguments))
    }

    /// As [`Tool::function`]; the function is also told about its call.
    pub fn function_with_context<A, T, E, F, R>(
        name: impl Into<String>,
        description: impl Into<String>,
        run: F,
    ) -> Self
    where
        A: DeserializeOwned + JsonSchema,
        T: Serialize,
        E: fmt::Display,
        F: Fn(A, ToolContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<T, E>> + Send + 'static,
    {
        let handler = move |input: Json, context: ToolContext| -> Running {
            match arguments(&input) {
                Ok(arguments) => {
                    let running = run(arguments, context);
                    Box::pin(async move { answered(running.await) })
                }
                Err(fault) => Box::pin(std::future::ready(Err(fault))),
            }
        };
        Self::typed::<A>(name, description, Handler::Async(Arc::new(handler)))
    }

    /// A tool run by a function that may block, on a thread for such work.
    pub fn blocking<A, T, E, F>(
        name: impl Into<String>,
        description: impl Into<String>,
        run: F,
    ) -> Self
    where
        A: DeserializeOwned + JsonSchema,
        T: Serialize,
        E: fmt::Display,
        F: Fn(A) -> Result<T, E> + Send + Sync + 'static,
    {
        Self::blocking_with_context(name, description, move |arguments, _| run(arguments))
    }

    /// As [`Tool::blocking`]; the function is also told about its call.
    pub fn blocking_with_context<A, T, E, F>(
        name: impl Into<String>,
        description: impl Into<String>,
        run: F,
    ) -> Self
    where
        A: DeserializeOwned + JsonSchema,
        T: Serialize,
        E: fmt::Display,
        F: Fn(A, ToolContext) -> Result<T, E> + Send + Sync + 'static,
    {
        let handler = move |input: Json, context| answered(run(arguments(&input)?, context));
        Self::typed::<A>(name, description, Handler::Blocking(Arc::new(handler)))
    }

    /// A tool with a schema made elsewhere and raw arguments, run by a function that may block. The
    /// result is what the model gets: a JSON string, or an array of content blocks.
    pub fn raw(
        name: impl Into<String>,
        description: impl Into<String>,
        input_schema: Json,
        run: impl Fn(Json, ToolContext) -> Result<Json, String> + Send + Sync + 'static,
    ) -> Self {
        let handler = Handler::Blocking(Arc::new(run));
        Self::of_schema(Declared::new(name, description, input_schema), handler)
    }

    /// A tool whose calls the application answers itself, with
    /// [`ToolCall::complete`](crate::steps::ToolCall::complete) or
    /// [`ToolCall::fail`](crate::steps::ToolCall::fail).
    pub fn manual(
        name: impl Into<String>,
        description: impl Into<String>,
        input_schema: Json,
    ) -> Self {
        Self::of_schema(Declared::new(name, description, input_schema), Handler::Manual)
    }

    /// Never runs beside another sequential tool.
    #[must_use]
    pub fn sequential(mut self) -> Self {
        self.declared.sequential = true;
        self
    }

    /// Limits the time of one call; a call over it is answered as timed out, and told to stop.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.declared.timeout_ms = Some(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Asks before each call.
    #[must_use]
    pub fn approval(mut self) -> Self {
        self.declared.approval = true;
        self
    }

    /// Lets an approval narrow the arguments at this JSON pointer, as the rule says. Implies nothing else: without
    /// [`Tool::approval`] nobody is asked.
    #[must_use]
    pub fn narrow(mut self, pointer: impl Into<String>, rule: NarrowRule) -> Self {
        self.narrow.push((pointer.into(), rule));
        self.declared.narrow = NarrowRules::new(self.narrow.clone());
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.declared.name()
    }

    /// The schema of its arguments.
    #[must_use]
    pub fn input_schema(&self) -> &Json {
        &self.declared.declaration.input_schema
    }

    pub(crate) fn handler(&self) -> &Handler {
        &self.handler
    }

    pub(crate) fn typed<A: JsonSchema>(
        name: impl Into<String>,
        description: impl Into<String>,
        handler: Handler,
    ) -> Self {
        match schema_of::<A>() {
            Ok(schema) => Self::of_schema(Declared::new(name, description, schema), handler),
            Err(fault) => {
                let declared = Declared::new(name, description, Json::empty_object());
                Self { declared, narrow: Vec::new(), handler, fault: Some(fault) }
            }
        }
    }

    fn of_schema(declared: Declared, handler: Handler) -> Self {
        let schema = &declared.declaration.input_schema;
        let fault = (!is_object_schema(schema))
            .then(|| "its arguments must be an object: use a struct, or NoArguments".to_owned());
        Self { declared, narrow: Vec::new(), handler, fault }
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let run_by = match self.handler {
            Handler::Async(_) => "a task",
            Handler::Blocking(_) => "a thread",
            Handler::Manual => "the application",
        };
        write!(f, "Tool({}, run by {run_by})", self.name())
    }
}

/// The tools of a session, by name.
#[derive(Debug, Clone, Default)]
pub(crate) struct ToolSet(Vec<Tool>);

impl ToolSet {
    /// Checks the tools.
    pub(crate) fn new(tools: Vec<Tool>, asynchronous: bool) -> Result<Self, Error> {
        for (i, tool) in tools.iter().enumerate() {
            let name = tool.name();
            let refuse =
                |kind, why: &str| Err(Error::new(kind, format!("the tool \"{name}\": {why}")));
            if name.is_empty() {
                return refuse(ErrorKind::InvalidArgument, "a tool needs a name");
            }
            if tools[..i].iter().any(|other| other.name() == name) {
                return refuse(ErrorKind::InvalidArgument, "two tools have this name");
            }
            if let Some(fault) = &tool.fault {
                return refuse(ErrorKind::InvalidArgument, fault);
            }
            if !asynchronous && matches!(tool.handler, Handler::Async(_)) {
                let why = "an async function needs the tokio client; use Tool::blocking here";
                return refuse(ErrorKind::Usage, why);
            }
        }
        Ok(Self(tools))
    }

    /// What the engine has to know of them.
    pub(crate) fn declared(&self) -> Vec<Declared> {
        self.0.iter().map(|tool| tool.declared.clone()).collect()
    }

    /// The handler of the tool `name`; a name nobody knows is the application's to answer.
    pub(crate) fn handler(&self, name: &str) -> &Handler {
        self.0.iter().find(|tool| tool.name() == name).map_or(&Handler::Manual, Tool::handler)
    }
}

/// What a handler may want to know about its call.
#[derive(Debug, Clone)]
pub struct ToolContext {
    tool_use_id: String,
    idempotency_key: String,
    may_have_run: bool,
    signal: CancelSignal,
}

impl ToolContext {
    pub(crate) fn new(call: &engine::ToolCall, signal: CancelSignal) -> Self {
        Self {
            tool_use_id: call.tool_use_id.clone(),
            idempotency_key: call.idempotency_key.clone(),
            may_have_run: call.may_have_run,
            signal,
        }
    }

    /// The call's id in the conversation.
    #[must_use]
    pub fn tool_use_id(&self) -> &str {
        &self.tool_use_id
    }

    /// The same for every attempt at this call: hand it to whatever must not happen twice.
    #[must_use]
    pub fn idempotency_key(&self) -> &str {
        &self.idempotency_key
    }

    /// Whether the program that had the session before may have run this call.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        self.may_have_run
    }

    /// Whether the call's answer still counts.
    #[must_use]
    pub fn cancel_signal(&self) -> &CancelSignal {
        &self.signal
    }

    /// Waits until the call is cancelled.
    #[must_use]
    pub fn cancelled(&self) -> Cancelled {
        self.signal.cancelled()
    }
}

/// Says that a call was cancelled: its turn was, or its time is over. The handler should stop; what it answers no
/// longer counts.
#[derive(Debug, Clone, Default)]
pub struct CancelSignal(Arc<Signal>);

#[derive(Debug, Default)]
struct Signal {
    raised: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
    change: Condvar,
}

impl CancelSignal {
    /// Whether the call was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.raised.load(Ordering::Acquire)
    }

    /// Waits until the call is cancelled.
    #[must_use]
    pub fn cancelled(&self) -> Cancelled {
        Cancelled(self.clone())
    }

    /// Blocks until the call is cancelled, at most for `limit`; says whether it was.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> bool {
        let until = Instant::now().checked_add(limit);
        let mut guard = self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.is_cancelled() {
            let left = until.map_or(limit, |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            let waited = self.0.change.wait_timeout(guard, left);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    pub(crate) fn raise(&self) {
        let wakers = {
            let mut wakers = self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner);
            self.0.raised.store(true, Ordering::Release);
            self.0.change.notify_all();
            std::mem::take(&mut *wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// The future of [`CancelSignal::cancelled`].
#[derive(Debug)]
pub struct Cancelled(CancelSignal);

impl Future for Cancelled {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let signal = &self.0.0;
        let mut wakers = signal.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        if signal.raised.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// Runs a blocking handler; a panic becomes a failure.
pub(crate) fn run_caught(run: &BlockingHandler, input: Json, context: ToolContext) -> Answered {
    let call = std::panic::AssertUnwindSafe(|| run(input, context));
    std::panic::catch_unwind(call).unwrap_or_else(|panic| Err(panicked(&*panic))).and_then(result)
}

/// What a handler returned, if it is a result: no call is left without its answer.
fn result(content: Json) -> Answered {
    if Content::is_result(&content) { Ok(content) } else { Err(NO_RESULT.to_owned()) }
}

/// Runs an async handler; a panic becomes a failure.
#[cfg(feature = "tokio")]
pub(crate) async fn run_caught_async(
    run: Arc<AsyncHandler>,
    input: Json,
    context: ToolContext,
) -> Answered {
    let call = std::panic::AssertUnwindSafe(|| run(input, context));
    match std::panic::catch_unwind(call) {
        Ok(running) => match catch(running).await {
            Ok(answered) => answered.and_then(result),
            Err(panic) => Err(panicked(&*panic)),
        },
        Err(panic) => Err(panicked(&*panic)),
    }
}

/// Polls a future; a panic ends it with what was thrown.
#[cfg(feature = "tokio")]
pub(crate) async fn catch<T>(
    mut running: Pin<Box<dyn Future<Output = T> + Send>>,
) -> Result<T, Box<dyn Any + Send>> {
    std::future::poll_fn(move |cx| {
        let poll = std::panic::AssertUnwindSafe(|| running.as_mut().poll(cx));
        match std::panic::catch_unwind(poll) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await
}

/// The panic's own text may hold anything, so the model gets none of it; the panic hook has printed it.
fn panicked(_: &(dyn Any + Send)) -> String {
    "the tool panicked".to_owned()
}

pub(crate) fn arguments<A: DeserializeOwned>(input: &Json) -> Result<A, String> {
    let mut reader = serde_json::Deserializer::from_slice(input.as_bytes());
    serde_path_to_error::deserialize(&mut reader).map_err(|fault| {
        let path = fault.path().to_string();
        let place = if path == "." { String::new() } else { format!(" at `{path}`") };
        format!("the arguments do not fit{place}: {}", fault.into_inner())
    })
}

fn answered<T: Serialize, E: fmt::Display>(result: Result<T, E>) -> Answered {
    let value = result.map_err(|e| e.to_string())?;
    content_of(&value).map_err(|e| e.message().to_owned())
}

/// A tool's result as the model gets it: a string as it is, everything else as JSON text.
pub(crate) fn content_of(value: &(impl Serialize + ?Sized)) -> Result<Json, Error> {
    let json = Json::encode(value).map_err(|e| {
        Error::new(ErrorKind::InvalidArgument, format!("the result is no JSON: {}", e.reason))
    })?;
    let is_string = json.as_bytes().first() == Some(&b'"');
    Ok(if is_string { json } else { Json::string(json.as_str()) })
}

/// The schema of `A` as models take it: one object, subschemas in place, without the meta schema's name.
fn schema_of<A: JsonSchema>() -> Result<Json, String> {
    let settings = schemars::generate::SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<A>();
    schema.remove("title");
    if schema.get("type").and_then(|t| t.as_str()) == Some("object") {
        // Some models insist on it.
        let none = serde_json::Value::Object(serde_json::Map::new());
        schema.ensure_object().entry("properties").or_insert(none);
    }
    Json::encode(&schema).map_err(|e| format!("its schema cannot be written: {}", e.reason))
}

fn is_object_schema(schema: &Json) -> bool {
    schema.member("type").and_then(|t| t.to_text()).as_deref() == Some("object")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize, JsonSchema)]
    #[allow(dead_code)]
    struct Search {
        /// What to look for.
        query: String,
        #[serde(default)]
        limit: Option<u32>,
        #[serde(default)]
        within: Vec<Place>,
    }

    #[derive(Deserialize, JsonSchema)]
    #[allow(dead_code)]
    struct Place {
        path: String,
    }

    fn context() -> ToolContext {
        ToolContext {
            tool_use_id: "tu_1".into(),
            idempotency_key: "k".into(),
            may_have_run: false,
            signal: CancelSignal::default(),
        }
    }

    fn run(tool: &Tool, input: &str) -> Answered {
        let Handler::Blocking(handler) = tool.handler() else { panic!("a blocking tool") };
        run_caught(&**handler, Json::parse(input.to_owned()).unwrap(), context())
    }

    fn search(answer: Result<&'static str, &'static str>) -> Tool {
        Tool::blocking("search", "Searches.", move |_: Search| answer)
    }

    #[test]
    fn the_schema_is_an_object_with_the_fields_and_their_comments() {
        let schema: serde_json::Value = search(Ok("")).input_schema().decode().unwrap();
        assert_eq!(schema["type"], "object");
        assert_eq!(schema["properties"]["query"]["description"], "What to look for.");
        assert_eq!(schema["required"], serde_json::json!(["query"]));
        let place = &schema["properties"]["within"]["items"];
        assert_eq!(place["properties"]["path"]["type"], "string", "inlined: {schema}");
        assert!(schema.get("$schema").is_none());
        let none = Tool::blocking("now", "", |_: NoArguments| Ok::<_, String>(""));
        assert_eq!(none.input_schema().member("properties").unwrap().as_str(), "{}");
    }

    #[test]
    fn arguments_that_do_not_fit_are_refused_by_field() {
        let tool = search(Ok("never"));
        let missing = run(&tool, "{}").unwrap_err();
        assert!(missing.contains("`query`"), "{missing}");
        let nested = run(&tool, r#"{"query":"x","within":[{"path":"a"},{"path":5}]}"#).unwrap_err();
        assert!(nested.contains("`within[1].path`"), "{nested}");
    }

    #[test]
    fn what_a_raw_tool_returns_is_a_failure_unless_it_is_a_result() {
        let raw = |result: &'static str| {
            let json = Json::parse(result.to_owned()).unwrap();
            run(&Tool::raw("t", "", Json::empty_object(), move |_, _| Ok(json.clone())), "{}")
        };
        assert_eq!(raw("5").unwrap_err(), NO_RESULT);
        assert_eq!(raw(r#"[{"type":"text"}]"#).unwrap().as_str(), r#"[{"type":"text"}]"#);
    }

    #[test]
    fn strings_go_as_they_are_and_everything_else_as_json_text() {
        assert_eq!(run(&search(Ok("found")), r#"{"query":"x"}"#).unwrap().as_str(), r#""found""#);
        let numbers = Tool::blocking("n", "", |_: NoArguments| Ok::<_, String>(vec![1, 2]));
        assert_eq!(run(&numbers, "{}").unwrap().as_str(), r#""[1,2]""#);
    }

    #[test]
    fn a_failure_is_its_text_and_a_panic_is_a_failure() {
        assert_eq!(run(&search(Err("no index")), r#"{"query":"x"}"#).unwrap_err(), "no index");
        let bad = Tool::blocking("bad", "", |_: NoArguments| -> Result<(), String> {
            panic!("secret detail")
        });
        assert_eq!(run(&bad, "{}").unwrap_err(), "the tool panicked");
    }

    #[test]
    fn tools_that_cannot_work_are_refused_by_name() {
        let text = Tool::blocking("text", "", |s: String| Ok::<_, String>(s));
        let lazy = Tool::function("lazy", "", |_: NoArguments| async { Ok::<_, String>("") });
        let refused = |tools: Vec<Tool>| ToolSet::new(tools, false).unwrap_err();
        assert!(refused(vec![text]).message().contains("\"text\""));
        assert_eq!(refused(vec![lazy.clone()]).kind(), ErrorKind::Usage);
        assert!(ToolSet::new(vec![lazy], true).is_ok());
        assert!(refused(vec![search(Ok("")), search(Ok(""))]).message().contains("two tools"));
    }

    #[test]
    fn a_signal_wakes_who_waits_for_it() {
        let signal = CancelSignal::default();
        assert!(!signal.wait(Duration::from_millis(1)));
        let other = signal.clone();
        let waiting = std::thread::spawn(move || other.wait(Duration::from_secs(30)));
        signal.raise();
        assert!(waiting.join().unwrap());
        assert!(signal.is_cancelled());
    }
}
