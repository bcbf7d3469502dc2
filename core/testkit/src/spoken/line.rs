//! The words of a line: numbers, bytes as hexadecimal digits, and what is absent.

use crate::subject::{Taken, Value};
use bytes::Bytes;
use std::fmt::Write;

/// A line of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    /// `op N`: a command has begun this operation.
    Op(u64),
    /// `accepted 0` or `1`: whether an answer came in time.
    Accepted(bool),
    /// `error …`: a command or an answer was refused; the fields of the record `failed`.
    Error(Taken),
    /// `effect KIND …`
    Effect(Taken),
    /// `step KIND …`
    Step(Taken),
    /// `over 0` or `1`: whether the operation has ended.
    Over(bool),
    /// `chat TEXT`: the units of a provider's answer.
    Chat(String),
}

impl Reply {
    /// Reads a line.
    pub(super) fn read(line: &str) -> Result<Self, String> {
        let mut words = line.split(' ');
        let verb = words.next().unwrap_or_default();
        let mut next = || words.next().ok_or_else(|| format!("\"{verb}\" says too little"));
        match verb {
            "op" => Ok(Self::Op(number(next()?)?)),
            "accepted" => Ok(Self::Accepted(truth(next()?)?)),
            "over" => Ok(Self::Over(truth(next()?)?)),
            "chat" => Ok(Self::Chat(text(next()?)?.ok_or("\"chat\" says nothing")?)),
            "error" => Ok(Self::Error(record("failed", words)?)),
            "effect" => Ok(Self::Effect(record(next()?, words)?)),
            "step" => Ok(Self::Step(record(next()?, words)?)),
            _ => Err(format!("there is no answer \"{}\"", shown(verb))),
        }
    }
}

/// A text as a word; absent: `-`.
pub(super) fn text_word(text: Option<&str>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| bytes_word(text.as_bytes()))
}

/// Bytes as a word: `x` and two digits for each.
pub(super) fn bytes_word(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut word = vec![b'x'; 1 + bytes.len() * 2];
    for (pair, byte) in word[1..].chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    String::from_utf8(word).unwrap_or_default()
}

/// The fields of a record, each with a space before it.
pub(super) fn fields(taken: &Taken) -> String {
    let mut line = String::new();
    for (name, value) in &taken.fields {
        let _ = match value {
            None => write!(line, " {name}=-"),
            Some(Value::Number(n)) => write!(line, " {name}={n}"),
            Some(Value::Bytes(bytes)) => write!(line, " {name}={}", bytes_word(bytes)),
        };
    }
    line
}

/// A number.
pub(super) fn number<T: std::str::FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("\"{}\" is not the number it should be", shown(word)))
}

/// A text that may be absent.
pub(super) fn text(word: &str) -> Result<Option<String>, String> {
    let text = |bytes: Bytes| String::from_utf8(bytes.into());
    bytes(word)?.map(text).transpose().map_err(|_| "a text is not UTF-8".to_owned())
}

/// Bytes that may be absent.
pub(super) fn bytes(word: &str) -> Result<Option<Bytes>, String> {
    if word == "-" {
        return Ok(None);
    }
    let digits = word.strip_prefix('x').map(str::as_bytes).filter(|d| d.len().is_multiple_of(2));
    let Some(digits) =
        digits.filter(|digits| digits.iter().all(|digit| VALUES[usize::from(*digit)] < 16))
    else {
        let word = shown(word);
        return Err(format!("\"{word}\" is not x and pairs of hexadecimal digits"));
    };
    let mut bytes = vec![0; digits.len() / 2];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = VALUES[usize::from(pair[0])] << 4 | VALUES[usize::from(pair[1])];
    }
    Ok(Some(bytes.into()))
}

/// What each digit counts; 16 for what is none. Events have megabytes, and these loops run unoptimised.
const VALUES: [u8; 256] = {
    let mut values = [16; 256];
    let mut digit = 0;
    while digit < 16 {
        values[b"0123456789abcdef"[digit as usize] as usize] = digit;
        digit += 1;
    }
    values
};

fn truth(word: &str) -> Result<bool, String> {
    match word {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(format!("\"{}\" is neither 0 nor 1", shown(word))),
    }
}

fn record<'a>(kind: &str, words: impl Iterator<Item = &'a str>) -> Result<Taken, String> {
    let mut taken = Taken { kind: kind.to_owned(), fields: Default::default() };
    for word in words {
        let (name, word) = word
            .split_once('=')
            .ok_or_else(|| format!("{}: \"{}\" is no field", shown(kind), shown(word)))?;
        let value = match word.as_bytes().first() {
            Some(b'x') | None => bytes(word)?.map(Value::Bytes),
            Some(b'-') if word.len() == 1 => None,
            Some(_) => Some(Value::Number(number(word)?)),
        };
        if taken.fields.insert(name.to_owned(), value).is_some() {
            return Err(format!("{}: \"{}\" is said twice", shown(kind), shown(name)));
        }
    }
    Ok(taken)
}

/// Enough of a word to find it by: there may be a payload in it.
fn shown(word: &str) -> String {
    word.chars().take(24).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let line = "step failed code=-301 details=- kind=x6170 message=x retry=x00ff";
        let Ok(Reply::Step(taken)) = Reply::read(line) else { panic!() };
        assert_eq!(format!("step {}{}", taken.kind, fields(&taken)), line);
        assert_eq!(taken.fields["code"], Some(Value::Number(-301)));
        assert_eq!(taken.fields["message"], Some(Value::Bytes(Bytes::new())));
    }

    #[test]
    fn other_lines_are_refused_and_shown_in_part() {
        let long = format!("step event id=x{}", "ag".repeat(1000));
        for wrong in [
            "",
            "new",
            "op",
            "op x",
            "over 2",
            "chat -",
            "step",
            "step event id",
            "step event id=",
            "step event id=x0",
            "step event id=xABCD",
            "step event id=7x",
            "step event id=1 id=1",
            &long,
        ] {
            let fault = Reply::read(wrong).unwrap_err();
            assert!(fault.len() < 90, "{fault}");
        }
    }
}
