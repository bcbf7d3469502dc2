//! Consent to calls of tools that the service runs (feature `approve`).
//!
//! A session says when it is opened which of them a person is asked for, and how their arguments may be narrowed
//! ([`Approvals`]). Before such a call runs, `session.approval.requested` shows what is asked for ([`Question`]);
//! `session.approve` answers it ([`Approve`]), once.

use super::content::open_enum;
use super::event::{Event, EventType};
use super::method::Params;
use super::narrow::{NarrowRule, NarrowRules};
use super::rpc::{RpcFailure, code};
use crate::Json;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why `approvals` cannot be meant. Names the member; repeats no value of an argument.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct ApprovalsError(String);

/// Which of the service's tools a person is asked for before they run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Ask {
    /// None.
    #[default]
    Nobody,
    /// Those of these names, in the order in which they were named.
    Named(Vec<String>),
    /// All.
    Everything,
}

impl Ask {
    /// Reads a list of names separated by commas; `*` stands for all.
    #[must_use]
    pub fn parse(words: &str) -> Self {
        let names = words.split(',').map(str::trim).filter(|name| !name.is_empty());
        Self::of(names.map(str::to_owned))
    }

    /// Whether a call of `name` is asked for.
    #[must_use]
    pub fn covers(&self, name: &str) -> bool {
        match self {
            Self::Nobody => false,
            Self::Named(names) => names.iter().any(|named| named == name),
            Self::Everything => true,
        }
    }

    /// The names, where some are named.
    #[must_use]
    pub fn names(&self) -> &[String] {
        match self {
            Self::Named(names) => names,
            _ => &[],
        }
    }

    /// What either of the two asks for.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Everything, _) | (_, Self::Everything) => Self::Everything,
            _ => Self::of(self.names().iter().chain(other.names()).cloned()),
        }
    }

    fn of(all: impl Iterator<Item = String>) -> Self {
        let mut names: Vec<String> = Vec::new();
        for name in all {
            if name == "*" {
                return Self::Everything;
            }
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if names.is_empty() { Self::Nobody } else { Self::Named(names) }
    }

    fn to_json(&self) -> Json {
        match self {
            Self::Everything => Json::string("*"),
            _ => {
                let names: Vec<Json> = self.names().iter().map(|name| Json::string(name)).collect();
                Json::array(&names)
            }
        }
    }
}

/// What a session says about approvals: `{"ask":"*"|[name…],"narrow":{name:{pointer:rule}}}`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Approvals {
    /// Whom to ask for.
    pub ask: Ask,
    /// How their arguments may be narrowed, by name.
    pub narrow: Vec<(String, NarrowRules)>,
}

impl Approvals {
    /// Reads the member `approvals` of a body, if it is there.
    ///
    /// # Errors
    /// [`ApprovalsError`] for the first member that is unknown or of the wrong type, and for rules of a tool that is
    /// not asked for, since they could never apply.
    pub fn read(body: &Json) -> Result<Self, ApprovalsError> {
        let Some(given) = body.member("approvals").filter(|given| !given.is_null()) else {
            return Ok(Self::default());
        };
        let members = given.members().ok_or_else(|| fault("\"approvals\" must be an object"))?;
        let known = ["ask", "narrow"];
        if let Some((name, _)) = members.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            return Err(fault(&format!(
                "\"approvals\" has no member {name:?}; it may have ask, narrow"
            )));
        }
        let ask = given.member("ask").map_or(Ok(Ask::Nobody), |ask| read_ask(&ask))?;
        let narrow = given.member("narrow").filter(|narrow| !narrow.is_null());
        let narrow = narrow.map_or_else(|| Ok(Vec::new()), |narrow| read_narrow(&narrow))?;
        if let Some((name, _)) = narrow.iter().find(|(name, _)| !ask.covers(name)) {
            return Err(fault(&format!(
                "\"approvals.narrow\" has rules for {name:?}, which \"approvals.ask\" does not name"
            )));
        }
        Ok(Self { ask, narrow })
    }

    /// What [`Approvals::read`] reads, as the value of `approvals`.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let narrow: Vec<(&str, Json)> =
            self.narrow.iter().map(|(name, rules)| (name.as_str(), rules.to_json())).collect();
        let rules = Json::object(narrow.iter().map(|(name, rules)| (*name, rules)));
        let rules = (!narrow.is_empty()).then_some(("narrow", &rules));
        Json::object([("ask", &self.ask.to_json())].into_iter().chain(rules))
    }

    /// Whether nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ask == Ask::Nobody
    }

    /// How the arguments of a tool may be narrowed.
    #[must_use]
    pub fn rules_of(&self, name: &str) -> NarrowRules {
        let found = self.narrow.iter().find(|(named, _)| named == name);
        found.map(|(_, rules)| rules.clone()).unwrap_or_default()
    }
}

