//! What the model of a run says: the kinds of messages, and the answers that the service is given for them.

use serde_json::{Value, json};

/// A kind of message: the word that asks for it, and how often it is chosen among a hundred.
pub(crate) const KINDS: [(&str, u64); 7] = [
    ("[say]", 10),
    ("[long]", 7),
    ("[one]", 15),
    ("[many]", 40),
    ("[again]", 14),
    ("[ask]", 10),
    ("[refuse]", 4),
];

/// Calls of one answer to a `[many]`.
const MANY: usize = 24;

/// The script of the model. What follows results is left to the built-in rules, which quote them.
pub(crate) fn script() -> String {
    let calls = |name: &str, count: usize| {
        (0..count).map(|number| json!({"name": name, "input": {"number": number}})).collect()
    };
    let rule = |kind: &str, round: u64, then: Value| json!({"when": {"contains": kind, "round": round}, "then": then});
    let calling = |text: &str, name: &str, count: usize| {
        let calls: Vec<Value> = calls(name, count);
        json!({"text": text, "tool_calls": calls})
    };
    let words = |count: usize, delay_ms: u64| {
        let piece = json!({"text": "word ", "delay_ms": delay_ms});
        json!({"pieces": vec![piece; count]})
    };
    let mut asking: Vec<Value> = calls("guarded", 2);
    asking.extend::<Vec<Value>>(calls("effect", 1));
    json!({"rules": [
        rule("[say]", 1, json!({"text": "So it is."})),
        rule("[long]", 1, words(30, 15)),
        rule("[one]", 1, calling("One.", "effect", 1)),
        rule("[many]", 1, calling("Many.", "effect", MANY)),
        rule("[again]", 1, calling("Once.", "effect", 2)),
        rule("[again]", 2, calling("Twice.", "effect", 2)),
        rule("[again]", 3, calling("And again.", "effect", 2)),
        rule("[ask]", 1, json!({"text": "May I?", "tool_calls": asking})),
        rule("[refuse]", 1, json!({"fail": {"status": 400, "error": "refused"}})),
    ]})
    .to_string()
}

/// The kind that this number below 100 stands for.
pub(crate) fn kind(number: u64) -> &'static str {
    let mut left = number;
    for (kind, share) in KINDS {
        if left < share {
            return kind;
        }
        left -= share;
    }
    KINDS[0].0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_the_kinds_are_whole() {
        assert_eq!(KINDS.iter().map(|(_, share)| share).sum::<u64>(), 100);
        assert!(KINDS.iter().all(|(kind, _)| (0..100).any(|number| super::kind(number) == *kind)));
    }
}
