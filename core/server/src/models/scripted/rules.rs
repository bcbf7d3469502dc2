//! What the scripted model does when no script says otherwise.
//!
//! 1. Results are quoted, and the turn ends.
//! 2. Otherwise every tool whose name is a word of the message is called, all of them at once.
//! 3. Otherwise the tool whose name and description share most words with the message is called.
//! 4. Otherwise it says what it is and how to get a tool called.
//!
//! Parameters are filled from what stands after the tool's name, then from the whole message: a JSON object is taken
//! as the whole input; else quoted, path-like and numeric words fill the required parameters in order, by type. Numbers keep their spelling. Without such words a string takes the text after the name.

use super::{Piece, Plan, PlannedCall, ResultSeen, ScriptedSettings, Situation, words};
use broca_proto::Json;
use broca_proto::provider::ToolSpec;
use broca_proto::session::generation::ToolChoice;
use std::collections::HashSet;

/// Plans the answer.
pub(crate) fn plan(situation: &Situation<'_>, settings: &ScriptedSettings) -> Plan {
    let choice = situation.request.generation.options().tool_choice;
    let tools = &situation.request.tools;
    // New words beside results (a turn that was abandoned) are a new question.
    if situation.results.is_empty() || situation.text_is_new {
        let calls = chosen_calls(&situation.text, tools, choice.as_ref());
        if !calls.is_empty() {
            return Plan { pieces: announce(&calls, settings), calls, ..Plan::default() };
        }
    }
    let text = if situation.results.is_empty() {
        introduce(&situation.text, tools)
    } else {
        quote(&situation.results, settings.quote_chars)
    };
    Plan { pieces: words(&text, settings.word_delay), ..Plan::default() }
}

/// The calls that the message means, as far as the request leaves a choice. A tool that has to be called is, whatever the
/// message says.
fn chosen_calls(text: &str, tools: &[ToolSpec], choice: Option<&ToolChoice>) -> Vec<PlannedCall> {
    let forced = |tool: &ToolSpec| {
        let words = words_of(text);
        vec![call(tool, text, &words, text, &words)]
    };
    let meant = calls(text, tools);
    match choice {
        Some(ToolChoice::Never) => Vec::new(),
        Some(ToolChoice::Tool(name)) => {
            let named: Vec<PlannedCall> =
                meant.into_iter().filter(|call| call.name == *name).collect();
            let tool = tools.iter().find(|tool| tool.name == *name);
            tool.filter(|_| named.is_empty()).map_or(named, forced)
        }
        Some(ToolChoice::Any) if meant.is_empty() => tools.first().map_or(meant, forced),
        _ => meant,
    }
}

fn announce(calls: &[PlannedCall], settings: &ScriptedSettings) -> Vec<Piece> {
    let names: Vec<&str> = calls.iter().map(|call| call.name.as_str()).collect();
    words(&format!("I am calling {}.", names.join(" and ")), settings.word_delay)
}

fn quote(results: &[ResultSeen], limit: usize) -> String {
    let quoted = results.iter().map(|result| {
        let verb = if result.is_error { "failed" } else { "says" };
        let total = result.text.chars().count();
        let shown: String = result.text.chars().take(limit).collect();
        let cut = if total > limit {
            format!("\n(The first {limit} of {total} characters are shown.)")
        } else {
            String::new()
        };
        format!("{} {verb}:\n{shown}{cut}", result.tool)
    });
    quoted.collect::<Vec<_>>().join("\n\n")
}

fn introduce(text: &str, tools: &[ToolSpec]) -> String {
    let mut heard: String = text.chars().take(200).collect();
    if heard.len() < text.len() {
        heard.push('…');
    }
    let opening = "I am the scripted model: I follow fixed rules and understand nothing.";
    let cure = match tools.first() {
        None => "This session offers no tools.".to_owned(),
        Some(first) => {
            let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
            format!(
                "To have a tool called, write its name and then what it needs, in quotes where it is no path or number: {} \"…\". On offer: {}.",
                first.name,
                names.join(", ")
            )
        }
    };
    let end = "For a model that understands, start the service with --model openai:NAME.";
    format!("{opening} You said: {heard}\n{cure} {end}")
}