fn read_ask(ask: &Json) -> Result<Ask, ApprovalsError> {
    let bad = || fault("\"approvals.ask\" must be \"*\" or a list of names of tools");
    if let Some(word) = ask.to_text() {
        return if word == "*" { Ok(Ask::Everything) } else { Err(bad()) };
    }
    let names: Option<Vec<String>> =
        ask.elements().ok_or_else(bad)?.iter().map(Json::to_text).collect();
    Ok(Ask::of(names.ok_or_else(bad)?.into_iter()))
}

fn read_narrow(narrow: &Json) -> Result<Vec<(String, NarrowRules)>, ApprovalsError> {
    let tools = narrow.members().ok_or_else(|| fault("\"approvals.narrow\" must be an object"))?;
    tools
        .into_iter()
        .map(|(name, rules)| {
            let read = NarrowRules::read(&rules);
            let read =
                read.map_err(|why| fault(&format!("\"approvals.narrow\" of {name:?}: {why}")));
            Ok((name, read?))
        })
        .collect()
}

fn fault(words: &str) -> ApprovalsError {
    ApprovalsError(words.to_owned())
}

/// A call that waits for consent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Identifies the call.
    pub tool_use_id: String,
    /// The tool.
    pub name: String,
    /// The arguments, exactly as the model wrote them.
    pub input: Json,
    /// How they may be narrowed.
    pub narrow: NarrowRules,
    /// How long an answer is waited for, in milliseconds from when the event was logged.
    pub expires_in_ms: u64,
}

impl Question {
    /// The payload of `session.approval.requested`; `owner` is the driver whose turn it is.
    #[must_use]
    pub fn to_json(&self, owner: &str) -> Json {
        let rules = self.narrow.to_json();
        let rules = (self.narrow.iter().next().is_some()).then_some(("narrow", &rules));
        let left = Json::integer(i64::try_from(self.expires_in_ms).unwrap_or(i64::MAX));
        let (id, name) = (Json::string(&self.tool_use_id), Json::string(&self.name));
        let owner = Json::string(owner);
        Json::object(
            [("expires_in_ms", &left), ("input", &self.input), ("name", &name)]
                .into_iter()
                .chain(rules)
                .chain([("owner_client_key_id", &owner), ("tool_use_id", &id)]),
        )
    }

    /// Reads the payload of `session.approval.requested`. Rules that this version does not know narrow nothing.
    #[must_use]
    pub fn read(payload: &Json) -> Option<Self> {
        let text = |name: &str| payload.member(name).and_then(|value| value.to_text());
        let narrow = payload.member("narrow").and_then(|rules| NarrowRules::read(&rules).ok());
        Some(Self {
            tool_use_id: text("tool_use_id")?,
            name: text("name")?,
            input: payload.member("input").unwrap_or_else(Json::empty_object),
            narrow: narrow.unwrap_or_default(),
            expires_in_ms: payload.member("expires_in_ms").and_then(|ms| ms.decode().ok())?,
        })
    }

    /// Takes what was said as the answer to this question.
    ///
    /// # Errors
    /// `-32602` when its input is not the one that was asked for or narrower; the pointer of the place that is wider
    /// is named. The question stays open.
    pub fn accept(&self, said: Approve) -> Result<Answer, RpcFailure> {
        if let Consent::Narrowed(input) = &said.consent
            && let Some(pointer) = self.narrow.widened(&self.input, input)
        {
            return Err(invalid(&format!(
                "\"input\" may be narrower than what was asked for, and is not at {pointer:?}"
            )));
        }
        Ok(Answer { consent: said.consent, reason: said.reason })
    }
}

/// What an event says about a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It was asked.
    Asked {
        /// What is asked.
        question: Question,
        /// When, in milliseconds since 1970, if the event says so.
        logged_ms: Option<u64>,
    },
    /// It was settled, one way or another.
    Settled {
        /// The call.
        tool_use_id: String,
    },
}

