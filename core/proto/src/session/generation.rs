//! System prompt and generation options (feature `options`).
//!
//! They are said for a session when it is opened, and again for a turn with its message: each member that is said there
//! goes before the session's, and `null` takes the session's away. What is said is checked once, by
//! [`Generation::read`]; numbers keep their spelling on the way to the provider.

use crate::Json;
use std::fmt;
use thiserror::Error;

/// The members of `options`.
pub const MEMBERS: [&str; 6] =
    ["temperature", "top_p", "max_tokens", "stop", "tool_choice", "reasoning"];

/// The most stop sequences: what every provider takes.
pub const MAX_STOPS: usize = 4;

/// The most bytes of one stop sequence.
pub const MAX_STOP_BYTES: usize = 256;

/// The largest `max_tokens`.
pub const MAX_TOKENS: u64 = 1 << 31;

/// Why something cannot be asked of a model. Names the member; repeats no value.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct GenerationError(String);

/// What is said about the generation, in one place: a session or a turn.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Generation {
    /// A string or `null`; absent when nothing is said.
    system: Option<Json>,
    /// Members of [`MEMBERS`] in that order, each checked, or `null`.
    options: Vec<(&'static str, Json)>,
}

/// What a model is asked beside the conversation; what is absent is the provider's own.
#[derive(Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Options {
    /// How much chance there is, from 0 to 2.
    pub temperature: Option<Json>,
    /// The share of likely words that are considered, from 0 to 1.
    pub top_p: Option<Json>,
    /// The most tokens of an answer.
    pub max_tokens: Option<u64>,
    /// What ends an answer when the model writes it.
    pub stop: Vec<String>,
    /// Whether tools are called.
    pub tool_choice: Option<ToolChoice>,
    /// How long the model may think.
    pub effort: Option<Effort>,
}

/// Whether tools are called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// As the model likes.
    Auto,
    /// At least one.
    Any,
    /// None.
    Never,
    /// This one.
    Tool(String),
}

/// How long a model may think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Shortly.
    Low,
    /// Moderately.
    Medium,
    /// At length.
    High,
}

impl Generation {
    /// Reads the members `system` and `options` of a body or of parameters, if they are there.
    ///
    /// # Errors
    /// [`GenerationError`] for the first member that is unknown, of the wrong type or out of range.
    pub fn read(body: &Json) -> Result<Self, GenerationError> {
        let system = body.member("system");
        if system.as_ref().is_some_and(|text| !text.is_null() && text.to_text().is_none()) {
            return Err(fault("\"system\" must be a string"));
        }
        let mut options = Vec::new();
        if let Some(given) = body.member("options").filter(|given| !given.is_null()) {
            let given = given.members().ok_or_else(|| fault("\"options\" must be an object"))?;
            if let Some((name, _)) =
                given.iter().find(|(name, _)| !MEMBERS.contains(&name.as_str()))
            {
                let known = MEMBERS.join(", ");
                return Err(fault(&format!(
                    "\"options\" has no member {name:?}; it may have {known}"
                )));
            }
            for name in MEMBERS {
                let Some((_, value)) = given.iter().rev().find(|(given, _)| given == name) else {
                    continue;
                };
                if !value.is_null() {
                    check(name, value)?;
                }
                options.push((name, value.clone()));
            }
        }
        Ok(Self { system, options })
    }

    /// What holds when this is said after `base`: each member of it goes before that of `base`.
    #[must_use]
    pub fn over(&self, base: &Self) -> Self {
        let said = |name: &str| self.option(name).or_else(|| base.option(name)).cloned();
        Self {
            system: self.system.clone().or_else(|| base.system.clone()),
            options: MEMBERS.iter().filter_map(|name| Some((*name, said(name)?))).collect(),
        }
    }

    /// Without what is `null`.
    #[must_use]
    pub fn settled(mut self) -> Self {
        self.system = self.system.filter(|text| !text.is_null());
        self.options.retain(|(_, value)| !value.is_null());
        self
    }

    /// The same with the model free to call tools or not, where it had to call one: what is asked after it has.
    #[must_use]
    pub fn with_calls_made(mut self) -> Self {
        for (name, value) in &mut self.options {
            let forced = |value: &Json| {
                matches!(tool_choice(value), Some(ToolChoice::Any | ToolChoice::Tool(_)))
            };
            if *name == "tool_choice" && forced(value) {
                *value = Json::string("auto");
            }
        }
        self
    }