fn calls(text: &str, tools: &[ToolSpec]) -> Vec<PlannedCall> {
    let words = words_of(text);
    let named: Vec<(usize, &ToolSpec)> = words
        .iter()
        .enumerate()
        .filter_map(|(at, word)| tool_named(word.bare, tools).map(|tool| (at, tool)))
        .collect();
    if named.is_empty() {
        let best = most_alike(&words, tools);
        return best.map(|tool| call(tool, text, &words, text, &words)).into_iter().collect();
    }
    let mut calls: Vec<PlannedCall> = Vec::new();
    for (i, &(at, tool)) in named.iter().enumerate() {
        let end = named.get(i + 1).map_or(words.len(), |next| next.0);
        let own = &words[at + 1..end];
        let from = words[at].end;
        let to = words.get(end).map_or(text.len(), |word| word.start);
        let others: Vec<Word<'_>> = words
            .iter()
            .filter(|word| !own.contains(word) && tool_named(word.bare, tools).is_none())
            .copied()
            .collect();
        let planned = call(tool, &text[from..to], own, text, &others);
        // Naming a tool twice without saying anything else does not run it twice.
        if !calls.iter().any(|c| c.name == planned.name && c.input == planned.input) {
            calls.push(planned);
        }
    }
    calls
}

fn tool_named<'a>(word: &str, tools: &'a [ToolSpec]) -> Option<&'a ToolSpec> {
    let exact = tools.iter().find(|tool| tool.name == word);
    exact.or_else(|| tools.iter().find(|tool| tool.name.eq_ignore_ascii_case(word)))
}

/// The tool that shares most words with the message; the first one of equals; none that shares none.
fn most_alike<'a>(words: &[Word<'_>], tools: &'a [ToolSpec]) -> Option<&'a ToolSpec> {
    let said: HashSet<String> = words.iter().flat_map(|word| significant(word.bare)).collect();
    let mut best = None;
    for tool in tools {
        let about = format!("{} {}", tool.name, tool.description.as_deref().unwrap_or(""));
        let about: HashSet<String> = significant(&about).collect();
        let shared = about.intersection(&said).count();
        if shared > best.map_or(0, |(most, _)| most) {
            best = Some((shared, tool));
        }
    }
    best.map(|(_, tool)| tool)
}

/// Lower-case words without those that every sentence has.
fn significant(text: &str) -> impl Iterator<Item = String> {
    const COMMON: &[&str] = &[
        "about", "and", "are", "can", "could", "does", "for", "from", "give", "has", "have", "how",
        "into", "its", "please", "say", "says", "tell", "tells", "that", "the", "this", "use",
        "was", "what", "when", "which", "with", "you", "your",
    ];
    text.split(|c: char| !c.is_alphanumeric())
        .map(str::to_lowercase)
        .filter(|word| word.chars().count() > 2 && !COMMON.contains(&word.as_str()))
        .collect::<Vec<_>>()
        .into_iter()
}

