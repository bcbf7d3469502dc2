//! `--tool NAME=COMMAND`: programs brought as tools.
//!
//! A program gets the arguments as JSON on its standard input; its standard output is the result. It
//! runs in a process group of its own, so that an interrupt at the terminal does not reach it by itself
//! and that stopping it stops what it started.

use crate::arguments::ChatArguments;
use crate::fault::{Fault, one_line};
use broca::tools::Tool;
use broca::{Ask, Json};
use serde::Deserialize;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

/// How much of the error output is kept: its end.
const STDERR_TAIL_BYTES: usize = 2_000;

/// How long a program that was told to stop may take before it is killed.
const STOP_GRACE: Duration = Duration::from_millis(500);

/// How long the output may stay open after the program itself has ended.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// The largest `--tool-file`.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// A program that is a tool.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    name: String,
    command: String,
    description: String,
    input_schema: Json,
    /// Somebody must agree to each call.
    asks: bool,
}

/// Bounds of one call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// The time it may take.
    pub(crate) timeout: Duration,
    /// The bytes it may print.
    pub(crate) output_bytes: usize,
}

/// What a call came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The result.
    Done(String),
    /// Why there is none; the model reads it.
    Failed(String),
    /// It was stopped: nobody wants its result.
    Stopped,
}

/// What `--ask` says for all tools.
const EVERY_TOOL: &str = "*";

/// One call of a program.
#[derive(Debug)]
pub(crate) struct Invocation {
    pub(crate) input: Json,
    pub(crate) idempotency_key: String,
    pub(crate) tool_use_id: String,
}

/// The tools that the arguments bring, in their order.
///
/// # Errors
/// Wrong usage, naming the tool or the file.
pub(crate) fn brought(arguments: &ChatArguments) -> Result<Vec<Arc<Program>>, Fault> {
    let described = match &arguments.tool_file {
        Some(path) => read_file(path)?,
        None => Vec::new(),
    };
    let mut commands = Vec::new();
    for given in &arguments.tool {
        commands.push(named(given)?);
    }
    for tool in &described {
        if let Some(command) = &tool.command {
            commands.push((tool.name.clone(), command.clone()));
        }
    }
    let is_asked = |name: &str| arguments.ask.iter().any(|ask| ask == name || ask == EVERY_TOOL);
    let mut programs: Vec<Arc<Program>> = Vec::new();
    for (name, command) in commands {
        if programs.iter().any(|program| program.name == name) {
            return Err(Fault::usage(
                format!("two commands are given for the tool \"{name}\""),
                "leave one of them out",
            ));
        }
        let about = described.iter().find(|tool| tool.name == name);
        let asks = is_asked(&name) || about.is_some_and(|about| about.ask);
        programs.push(Arc::new(Program::new(name, command, about, asks)));
    }
    if let Some(tool) = described.iter().find(|t| !programs.iter().any(|p| p.name == t.name)) {
        let name = &tool.name;
        return Err(Fault::usage(
            format!("the tool \"{name}\" of the tool file has no command"),
            format!("add --tool {name}=COMMAND, or \"command\" in the file"),
        ));
    }
    if arguments.session.is_some()
        && let Some(name) = asked_of_service(arguments, &programs).names().first()
    {
        return Err(Fault::usage(
            format!("--ask {}: there is no such tool", one_line(name, 80)),
            "name a tool that is brought with --tool or --tool-file, or '*' for all of them; which of the service's own are asked \
             for was said when the session was opened",
        ));
    }
    Ok(programs)
}

/// Which tools of the service are to be asked for: what `--ask` names beside the tools that were brought.
pub(crate) fn asked_of_service(arguments: &ChatArguments, programs: &[Arc<Program>]) -> Ask {
    let is_there = |ask: &str| programs.iter().any(|program| program.name == ask);
    let others = arguments.ask.iter().filter(|ask| !is_there(ask)).map(String::as_str);
    Ask::parse(&others.collect::<Vec<_>>().join(","))
}