    /// Whether nothing is said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.system.is_none() && self.options.is_empty()
    }

    /// The system prompt.
    #[must_use]
    pub fn system(&self) -> Option<String> {
        self.system.as_ref().and_then(Json::to_text)
    }

    /// The options, for whoever writes the provider's request.
    #[must_use]
    pub fn options(&self) -> Options {
        let stop = self.option("stop").and_then(Json::elements).unwrap_or_default();
        Options {
            temperature: self.option("temperature").filter(|value| !value.is_null()).cloned(),
            top_p: self.option("top_p").filter(|value| !value.is_null()).cloned(),
            max_tokens: self.option("max_tokens").and_then(|value| value.decode().ok()),
            stop: stop.iter().filter_map(Json::to_text).collect(),
            tool_choice: self.option("tool_choice").and_then(tool_choice),
            effort: self.option("reasoning").and_then(effort),
        }
    }

    /// The members `options` and `system` as JSON, without those that nothing is said about.
    #[must_use]
    pub fn members(&self) -> Vec<(&'static str, Json)> {
        let options = self.options.iter().map(|(name, value)| (*name, value));
        let options = (!self.options.is_empty()).then(|| ("options", Json::object(options)));
        options.into_iter().chain(self.system.clone().map(|text| ("system", text))).collect()
    }

    /// [`Generation::members`] as an object, which [`Generation::read`] reads.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let members = self.members();
        Json::object(members.iter().map(|(name, value)| (*name, value)))
    }

    fn option(&self, name: &str) -> Option<&Json> {
        self.options.iter().find(|(given, _)| *given == name).map(|(_, value)| value)
    }
}

impl Effort {
    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

fn check(name: &str, value: &Json) -> Result<(), GenerationError> {
    let number = |most: f64| value.decode::<f64>().is_ok_and(|n| (0.0..=most).contains(&n));
    let (good, wanted) = match name {
        "temperature" => (number(2.0), "a number from 0 to 2".to_owned()),
        "top_p" => (number(1.0), "a number from 0 to 1".to_owned()),
        "max_tokens" => (
            value.decode::<u64>().is_ok_and(|n| (1..=MAX_TOKENS).contains(&n)),
            format!("a whole number from 1 to {MAX_TOKENS}"),
        ),
        "stop" => (
            is_stop(value),
            format!("a list of at most {MAX_STOPS} strings of 1 to {MAX_STOP_BYTES} bytes"),
        ),
        "tool_choice" => (
            tool_choice(value).is_some(),
            "\"auto\", \"any\", \"none\" or {\"name\": …}".to_owned(),
        ),
        _ => (
            effort(value).is_some(),
            "{\"effort\": …} with \"low\", \"medium\" or \"high\"".to_owned(),
        ),
    };
    if good { Ok(()) } else { Err(fault(&format!("\"options.{name}\" must be {wanted}"))) }
}

fn is_stop(value: &Json) -> bool {
    let fits =
        |text: &Json| text.to_text().is_some_and(|text| (1..=MAX_STOP_BYTES).contains(&text.len()));
    value.elements().is_some_and(|all| all.len() <= MAX_STOPS && all.iter().all(fits))
}

fn tool_choice(value: &Json) -> Option<ToolChoice> {
    match value.to_text().as_deref() {
        Some("auto") => Some(ToolChoice::Auto),
        Some("any") => Some(ToolChoice::Any),
        Some("none") => Some(ToolChoice::Never),
        Some(_) => None,
        None => only_text(value, "name").map(ToolChoice::Tool),
    }
}

fn effort(value: &Json) -> Option<Effort> {
    match only_text(value, "effort")?.as_str() {
        "low" => Some(Effort::Low),
        "medium" => Some(Effort::Medium),
        "high" => Some(Effort::High),
        _ => None,
    }
}

/// The text of an object's only member.
fn only_text(value: &Json, name: &str) -> Option<String> {
    match &value.members()?[..] {
        [(given, text)] if given == name => text.to_text(),
        _ => None,
    }
}

fn fault(words: &str) -> GenerationError {
    GenerationError(words.to_owned())
}

// A system prompt is payload: debug output shows its size.
impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.options.iter().map(|(name, _)| *name).collect();
        let system = self.system.as_ref().map(|text| text.as_bytes().len());
        write!(f, "Generation({names:?}, system of {system:?} bytes)")
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("max_tokens", &self.max_tokens)
            .field("tool_choice", &self.tool_choice)
            .field("effort", &self.effort)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Generation, GenerationError> {
        Generation::read(&Json::parse(text.to_owned()).unwrap())
    }

