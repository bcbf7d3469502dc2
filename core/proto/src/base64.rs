//! Base64 (RFC 4648 §4), one way: what travels is never decoded here.

/// The text of these bytes, padded.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let word = at(0) << 16 | at(1) << 8 | at(2);
        for i in 0..4 {
            let sextet = (word >> (18 - 6 * i)) & 63;
            let padding = i as usize > chunk.len();
            out.push(if padding { '=' } else { char::from(ALPHABET[sextet as usize]) });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_padded_to_whole_groups() {
        for (bytes, text) in [("", ""), ("a", "YQ=="), ("ab", "YWI="), ("abc", "YWJj")] {
            assert_eq!(encode(bytes.as_bytes()), text);
        }
        assert_eq!(encode(&[0xfb, 0xff]), "+/8=");
    }
}