impl Program {
    fn new(name: String, command: String, about: Option<&Described>, asks: bool) -> Self {
        let description = about.and_then(|about| about.description.clone());
        let schema = about.and_then(|about| about.input_schema.clone());
        Self {
            description: description.unwrap_or_else(|| format!("Runs {command}.")),
            input_schema: schema.unwrap_or_else(open_schema),
            name,
            command,
            asks,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The tool as the session declares it. Its calls are answered by whoever runs the program.
    pub(crate) fn declare(&self, bounds: Bounds) -> Tool {
        let tool = Tool::manual(&self.name, &self.description, self.input_schema.clone())
            .timeout(bounds.timeout);
        if self.asks { tool.approval() } else { tool }
    }

    /// Runs the program once. `stop` resolves when its result is no longer wanted; dropping the
    /// future kills it.
    pub(crate) async fn run(
        &self,
        call: Invocation,
        bounds: Bounds,
        stop: impl Future<Output = ()>,
    ) -> Ended {
        let mut command = shell(&self.command);
        command
            .env("BROCA_TOOL_NAME", &self.name)
            .env("BROCA_TOOL_USE_ID", &call.tool_use_id)
            .env("BROCA_IDEMPOTENCY_KEY", &call.idempotency_key)
            // The keys of this program are not the tool's.
            .env_remove("BROCA_CLIENT_KEY")
            .env_remove("BAE_CLIENT_KEY")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        own_group(&mut command);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(e) => return Ended::Failed(format!("The program could not be started: {e}.")),
        };
        let group = Group::of(&child);
        let outcome = {
            let working = work(&mut child, &call.input, bounds.output_bytes);
            tokio::select! {
                outcome = working => Some(outcome),
                () = stop => None,
            }
        };
        match outcome {
            Some(outcome) => {
                if !outcome.complete {
                    group.kill();
                }
                group.release();
                outcome.ended()
            }
            None => {
                group.end();
                // Whether it listened or not, it is killed with everything it has started.
                let _listened = tokio::time::timeout(STOP_GRACE, child.wait()).await;
                group.kill();
                let _reaped = child.wait().await;
                group.release();
                Ended::Stopped
            }
        }
    }
}

/// What a program left behind.
struct Worked {
    status: io::Result<ExitStatus>,
    out: Vec<u8>,
    errors: Vec<u8>,
    /// More than the bound came.
    too_much: Option<usize>,
    /// Nothing of it is running any more, as far as its output tells.
    complete: bool,
}

impl Worked {
    fn ended(self) -> Ended {
        if let Some(limit) = self.too_much {
            return Ended::Failed(format!(
                "The program printed more than {limit} bytes and was stopped; have it print less, or raise --tool-output."
            ));
        }
        let status = match self.status {
            Ok(status) => status,
            Err(e) => return Ended::Failed(format!("The program could not be waited for: {e}.")),
        };
        if !status.success() {
            let said = String::from_utf8_lossy(&self.errors);
            let said = said.trim();
            let why = told(status);
            return Ended::Failed(if said.is_empty() {
                format!("{why}.")
            } else {
                format!("{why}: {said}")
            });
        }
        match String::from_utf8(self.out) {
            Ok(text) => Ended::Done(text.trim_end_matches(['\n', '\r']).to_owned()),
            Err(e) => Ended::Failed(format!(
                "The program printed {} bytes that are no UTF-8 text.",
                e.as_bytes().len()
            )),
        }
    }
}

/// Feeds the program and reads it until it and its output have ended.
async fn work(child: &mut Child, input: &Json, limit: usize) -> Worked {
    let stdin = child.stdin.take();
    let feed = async move {
        if let Some(mut stdin) = stdin {
            // A program need not read its arguments, and may end before it has.
            let _unread = stdin.write_all(input.as_bytes()).await;
            let _unread = stdin.write_all(b"\n").await;
        }
    };
    let (out, errors) = (child.stdout.take(), child.stderr.take());
    let (mut out_text, mut error_text) = (Vec::new(), Vec::new());
    let mut worked = {
        let reading = async {
            tokio::join!(read_up_to(out, limit, &mut out_text), read_tail(errors, &mut error_text))
                .0
        };
        let mut reading = std::pin::pin!(reading);
        let mut feed = std::pin::pin!(feed);
        let mut too_much = None;
        let (mut fed, mut read, mut status) = (false, false, None);
        while status.is_none() && too_much.is_none() {
            tokio::select! {
                () = &mut feed, if !fed => fed = true,
                whole = &mut reading, if !read => {
                    read = true;
                    too_much = (!whole).then_some(limit);
                }
                ended = child.wait() => status = Some(ended),
            }
        }
        if !read && too_much.is_none() {
            // Something it started may hold the output open for ever.
            match tokio::time::timeout(OUTPUT_GRACE, &mut reading).await {
                Ok(true) => read = true,
                Ok(false) => too_much = Some(limit),
                Err(_late) => {}
            }
        }
        let status = status.unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()));
        let complete = read && too_much.is_none();
        Worked { status, out: Vec::new(), errors: Vec::new(), too_much, complete }
    };
    worked.out = out_text;
    worked.errors = error_text;
    worked
}

