//! The incremental NDJSON decoder (design §7): bytes in, any cut; lines out.
//!
//! A line ends at byte 0x0A and nowhere else. A byte-order mark at the start, a CR before the LF
//! and blank lines are nothing. The limit counts one line, whatever arrives in one read. A longer
//! line is thrown away as it comes and reported with its size; the stream goes on.

use bytes::{Buf, Bytes, BytesMut};

/// A line may be 16 MiB long unless the caller says otherwise.
pub const DEFAULT_MAX_LINE_BYTES: usize = 16 * 1024 * 1024;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// A buffer for cut lines is used again up to this size; a larger one goes with its line.
const KEPT_BYTES: usize = 64 * 1024;
/// How much of an oversized line is kept, enough to find its id in most lines.
const HEAD_BYTES: usize = 512;

/// What the decoder found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// A line that is not blank, without its line end.
    Line(Bytes),
    /// A line longer than the limit was skipped.
    Oversized {
        /// Its length in bytes, without the line end.
        bytes: u64,
        /// Its first bytes, at most 512.
        head: Bytes,
    },
}

/// Cuts a stream of bytes into lines.
#[derive(Debug)]
pub struct Decoder {
    max_line_bytes: usize,
    /// Bytes taken in but not yet cut.
    input: Bytes,
    /// The beginning of a line whose end has not come.
    partial: BytesMut,
    /// Bytes of an oversized line seen so far; its head is in `partial`.
    skipping: Option<u64>,
    started: bool,
}

impl Decoder {
    /// A decoder for lines of at most `max_line_bytes`.
    #[must_use]
    pub fn new(max_line_bytes: usize) -> Self {
        Self {
            max_line_bytes,
            input: Bytes::new(),
            partial: BytesMut::new(),
            skipping: None,
            started: false,
        }
    }

    /// Takes the next bytes of the stream. Call [`Decoder::next_line`] until it has no more before the next `push`;
    /// what was not taken is kept, at the price of a copy.
    pub fn push(&mut self, bytes: Bytes) {
        if self.input.is_empty() {
            self.input = bytes;
        } else {
            let mut joined = BytesMut::with_capacity(self.input.len() + bytes.len());
            joined.extend_from_slice(&self.input);
            joined.extend_from_slice(&bytes);
            self.input = joined.freeze();
        }
    }

    /// The next line, or nothing until more bytes come.
    #[inline]
    pub fn next_line(&mut self) -> Option<Found> {
        loop {
            let Some(end) = memchr::memchr(b'\n', &self.input) else {
                let rest = std::mem::take(&mut self.input);
                self.hold(&rest);
                return None;
            };
            let line = if self.partial.is_empty() && self.skipping.is_none() {
                let line = self.input.split_to(end);
                self.input.advance(1);
                line
            } else {
                let rest = self.input.split_to(end);
                self.input.advance(1);
                self.hold(&rest);
                if let Some(found) = self.take_oversized() {
                    return Some(found);
                }
                self.take_partial()
            };
            if let Some(found) = self.finish(line) {
                return Some(found);
            }
        }
    }

    /// The stream has ended: what stands there without a newline, a line or a fragment of one.
    pub fn finish_input(&mut self) -> Option<Found> {
        if let Some(found) = self.next_line() {
            return Some(found);
        }
        if let Some(found) = self.take_oversized() {
            return Some(found);
        }
        let line = self.take_partial();
        self.finish(line)
    }

