//! Batches: records in one buffer, written once and decoded where they are needed.

use crate::layout::{ABSENT, HEAD_WORDS, Kind};
use std::fmt;
use std::ops::Range;

/// Records, as [`layout`](crate::layout) lays them out. Reused from call to call, it allocates nothing.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Batch {
    words: Vec<u32>,
    text: Vec<u8>,
    records: u32,
}

/// Why bytes are no batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BatchFault {
    /// The buffer is shorter than its head says, or has no head.
    Short,
    /// It was written by another version of the layout.
    Version(u32),
}

impl fmt::Display for BatchFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => f.write_str("the buffer of the batch breaks off"),
            Self::Version(other) => {
                write!(f, "the batch has layout {other}, this version reads {}", Batch::VERSION)
            }
        }
    }
}

impl std::error::Error for BatchFault {}

impl Batch {
    /// The version of the layout. New kinds and new fields at the end of a kind do not change it.
    pub const VERSION: u32 = 1;

    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The table of words.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// The text that fields lie in: UTF-8 wherever a text or JSON field lies.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// How many records there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records as usize
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Takes everything out and keeps the memory.
    pub fn clear(&mut self) {
        self.words.clear();
        self.text.clear();
        self.records = 0;
    }

    /// The records, in order.
    #[must_use]
    pub fn records(&self) -> Records<'_> {
        Records { batch: self, at: 0 }
    }

    /// The record that begins at this word of the table.
    #[must_use]
    pub fn record(&self, at: usize) -> Option<Record<'_>> {
        let words = *self.words.get(at + 1)? as usize;
        if words < HEAD_WORDS {
            return None;
        }
        Some(Record { batch: self, words: self.words.get(at..at + words)?, at })
    }

    /// Appends the batch as one buffer: four words in little-endian order (version, number of records, of words, of bytes of
    /// text), then the words, then the text.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        let size = |n: usize| u32::try_from(n).unwrap_or(ABSENT);
        out.reserve(16 + self.words.len() * 4 + self.text.len());
        for word in [Self::VERSION, self.records, size(self.words.len()), size(self.text.len())] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        self.words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        out.extend_from_slice(&self.text);
    }

    /// Reads what [`Batch::write_to`] wrote.
    ///
    /// # Errors
    /// [`BatchFault`] for anything else.
    pub fn read_from(buffer: &[u8]) -> Result<Self, BatchFault> {
        let word = |at: usize| -> Result<u32, BatchFault> {
            let bytes = buffer.get(at * 4..at * 4 + 4).ok_or(BatchFault::Short)?;
            Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        };
        match word(0)? {
            Self::VERSION => {}
            other => return Err(BatchFault::Version(other)),
        }
        let (records, words, bytes) = (word(1)?, word(2)? as usize, word(3)? as usize);
        let text_at = 16 + words * 4;
        let text = buffer.get(text_at..text_at + bytes).ok_or(BatchFault::Short)?;
        let words = (4..4 + words).map(word).collect::<Result<_, _>>()?;
        Ok(Self { words, text: text.to_vec(), records })
    }

    /// Makes room for so many words and bytes of text, so that a large batch does not grow step by step.
    pub(crate) fn reserve(&mut self, words: usize, text: usize) {
        self.words.reserve(words);
        self.text.reserve(text);
    }

    /// Begins a record; its fields follow in the order of the kind.
    pub(crate) fn begin(&mut self, kind: &Kind) {
        self.records += 1;
        self.words.reserve(kind.words);
        self.words.push(kind.number);
        self.words.push(u32::try_from(kind.words).unwrap_or(ABSENT));
    }

    pub(crate) fn push_word(&mut self, word: u32) {
        self.words.push(word);
    }

    pub(crate) fn push_number(&mut self, number: Option<u64>) {
        let [low, high] = match number {
            // The largest number stands for none; nothing counts that far.
            Some(n) => [(n & 0xffff_ffff) as u32, (n >> 32) as u32],
            None => [ABSENT, ABSENT],
        };
        self.words.extend([low, high]);
    }

    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        let span = self.store(bytes);
        self.push_span(span);
    }

    pub(crate) fn push_text(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.push_bytes(text.as_bytes()),
            None => self.push_span(Self::NOWHERE),
        }
    }

    /// Puts bytes into the text without a field, and says where they lie. A batch of 4 GiB cannot be; the handle bounds what
    /// goes into one, and what would lie beyond is absent.
    pub(crate) fn store(&mut self, bytes: &[u8]) -> (u32, u32) {
        let span = match (u32::try_from(self.text.len()), u32::try_from(bytes.len())) {
            (Ok(at), Ok(len)) if at.checked_add(len).is_some_and(|end| end < ABSENT) => (at, len),
            _ => return Self::NOWHERE,
        };
        self.text.extend_from_slice(bytes);
        span
    }

    pub(crate) fn push_span(&mut self, (at, len): (u32, u32)) {
        self.words.extend([at, len]);
    }

    /// The span of no text.
    pub(crate) const NOWHERE: (u32, u32) = (ABSENT, 0);
}

/// Sizes, and nothing of the text: there may be keys in it.
impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} records, {} bytes of text)", self.records, self.text.len())
    }
}