/// Reads to the end; false as soon as there is more than `limit`.
async fn read_up_to(
    from: Option<impl AsyncRead + Unpin>,
    limit: usize,
    into: &mut Vec<u8>,
) -> bool {
    let Some(from) = from else { return true };
    let bound = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    // What was read before an error is what there is.
    let _broken = from.take(bound).read_to_end(into).await;
    into.len() <= limit
}

/// Reads to the end and keeps the last bytes.
async fn read_tail(from: Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) {
    let Some(mut from) = from else { return };
    let mut block = [0; 4096];
    while let Ok(n) = from.read(&mut block).await {
        if n == 0 {
            return;
        }
        into.extend_from_slice(&block[..n]);
        if into.len() > STDERR_TAIL_BYTES {
            into.drain(..into.len() - STDERR_TAIL_BYTES);
        }
    }
}

fn told(status: ExitStatus) -> String {
    match status.code() {
        Some(126) => "The program ended with status 126 (it cannot be executed)".to_owned(),
        Some(127) => "The program ended with status 127 (command not found)".to_owned(),
        Some(code) => format!("The program ended with status {code}"),
        None => format!("The program was ended by a signal ({status})"),
    }
}

#[cfg(unix)]
fn shell(command: &str) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command);
    shell
}

#[cfg(windows)]
fn shell(command: &str) -> Command {
    let mut shell = Command::new("cmd");
    shell.raw_arg("/C").raw_arg(command);
    shell
}

#[cfg(unix)]
fn own_group(command: &mut Command) {
    command.process_group(0);
}

#[cfg(not(unix))]
fn own_group(_: &mut Command) {}

/// The process group of a program. Dropped before it is released, it is killed.
struct Group {
    #[cfg(unix)]
    leader: Option<rustix::process::Pid>,
}

#[cfg(unix)]
impl Group {
    fn of(child: &Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self { leader: id.and_then(rustix::process::Pid::from_raw) }
    }

