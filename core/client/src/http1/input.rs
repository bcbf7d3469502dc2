//! What has come in and is not yet understood: whole buffers in a row, and the piece of a line or
//! head that the end of a buffer cut off.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

/// The line or head is longer than its limit.
pub(super) struct TooLong;

/// Received bytes in order: `cut` first, then `front`, then `later`.
///
/// Only a line or head that straddles two buffers is copied (into `cut`, bounded by its limit);
/// everything else leaves as a slice of the buffer it came in.
#[derive(Default)]
pub(super) struct Input {
    cut: BytesMut,
    front: Bytes,
    later: VecDeque<Bytes>,
}

impl Input {
    pub(super) fn push(&mut self, data: Bytes) {
        if self.front.is_empty() && self.later.is_empty() {
            self.front = data;
        } else if !data.is_empty() {
            self.later.push_back(data);
        }
    }

    /// Nothing is left, not even a piece of a line.
    pub(super) fn is_empty(&self) -> bool {
        self.cut.is_empty() && self.front.is_empty() && self.later.is_empty()
    }

    /// A piece of a line or head waits for its rest.
    pub(super) fn is_cut(&self) -> bool {
        !self.cut.is_empty()
    }

    /// Whether what is there begins with `prefix`, or with as much of it as has come.
    pub(super) fn starts_like(&mut self, prefix: &[u8]) -> bool {
        self.front();
        let bytes = self.cut.iter().chain(&self.front).chain(self.later.iter().flatten());
        bytes.zip(prefix).all(|(byte, expected)| byte == expected)
    }

    /// The buffer at the front; empty only if all are.
    pub(super) fn front(&mut self) -> &mut Bytes {
        if self.front.is_empty()
            && let Some(next) = self.later.pop_front()
        {
            self.front = next;
        }
        &mut self.front
    }

    /// Up to `most` bytes of the buffer at the front; `None` if nothing is there.
    pub(super) fn take(&mut self, most: u64) -> Option<Bytes> {
        let front = self.front();
        let len = usize::try_from(most).unwrap_or(usize::MAX).min(front.len());
        (len > 0).then(|| front.split_to(len))
    }

    /// One line with its line feed; `None` until it is whole.
    pub(super) fn take_line(&mut self, limit: usize) -> Result<Option<Bytes>, TooLong> {
        self.take_until(limit, |bytes, from| {
            memchr::memchr(b'\n', &bytes[from..]).map(|at| from + at + 1)
        })
    }

    /// A head with its empty line; `None` until it is whole.
    pub(super) fn take_head(&mut self, limit: usize) -> Result<Option<Bytes>, TooLong> {
        // An end that straddles the seam begins at most two bytes before it.
        self.take_until(limit, |bytes, from| end_of_head(bytes, from.saturating_sub(2)))
    }

    /// The first `n` bytes, where `end_of(bytes, from)` is `n` and bytes before `from` were
    /// searched before. Each byte is searched once, however the stream was cut.
    fn take_until(
        &mut self,
        limit: usize,
        end_of: impl Fn(&[u8], usize) -> Option<usize>,
    ) -> Result<Option<Bytes>, TooLong> {
        loop {
            if self.front().is_empty() {
                return Ok(None);
            }
            let seen = self.cut.len();
            if seen == 0
                && let Some(end) = end_of(&self.front, 0)
            {
                return if end > limit { Err(TooLong) } else { Ok(Some(self.front.split_to(end))) };
            }
            // A byte over the limit is enough to know that it was passed.
            let len = self.front.len().min(limit.saturating_add(1).saturating_sub(seen));
            self.cut.extend_from_slice(&self.front[..len]);
            let end = if seen == 0 { None } else { end_of(&self.cut, seen) };
            match end {
                Some(end) if end <= limit => {
                    self.front.advance(end - seen);
                    self.cut.truncate(end);
                    return Ok(Some(self.cut.split().freeze()));
                }
                _ if self.cut.len() >= limit => return Err(TooLong),
                _ => self.front.advance(len),
            }
        }
    }
}

/// Where the empty line ends that ends a head; a line may end with a line feed alone (RFC 9112
/// §2.2).
fn end_of_head(bytes: &[u8], from: usize) -> Option<usize> {
    memchr::memchr_iter(b'\n', &bytes[from..]).find_map(|at| {
        let next = from + at + 1;
        match bytes.get(next..)? {
            [b'\n', ..] => Some(next + 1),
            [b'\r', b'\n', ..] => Some(next + 2),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(pieces: &[&[u8]], limit: usize) -> Result<Option<Bytes>, ()> {
        let mut input = Input::default();
        let mut last = Ok(None);
        for piece in pieces {
            input.push(Bytes::copy_from_slice(piece));
            last = input.take_head(limit).map_err(|_| ());
            if !matches!(last, Ok(None)) {
                break;
            }
        }
        last
    }

    #[test]
    fn the_end_of_a_head_is_found_over_every_seam() {
        for head in [&b"A\r\nB: c\r\n\r\n"[..], b"A\nB: c\n\n", b"A\r\nB: c\n\r\n"] {
            for cut in 1..head.len() {
                let got = heads(&[&head[..cut], &[&head[cut..], b"rest"].concat()], 100);
                assert_eq!(got, Ok(Some(Bytes::copy_from_slice(head))), "cut at {cut}");
            }
            let bytes: Vec<&[u8]> = head.chunks(1).collect();
            assert_eq!(heads(&bytes, 100), Ok(Some(Bytes::copy_from_slice(head))));
        }
    }

    #[test]
    fn a_limit_is_met_at_the_same_byte_whole_or_cut() {
        let head = b"A\r\nB: c\r\n\r\n";
        let bytes: Vec<&[u8]> = head.chunks(1).collect();
        for limit in 1..head.len() {
            assert_eq!(heads(&[head], limit), Err(()), "limit {limit}");
            assert_eq!(heads(&bytes, limit), Err(()), "limit {limit}");
        }
        assert!(heads(&[head], head.len()).is_ok_and(|head| head.is_some()));
        assert!(heads(&bytes, head.len()).is_ok_and(|head| head.is_some()));
    }

    #[test]
    fn what_lies_in_one_buffer_leaves_without_a_copy() {
        let data = Bytes::from_static(b"one\r\ntwo\r\n");
        let mut input = Input::default();
        input.push(data.clone());
        let line = input.take_line(100).ok().flatten().unwrap();
        assert_eq!(line.as_ptr(), data.as_ptr());
        let rest = input.take(2).unwrap();
        assert_eq!(rest.as_ptr(), data[5..].as_ptr());
    }
}
