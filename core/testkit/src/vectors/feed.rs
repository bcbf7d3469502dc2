//! The bytes of a case, and the ways to cut them.

use super::fields::{Fields, short};
use crate::host::{Delivery, End, Framing, response};
use broca::Json;
use broca::proto::session::rpc::{IdMatch, match_id};
use bytes::{Bytes, BytesMut};
use serde_json::Value;

/// The most bytes that `fill` may make.
const MAX_FILL: usize = 256 << 20;

/// The reads in which bytes made by `fill` are handed over when everything else goes byte by byte.
const FILL_READ: usize = 4096;

/// One chunk of a case.
#[derive(Debug, Clone)]
pub(super) struct Chunk {
    pub(super) bytes: Bytes,
    /// Made by `fill`: never cut smaller than [`FILL_READ`].
    filled: bool,
}

/// A way to cut the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    AsGiven,
    OneChunk,
    ByteByByte,
}

impl Cut {
    pub(super) const ALL: [Self; 3] = [Self::AsGiven, Self::OneChunk, Self::ByteByByte];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::AsGiven => "as given",
            Self::OneChunk => "in one chunk",
            Self::ByteByByte => "byte by byte",
        }
    }
}

/// What one connection brings.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    pub(super) chunks: Vec<Chunk>,
    pub(super) end: End,
    pub(super) expect_params: Option<Value>,
}

impl Connection {
    /// Reads `chunks`, `end` and, where it may stand, `expect_params`.
    pub(super) fn read(fields: &mut Fields<'_>, one_of_many: bool) -> Result<Self, String> {
        let chunks = fields.list("chunks")?.ok_or("the feed has no \"chunks\"")?;
        let expect_params = if one_of_many { fields.take("expect_params").cloned() } else { None };
        Ok(Self {
            chunks: chunks.iter().map(Chunk::read).collect::<Result<_, _>>()?,
            end: match fields.text("end")?.as_str() {
                "eof" => End::Eof,
                "reset" => End::Reset,
                "hold" => End::Hold,
                other => {
                    return Err(format!("\"end\" is \"{other}\"; it may be eof, reset or hold"));
                }
            },
            expect_params,
        })
    }

    /// All its bytes.
    pub(super) fn bytes(&self) -> Bytes {
        if let [chunk] = self.chunks.as_slice() {
            return chunk.bytes.clone();
        }
        let mut all = BytesMut::new();
        self.chunks.iter().for_each(|chunk| all.extend_from_slice(&chunk.bytes));
        all.freeze()
    }

    /// The bytes in the pieces of this cut.
    pub(super) fn pieces(&self, cut: Cut) -> Vec<Bytes> {
        match cut {
            Cut::AsGiven => self.chunks.iter().map(|chunk| chunk.bytes.clone()).collect(),
            Cut::OneChunk => vec![self.bytes()],
            Cut::ByteByByte => self
                .chunks
                .iter()
                .flat_map(|c| reads(&c.bytes, if c.filled { FILL_READ } else { 1 }))
                .collect(),
        }
    }

    /// The answer of the service, as the client's socket reads it. In one chunk: head, body and end in one read; byte
    /// by byte: the framing is cut too.
    pub(super) fn answer(&self, cut: Cut, framing: Framing) -> Vec<Delivery> {
        const NDJSON: &str = "application/x-ndjson";
        let given = if cut == Cut::OneChunk { Cut::OneChunk } else { Cut::AsGiven };
        let whole = response(200, NDJSON, framing, self.pieces(given), self.end);
        match cut {
            Cut::AsGiven => whole,
            Cut::OneChunk => joined(whole),
            Cut::ByteByByte => {
                let fills = self.chunks.iter().filter(|c| c.filled);
                let bulky = fills.map(|c| c.bytes.len()).min().unwrap_or(usize::MAX);
                let size =
                    |bytes: &Bytes| if bytes.len() >= bulky.max(FILL_READ) { FILL_READ } else { 1 };
                let cut = |delivery: Delivery| match delivery {
                    Delivery::Bytes(bytes) => {
                        let size = size(&bytes);
                        reads(&bytes, size).map(Delivery::Bytes).collect()
                    }
                    closed => vec![closed],
                };
                whole.into_iter().flat_map(cut).collect()
            }
        }
    }

    /// The same answer to a request that went out as `sent` and not as the case's `stated`: the ids of
    /// its lines are replaced, everything else stays byte for byte.
    pub(super) fn with_id(&self, stated: &Json, sent: &Json) -> Self {
        let all = self.bytes();
        let mut edits: Vec<(usize, usize, Bytes)> = Vec::new();
        let mut start = 0;
        for line in all.split_inclusive(|byte| *byte == b'\n') {
            if let Some((from, to, new)) = new_id(line, stated, sent) {
                edits.push((start + from, start + to, new));
            }
            start += line.len();
        }
        let mut at = 0;
        let chunks = self.chunks.iter().map(|chunk| {
            let (from, to) = (at, at + chunk.bytes.len());
            at = to;
            let mut out = BytesMut::new();
            let mut done = from;
            for (a, b, new) in &edits {
                if *b <= from || *a >= to {
                    continue;
                }
                out.extend_from_slice(&all[done.min(*a).max(from)..(*a).max(from)]);
                if (from..to).contains(a) {
                    out.extend_from_slice(new);
                }
                done = (*b).min(to);
            }
            out.extend_from_slice(&all[done..to]);
            Chunk { bytes: out.freeze(), filled: chunk.filled }
        });
        Self { chunks: chunks.collect(), end: self.end, expect_params: self.expect_params.clone() }
    }
}