    /// Asks it to end.
    fn end(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    /// Ends it.
    fn kill(&self) {
        self.signal(rustix::process::Signal::KILL);
    }

    /// It is over, or goes on by its own leave: let it be.
    fn release(mut self) {
        self.leader = None;
    }

    fn signal(&self, signal: rustix::process::Signal) {
        if let Some(leader) = self.leader {
            // Gone already is as good.
            let _gone = rustix::process::kill_process_group(leader, signal);
        }
    }
}

#[cfg(unix)]
impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Without process groups only the program itself is stopped, by `kill_on_drop`.
#[cfg(not(unix))]
impl Group {
    fn of(_: &Child) -> Self {
        Self {}
    }
    fn end(&self) {}
    fn kill(&self) {}
    fn release(self) {}
}

/// An entry of the tool file.
#[derive(Debug, Deserialize)]
struct Described {
    name: String,
    description: Option<String>,
    input_schema: Option<Json>,
    command: Option<String>,
    #[serde(default)]
    ask: bool,
}

fn read_file(path: &Path) -> Result<Vec<Described>, Fault> {
    let shown = path.display();
    let unreadable = |e: io::Error| {
        Fault::usage(format!("the tool file {shown} cannot be read: {e}"), "check the path")
    };
    let about = fs::metadata(path).map_err(unreadable)?;
    if about.len() > MAX_FILE_BYTES {
        return Err(Fault::usage(
            format!("the tool file {shown} is larger than {MAX_FILE_BYTES} bytes"),
            "shorten it",
        ));
    }
    let text = fs::read(path).map_err(unreadable)?;
    let tools: Vec<Described> = serde_json::from_slice(&text).map_err(|e| {
        Fault::usage(
            format!("the tool file {shown} cannot be used: {e}"),
            "write [{\"name\": …, \"description\": …, \"input_schema\": {…}}, …]",
        )
    })?;
    for tool in &tools {
        if tool.input_schema.as_ref().is_some_and(|schema| !schema.is_object()) {
            return Err(Fault::usage(
                format!("the input_schema of \"{}\" in {shown} is no object", tool.name),
                "write a JSON Schema, such as {\"type\": \"object\"}",
            ));
        }
    }
    Ok(tools)
}

fn named(given: &str) -> Result<(String, String), Fault> {
    match given.split_once('=').map(|(name, command)| (name.trim(), command.trim())) {
        Some((name, command)) if !name.is_empty() && !command.is_empty() => {
            Ok((name.to_owned(), command.to_owned()))
        }
        _ => Err(Fault::usage(
            format!("--tool {} is not NAME=COMMAND", one_line(given, 80)),
            "write for example --tool count='wc -w'",
        )),
    }
}

/// Any object with one text: what the model wants to say in words.
fn open_schema() -> Json {
    const OPEN: &str = r#"{"type":"object","properties":{"input":{"type":"string","description":"What to run it on."}},"required":["input"]}"#;
    Json::parse(OPEN).unwrap_or_else(|_| Json::empty_object())
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;
    use std::time::Instant;

    const BOUNDS: Bounds = Bounds { timeout: Duration::from_secs(30), output_bytes: 1024 };

    fn program(command: &str) -> Program {
        Program::new("probe".to_owned(), command.to_owned(), None, false)
    }

    fn invocation(input: &str) -> Invocation {
        Invocation {
            input: Json::parse(input.to_owned()).unwrap(),
            idempotency_key: "idem-1".to_owned(),
            tool_use_id: "tu_1".to_owned(),
        }
    }

    async fn run(command: &str) -> Ended {
        program(command).run(invocation(r#"{"input":"x"}"#), BOUNDS, std::future::pending()).await
    }

    fn failure(ended: Ended) -> String {
        match ended {
            Ended::Failed(why) => why,
            other => panic!("not a failure: {other:?}"),
        }
    }

    #[tokio::test]
    async fn a_program_reads_its_arguments_and_prints_its_result() {
        assert_eq!(run("cat").await, Ended::Done(r#"{"input":"x"}"#.to_owned()));
        let said = run("printf '%s %s' $BROCA_TOOL_NAME $BROCA_IDEMPOTENCY_KEY").await;
        assert_eq!(said, Ended::Done("probe idem-1".to_owned()));
    }

    #[tokio::test]
    async fn a_program_that_reads_nothing_is_no_failure() {
        let input = format!("\"{}\"", "x".repeat(1 << 20));
        let ended =
            program("echo done").run(invocation(&input), BOUNDS, std::future::pending()).await;
        assert_eq!(ended, Ended::Done("done".to_owned()));
    }

    #[tokio::test]
    async fn a_failure_says_the_status_and_the_end_of_the_error_output() {
        let why = failure(run("echo at first >&2; echo no such thing >&2; exit 3").await);
        assert!(why.contains("status 3") && why.ends_with("no such thing"), "{why}");
        let why = failure(run("no-such-program-anywhere").await);
        assert!(why.contains("command not found"), "{why}");
        let why = failure(run("kill -9 $$").await);
        assert!(why.contains("signal"), "{why}");
        let long = failure(run("seq 1 9999 >&2; exit 1").await);
        assert!(long.len() < 2_100 && long.ends_with("9999"), "{}", long.len());
    }

    #[tokio::test]
    async fn output_without_bound_stops_the_program() {
        let why = failure(run("yes").await);
        assert!(why.contains("more than 1024 bytes"), "{why}");
    }

    #[tokio::test]
    async fn output_that_is_no_text_is_a_failure() {
        let why = failure(run(r"printf '\377\376'").await);
        assert!(why.contains("no UTF-8"), "{why}");
    }

    #[tokio::test]
    async fn a_stopped_program_goes_with_everything_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        // Neither of them listens to a polite request.
        let command = format!(
            "trap '' TERM; (trap '' TERM; sleep 600) & echo $! $$ >{0}.new; mv {0}.new {0}; wait",
            pids.display()
        );
        let begun = async {
            while !pids.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let ended = program(&command).run(invocation("{}"), BOUNDS, begun).await;
        assert_eq!(ended, Ended::Stopped);
        let until = Instant::now() + Duration::from_secs(20);
        for pid in fs::read_to_string(&pids).unwrap().split_whitespace() {
            while is_running(pid) {
                assert!(Instant::now() < until, "{pid} is still there");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    /// Whether the process is there and no zombie.
    fn is_running(pid: &str) -> bool {
        let found = fs::read_to_string(format!("/proc/{pid}/stat"));
        found.is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[tokio::test]
    async fn something_left_in_the_background_does_not_hold_the_result() {
        let ended = run("echo early; sleep 600 &").await;
        assert_eq!(ended, Ended::Done("early".to_owned()));
    }

    #[test]
    fn tools_are_named_described_and_checked() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tools.json");
        let brought = |tools: &[&str], text: &str| {
            fs::write(&file, text).unwrap();
            let tools = tools.iter().map(|tool| format!("--tool={tool}"));
            let all = ["broca", "chat", "--tool-file"].map(str::to_owned).into_iter();
            let all = all.chain([file.to_str().unwrap().to_owned()]).chain(tools);
            let parsed = <crate::Arguments as clap::Parser>::try_parse_from(all).unwrap();
            let crate::arguments::Command::Chat(chat) = parsed.command else { panic!() };
            brought(&chat).map_err(|fault| fault.line())
        };
        let file_text = r#"[{"name":"a","description":"Does a.","input_schema":{"type":"object"}},
            {"name":"b","command":"cat"}]"#;
        let programs = brought(&["a=cat -n"], file_text).unwrap();
        let told: Vec<_> = programs.iter().map(|p| (p.name(), p.description.as_str())).collect();
        assert_eq!(told, [("a", "Does a."), ("b", "Runs cat.")]);
        assert_eq!(programs[0].input_schema.as_str(), r#"{"type":"object"}"#);

        for (tools, text, part) in [
            (&["a"][..], "[]", "NAME=COMMAND"),
            (&["=x"], "[]", "NAME=COMMAND"),
            (&["a=x", "a=y"], "[]", "two commands"),
            (&[], r#"[{"name":"c"}]"#, "--tool c=COMMAND"),
            (&[], r#"{"name":"c"}"#, "cannot be used"),
            (&[], "[", "cannot be used"),
            (&[], r#"[{"name":"c","command":"x","input_schema":3}]"#, "no object"),
        ] {
            let fault = brought(tools, text).unwrap_err();
            assert!(fault.contains(part), "{fault}");
        }
    }
}
