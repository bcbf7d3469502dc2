//! What a chat shows: words on the standard output, everything else on the error stream; or, for
//! programs, one JSON object per line.

use crate::fault::{Fault, one_line, written};
use crate::summary::result_text;
use broca::engine::{Delta, DeltaKind, Gap, Lost, Queued, Reply, Status, ToolOutcome};
use broca::{ErrorKind, Json};
use broca_proto::session::content::{Dispatch, Message};
use broca_proto::session::event::Event;
use broca_proto::session::exchange::Warning;
use broca_proto::session::payload::{ErrorReason, Payload};
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// How much of a tool's arguments and of a failure's reason is shown to people, in characters.
const SHOWN_CHARS: usize = 160;

/// The output of a chat.
pub(crate) struct View {
    json: bool,
    colour: bool,
    out: Box<dyn Write + Send>,
    notes: Box<dyn Write + Send>,
    /// What was shown of the message that is being said.
    shown: String,
    /// Which message that is.
    link: String,
    /// The last message that was shown whole.
    said: Option<String>,
    /// Calls that run elsewhere: their ids and tools.
    elsewhere: Vec<(String, String)>,
    /// The output stands in the middle of a line.
    mid_line: bool,
}

/// A call of a tool of this program, once it has its one result.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settled<'a> {
    /// Its id in the conversation.
    pub(crate) id: &'a str,
    /// The tool; nothing for a call that never began here.
    pub(crate) name: Option<&'a str>,
    /// What became of it.
    pub(crate) outcome: ToolOutcome,
    /// How long it ran.
    pub(crate) took: Duration,
    /// The reason it gave for its failure.
    pub(crate) why: Option<&'a str>,
}

