//! W3C trace context on incoming requests (session service §4.6): accepted, never required, never echoed.

use axum::http::HeaderMap;

/// A valid `traceparent`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TraceContext {
    text: String,
}

impl TraceContext {
    /// Reads the header; absent and malformed are the same.
    pub(crate) fn read(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all("traceparent").iter();
        let text = values.next()?.to_str().ok()?.trim();
        if values.next().is_some() || !is_valid(text) {
            return None;
        }
        Some(Self { text: text.to_owned() })
    }

    pub(crate) fn trace_id(&self) -> &str {
        &self.text[3..35]
    }

    pub(crate) fn parent_id(&self) -> &str {
        &self.text[36..52]
    }
}

/// `00-<32 hex>-<16 hex>-<2 hex>`, lower case, neither id all zero. A later version may have more
/// after another dash; version `ff` is none.
fn is_valid(text: &str) -> bool {
    if text.len() < 55 || !text.is_ascii() {
        return false;
    }
    let hex = |part: &str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let set = |part: &str| hex(part) && part.bytes().any(|b| b != b'0');
    let dashes = [2, 35, 52].iter().all(|&at| text.as_bytes()[at] == b'-');
    let version = &text[..2];
    let tail = match version {
        "00" => text.len() == 55,
        _ => text.len() == 55 || text.as_bytes()[55] == b'-',
    };
    dashes
        && hex(version)
        && version != "ff"
        && set(&text[3..35])
        && set(&text[36..52])
        && hex(&text[53..55])
        && tail
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_valid_context_is_read_and_a_malformed_one_is_as_good_as_none() {
        const T: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
        const P: &str = "00f067aa0ba902b7";
        let rows = [
            (format!("00-{T}-{P}-01"), true),
            (format!("01-{T}-{P}-01-more"), true),
            (format!("00-{T}-{P}-01-more"), false),
            (format!("ff-{T}-{P}-01"), false),
            (format!("00-{}-{P}-01", "0".repeat(32)), false),
            (format!("00-{T}-{}-01", "0".repeat(16)), false),
            (format!("00-{}-{P}-01", T.to_uppercase()), false),
            (format!("00-{T}-{P}"), false),
            ("x".repeat(55), false),
            ("é".repeat(40), false),
            (String::new(), false),
        ];
        for (text, valid) in rows {
            assert_eq!(is_valid(&text), valid, "{text}");
        }
        let mut headers = HeaderMap::new();
        headers.append("traceparent", format!("00-{T}-{P}-01").parse().unwrap());
        let context = TraceContext::read(&headers).unwrap();
        assert_eq!((context.trace_id(), context.parent_id()), (T, P));
        headers.append("traceparent", format!("00-{T}-{P}-00").parse().unwrap());
        assert_eq!(TraceContext::read(&headers), None);
    }
}