/// The records of a batch.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    batch: &'a Batch,
    at: usize,
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let record = self.batch.record(self.at)?;
        self.at += record.words.len();
        Some(record)
    }
}

/// One record. Fields are named by the constants of their kind's module in [`layout`](crate::layout), such as
/// [`event::id`](crate::layout::event::id). A field that the record does not have is absent.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    batch: &'a Batch,
    words: &'a [u32],
    at: usize,
}

impl<'a> Record<'a> {
    /// The number of its kind.
    #[must_use]
    pub fn kind(&self) -> u32 {
        self.words[0]
    }

    /// The word of the table at which it begins.
    #[must_use]
    pub const fn at(&self) -> usize {
        self.at
    }

    /// A field of one word; 0 when it is absent.
    #[must_use]
    pub fn word(&self, field: usize) -> u32 {
        self.words.get(field).copied().unwrap_or_default()
    }

    /// A number.
    #[must_use]
    pub fn number(&self, field: usize) -> Option<u64> {
        match (self.words.get(field), self.words.get(field + 1)) {
            (Some(&ABSENT), Some(&ABSENT)) | (_, None) | (None, _) => None,
            (Some(&low), Some(&high)) => Some(u64::from(high) << 32 | u64::from(low)),
        }
    }

    /// Where a text, JSON or bytes field lies in the batch's text.
    #[must_use]
    pub fn span(&self, field: usize) -> Option<Range<usize>> {
        let at = *self.words.get(field).filter(|at| **at != ABSENT)? as usize;
        let end = at + *self.words.get(field + 1)? as usize;
        (end <= self.batch.text.len()).then_some(at..end)
    }

    /// The bytes of a text, JSON or bytes field.
    #[must_use]
    pub fn bytes(&self, field: usize) -> Option<&'a [u8]> {
        self.batch.text.get(self.span(field)?)
    }

    /// A text or JSON field.
    #[must_use]
    pub fn text(&self, field: usize) -> Option<&'a str> {
        std::str::from_utf8(self.bytes(field)?).ok()
    }
}

impl fmt::Debug for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = crate::layout::kind(self.kind()).map_or("unknown", |kind| kind.name);
        write!(f, "Record({name})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{connect, timer, write};
    use proptest::prelude::*;

    fn sample() -> Batch {
        let mut batch = Batch::new();
        batch.begin(&connect::KIND);
        batch.push_number(Some(7));
        batch.push_text(Some("::1"));
        batch.push_word(443);
        batch.push_text(None);
        batch.begin(&timer::KIND);
        batch.push_number(None);
        batch.begin(&write::KIND);
        batch.push_number(Some(u64::from(u32::MAX) + 1));
        batch.push_bytes(b"\xff\x00");
        batch
    }

    #[test]
    fn fields_are_read_as_they_were_written() {
        let batch = sample();
        let records: Vec<_> = batch.records().collect();
        assert_eq!(records.len(), batch.len());
        let [first, second, third] = records[..] else { panic!("{records:?}") };
        assert_eq!(first.kind(), connect::NUMBER);
        assert_eq!(first.number(connect::conn), Some(7));
        assert_eq!(first.text(connect::address), Some("::1"));
        assert_eq!(first.word(connect::port), 443);
        assert_eq!(first.text(connect::server_name), None);
        assert_eq!(second.number(timer::at), None);
        assert_eq!(third.number(write::conn), Some(1 << 32));
        assert_eq!(third.bytes(write::bytes), Some(&b"\xff\x00"[..]));
        assert_eq!(third.text(write::bytes), None);
    }

    #[test]
    fn a_field_beyond_the_record_is_absent() {
        let batch = sample();
        let timer = batch.records().nth(1).unwrap();
        assert_eq!((timer.word(40), timer.number(3), timer.bytes(40)), (0, None, None));
    }

    #[test]
    fn a_cleared_batch_is_empty_and_writes_no_old_text() {
        let mut batch = sample();
        batch.clear();
        assert!(batch.is_empty() && batch.records().next().is_none() && batch.text().is_empty());
    }

    #[test]
    fn debug_output_shows_no_text() {
        let mut batch = Batch::new();
        batch.begin(&write::KIND);
        batch.push_number(Some(1));
        batch.push_bytes(b"authorization: hunter2");
        let shown = format!("{batch:?} {:?}", batch.records().next().unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    proptest! {
        #[test]
        fn one_buffer_carries_a_whole_batch(cut in 0usize..200) {
            let batch = sample();
            let mut buffer = Vec::new();
            batch.write_to(&mut buffer);
            prop_assert_eq!(Batch::read_from(&buffer), Ok(batch));
            if cut < buffer.len() {
                prop_assert_eq!(Batch::read_from(&buffer[..cut]), Err(BatchFault::Short));
            }
        }

        #[test]
        fn any_words_are_read_without_a_fault(words in proptest::collection::vec(any::<u32>(), 0..40), text: Vec<u8>) {
            let batch = Batch { words, text, records: 1 };
            for record in batch.records().take(50) {
                for field in 0..20 {
                    let _ = (record.word(field), record.number(field), record.text(field));
                }
            }
        }
    }
}
