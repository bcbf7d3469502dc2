//! Where a body ends (RFC 9112 §6.3), and its bytes without the framing.

use bytes::{Buf, Bytes};

use super::{Http1Error, Limits, Response, Version, input::Input, request::is_token, response};

/// The reader of one body.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Body {
    framing: Framing,
    got: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Framing {
    /// `Content-Length`, or no body at all (0).
    Length { total: u64 },
    /// `Transfer-Encoding: chunked`.
    Chunked(Chunk),
    /// Whatever comes until the connection closes.
    UntilClose,
}

/// What is expected next in a chunked body.
#[derive(Debug, PartialEq, Eq)]
enum Chunk {
    SizeLine,
    Data {
        left: u64,
    },
    /// The line end after a chunk's data.
    End {
        cr: bool,
    },
    /// Header lines and an empty line after the last chunk; `seen` bytes of them so far.
    Trailers {
        seen: usize,
    },
    Over,
}

/// What a body had to say.
pub(super) enum Part {
    Data(Bytes),
    End,
}

impl Body {
    /// A response without a body.
    pub(super) const EMPTY: Self = Self { framing: Framing::Length { total: 0 }, got: 0 };

    /// How the body of this response ends, `bodiless` being what status or method say about it.
    ///
    /// # Errors
    ///
    /// Everything that leaves room for two opinions: both kinds of framing, several lengths, an
    /// encoding other than `chunked`.
    pub(super) fn of(response: &Response, bodiless: bool) -> Result<Self, Http1Error> {
        let mut encodings = response.header_all("transfer-encoding");
        let encoding = encodings.next();
        let length = content_length(response)?;
        let framing = match (encoding, length) {
            (Some(_), Some(_)) => return Err(Http1Error::AmbiguousLength),
            (Some(encoding), None) => {
                let chunked = encoding.eq_ignore_ascii_case(b"chunked")
                    && encodings.next().is_none()
                    && response.version() == Version::Http11;
                if !chunked {
                    return Err(Http1Error::BadTransferEncoding);
                }
                Framing::Chunked(Chunk::SizeLine)
            }
            (None, Some(total)) => Framing::Length { total },
            (None, None) => Framing::UntilClose,
        };
        Ok(if bodiless { Self::EMPTY } else { Self { framing, got: 0 } })
    }

    /// The body ends only with the connection.
    pub(super) fn is_until_close(&self) -> bool {
        self.framing == Framing::UntilClose
    }

    /// How many bytes came, and how many were announced.
    pub(super) const fn progress(&self) -> (u64, Option<u64>) {
        match self.framing {
            Framing::Length { total } => (self.got, Some(total)),
            Framing::Chunked(_) | Framing::UntilClose => (self.got, None),
        }
    }

    /// The next part, a slice of what came in; `None` until more comes.
    #[inline]
    pub(super) fn poll(
        &mut self,
        input: &mut Input,
        limits: &Limits,
    ) -> Result<Option<Part>, Http1Error> {
        let part = match &mut self.framing {
            Framing::Length { total } if *total == self.got => Some(Part::End),
            Framing::Length { total } => input.take(*total - self.got).map(Part::Data),
            Framing::UntilClose => input.take(u64::MAX).map(Part::Data),
            Framing::Chunked(chunk) => match whole_chunk(chunk, input, limits) {
                Some(data) => Some(Part::Data(data)),
                None => chunk.poll(input, limits)?,
            },
        };
        if let Some(Part::Data(data)) = &part {
            self.got = self.got.saturating_add(data.len() as u64);
        }
        Ok(part)
    }
}