impl Change {
    /// What `event` says about a question; nothing when it is about something else, or cannot be read.
    #[must_use]
    pub fn of(event: &Event) -> Option<Self> {
        if event.is_named(EventType::APPROVAL_REQUESTED) {
            let question = Question::read(&event.payload())?;
            Some(Self::Asked { question, logged_ms: event.logged_ms() })
        } else if event.is_named(EventType::APPROVAL_RESOLVED) {
            let id = event.payload().member("tool_use_id").and_then(|id| id.to_text());
            Some(Self::Settled { tool_use_id: id? })
        } else {
            None
        }
    }
}

/// What was said to a question, checked against it by [`Question::accept`].
#[derive(Clone, PartialEq, Eq)]
pub struct Answer {
    consent: Consent,
    reason: Option<String>,
}

impl Answer {
    /// Whether the call may run, and with what.
    #[must_use]
    pub const fn consent(&self) -> &Consent {
        &self.consent
    }

    /// Why.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Answer({:?})", self.consent)
    }
}

/// What a person says.
#[derive(Clone, PartialEq, Eq)]
pub enum Consent {
    /// The call may run.
    Allow,
    /// It may run with this input.
    Narrowed(Json),
    /// It may not run.
    Deny,
}

impl Consent {
    /// The word for it.
    #[must_use]
    pub const fn decision(&self) -> Decision {
        match self {
            Self::Allow => Decision::Allow,
            Self::Narrowed(_) => Decision::AllowNarrowed,
            Self::Deny => Decision::Deny,
        }
    }
}

impl std::fmt::Debug for Consent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.decision().as_str())
    }
}

open_enum! {
    /// What became of a question.
    Decision {
        /// The call may run as it was asked for.
        Allow = "allow",
        /// It may run with the narrower input that was given.
        AllowNarrowed = "allow_narrowed",
        /// It may not run.
        Deny = "deny",
        /// Nobody has to answer any more: the turn is over.
        Withdrawn = "withdrawn",
    }
}

open_enum! {
    /// Who or what settled a question.
    SettledBy {
        /// An answer.
        Person = "person",
        /// Nobody answered in time.
        Deadline = "deadline",
        /// The turn was cancelled.
        Cancel = "cancel",
        /// The session was closed, or ended in an error.
        Close = "close",
        /// The service went down while the question was open.
        Shutdown = "shutdown",
    }
}

/// `session.approve` (feature `approve`): `{"tool_use_id","decision","input"?,"reason"?}`.
#[derive(Clone, PartialEq, Eq)]
pub struct Approve {
    /// The call.
    pub tool_use_id: String,
    /// The answer.
    pub consent: Consent,
    /// Why, for the model and the log.
    pub reason: Option<String>,
}

impl std::fmt::Debug for Approve {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Approve({} {:?})", self.tool_use_id, self.consent)
    }
}

impl Params for Approve {
    fn read(params: &Json) -> Result<Self, RpcFailure> {
        let tool_use_id = params.member("tool_use_id").and_then(|id| id.to_text());
        let tool_use_id = tool_use_id.ok_or_else(|| invalid("missing \"tool_use_id\""))?;
        let decision = params.member("decision").and_then(|word| word.to_text());
        let input = params.member("input");
        let consent = match (decision.as_deref().map(Decision::parse), input) {
            (Some(Decision::Allow), None) => Consent::Allow,
            (Some(Decision::Deny), None) => Consent::Deny,
            (Some(Decision::AllowNarrowed), Some(input)) => Consent::Narrowed(input),
            (Some(Decision::AllowNarrowed), None) => return Err(invalid("missing \"input\"")),
            (Some(Decision::Allow | Decision::Deny), Some(_)) => {
                return Err(invalid("\"input\" goes with \"allow_narrowed\" only"));
            }
            _ => {
                let words = "\"decision\" must be \"allow\", \"allow_narrowed\" or \"deny\"";
                return Err(invalid(words));
            }
        };
        let reason = params.member("reason").filter(|reason| !reason.is_null());
        let reason = reason
            .map(|reason| reason.to_text().ok_or_else(|| invalid("\"reason\" must be a string")))
            .transpose()?;
        Ok(Self { tool_use_id, consent, reason })
    }
}