    /// Bytes kept back at the moment, for accounting.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.input.len() + self.partial.len()
    }

    /// Adds the middle of a line to what is held, or to the count of a line that is too long.
    fn hold(&mut self, bytes: &[u8]) {
        if let Some(seen) = &mut self.skipping {
            *seen += bytes.len() as u64;
            return;
        }
        // One CR may still turn out to be part of the line end.
        let length = self.partial.len() + bytes.len();
        if length > self.max_line_bytes.saturating_add(1) {
            self.skipping = Some(length as u64);
            let room = HEAD_BYTES.saturating_sub(self.partial.len()).min(bytes.len());
            let mut head = BytesMut::with_capacity(HEAD_BYTES);
            head.extend_from_slice(&self.partial[..self.partial.len().min(HEAD_BYTES)]);
            head.extend_from_slice(&bytes[..room]);
            self.partial = head;
            return;
        }
        self.partial.extend_from_slice(bytes);
    }

    /// What is held, as a line. Its buffer goes with it when it is large: else what is left of it, and every line that comes to lie
    /// there, would keep all of it.
    fn take_partial(&mut self) -> Bytes {
        let large = self.partial.capacity() > KEPT_BYTES;
        let line = self.partial.split().freeze();
        if large {
            self.partial = BytesMut::new();
        }
        line
    }

    fn take_oversized(&mut self) -> Option<Found> {
        let bytes = self.skipping.take()?;
        self.started = true;
        Some(Found::Oversized { bytes, head: self.partial.split().freeze() })
    }

    /// Strips mark and CR, skips blank lines, applies the limit.
    #[inline]
    fn finish(&mut self, mut line: Bytes) -> Option<Found> {
        if !self.started {
            self.started = true;
            if line.starts_with(BYTE_ORDER_MARK) {
                line.advance(BYTE_ORDER_MARK.len());
            }
        }
        if line.last() == Some(&b'\r') {
            line.truncate(line.len() - 1);
        }
        if line.len() > self.max_line_bytes {
            let head = line.slice(..line.len().min(HEAD_BYTES));
            return Some(Found::Oversized { bytes: line.len() as u64, head });
        }
        match line.first() {
            None => None,
            Some(b'{') => Some(Found::Line(line)),
            Some(_) if line.iter().all(|b| matches!(b, b' ' | b'\t' | b'\r')) => None,
            Some(_) => Some(Found::Line(line)),
        }
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new(DEFAULT_MAX_LINE_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(chunks: &[&[u8]], limit: usize) -> Vec<Found> {
        let mut decoder = Decoder::new(limit);
        let mut out = Vec::new();
        for chunk in chunks {
            decoder.push(Bytes::copy_from_slice(chunk));
            while let Some(found) = decoder.next_line() {
                out.push(found);
            }
        }
        out.extend(decoder.finish_input());
        out
    }

    fn line(text: &str) -> Found {
        Found::Line(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn mark_cr_and_blank_lines_are_nothing() {
        let found = decode(&[b"\xef\xbb\xbf{}\r\n\r\n   \n{\"a\":1}\n"], 100);
        assert_eq!(found, [line("{}"), line("{\"a\":1}")]);
    }

    #[test]
    fn a_line_at_the_limit_passes_and_one_byte_more_does_not() {
        assert_eq!(decode(&[b"12345\r\n12345\n"], 5), [line("12345"), line("12345")]);
        let found = decode(&[b"123456\nok\n"], 5);
        assert!(matches!(found[0], Found::Oversized { bytes: 6, .. }));
        assert_eq!(found[1], line("ok"));
    }

    #[test]
    fn an_oversized_line_is_not_stored() {
        let mut decoder = Decoder::new(1000);
        for _ in 0..1000 {
            decoder.push(Bytes::from(vec![b'x'; 4096]));
            assert_eq!(decoder.next_line(), None);
            assert!(decoder.held_bytes() <= 4096 + 1001);
        }
        decoder.push(Bytes::from_static(b"\n{}\n"));
        assert!(matches!(decoder.next_line(), Some(Found::Oversized { bytes: 4_096_000, .. })));
        assert_eq!(decoder.next_line(), Some(line("{}")));
    }

    #[test]
    fn a_huge_line_leaves_no_memory_behind() {
        let mut decoder = Decoder::default();
        for huge in [5 << 20, 6_399_000] {
            for piece in vec![b'x'; huge].chunks(50_000) {
                decoder.push(Bytes::copy_from_slice(piece));
                assert_eq!(decoder.next_line(), None);
            }
            decoder.push(Bytes::from_static(b"\n{\"next\""));
            let Some(Found::Line(line)) = decoder.next_line() else { panic!("no line") };
            assert_eq!((line.len(), decoder.next_line()), (huge, None));
            assert!(decoder.partial.capacity() <= KEPT_BYTES);
            // Whoever keeps the next line does not keep the memory of the huge one.
            decoder.push(Bytes::from_static(b":1}\n"));
            let Some(Found::Line(next)) = decoder.next_line() else { panic!("no line") };
            assert_eq!(next, "{\"next\":1}");
            assert_ne!(next.as_ptr_range().start, line.as_ptr_range().end);
        }
    }

    #[test]
    fn a_last_line_without_newline_counts() {
        assert_eq!(decode(&[b"{}\n{\"a\"", b":1}"], 100), [line("{}"), line("{\"a\":1}")]);
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_lines(
            text in "(\u{feff})?([a-z{}é\u{2028} ]{0,12}\r?\n){0,8}[a-z]{0,5}", cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8)
        ) {
            let bytes = text.as_bytes();
            let mut at: Vec<usize> = cuts.iter().map(|c| c.index(bytes.len() + 1)).collect();
            at.extend([0, bytes.len()]);
            at.sort_unstable();
            let chunks: Vec<&[u8]> = at.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
            let normal = |found: Vec<Found>| -> Vec<(Option<Bytes>, u64)> {
                found.into_iter().map(|f| match f {
                    Found::Line(l) => (Some(l), 0),
                    Found::Oversized { bytes, .. } => (None, bytes),
                }).collect()
            };
            // Sizes of oversized lines may count one trailing CR, depending on nothing but the line.
            prop_assert_eq!(
                normal(decode(&chunks, 8)).len(), normal(decode(&[bytes], 8)).len()
            );
            prop_assert_eq!(decode(&chunks, 64), decode(&[bytes], 64));
        }
    }
}
