//! The file that the session is about: what tools may say of it, and what is true.

use crate::Trouble;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

/// The largest file that the demo takes.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// How much of the beginning is quoted.
const QUOTED_LINES: usize = 6;
const QUOTED_CHARS: usize = 360;

/// How much of a long word is shown.
const WORD_CHARS: usize = 60;

/// The one file that the tools may read.
pub(crate) struct Document {
    path: String,
    name: String,
    text: String,
}

impl Document {
    /// Reads it.
    pub(crate) fn read(path: &Path) -> Result<Self, Trouble> {
        let shown = path.display().to_string();
        let another = "name another: make demo FILE=path";
        let unreadable = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => Trouble(format!("there is no file {shown}; {another}")),
            _ => Trouble(format!("{shown} cannot be read: {e}; {another}")),
        };
        // Before it is opened: opening a pipe would wait for whoever writes to it.
        let about = fs::metadata(path).map_err(unreadable)?;
        if !about.is_file() {
            let what = if about.is_dir() { "is a folder" } else { "is no file" };
            return Err(Trouble(format!("{shown} {what}; {another}")));
        }
        let file = fs::File::open(path).map_err(unreadable)?;
        let mut bytes = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > MAX_BYTES {
            let limit = MAX_BYTES / (1024 * 1024);
            return Err(Trouble(format!("{shown} is larger than {limit} MiB; {another}")));
        }
        let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
        let text = text.ok_or_else(|| Trouble(format!("{shown} is no text file; {another}")))?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Self { path: shown, name, text })
    }

    /// Its name without folders.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Where it lies, as the tools are told.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Whether a tool may read this path: the one that the person named.
    pub(crate) fn permit(&self, path: &str) -> Result<(), String> {
        if path == self.path {
            return Ok(());
        }
        Err(format!("only {} may be read here", self.path))
    }

    /// Its words, separated by white space.
    pub(crate) fn count_words(&self) -> usize {
        self.text.split_whitespace().count()
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Its longest word, the first of several, as the driver in Python should say.
    pub(crate) fn longest_word(&self) -> String {
        let mut longest = ("", 0);
        for word in self.bare_words() {
            let chars = word.chars().count();
            if chars > longest.1 {
                longest = (word, chars);
            }
        }
        shown_word(longest.0)
    }

    /// Its most frequent word, the first of several, and how often it is there, as the driver in JavaScript should say.
    pub(crate) fn most_frequent_word(&self) -> String {
        // How often, and which of all it is.
        let mut counts: HashMap<&str, (usize, usize)> = HashMap::new();
        for word in self.bare_words() {
            let number = counts.len();
            counts.entry(word).or_insert((0, number)).0 += 1;
        }
        let most = counts.iter().max_by_key(|(_, (count, number))| (*count, Reverse(*number)));
        let (word, count) = most.map_or(("", 0), |(word, (count, _))| (*word, *count));
        format!("{} ({count})", shown_word(word))
    }

    /// What stands between white space, without the punctuation around it; both those of ASCII, so that every language finds
    /// the same.
    fn bare_words(&self) -> impl Iterator<Item = &str> {
        let words = self.text.split([' ', '\t', '\n', '\u{b}', '\u{c}', '\r']);
        let bare = words.map(|word| word.trim_matches(|c: char| c.is_ascii_punctuation()));
        bare.filter(|word| !word.is_empty())
    }

    /// How it begins: some lines with something in them, shortened.
    pub(crate) fn beginning(&self) -> String {
        let lines = self.text.lines().filter(|line| !line.trim().is_empty()).take(QUOTED_LINES);
        let all = lines.map(str::trim_end).collect::<Vec<_>>().join("\n");
        let mut quoted: String = all.chars().take(QUOTED_CHARS).collect();
        if quoted.len() < all.len() {
            quoted.push('…');
        }
        quoted
    }

    /// What the scripted model does with the questions of this demo. After the tools have answered it
    /// goes by its built-in rules: it quotes them.
    pub(crate) fn script(&self) -> String {
        let rule = |question: &str, text: &str, tools: &[&str]| {
            let input = serde_json::json!({"path": self.path});
            let call = |name: &&str| serde_json::json!({"name": name, "input": input});
            serde_json::json!({
                "when": {"contains": question, "after_tools": false},
                "then": {"text": text, "tool_calls": tools.iter().map(call).collect::<Vec<_>>()},
            })
        };
        let script = serde_json::json!({
            "word_delay_ms": 20,
            "rules": [
                rule(
                    "how many words",
                    "Let me look: read_file shows me how it begins, count_words counts.",
                    &["read_file", "count_words"],
                ),
                rule("longest word", "Python knows: I call longest_word.", &["longest_word"]),
                rule("How large", "I can ask file_size about that.", &["file_size"]),
                rule("most frequent", "That takes some counting.", &["most_frequent_word"]),
            ],
        });
        script.to_string()
    }
}

/// A word as the tools say it: shortened, if it is very long.
fn shown_word(word: &str) -> String {
    if word.is_empty() {
        return "there is none".to_owned();
    }
    let mut shown: String = word.chars().take(WORD_CHARS).collect();
    if shown.len() < word.len() {
        shown.push('…');
    }
    shown
}