impl Approve {
    /// The parameters as JSON.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let id = Json::string(&self.tool_use_id);
        let decision = Json::string(self.consent.decision().as_str());
        let input = match &self.consent {
            Consent::Narrowed(input) => Some(("input", input)),
            _ => None,
        };
        let reason = self.reason.as_deref().map(Json::string);
        let reason = reason.as_ref().map(|reason| ("reason", reason));
        Json::object(
            [("tool_use_id", &id), ("decision", &decision)].into_iter().chain(input).chain(reason),
        )
    }
}

open_enum! {
    /// What `session.approve` found.
    ApprovalState {
        /// The question was open.
        Waiting = "waiting",
        /// It had been settled before.
        Resolved = "resolved",
    }
}

/// The result of `session.approve`: what holds, and on disk, whoever said it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApproveResult {
    /// Whether the call may run.
    pub approved: bool,
    /// What was decided.
    pub decision: Decision,
    /// By whom.
    pub by: SettledBy,
    /// What was found.
    pub was: ApprovalState,
}

impl ApproveResult {
    /// Reads what holds from the payload of `session.approval.resolved`.
    #[must_use]
    pub fn of_resolved(payload: &Json, was: ApprovalState) -> Option<Self> {
        let text = |name: &str| payload.member(name).and_then(|value| value.to_text());
        let decision = Decision::parse(&text("decision")?);
        let approved = matches!(decision, Decision::Allow | Decision::AllowNarrowed);
        Some(Self { approved, decision, by: SettledBy::parse(&text("by")?), was })
    }
}

/// The payload of `session.approval.resolved`; `input` where it was narrowed.
#[must_use]
pub fn resolved_payload(
    tool_use_id: &str,
    decision: &Decision,
    by: &SettledBy,
    input: Option<&Json>,
    reason: Option<&str>,
) -> Json {
    let (by, decision) = (Json::string(by.as_str()), Json::string(decision.as_str()));
    let (id, reason) = (Json::string(tool_use_id), reason.map(Json::string));
    Json::object(
        [("by", &by), ("decision", &decision)]
            .into_iter()
            .chain(input.map(|input| ("input", input)))
            .chain(reason.as_ref().map(|reason| ("reason", reason)))
            .chain([("tool_use_id", &id)]),
    )
}

fn invalid(reason: &str) -> RpcFailure {
    RpcFailure::new(code::INVALID_PARAMS, format!("Invalid params: {reason}"))
}

impl NarrowRules {
    /// Reads rules from `{pointer: rule}`.
    ///
    /// # Errors
    /// What is wrong, naming the pointer.
    pub fn read(rules: &Json) -> Result<Self, String> {
        let members = rules.members().ok_or("rules must be an object of pointers and rules")?;
        let rule = |(pointer, word): (String, Json)| {
            let rule = word.to_text().and_then(|word| NarrowRule::parse(&word));
            rule.map(|rule| (pointer.clone(), rule))
                .ok_or_else(|| format!("the rule for {pointer:?} is none that is known"))
        };
        Ok(Self::new(members.into_iter().map(rule).collect::<Result<Vec<_>, _>>()?))
    }