impl View {
    /// On the streams of this process.
    pub(crate) fn new(json: bool) -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colour = !json && !plain && io::stderr().is_terminal();
        Self::on(Box::new(io::stdout()), Box::new(io::stderr()), json, colour)
    }

    fn on(
        out: Box<dyn Write + Send>,
        notes: Box<dyn Write + Send>,
        json: bool,
        colour: bool,
    ) -> Self {
        Self {
            json,
            colour,
            out,
            notes,
            shown: String::new(),
            link: String::new(),
            said: None,
            elsewhere: Vec::new(),
            mid_line: false,
        }
    }

    /// A session is there.
    pub(crate) fn session(&mut self, id: &str, joined: bool) -> Result<(), Fault> {
        if self.json {
            let joined = Json::parse(if joined { "true" } else { "false" }).unwrap_or_default();
            return self
                .object("session", &[("session_id", &Json::string(id)), ("joined", &joined)]);
        }
        self.note(&format!("session {id}"))
    }

    /// A turn begins.
    pub(crate) fn begin(&mut self) {
        self.shown.clear();
        self.said = None;
        self.elsewhere.clear();
    }

    /// Something the session logged.
    pub(crate) fn event(&mut self, event: &Event) -> Result<(), Fault> {
        if self.json {
            return self.object("event", &[("event", &event.json())]);
        }
        match event.decode() {
            Ok(Payload::ServerMessageSend(sent)) if sent.synthetic.is_none() => {
                self.message(&sent.message)
            }
            Ok(Payload::ToolCall(call)) if is_elsewhere(call.dispatch.as_ref()) => {
                let input = one_line(call.input.as_str(), SHOWN_CHARS);
                self.elsewhere.push((call.id.clone(), call.name.clone()));
                self.note(&format!("tool {} {input}", call.name))
            }
            Ok(Payload::ToolResult(result)) if is_elsewhere(result.dispatch.as_ref()) => {
                let of = |(id, _): &(String, String)| *id == result.tool_use_id;
                let call = self.elsewhere.iter().position(of);
                let name = call.map(|at| self.elsewhere.swap_remove(at).1).unwrap_or_default();
                match result.is_error {
                    Some(true) => {
                        let why = one_line(&result_text(&result.content), SHOWN_CHARS);
                        self.note(&format!("tool {name} failed: {why}"))
                    }
                    _ => self.note(&format!("tool {name} ok")),
                }
            }
            // The error of the turn says so, with the cause.
            Ok(Payload::SessionError(error)) if error.reason == ErrorReason::AllProvidersFailed => {
                Ok(())
            }
            Ok(Payload::SessionError(error)) => {
                let reason = error.reason.as_str();
                let detail = error.detail.map_or(String::new(), |detail| format!(": {detail}"));
                self.note(&one_line(&format!("{reason}{detail}"), SHOWN_CHARS))
            }
            _ => Ok(()),
        }
    }

    /// A piece of what is being said.
    pub(crate) fn delta(&mut self, delta: &Delta) -> Result<(), Fault> {
        if self.json {
            let kind = match delta.kind {
                DeltaKind::Text => "text",
                DeltaKind::Reasoning => "reasoning",
                DeltaKind::ToolInput => "tool_input",
                DeltaKind::Reset => "reset",
                _ => "other",
            };
            let (kind, link) = (Json::string(kind), Json::string(&delta.link));
            let text = Json::string(&delta.text);
            return self.object("delta", &[("kind", &kind), ("link", &link), ("text", &text)]);
        }
        match delta.kind {
            DeltaKind::Text => {
                if self.link != delta.link {
                    // Between the rounds of tools of the service no message is logged.
                    self.end_words()?;
                    self.link.clone_from(&delta.link);
                }
                self.shown.push_str(&delta.text);
                self.words(&delta.text)
            }
            DeltaKind::Reset if !self.shown.is_empty() => {
                self.shown.clear();
                self.note("the model was cut off")
            }
            _ => Ok(()),
        }
    }

    /// Asks for consent to a call, with all of its arguments. On the error stream, as everything that is not the model's words.
    pub(crate) fn approval(&mut self, id: &str, name: &str, input: &Json) -> Result<(), Fault> {
        if self.json {
            let (id, name) = (Json::string(id), Json::string(name));
            return self.object("approval", &[("id", &id), ("name", &name), ("input", input)]);
        }
        let input = one_line(input.as_str(), input.as_str().len());
        self.note(&format!("allow {name} {input}? y, n, or why not"))?;
        if io::stdin().is_terminal() { self.prompt() } else { Ok(()) }
    }

    /// A call of a tool begins.
    pub(crate) fn tool_call(&mut self, id: &str, name: &str, input: &Json) -> Result<(), Fault> {
        if self.json {
            let (id, name) = (Json::string(id), Json::string(name));
            return self.object("tool_call", &[("id", &id), ("name", &name), ("input", input)]);
        }
        self.note(&format!("tool {name} {}", one_line(input.as_str(), SHOWN_CHARS)))
    }

    /// A call of a tool has its result.
    pub(crate) fn tool_settled(&mut self, settled: Settled<'_>) -> Result<(), Fault> {
        let Settled { id, name, outcome, took, why } = settled;
        let ms = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
        if self.json {
            let text = |text: Option<&str>| text.map_or_else(Json::null, Json::string);
            let members = [
                ("tool_use_id", &Json::string(id)),
                ("name", &text(name)),
                ("outcome", &Json::string(outcome.as_str())),
                ("duration_ms", &Json::integer(ms)),
                ("why", &text(why)),
            ];
            return self.object("tool_settled", &members);
        }
        let Some(name) = name else {
            return self.note(&format!("tool call {} {}", one_line(id, 60), told(outcome)));
        };
        let why = why.map_or(String::new(), |why| format!(": {}", one_line(why, SHOWN_CHARS)));
        self.note(&format!("tool {name} {}, {ms} ms{why}", told(outcome)))
    }

    /// Where the turn stands.
    pub(crate) fn status(&mut self, status: &Status) -> Result<(), Fault> {
        if self.json {
            return written(write_status(&mut self.out, status));
        }
        match status {
            Status::Queued { place: Some(place) } => {
                let Queued { position, waiting } = place;
                self.note(&format!("waiting for the session: place {position} of {waiting}"))
            }
            Status::Queued { place: None } => self.note("queued behind another turn"),
            Status::Reconnecting { delay_ms, kind, why } => {
                self.note(&connection_lost(*kind, why, *delay_ms))
            }
            _ => Ok(()),
        }
    }

    /// Something was lost.
    pub(crate) fn gap(&mut self, gap: &Gap) -> Result<(), Fault> {
        if self.json {
            let number = |n: u64| Json::integer(i64::try_from(n).unwrap_or(i64::MAX));
            return match &gap.lost {
                Lost::Deltas(n) => {
                    self.object("gap", &[("lost", &Json::string("deltas")), ("count", &number(*n))])
                }
                Lost::Line { bytes, .. } => self
                    .object("gap", &[("lost", &Json::string("line")), ("bytes", &number(*bytes))]),
                Lost::Cursor(_) => self.object("gap", &[("lost", &Json::string("cursor"))]),
                _ => self.object("gap", &[("lost", &Json::string("other"))]),
            };
        }
        match &gap.lost {
            Lost::Deltas(_) => Ok(()), // the whole message follows
            Lost::Line { bytes, limit } => {
                self.note(&format!("a line of {bytes} bytes was left out (the limit is {limit})"))
            }
            _ => self.note("the service does not know where to go on; it begins at the start"),
        }
    }

    /// Something odd that ends nothing.
    pub(crate) fn warning(&mut self, warning: &Warning) -> Result<(), Fault> {
        if self.json {
            return self.object("warning", &[("message", &Json::string(&warning.message))]);
        }
        self.note(&one_line(&warning.message, SHOWN_CHARS))
    }

    /// The turn is done.
    pub(crate) fn reply(&mut self, reply: &Reply) -> Result<(), Fault> {
        if self.json {
            let text = Json::string(&reply.text());
            let message = reply.message.to_json();
            let rounds = Json::integer(i64::from(reply.rounds));
            let usage = match &reply.usage {
                Some(usage) => Json::encode(usage).unwrap_or_default(),
                None => Json::null(),
            };
            let members =
                [("text", &text), ("message", &message), ("rounds", &rounds), ("usage", &usage)];
            return self.object("reply", &members);
        }
        if self.said.as_ref() != Some(&spoken(&reply.message)) {
            self.message(&reply.message)?;
        }
        self.end_line()
    }

    /// Nothing more comes of what was being said.
    pub(crate) fn end_words(&mut self) -> Result<(), Fault> {
        self.shown.clear();
        self.end_line()
    }

    /// A remark for the person.
    pub(crate) fn note(&mut self, text: &str) -> Result<(), Fault> {
        if self.json {
            return self.object("note", &[("message", &Json::string(text))]);
        }
        self.end_line()?;
        let (dim, normal) = if self.colour { ("\u{1b}[2m", "\u{1b}[0m") } else { ("", "") };
        written(writeln!(self.notes, "{dim}[{text}]{normal}").and_then(|()| self.notes.flush()))
    }

    /// Asks for the next message. On the error stream, so that the output holds words alone.
    pub(crate) fn prompt(&mut self) -> Result<(), Fault> {
        self.end_line()?;
        written(write!(self.notes, "> ").and_then(|()| self.notes.flush()))
    }

    /// The words of a whole message, as far as they have not been shown.
    fn message(&mut self, message: &Message) -> Result<(), Fault> {
        let whole = spoken(message);
        let shown = std::mem::take(&mut self.shown);
        match whole.strip_prefix(shown.as_str()) {
            Some(rest) => self.words(rest)?,
            None => {
                // Pieces were lost: what stands there is no beginning of this.
                self.end_line()?;
                self.words(&whole)?;
            }
        }
        self.said = Some(whole);
        self.end_line()
    }

    fn words(&mut self, text: &str) -> Result<(), Fault> {
        let Some(last) = text.chars().last() else { return Ok(()) };
        self.mid_line = last != '\n';
        let shown = harmless(text);
        written(self.out.write_all(shown.as_bytes()).and_then(|()| self.out.flush()))
    }

    fn end_line(&mut self) -> Result<(), Fault> {
        if !std::mem::take(&mut self.mid_line) {
            return Ok(());
        }
        written(self.out.write_all(b"\n").and_then(|()| self.out.flush()))
    }

    /// One line for a program.
    fn object(&mut self, kind: &str, members: &[(&str, &Json)]) -> Result<(), Fault> {
        written(write_object(&mut self.out, kind, members))
    }
}