impl Chunk {
    fn read(value: &Value) -> Result<Self, String> {
        let mut fields = Fields::of(value, "a chunk")?;
        let chunk = if let Some(text) = fields.maybe_text("text")? {
            Self { bytes: text.into(), filled: false }
        } else if let Some(hex) = fields.maybe_text("hex")? {
            Self { bytes: unhex(&hex)?.into(), filled: false }
        } else if let Some(unit) = fields.maybe_text("fill")? {
            let unit = unhex(&unit)?;
            let times = fields.number("times")?.and_then(|n| usize::try_from(n).ok());
            let times = times.ok_or("a \"fill\" needs \"times\"")?;
            if unit.len().saturating_mul(times) > MAX_FILL {
                return Err(format!("a \"fill\" makes more than {MAX_FILL} bytes"));
            }
            Self { bytes: unit.repeat(times).into(), filled: true }
        } else {
            return Err(format!("a chunk must have hex, text or fill: {}", short(value)));
        };
        fields.finish()?;
        Ok(chunk)
    }
}

/// The place of a line's own id and what to write there, if it must be replaced.
fn new_id(line: &[u8], stated: &Json, sent: &Json) -> Option<(usize, usize, Bytes)> {
    // A byte-order mark may stand before the first line.
    let skipped = if line.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    let body = std::str::from_utf8(&line[skipped..]).ok()?;
    #[derive(serde::Deserialize)]
    struct Own<'a> {
        #[serde(borrow)]
        id: &'a serde_json::value::RawValue,
    }
    let own: Own<'_> = serde_json::from_str(body.trim()).ok()?;
    let came = Json::parse(own.id.get().to_owned()).ok()?;
    let new = match match_id(stated, &came) {
        IdMatch::Other if match_id(sent, &came) == IdMatch::Other => return None,
        IdMatch::Other => Json::string("another request's"),
        IdMatch::TypeChanged => Json::string(sent.as_str()),
        _ if came.is_null() => return None,
        _ => sent.clone(),
    };
    let from = own.id.get().as_ptr() as usize - line.as_ptr() as usize;
    Some((from, from + own.id.get().len(), new.into_bytes()))
}

fn reads(bytes: &Bytes, size: usize) -> impl Iterator<Item = Bytes> + use<> {
    let bytes = bytes.clone();
    let starts = (0..bytes.len()).step_by(size);
    starts.map(move |at| bytes.slice(at..(at + size).min(bytes.len())))
}

/// Everything up to the loss of the connection in one read.
fn joined(deliveries: Vec<Delivery>) -> Vec<Delivery> {
    let mut all = BytesMut::new();
    let mut closed = None;
    for delivery in deliveries {
        match delivery {
            Delivery::Bytes(bytes) => all.extend_from_slice(&bytes),
            other => closed = Some(other),
        }
    }
    [Delivery::Bytes(all.freeze())].into_iter().chain(closed).collect()
}

/// The bytes of a text of hexadecimal digits.
pub(super) fn unhex(text: &str) -> Result<Vec<u8>, String> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let bytes = text.as_bytes();
    let pairs = bytes.chunks(2).map(|pair| match pair {
        [a, b] => Some(digit(*a)? << 4 | digit(*b)?),
        _ => None,
    });
    pairs.collect::<Option<Vec<u8>>>().ok_or_else(|| "hex text must be pairs of digits".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn connection(chunks: Value) -> Connection {
        let value = json!({ "chunks": chunks, "end": "eof" });
        Connection::read(&mut Fields::of(&value, "feed").unwrap(), false).unwrap()
    }

    #[test]
    fn every_cut_has_the_same_bytes() {
        let given =
            connection(json!([{"text": "aé"}, {"hex": "000aff"}, {"fill": "c3a9", "times": 5000}]));
        let all = given.bytes();
        assert_eq!(all.len(), 3 + 3 + 10_000);
        for cut in Cut::ALL {
            assert_eq!(given.pieces(cut).concat(), all, "{cut:?}");
        }
        assert_eq!(given.pieces(Cut::AsGiven).len(), 3);
        assert_eq!(given.pieces(Cut::ByteByByte).len(), 6 + 3);
    }

    #[test]
    fn only_the_ids_of_lines_are_replaced_wherever_the_chunks_are_cut() {
        let given = connection(json!([
            {"text": "{\"params\":{\"id\":1}}\n{\"id\""}, {"text": ":"}, {"text": "1,\"x\":\"id\"}\n{\"id\":\"1\"}\n{\"id\":2}\n{\"id\":9}"}
        ]));
        let moved = given.with_id(&Json::integer(1), &Json::integer(2));
        let expected = "{\"params\":{\"id\":1}}\n{\"id\":2,\"x\":\"id\"}\n{\"id\":\"2\"}\n{\"id\":\"another request's\"}\n{\"id\":9}";
        assert_eq!(String::from_utf8_lossy(&moved.bytes()), expected);
        assert_eq!(moved.chunks[0].bytes, given.chunks[0].bytes);
    }

    #[test]
    fn an_id_cut_in_the_middle_is_written_once() {
        let given = connection(json!([{"text": "{\"id\":\"re"}, {"text": "q"}, {"text": "1\"}"}]));
        let moved = given.with_id(&Json::string("req1"), &Json::integer(5));
        assert_eq!(moved.bytes(), "{\"id\":5}");
    }

    #[test]
    fn bad_chunks_are_refused() {
        for bad in [
            json!({"hex": "0"}),
            json!({"hex": "zz"}),
            json!({}),
            json!({"text": "x", "y": 1}),
            json!({"fill": "00"}),
        ] {
            assert!(Chunk::read(&bad).is_err(), "{bad}");
        }
    }
}