/// The usual case, and the one that a stream of events is made of: size line, data and line end
/// lie in one buffer. Anything else is left to [`Chunk::poll`], untouched.
#[inline]
fn whole_chunk(chunk: &Chunk, input: &mut Input, limits: &Limits) -> Option<Bytes> {
    if *chunk != Chunk::SizeLine || input.is_cut() {
        return None;
    }
    let front = input.front();
    let mut size = 0;
    // Fifteen digits cannot overflow 64 bits; usize has at least 32, hence the checked sums below.
    let mut digits = 0_usize;
    for byte in front.iter().take(15) {
        let Some(digit) = HEX[usize::from(*byte)] else { break };
        size = size << 4 | u64::from(digit);
        digits += 1;
    }
    let start = digits + 2;
    let size = usize::try_from(size).ok()?;
    let end = start.checked_add(size)?;
    let fits = digits > 0
        && size > 0
        && start <= limits.max_chunk_line_bytes
        && front.get(digits..start)? == b"\r\n"
        && front.get(end..end.checked_add(2)?)? == b"\r\n";
    if !fits {
        return None;
    }
    front.advance(start);
    let data = front.split_to(size);
    front.advance(2);
    Some(data)
}

const HEX: [Option<u8>; 256] = {
    let mut table = [None; 256];
    let mut digit = 0;
    while digit < 16 {
        table[b"0123456789abcdef"[digit as usize] as usize] = Some(digit);
        table[b"0123456789ABCDEF"[digit as usize] as usize] = Some(digit);
        digit += 1;
    }
    table
};

impl Chunk {
    fn poll(&mut self, input: &mut Input, limits: &Limits) -> Result<Option<Part>, Http1Error> {
        loop {
            match self {
                Self::SizeLine => {
                    let limit = limits.max_chunk_line_bytes;
                    let line = input.take_line(limit);
                    let line = line.map_err(|_| Http1Error::ChunkLineTooLong { limit })?;
                    let Some(line) = line else { return Ok(None) };
                    *self = match chunk_size(&line)? {
                        0 => Self::Trailers { seen: 0 },
                        left => Self::Data { left },
                    };
                }
                Self::Data { left } => {
                    let Some(data) = input.take(*left) else { return Ok(None) };
                    *left -= data.len() as u64;
                    if *left == 0 {
                        *self = Self::End { cr: false };
                    }
                    return Ok(Some(Part::Data(data)));
                }
                Self::End { cr } => {
                    let Some(byte) = input.take(1) else { return Ok(None) };
                    match (&byte[..], *cr) {
                        (b"\r", false) => *cr = true,
                        (b"\n", true) => *self = Self::SizeLine,
                        _ => {
                            let what = "its data is not followed by CR LF";
                            return Err(Http1Error::MalformedChunk { what });
                        }
                    }
                }
                Self::Trailers { seen } => {
                    let limit = limits.max_trailer_bytes;
                    let too_long = Http1Error::TrailersTooLong { limit };
                    let line = input.take_line(limit - *seen).map_err(|_| too_long)?;
                    let Some(line) = line else { return Ok(None) };
                    *seen += line.len();
                    if line == b"\r\n"[..] {
                        *self = Self::Over;
                    } else if !is_trailer(&line) {
                        return Err(Http1Error::MalformedTrailer);
                    }
                }
                Self::Over => return Ok(Some(Part::End)),
            }
        }
    }
}

/// The size that a whole line announces; extensions are skipped.
fn chunk_size(line: &[u8]) -> Result<u64, Http1Error> {
    let malformed = |what| Err(Http1Error::MalformedChunk { what });
    // httparse reads an empty size as zero.
    if !line.first().is_some_and(u8::is_ascii_hexdigit) {
        return malformed("its size is not a hexadecimal number");
    }
    match httparse::parse_chunk_size(line) {
        Ok(httparse::Status::Complete((_, size))) => Ok(size),
        _ => malformed(
            "its size is not a hexadecimal number below 2^64, or its line does not end with CR LF",
        ),
    }
}

/// A header line that ends with CR LF and could not be read as anything else.
fn is_trailer(line: &[u8]) -> bool {
    let Some(line) = line.strip_suffix(b"\r\n") else { return false };
    let Some(colon) = memchr::memchr(b':', line) else { return false };
    let (name, value) = line.split_at(colon);
    str::from_utf8(name).is_ok_and(is_token)
        && value.iter().all(|b| *b == b'\t' || (*b >= b' ' && *b != 0x7f))
}