/// One object in one line: `type`, then the members.
pub(crate) fn write_object(
    out: &mut dyn Write,
    kind: &str,
    members: &[(&str, &Json)],
) -> io::Result<()> {
    let kind = Json::string(kind);
    let all = std::iter::once(("type", &kind)).chain(members.iter().copied());
    let mut line = Json::object(all).as_str().replace('\n', " ");
    line.push('\n');
    out.write_all(line.as_bytes())?;
    out.flush()
}

/// What a person is told while a stream is taken up again. Nothing was asked for on it, so nothing can have run twice.
pub(crate) fn connection_lost(kind: ErrorKind, why: &str, delay_ms: u64) -> String {
    let seconds = Duration::from_millis(delay_ms).as_secs_f32();
    let what = match kind {
        ErrorKind::StreamEndedEarly => "connection lost".to_owned(),
        ErrorKind::Connect => "the service cannot be reached".to_owned(),
        ErrorKind::Timeout => "the service does not answer".to_owned(),
        ErrorKind::Lagged => "fell behind the events".to_owned(),
        _ => format!("connection lost ({})", one_line(why, SHOWN_CHARS)),
    };
    format!("{what}, trying again in {seconds:.1} s")
}

/// An outcome in words.
fn told(outcome: ToolOutcome) -> &'static str {
    match outcome {
        ToolOutcome::Done => "ok",
        ToolOutcome::Failed => "failed",
        ToolOutcome::NotStarted => "not started",
        ToolOutcome::InterruptedMayHaveRun => "interrupted, may have run",
        ToolOutcome::TimedOutMayHaveRun => "timed out, may have run",
        other => other.as_str(),
    }
}