    /// The rules as `{pointer: rule}`.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let rules: Vec<(&str, Json)> =
            self.iter().map(|(pointer, rule)| (pointer, Json::string(rule.as_str()))).collect();
        Json::object(rules.iter().map(|(pointer, rule)| (*pointer, rule)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        Json::parse(text.to_owned()).unwrap()
    }

    fn read(approvals: &str) -> Result<Approvals, ApprovalsError> {
        Approvals::read(&json(&format!(r#"{{"approvals":{approvals}}}"#)))
    }

    #[test]
    fn what_is_asked_for_is_read_and_written_again() {
        for text in [
            r#"{"ask":"*"}"#,
            r#"{"ask":["clock","search"]}"#,
            r#"{"ask":["clock"],"narrow":{"clock":{"/a~1b":"at_most","/p":"path_within"}}}"#,
        ] {
            let approvals = read(text).unwrap();
            assert_eq!(approvals.to_json().as_str(), text);
            assert!(approvals.ask.covers("clock") && !approvals.is_empty());
        }
        for nothing in ["null", "{}", r#"{"ask":[]}"#] {
            assert!(read(nothing).unwrap().is_empty(), "{nothing}");
        }
        assert_eq!(read(r#"{"ask":["a","*"]}"#).unwrap().ask, Ask::Everything);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        for (text, name) in [
            ("[]", "\"approvals\""),
            (r#"{"ask":"clock"}"#, "approvals.ask"),
            (r#"{"ask":[1]}"#, "approvals.ask"),
            (r#"{"asks":"*"}"#, "asks"),
            (r#"{"ask":"*","narrow":[]}"#, "approvals.narrow"),
            (r#"{"ask":"*","narrow":{"a":{"/p":"wider"}}}"#, "/p"),
            (r#"{"ask":["b"],"narrow":{"a":{"/p":"at_most"}}}"#, "\"a\""),
        ] {
            let words = read(text).unwrap_err().to_string();
            assert!(words.contains(name), "{text}: {words}");
        }
    }

    #[test]
    fn two_that_ask_ask_for_what_either_asks_for() {
        let (a, b) = (Ask::parse("x, y"), Ask::parse("y,z,,"));
        assert_eq!(a.and(&b), Ask::parse("x,y,z"));
        assert_eq!(a.and(&Ask::parse("*")), Ask::Everything);
        assert_eq!(Ask::parse(" ").and(&Ask::Nobody), Ask::Nobody);
    }

    #[test]
    fn an_answer_says_one_thing_and_says_it_whole() {
        let good = |text: &str| Approve::read(&json(text)).unwrap();
        for text in [
            r#"{"tool_use_id":"t","decision":"allow"}"#,
            r#"{"tool_use_id":"t","decision":"allow_narrowed","input":{"a":1.0}}"#,
            r#"{"tool_use_id":"t","decision":"deny","reason":"no"}"#,
        ] {
            assert_eq!(good(text).to_json().as_str(), text);
        }
        for (text, name) in [
            (r#"{"decision":"allow"}"#, "tool_use_id"),
            (r#"{"tool_use_id":"t"}"#, "decision"),
            (r#"{"tool_use_id":"t","decision":"withdrawn"}"#, "decision"),
            (r#"{"tool_use_id":"t","decision":"allow_narrowed"}"#, "input"),
            (r#"{"tool_use_id":"t","decision":"allow","input":{}}"#, "input"),
            (r#"{"tool_use_id":"t","decision":"deny","reason":5}"#, "reason"),
        ] {
            let failure = Approve::read(&json(text)).unwrap_err();
            assert!(failure.code == code::INVALID_PARAMS && failure.message.contains(name));
        }
    }

    #[test]
    fn a_question_is_read_back_and_takes_no_wider_input() {
        let question = Question {
            tool_use_id: "t".to_owned(),
            name: "find".to_owned(),
            input: json(r#"{"limit":5,"what":"x"}"#),
            narrow: NarrowRules::new([("/limit".to_owned(), NarrowRule::AtMost)]),
            expires_in_ms: 9,
        };
        assert_eq!(Question::read(&question.to_json("key_a")), Some(question.clone()));
        let answer = |input: &str| Approve {
            tool_use_id: "t".to_owned(),
            consent: Consent::Narrowed(json(input)),
            reason: None,
        };
        assert!(question.accept(answer(r#"{"limit":4,"what":"x"}"#)).is_ok());
        for (input, pointer) in [
            (r#"{"limit":6,"what":"x"}"#, "/limit"),
            (r#"{"limit":4,"what":"hunter2"}"#, "/what"),
            (r#"{"limit":4}"#, "\"\""),
        ] {
            let words = question.accept(answer(input)).unwrap_err().message;
            assert!(words.contains(pointer) && !words.contains("hunter2"), "{words}");
        }
    }

    #[test]
    fn what_was_resolved_says_whether_the_call_may_run() {
        for (decision, approved) in [
            (Decision::Allow, true),
            (Decision::AllowNarrowed, true),
            (Decision::Deny, false),
            (Decision::Withdrawn, false),
            (Decision::parse("maybe"), false),
        ] {
            let payload = resolved_payload("t", &decision, &SettledBy::Person, None, Some("r"));
            let result = ApproveResult::of_resolved(&payload, ApprovalState::Resolved).unwrap();
            assert_eq!((result.approved, result.decision), (approved, decision));
        }
    }
}
