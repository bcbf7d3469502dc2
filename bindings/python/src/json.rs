//! JSON as Python objects: integers of any size exactly, member names made once, the last of repeated members counts.
//!
//! The text was checked when it came, or is checked here: whatever is no JSON ends in `malformed`, and so does
//! what JSON may say and Python cannot: half of a surrogate pair, a depth beyond [`MAX_DEPTH`].

use crate::fault::malformed;
use crate::text::repeated;
use memchr::memchr2;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString};
use std::borrow::Cow;

/// How deep a value may be nested.
const MAX_DEPTH: u32 = 256;

/// The value of a JSON text.
pub(crate) fn decode<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    let mut reader = Reader { py, text, at: 0, depth: 0 };
    let value = reader.value()?;
    reader.skip_space();
    if reader.at < text.len() {
        return Err(reader.fault("something follows the value"));
    }
    Ok(value)
}

struct Reader<'py, 'a> {
    py: Python<'py>,
    text: &'a str,
    at: usize,
    depth: u32,
}

impl<'py, 'a> Reader<'py, 'a> {
    fn value(&mut self) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        match self.first() {
            b'{' => self.nested(Self::object),
            b'[' => self.nested(Self::array),
            b'"' => Ok(match self.string()? {
                Cow::Borrowed(text) => PyString::new(py, text).into_any(),
                Cow::Owned(text) => PyString::new(py, &text).into_any(),
            }),
            b't' => self.word("true", || PyBool::new(py, true).to_owned().into_any()),
            b'f' => self.word("false", || PyBool::new(py, false).to_owned().into_any()),
            b'n' => self.word("null", || py.None().into_bound(py)),
            b'-' | b'0'..=b'9' => self.number(),
            _ => Err(self.fault("no value begins like this")),
        }
    }

    fn nested(
        &mut self,
        read: impl FnOnce(&mut Self) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.fault("it is nested deeper than 256 levels"));
        }
        self.at += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    fn object(&mut self) -> PyResult<Bound<'py, PyAny>> {
        let dict = PyDict::new(self.py);
        if self.skip(b'}') {
            return Ok(dict.into_any());
        }
        loop {
            if self.first() != b'"' {
                return Err(self.fault("a member needs a name"));
            }
            let name = self.string()?;
            if !self.skip(b':') {
                return Err(self.fault("a colon is missing"));
            }
            let value = self.value()?;
            dict.set_item(repeated(self.py, &name), value)?;
            if self.skip(b'}') {
                return Ok(dict.into_any());
            }
            if !self.skip(b',') {
                return Err(self.fault("a comma is missing"));
            }
        }
    }

    fn array(&mut self) -> PyResult<Bound<'py, PyAny>> {
        let list = PyList::empty(self.py);
        if self.skip(b']') {
            return Ok(list.into_any());
        }
        loop {
            list.append(self.value()?)?;
            if self.skip(b']') {
                return Ok(list.into_any());
            }
            if !self.skip(b',') {
                return Err(self.fault("a comma is missing"));
            }
        }
    }

    /// A string, borrowed when nothing in it is escaped.
    fn string(&mut self) -> PyResult<Cow<'a, str>> {
        self.at += 1;
        let mut decoded = String::new();
        loop {
            let rest = &self.text[self.at..];
            let Some(n) = memchr2(b'"', b'\\', rest.as_bytes()) else {
                return Err(self.fault("a string does not end"));
            };
            let (piece, ends) = (&rest[..n], rest.as_bytes()[n] == b'"');
            self.at += n + 1;
            if ends && decoded.is_empty() {
                return Ok(Cow::Borrowed(piece));
            }
            decoded.push_str(piece);
            if ends {
                return Ok(Cow::Owned(decoded));
            }
            let escaped = self.escaped()?;
            decoded.push(escaped);
        }
    }

    /// What follows a backslash.
    fn escaped(&mut self) -> PyResult<char> {
        let Some(byte) = self.text.as_bytes().get(self.at).copied() else {
            return Err(self.fault("a string does not end"));
        };
        self.at += 1;
        Ok(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.unit()?;
                let units = match first {
                    0xd800..0xdc00 if self.text[self.at..].starts_with("\\u") => {
                        self.at += 2;
                        [first, self.unit()?]
                    }
                    _ => [first, 0],
                };
                let wide = units[1] != 0 || (0xd800..0xe000).contains(&first);
                let used = if wide { &units[..] } else { &units[..1] };
                match char::decode_utf16(used.iter().copied()).next() {
                    Some(Ok(whole)) => whole,
                    _ => return Err(self.fault("a string holds half of a surrogate pair")),
                }
            }
            _ => return Err(self.fault("there is no such escape")),
        })
    }

    /// Four hexadecimal digits.
    fn unit(&mut self) -> PyResult<u16> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4).unwrap_or_default();
        let unit = digits.iter().try_fold(0_u16, |unit, digit| {
            let digit = char::from(*digit).to_digit(16)?;
            Some(unit << 4 | u16::try_from(digit).ok()?)
        });
        match unit.filter(|_| digits.len() == 4) {
            Some(unit) => {
                self.at += 4;
                Ok(unit)
            }
            None => Err(self.fault("an escape needs four hexadecimal digits")),
        }
    }

    fn number(&mut self) -> PyResult<Bound<'py, PyAny>> {
        let (py, rest) = (self.py, &self.text[self.at..]);
        let is_part = |b: &u8| matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        let end = rest.bytes().position(|b| !is_part(&b)).unwrap_or(rest.len());
        let digits = &rest[..end];
        if !is_number(digits.as_bytes()) {
            return Err(self.fault("a number is written in another way"));
        }
        self.at += end;
        if digits.bytes().any(|b| matches!(b, b'.' | b'e' | b'E')) {
            return match digits.parse::<f64>() {
                Ok(number) => Ok(PyFloat::new(py, number).into_any()),
                Err(_) => Err(self.fault("a number is written in another way")),
            };
        }
        match digits.parse::<i64>() {
            Ok(number) => Ok(number.into_pyobject(py)?.into_any()),
            // Python's own reader takes any size up to the limit the program set for it.
            Err(_) => match py.get_type::<PyInt>().call1((digits,)) {
                Ok(number) => Ok(number),
                Err(_) => Err(self.fault("an integer has more digits than Python converts")),
            },
        }
    }

    fn word(
        &mut self,
        word: &str,
        value: impl FnOnce() -> Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.fault("no value begins like this"));
        }
        self.at += word.len();
        Ok(value())
    }

    fn skip_space(&mut self) {
        let rest = &self.text.as_bytes()[self.at..];
        let is_space = |b: &&u8| matches!(b, b' ' | b'\n' | b'\r' | b'\t');
        self.at += rest.iter().take_while(is_space).count();
    }

    /// The next byte that is no space, which stays; 0, with which nothing begins, where the text ends.
    #[inline]
    fn first(&mut self) -> u8 {
        match self.text.as_bytes().get(self.at) {
            // Above the blank there are no spaces.
            Some(byte) if *byte > b' ' => *byte,
            _ => {
                self.skip_space();
                self.text.as_bytes().get(self.at).copied().unwrap_or(0)
            }
        }
    }

    /// Passes the next byte if it is this one.
    #[inline]
    fn skip(&mut self, byte: u8) -> bool {
        if self.first() != byte {
            return false;
        }
        self.at += 1;
        true
    }

    /// Says where, and nothing of what stands there.
    #[cold]
    fn fault(&self, what: &str) -> PyErr {
        let what = if self.at < self.text.len() { what } else { "it breaks off" };
        let message = format!(
            "the JSON cannot be shown as Python objects: {what} (byte {}); the raw text is still there",
            self.at
        );
        malformed(self.py, &message)
    }
}

/// The grammar of JSON's numbers.
fn is_number(text: &[u8]) -> bool {
    let digits = |text: &[u8]| text.iter().take_while(|b| b.is_ascii_digit()).count();
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let whole = digits(text);
    if whole == 0 || whole > 1 && text[0] == b'0' {
        return false;
    }
    let mut rest = &text[whole..];
    if let Some(fraction) = rest.strip_prefix(b".") {
        let n = digits(fraction);
        if n == 0 {
            return false;
        }
        rest = &fraction[n..];
    }
    if let [b'e' | b'E', exponent @ ..] = rest {
        let exponent = match exponent {
            [b'+' | b'-', digits @ ..] => digits,
            all => all,
        };
        let n = digits(exponent);
        return n > 0 && n == exponent.len();
    }
    rest.is_empty()
}
