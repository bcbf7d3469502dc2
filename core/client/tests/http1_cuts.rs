//! However the network cuts the bytes, the events say the same.

use broca::http1::{Http1Error, Limits, Request};
use proptest::prelude::*;

mod http1_exchange;
use http1_exchange::{CONNECT, Exchange, GET, RESPONSES, damaged};

/// `bytes` cut at these places, each taken modulo its length.
fn cut<'a>(bytes: &'a [u8], at: &[usize]) -> Vec<&'a [u8]> {
    let mut at: Vec<usize> = at.iter().map(|at| at % (bytes.len() + 1)).collect();
    at.extend([0, bytes.len()]);
    at.sort_unstable();
    at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

/// Bytes after the end of a response come with it or later, and only in the first case is it known
/// at the end that they make the connection useless; the error follows either way.
fn comparable(mut exchange: Exchange) -> Exchange {
    if exchange.error == Some(Http1Error::UnexpectedData)
        && let Some((reusable, _)) = &mut exchange.end
    {
        *reusable = false;
    }
    exchange
}

fn whole(request: Request<'_>, limits: Limits, bytes: &[u8]) -> Exchange {
    comparable(Exchange::of(request, limits, [bytes], Some(true)))
}

fn in_pieces(request: Request<'_>, limits: Limits, pieces: Vec<&[u8]>) -> Exchange {
    comparable(Exchange::of(request, limits, pieces, Some(true)))
}

#[test]
fn every_response_reads_the_same_byte_by_byte_and_over_any_one_seam() {
    for (name, response) in RESPONSES {
        for request in [GET, CONNECT, Request { method: "HEAD", ..GET }] {
            let limits = Limits::default();
            let expected = whole(request, limits, response);
            let bytes = in_pieces(request, limits, response.chunks(1).collect());
            assert_eq!(bytes, expected, "{name}, byte by byte");
            for at in 0..=response.len() {
                assert_eq!(
                    in_pieces(request, limits, cut(response, &[at])),
                    expected,
                    "{name}, cut at {at}"
                );
            }
        }
    }
}

/// A chunked response that keeps the rules, and the body it carries.
fn good_stream() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let chunk = (
        prop::collection::vec(any::<u8>(), 1..600),
        prop_oneof![4 => Just(""), 1 => Just(";a=b"), 1 => Just(" \t; c=\"é\"")],
        any::<bool>(),
    );
    let end = prop_oneof![Just("0\r\n\r\n"), Just("000;x\r\nA: b\r\nC:\r\n\r\n")];
    (prop::collection::vec(chunk, 0..20), end).prop_map(|(chunks, end)| {
        let mut stream = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        let mut body = Vec::new();
        for (data, extension, capital) in chunks {
            let size = data.len();
            let size = if capital { format!("{size:X}") } else { format!("{size:03x}") };
            stream.extend_from_slice(format!("{size}{extension}\r\n").as_bytes());
            stream.extend_from_slice(&data);
            stream.extend_from_slice(b"\r\n");
            body.extend_from_slice(&data);
        }
        stream.extend_from_slice(end.as_bytes());
        (stream, body)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn a_stream_of_chunks_gives_its_body_over_any_cuts(
        (stream, body) in good_stream(),
        cuts in prop::collection::vec(any::<usize>(), 0..40),
    ) {
        let exchange = in_pieces(GET, Limits::default(), cut(&stream, &cuts));
        prop_assert_eq!(&exchange.body, &body);
        prop_assert_eq!(exchange.end, Some((true, false)));
        prop_assert_eq!(exchange.error, None);
    }

    #[test]
    fn damaged_responses_read_the_same_over_any_cuts(
        response in damaged(),
        cuts in prop::collection::vec(any::<usize>(), 0..10),
        small in any::<bool>(),
    ) {
        let limits = if small {
            Limits {
                max_head_bytes: 60,
                max_headers: 2,
                max_chunk_line_bytes: 5,
                max_trailer_bytes: 8,
                max_informational: 1,
            }
        } else {
            Limits::default()
        };
        // Its own requests would not fit under the small limit of heads with more than this.
        let request = Request { host: "h", ..GET };
        let expected = whole(request, limits, &response);
        prop_assert_eq!(in_pieces(request, limits, response.chunks(1).collect()), expected.clone());
        prop_assert_eq!(in_pieces(request, limits, cut(&response, &cuts)), expected);
    }
}