/// Where an operation stands, for a program.
pub(crate) fn write_status(out: &mut dyn Write, status: &Status) -> io::Result<()> {
    let word = match status {
        Status::Queued { .. } => "queued",
        Status::Sent => "sent",
        Status::Connected => "connected",
        Status::Reconnecting { delay_ms, kind, why } => {
            let members = [
                ("status", &Json::string("reconnecting")),
                ("delay_ms", &Json::integer(i64::try_from(*delay_ms).unwrap_or(i64::MAX))),
                ("kind", &Json::string(kind.as_str())),
                ("why", &Json::string(why)),
            ];
            return write_object(out, "status", &members);
        }
        _ => return Ok(()),
    };
    write_object(out, "status", &[("status", &Json::string(word))])
}

/// The text of a message as its deltas spell it: blocks one after the other.
fn spoken(message: &Message) -> String {
    let blocks = message.content.blocks();
    if blocks.is_empty() {
        return message.text();
    }
    blocks.iter().filter_map(|block| block.text()).collect()
}

/// Whether the call runs somewhere else than here.
fn is_elsewhere(dispatch: Option<&Dispatch>) -> bool {
    dispatch.is_some_and(|dispatch| *dispatch != Dispatch::Client)
}

/// What the model says must not steer the terminal.
fn harmless(text: &str) -> String {
    let shown = |c: char| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Paper {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    fn view(json: bool) -> (View, Paper, Paper) {
        let (out, notes) = (Paper::default(), Paper::default());
        let view = View::on(Box::new(out.clone()), Box::new(notes.clone()), json, false);
        (view, out, notes)
    }

    fn delta(kind: DeltaKind, text: &str) -> Delta {
        Delta { kind, link: "m".to_owned(), text: text.to_owned() }
    }

    fn said(text: &str) -> Event {
        let block = Json::object([("type", &Json::string("text")), ("text", &Json::string(text))]);
        let content = Json::array([&block]);
        let role = Json::string("assistant");
        let payload = Json::object([("role", &role), ("content", &content)]);
        event("server.message.send", payload.as_str())
    }

    fn event(event_type: &str, payload: &str) -> Event {
        let text = format!(
            r#"{{"id":"evt_1","session_id":"ses_1","client_key_id":null,"event_type":"{event_type}","payload":{payload},"created_at":"2026-07-06T18:26:10.000Z"}}"#
        );
        Event::parse(&text.into_bytes().into()).unwrap()
    }

    fn settled(outcome: ToolOutcome) -> Settled<'static> {
        let took = Duration::from_millis(12);
        Settled { id: "t", name: Some("look"), outcome, took, why: None }
    }

    #[test]
    fn a_lost_connection_is_told_without_what_belongs_to_messages() {
        let why = "the stream ended; the request may have run: read the history";
        let told = connection_lost(ErrorKind::StreamEndedEarly, why, 400);
        assert_eq!(told, "connection lost, trying again in 0.4 s");
        let told = connection_lost(ErrorKind::Connect, "refused", 1_500);
        assert_eq!(told, "the service cannot be reached, trying again in 1.5 s");
        let told = connection_lost(ErrorKind::Protocol, "junk", 0);
        assert_eq!(told, "connection lost (junk), trying again in 0.0 s");
    }

    #[test]
    fn words_that_came_live_are_not_shown_again() {
        let (mut view, out, _) = view(false);
        for text in ["Good ", "mor", "ning"] {
            view.delta(&delta(DeltaKind::Text, text)).unwrap();
        }
        view.event(&said("Good morning")).unwrap();
        assert_eq!(out.text(), "Good morning\n");
    }

    #[test]
    fn without_the_display_lane_the_message_is_shown_at_its_end() {
        let (mut view, out, _) = view(false);
        view.event(&said("Good morning\n")).unwrap();
        assert_eq!(out.text(), "Good morning\n");
    }

    #[test]
    fn a_round_that_is_not_logged_ends_with_its_line() {
        let (mut view, out, _) = view(false);
        view.delta(&delta(DeltaKind::Text, "I ask the clock.")).unwrap();
        let second = Delta { link: "n".to_owned(), ..delta(DeltaKind::Text, "It is noon.") };
        view.delta(&second).unwrap();
        view.event(&said("It is noon.")).unwrap();
        assert_eq!(out.text(), "I ask the clock.\nIt is noon.\n");
    }

    #[test]
    fn lost_pieces_are_made_good_by_the_message() {
        let (mut view, out, _) = view(false);
        view.delta(&delta(DeltaKind::Text, "Good ")).unwrap();
        view.event(&said("Good morning")).unwrap();
        view.delta(&delta(DeltaKind::Text, "ning")).unwrap();
        view.event(&said("Good evening")).unwrap();
        assert_eq!(out.text(), "Good morning\nning\nGood evening\n");
    }

    #[test]
    fn an_attempt_that_is_cut_off_is_told() {
        let (mut view, out, notes) = view(false);
        view.delta(&delta(DeltaKind::Text, "Goo")).unwrap();
        view.delta(&delta(DeltaKind::Reset, "")).unwrap();
        view.delta(&delta(DeltaKind::Text, "Bad")).unwrap();
        view.event(&said("Bad")).unwrap();
        assert_eq!(out.text(), "Goo\nBad\n");
        assert_eq!(notes.text(), "[the model was cut off]\n");
    }

    #[test]
    fn a_tool_call_is_shown_beside_the_words() {
        let (mut view, out, notes) = view(false);
        view.delta(&delta(DeltaKind::Text, "Let me look.")).unwrap();
        view.tool_call("t", "look", &Json::parse(r#"{"at":"x"}"#).unwrap()).unwrap();
        let failed = settled(ToolOutcome::Failed);
        view.tool_settled(Settled { why: Some("it is\ndark"), ..failed }).unwrap();
        view.tool_settled(settled(ToolOutcome::TimedOutMayHaveRun)).unwrap();
        view.tool_settled(Settled { name: None, ..settled(ToolOutcome::NotStarted) }).unwrap();
        assert_eq!(out.text(), "Let me look.\n");
        let lines = "[tool look {\"at\":\"x\"}]\n[tool look failed, 12 ms: it is dark]\n[tool look timed out, may have run, 12 ms]\n[tool call t not started]\n";
        assert_eq!(notes.text(), lines);
    }

    #[test]
    fn tools_of_the_service_are_shown_too() {
        let (mut view, _, notes) = view(false);
        for (event_type, payload) in [
            ("tool.call", r#"{"dispatch":"mcp","id":"a","name":"clock","input":{}}"#),
            ("tool.call", r#"{"dispatch":"mcp","id":"b","name":"map","input":{}}"#),
            ("tool.call", r#"{"dispatch":"client","id":"c","name":"ours","input":{}}"#),
            (
                "tool.result",
                r#"{"dispatch":"mcp","tool_use_id":"b","content":"torn","is_error":true}"#,
            ),
            (
                "tool.result",
                r#"{"dispatch":"mcp","tool_use_id":"a","content":"noon","is_error":false}"#,
            ),
        ] {
            view.event(&event(event_type, payload)).unwrap();
        }
        let lines = "[tool clock {}]\n[tool map {}]\n[tool map failed: torn]\n[tool clock ok]\n";
        assert_eq!(notes.text(), lines);
    }

    #[test]
    fn the_model_cannot_steer_the_terminal() {
        let (mut view, out, _) = view(false);
        view.delta(&delta(DeltaKind::Text, "\u{1b}[2J\u{9b}31mhi\tthere")).unwrap();
        assert_eq!(out.text(), "\u{fffd}[2J\u{fffd}31mhi\tthere");
    }

    #[test]
    fn programs_get_one_object_per_line_with_the_event_as_it_came() {
        let (mut view, out, notes) = view(true);
        view.session("ses_1", true).unwrap();
        view.event(&event("tool.call", r#"{"id":"t","n":9007199254740993,  "x":"a\nb"}"#)).unwrap();
        view.delta(&delta(DeltaKind::Text, "a\nb")).unwrap();
        view.tool_settled(settled(ToolOutcome::Done)).unwrap();
        let text = out.text();
        let kinds: Vec<String> = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .map(|object| object["type"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(kinds, ["session", "event", "delta", "tool_settled"]);
        assert!(text.contains("9007199254740993"), "{text}");
        assert_eq!(notes.text(), "");
    }
}