/// The one length that all `Content-Length` headers agree on.
fn content_length(response: &Response) -> Result<Option<u64>, Http1Error> {
    let mut agreed = None;
    for text in response.header_all("content-length").flat_map(response::list) {
        // Digits only: `parse` alone would let a plus sign pass.
        let digits = text.iter().all(u8::is_ascii_digit);
        let length = str::from_utf8(text).ok().filter(|_| digits).and_then(|t| t.parse().ok());
        match (length, agreed) {
            (None, _) => return Err(Http1Error::BadContentLength),
            (Some(length), Some(before)) if length != before => {
                return Err(Http1Error::BadContentLength);
            }
            (length, _) => agreed = length,
        }
    }
    Ok(agreed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(headers: &str) -> Result<Framing, Http1Error> {
        let head = format!("HTTP/1.1 200 OK\r\n{headers}\r\n");
        let head = Response::parse(Bytes::from(head), &Limits::default()).unwrap();
        Ok(Body::of(&head, false)?.framing)
    }

    #[test]
    fn a_body_ends_by_length_by_last_chunk_or_with_the_connection() {
        assert_eq!(of("Content-Length: 5\r\n"), Ok(Framing::Length { total: 5 }));
        assert_eq!(
            of("Content-Length: 18446744073709551615\r\n"),
            Ok(Framing::Length { total: u64::MAX })
        );
        let chunked = Framing::Chunked(Chunk::SizeLine);
        assert_eq!(of("transfer-encoding: CHUNKED\r\n"), Ok(chunked));
        assert_eq!(of(""), Ok(Framing::UntilClose));
    }

    #[test]
    fn lengths_that_agree_are_one_and_others_are_refused() {
        let five = Ok(Framing::Length { total: 5 });
        assert_eq!(of("Content-Length: 5\r\ncontent-length: 5\r\n"), five);
        assert_eq!(of("Content-Length: 5, 5\r\n"), five);
        for bad in ["5\r\nContent-Length: 6", "5, 6", "", "-1", "+5", "5x", "0x5", "5 5", "5,"] {
            let got = of(&format!("Content-Length: {bad}\r\n"));
            assert_eq!(got, Err(Http1Error::BadContentLength), "{bad:?}");
        }
        let got = of("Content-Length: 18446744073709551616\r\n");
        assert_eq!(got, Err(Http1Error::BadContentLength));
    }

    #[test]
    fn an_encoding_other_than_one_chunked_is_refused() {
        let bad = ["gzip", "gzip, chunked", "chunked, gzip", "chunked, chunked", "xchunked", ""];
        for bad in bad {
            let got = of(&format!("Transfer-Encoding: {bad}\r\n"));
            assert_eq!(got, Err(Http1Error::BadTransferEncoding), "{bad:?}");
        }
        let got = of("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n");
        assert_eq!(got, Err(Http1Error::BadTransferEncoding));
    }

    #[test]
    fn a_length_beside_an_encoding_is_refused_in_either_order() {
        let one = "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n";
        let other = "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n";
        assert_eq!(of(one), Err(Http1Error::AmbiguousLength));
        assert_eq!(of(other), Err(Http1Error::AmbiguousLength));
    }

    #[test]
    fn a_size_line_is_hexadecimal_with_extensions_and_nothing_else() {
        let good: [(&[u8], u64); 8] = [
            (b"0\r\n", 0),
            (b"1aF\r\n", 0x1af),
            (b"000\r\n", 0),
            (b"ffffffffffffffff\r\n", u64::MAX),
            (b"5;a=b\r\n", 5),
            (b"5 \t;a=\"b;c\"\r\n", 5),
            (b"5  \r\n", 5),
            (b"5;\r\n", 5),
        ];
        for (line, size) in good {
            assert_eq!(chunk_size(line), Ok(size), "{line:?}");
        }
        let bad: [&[u8]; 14] = [
            b"\r\n",
            b" 5\r\n",
            b"+5\r\n",
            b"-5\r\n",
            b"0x5\r\n",
            b"5g\r\n",
            b"5 5\r\n",
            b"5\n",
            b"5;a\n",
            b"5;a\rb\r\n",
            b"5\r\r\n",
            b";a\r\n",
            b"10000000000000000\r\n",
            b"00000000000000005\r\n",
        ];
        for line in bad {
            assert!(matches!(chunk_size(line), Err(Http1Error::MalformedChunk { .. })), "{line:?}");
        }
    }
}