    fn options(members: &str) -> String {
        read(&format!(r#"{{"options":{{{members}}}}}"#)).unwrap_err().to_string()
    }

    #[test]
    fn everything_that_can_be_said_is_read_and_keeps_its_spelling() {
        let text = r#"{"options":{"temperature":0.70,"top_p":1e0,"max_tokens":5,"stop":["\n"],"tool_choice":{"name":"a"},"reasoning":{"effort":"low"}},"system":"be brief"}"#;
        let said = read(text).unwrap();
        assert_eq!(said.to_json().as_str(), text);
        assert_eq!(said.system().as_deref(), Some("be brief"));
        let options = said.options();
        assert_eq!(options.temperature.unwrap().as_str(), "0.70");
        assert_eq!((options.max_tokens, options.stop), (Some(5), vec!["\n".to_owned()]));
        assert_eq!(options.tool_choice, Some(ToolChoice::Tool("a".to_owned())));
        assert_eq!(options.effort, Some(Effort::Low));
        assert!(read("{}").unwrap().is_empty());
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name_without_its_value() {
        for (members, name) in [
            (r#""temprature":1"#, "temprature"),
            (r#""temperature":2.1"#, "options.temperature"),
            (r#""temperature":"hunter2""#, "options.temperature"),
            (r#""top_p":-0.1"#, "options.top_p"),
            (r#""max_tokens":0"#, "options.max_tokens"),
            (r#""max_tokens":1.5"#, "options.max_tokens"),
            (r#""max_tokens":99999999999"#, "options.max_tokens"),
            (r#""stop":"x""#, "options.stop"),
            (r#""stop":["a","b","c","d","e"]"#, "options.stop"),
            (r#""stop":[""]"#, "options.stop"),
            (r#""tool_choice":"all""#, "options.tool_choice"),
            (r#""tool_choice":{"name":"a","x":1}"#, "options.tool_choice"),
            (r#""reasoning":"low""#, "options.reasoning"),
            (r#""reasoning":{"effort":"huge"}"#, "options.reasoning"),
        ] {
            let words = options(members);
            assert!(words.contains(name) && !words.contains("hunter2"), "{members}: {words}");
        }
        assert!(read(r#"{"system":5}"#).unwrap_err().to_string().contains("system"));
        assert!(read(r#"{"options":[]}"#).unwrap_err().to_string().contains("options"));
    }

    #[test]
    fn a_turn_says_it_again_member_by_member_and_null_takes_away() {
        let session = read(r#"{"options":{"temperature":1,"max_tokens":9},"system":"a"}"#).unwrap();
        let turn = read(r#"{"options":{"temperature":null,"top_p":0.5},"system":null}"#).unwrap();
        let both = turn.over(&session).settled();
        assert_eq!(both.to_json().as_str(), r#"{"options":{"top_p":0.5,"max_tokens":9}}"#);
        let again = Generation::read(&turn.to_json()).unwrap();
        assert_eq!(again, turn, "what is stored is read back, null included");
    }

    #[test]
    fn a_tool_that_had_to_be_called_has_to_be_called_once() {
        for (choice, after) in [
            (r#""any""#, r#""auto""#),
            (r#"{"name":"a"}"#, r#""auto""#),
            (r#""none""#, r#""none""#),
            (r#""auto""#, r#""auto""#),
        ] {
            let said = read(&format!(r#"{{"options":{{"tool_choice":{choice}}}}}"#)).unwrap();
            let expected = format!(r#"{{"options":{{"tool_choice":{after}}}}}"#);
            assert_eq!(said.with_calls_made().to_json().as_str(), expected);
        }
    }

    #[test]
    fn debug_output_shows_no_prompt() {
        let said = read(r#"{"system":"hunter2","options":{"stop":["hunter2"]}}"#).unwrap();
        assert!(!format!("{said:?} {:?}", said.options()).contains("hunter2"));
    }

    proptest! {
        #[test]
        fn saying_is_associative(texts in proptest::collection::vec(said(), 3)) {
            let all: Vec<Generation> = texts.iter().map(|text| read(text).unwrap()).collect();
            let left = all[2].over(&all[1]).over(&all[0]);
            let right = all[2].over(&all[1].over(&all[0]));
            prop_assert_eq!(left, right);
        }
    }

    fn said() -> impl Strategy<Value = String> {
        let number = prop_oneof![Just("null"), Just("0"), Just("0.50"), Just("1")];
        let member = proptest::sample::select(vec!["temperature", "top_p"]);
        let system = prop_oneof![Just(""), Just(r#","system":null"#), Just(r#","system":"s""#)];
        (member, number, system)
            .prop_map(|(name, n, system)| format!(r#"{{"options":{{"{name}":{n}}}{system}}}"#))
    }
}
