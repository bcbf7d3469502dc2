//! A batch of steps as the host gets it: one string, and the table with offsets in UTF-16 units.
//!
//! Where the text is ASCII, as nearly always, the offsets are right as they are and the string is made without decoding
//! anything. Otherwise the offsets of texts are counted anew.

use crate::fault::Fault;
use broca_bridge::layout::{self, ABSENT, FieldType};
use broca_bridge::{Batch, Error, ErrorKind};
use napi::bindgen_prelude::{Array, Env, Uint32ArraySlice};

/// The batch as an array of its string and its table.
pub(crate) fn to_host<'env>(env: &'env Env, batch: &Batch) -> Result<Array<'env>, Fault> {
    let mut pair = env.create_array(2)?;
    if batch.text().is_ascii() {
        pair.set(0, env.create_string_latin1(batch.text())?)?;
        pair.set(1, Uint32ArraySlice::copy_from(env, batch.words())?)?;
        return Ok(pair);
    }
    let Ok(text) = std::str::from_utf8(batch.text()) else {
        let message = "a batch of steps holds bytes that are no text";
        return Err(Error::new(ErrorKind::Internal, message).into());
    };
    pair.set(0, env.create_string(text)?)?;
    pair.set(1, Uint32ArraySlice::copy_from(env, in_units(batch))?)?;
    Ok(pair)
}

/// The table of the batch with every text's offset and length in UTF-16 units.
fn in_units(batch: &Batch) -> Vec<u32> {
    let units = Units::new(batch.text());
    let mut words = batch.words().to_vec();
    for record in batch.records() {
        let Some(kind) = layout::kind(record.kind()) else { continue };
        for field in kind.fields {
            if !matches!(field.field_type, FieldType::Text | FieldType::Json) {
                continue;
            }
            let at = record.at() + field.at;
            let [offset, len] = [words[at], words[at + 1]];
            if offset != ABSENT {
                let from = units.before(offset);
                words[at] = from;
                words[at + 1] = units.before(offset + len) - from;
            }
        }
    }
    words
}

/// How many UTF-16 units stand before a byte of a text: counted for every block once, and inside of
/// one when asked.
struct Units<'a> {
    text: &'a [u8],
    before_block: Vec<u32>,
}

const BLOCK: usize = 64;

impl<'a> Units<'a> {
    fn new(text: &'a [u8]) -> Self {
        let mut sum = 0;
        let mut before_block = Vec::with_capacity(text.len() / BLOCK + 1);
        for block in text.chunks(BLOCK) {
            before_block.push(sum);
            sum += units(block);
        }
        before_block.push(sum);
        Self { text, before_block }
    }

    fn before(&self, byte: u32) -> u32 {
        let byte = (byte as usize).min(self.text.len());
        let block = byte / BLOCK;
        let whole = self.before_block.get(block).copied().unwrap_or_default();
        whole + units(&self.text[block * BLOCK..byte])
    }
}

/// The units of these bytes: one for each character, one more for each of four bytes.
fn units(bytes: &[u8]) -> u32 {
    bytes.iter().map(|b| u32::from(b & 0xc0 != 0x80) + u32::from(*b >= 0xf0)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_before_a_byte_are_those_of_the_text_before_it() {
        let text = "aé€😀 ".repeat(60);
        let units = Units::new(text.as_bytes());
        for (at, _) in text.char_indices().chain([(text.len(), ' ')]) {
            let wanted = text[..at].encode_utf16().count();
            assert_eq!(units.before(u32::try_from(at).unwrap()) as usize, wanted, "byte {at}");
        }
        assert_eq!(Units::new(b"").before(0), 0);
    }

    #[test]
    fn the_table_says_where_texts_lie_in_units() {
        let mut batch = Batch::new();
        let error = Error::new(ErrorKind::Connect, "é😀 refused");
        broca_bridge::errors::push_failed(&mut batch, &error);
        let text = std::str::from_utf8(batch.text()).unwrap();
        let all: Vec<u16> = text.encode_utf16().collect();
        let words = in_units(&batch);
        let field = |at: usize| {
            let [from, len] = [words[at] as usize, words[at + 1] as usize];
            String::from_utf16(&all[from..from + len]).unwrap()
        };
        assert_eq!(field(layout::failed::kind), "connect");
        assert_eq!(field(layout::failed::message), "é😀 refused");
        assert_eq!(field(layout::failed::retry), "safe");
        assert_eq!(words[layout::failed::details], ABSENT);
    }
}