/// One call: parameters come from `own` first, then from `others`.
fn call(
    tool: &ToolSpec,
    own_text: &str,
    own: &[Word<'_>],
    text: &str,
    others: &[Word<'_>],
) -> PlannedCall {
    let name = tool.name.clone();
    if let Some(input) = object_in(own_text) {
        return PlannedCall { id: None, name, input };
    }
    let words = own.iter().chain(others);
    let mut unused: Vec<Word<'_>> =
        words.filter(|word| word.kind != Kind::Plain).copied().collect();
    let required =
        tool.input_schema.member("required").and_then(|r| r.elements()).unwrap_or_default();
    let properties = tool.input_schema.member("properties");
    let mut members: Vec<(String, Json)> = Vec::new();
    for parameter in required.iter().filter_map(Json::to_text) {
        let schema = properties.as_ref().and_then(|all| all.member(&parameter));
        let value = fill(&parameter, schema.as_ref(), &mut unused, own_text, text);
        members.push((parameter, value));
    }
    let input = Json::object(members.iter().map(|(name, value)| (name.as_str(), value)));
    PlannedCall { id: None, name, input }
}

/// A value for one parameter: from the words that are left, else the plainest value of its type.
fn fill(
    name: &str,
    schema: Option<&Json>,
    unused: &mut Vec<Word<'_>>,
    own_text: &str,
    text: &str,
) -> Json {
    let member = |name: &str| schema.and_then(|schema| schema.member(name));
    if let Some(values) = member("enum").and_then(|values| values.elements()) {
        let said = values.iter().find(|v| v.to_text().is_some_and(|v| text.contains(&v)));
        return said.or_else(|| values.first()).cloned().unwrap_or_default();
    }
    let mut take =
        |test: &dyn Fn(&Word<'_>) -> bool| unused.iter().position(test).map(|at| unused.remove(at));
    let kind = member("type").and_then(|kind| {
        kind.to_text().or_else(|| kind.elements()?.first().and_then(Json::to_text))
    });
    match kind.as_deref() {
        Some("integer") => {
            let found = take(&|word| {
                number(word.bare).is_some_and(|n| !n.as_str().contains(['.', 'e', 'E']))
            });
            found.and_then(|word| number(word.bare)).unwrap_or_else(|| Json::integer(0))
        }
        Some("number") => {
            let found = take(&|word| number(word.bare).is_some());
            found.and_then(|word| number(word.bare)).unwrap_or_else(|| Json::integer(0))
        }
        Some("boolean") => {
            let no =
                words_of(own_text).iter().any(|word| ["no", "false", "off"].contains(&word.bare));
            Json::encode(&!no).unwrap_or_default()
        }
        Some("array") => {
            let mut items = Vec::new();
            while let Some(word) = take(&|word| word.kind != Kind::Number) {
                items.push(Json::string(word.bare));
            }
            Json::array(&items)
        }
        Some("object") => Json::empty_object(),
        Some("null") => Json::null(),
        // A string, or a parameter that does not say.
        _ => match take(&|word| word.kind != Kind::Number).or_else(|| take(&|_| true)) {
            Some(word) => Json::string(word.bare),
            None => Json::string(plain_text(name, own_text, text)),
        },
    }
}

/// What a string parameter gets when no word stands out: the last word where a file is meant (`Makefile` does not look
/// like a path), else everything after the tool's name, else the message.
fn plain_text<'a>(parameter: &str, own_text: &'a str, text: &'a str) -> &'a str {
    let parameter = parameter.to_ascii_lowercase();
    if ["path", "file", "dir"].iter().any(|part| parameter.contains(part))
        && let Some(last) = words_of(own_text).last()
    {
        return last.bare;
    }
    let own = own_text.trim_matches(|c: char| c.is_whitespace() || c.is_ascii_punctuation());
    if own.is_empty() { text.trim() } else { own }
}

/// A number in JSON's spelling, kept as it is.
fn number(word: &str) -> Option<Json> {
    word.starts_with(|c: char| c == '-' || c.is_ascii_digit())
        .then(|| Json::parse(word.to_owned()).ok())?
}

/// The first JSON object in the text, as it stands there.
fn object_in(text: &str) -> Option<Json> {
    text.match_indices('{').find_map(|(at, _)| {
        let mut values = serde_json::Deserializer::from_str(&text[at..])
            .into_iter::<&serde_json::value::RawValue>();
        Json::parse(values.next()?.ok()?.get().to_owned()).ok()
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Quoted,
    Path,
    Number,
    Plain,
}

/// A word of the message: where it stands, and what is left without quotes and punctuation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word<'a> {
    bare: &'a str,
    kind: Kind,
    start: usize,
    end: usize,
}

/// Cuts a message into words; what stands in quotes is one word.
fn words_of(text: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let start = at;
        if between_words(c) {
            at += c.len_utf8();
            continue;
        }
        let inner = start + c.len_utf8();
        if let Some(length) = closing(c).and_then(|close| quoted_length(&text[inner..], close)) {
            let end = inner + length;
            at = end + text[end..].chars().next().map_or(0, char::len_utf8);
            words.push(Word { bare: &text[inner..end], kind: Kind::Quoted, start, end: at });
            continue;
        }
        at = text[start..].find(between_words).map_or(text.len(), |length| start + length);
        let around = |c: char| "\"'`[]{}<>:!?“”‘’…".contains(c);
        let bare = text[start..at].trim_matches(around).trim_end_matches('.');
        let bare = bare.trim_matches(around);
        if bare.is_empty() {
            continue;
        }
        let kind = if number(bare).is_some() {
            Kind::Number
        } else if is_path(bare) {
            Kind::Path
        } else {
            Kind::Plain
        };
        words.push(Word { bare, kind, start, end: at });
    }
    words
}

fn between_words(c: char) -> bool {
    c.is_whitespace() || "(),;".contains(c)
}

fn closing(open: char) -> Option<char> {
    match open {
        '"' | '\'' | '`' => Some(open),
        '“' => Some('”'),
        '‘' => Some('’'),
        '«' => Some('»'),
        _ => None,
    }
}

/// How long the quoted text is; none when nothing closes it before the line ends. An apostrophe inside a word closes nothing.
fn quoted_length(rest: &str, close: char) -> Option<usize> {
    let line = rest.split('\n').next()?;
    let ends =
        |at: usize| !line[at + close.len_utf8()..].starts_with(|c: char| c.is_alphanumeric());
    line.match_indices(close).map(|(at, _)| at).find(|&at| at > 0 && ends(at))
}

/// `src/main.rs`, `notes.txt`, `~/x`, `C:\x`: a slash inside, or a name with an ending.
fn is_path(word: &str) -> bool {
    let slash = word.contains(['/', '\\']) && word.chars().any(char::is_alphanumeric);
    let ending = word.rsplit_once('.').is_some_and(|(name, ending)| {
        (!name.is_empty() || ending.len() > 2)
            && (1..=8).contains(&ending.len())
            && ending.starts_with(|c: char| c.is_ascii_alphabetic())
            && ending.chars().all(|c| c.is_ascii_alphanumeric())
    });
    slash || ending
}
