//! What a connection makes of responses, one rule at a time.

use broca::http1::{Connection, Event, Http1Error, Limits, Request};
use bytes::Bytes;

mod http1_exchange;
use http1_exchange::{CONNECT, Exchange, GET, asked};

fn answered(response: &[u8]) -> Exchange {
    Exchange::of(GET, Limits::default(), [response], None)
}

fn answered_and_closed(response: &[u8]) -> Exchange {
    Exchange::of(GET, Limits::default(), [response], Some(true))
}

fn chunked(chunks: &str) -> Exchange {
    answered(format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}").as_bytes())
}

#[test]
fn a_connection_serves_one_exchange_after_the_other() {
    let mut connection = Connection::new(Limits::default());
    for body in ["one", "two", "three"] {
        assert!(connection.is_ready());
        let request = connection.send(GET).unwrap();
        connection.written(request.len());
        assert!(!connection.is_ready());
        assert_eq!(connection.send(GET), Err(Http1Error::NotReady));
        let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        connection.receive(Bytes::from(response));
        let mut exchange = Exchange::default();
        exchange.drain(&mut connection);
        assert_eq!((exchange.body, exchange.end), (body.as_bytes().to_vec(), Some((true, false))));
    }
    assert!(connection.is_ready());
}

#[test]
fn a_refused_request_leaves_the_connection_ready() {
    let mut connection = Connection::new(Limits::default());
    assert!(connection.send(Request { host: "a b", ..GET }).is_err());
    assert!(connection.is_ready());
    assert!(connection.send(GET).is_ok());
}

#[test]
fn chunks_are_slices_of_the_buffer_they_came_in() {
    let data = Bytes::from_static(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n3;x\r\ntwo\r\n5\r\nth",
    );
    let mut connection = asked(GET, Limits::default());
    connection.receive(data.clone());
    assert!(matches!(connection.poll(), Ok(Some(Event::Head(_)))));
    for (text, at) in [("one", 50), ("two", 60), ("th", 68)] {
        let Ok(Some(Event::Body(slice))) = connection.poll() else { panic!("no body") };
        assert_eq!(slice, text);
        assert_eq!(slice.as_ptr(), data[at..].as_ptr(), "{text} was copied");
    }
    let next = Bytes::from_static(b"ree\r\n0\r\n\r\n");
    connection.receive(next.clone());
    let Ok(Some(Event::Body(slice))) = connection.poll() else { panic!("no body") };
    assert_eq!((&slice[..], slice.as_ptr()), (&b"ree"[..], next.as_ptr()));
    assert!(matches!(connection.poll(), Ok(Some(Event::End { reusable: true, .. }))));
}

#[test]
fn several_buffers_may_wait_before_the_first_poll() {
    let mut connection = asked(GET, Limits::default());
    for piece in [
        "HTTP/1.1 200 OK\r\nTransfer-",
        "",
        "Encoding: chunked\r\n\r\n2\r",
        "\nhi\r\n0",
        "\r\n\r\n",
    ] {
        connection.receive(Bytes::from_static(piece.as_bytes()));
    }
    let mut exchange = Exchange::default();
    exchange.drain(&mut connection);
    assert_eq!((exchange.body, exchange.end), (b"hi".to_vec(), Some((true, false))));
}

#[test]
fn interim_responses_are_skipped_up_to_the_limit() {
    let interim = "HTTP/1.1 103 Early Hints\r\nLink: a\r\nContent-Length: 9\r\n\r\n";
    let last = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let limits = Limits { max_informational: 3, ..Limits::default() };
    let good = [interim.repeat(3).as_bytes(), last.as_bytes()].concat();
    assert_eq!(Exchange::of(GET, limits, [&good[..]], None).status, Some(200));
    let bad = Exchange::of(GET, limits, [interim.repeat(4).as_bytes()], None);
    assert_eq!(bad.error, Some(Http1Error::TooManyInformational { limit: 3 }));
}

#[test]
fn a_switch_of_protocols_is_refused() {
    let exchange = answered(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n");
    assert_eq!(exchange.error, Some(Http1Error::UnexpectedUpgrade));
}

#[test]
fn some_responses_have_no_body_whatever_their_headers_say() {
    for status in ["204 No Content", "304 Not Modified"] {
        let exchange =
            answered(format!("HTTP/1.1 {status}\r\nContent-Length: 5\r\n\r\n").as_bytes());
        assert_eq!(exchange.end, Some((true, false)), "{status}");
    }
    let head = Request { method: "HEAD", ..GET };
    for header in ["Content-Length: 5", "Transfer-Encoding: chunked", "X: y"] {
        let response = format!("HTTP/1.1 200 OK\r\n{header}\r\n\r\n");
        let exchange = Exchange::of(head, Limits::default(), [response.as_bytes()], None);
        assert_eq!(exchange.end, Some((true, false)), "{header}");
    }
}

#[test]
fn a_tunnel_opens_after_a_2xx_to_connect_and_keeps_every_byte() {
    let response = b"HTTP/1.1 200 Connection established\r\nContent-Length: 5\r\n\r\n\x16\x03";
    let mut connection = asked(CONNECT, Limits::default());
    connection.receive(Bytes::from_static(response));
    assert!(matches!(connection.poll(), Ok(Some(Event::Head(head))) if head.status() == 200));
    assert!(matches!(connection.poll(), Ok(Some(Event::Tunnel(rest))) if rest == b"\x16\x03"[..]));
    assert!(matches!(connection.poll(), Ok(None)));
    connection.receive(Bytes::from_static(b"more"));
    assert!(matches!(connection.poll(), Ok(Some(Event::Tunnel(rest))) if rest == "more"));
    assert!(!connection.is_ready());

    let mut quiet = asked(CONNECT, Limits::default());
    quiet.receive(Bytes::from_static(b"HTTP/1.0 200 OK\r\n\r\n"));
    assert!(matches!(quiet.poll(), Ok(Some(Event::Head(_)))));
    assert!(matches!(quiet.poll(), Ok(Some(Event::Tunnel(rest))) if rest.is_empty()));
    assert!(matches!(quiet.poll(), Ok(None)));
}

#[test]
fn a_refusal_of_connect_is_a_response_like_any_other() {
    let response = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 2\r\n\r\nno";
    let exchange = Exchange::of(CONNECT, Limits::default(), [&response[..]], None);
    assert_eq!((exchange.status, &exchange.body[..]), (Some(407), &b"no"[..]));
    assert_eq!((exchange.end, exchange.tunnel), (Some((true, false)), None));
}

#[test]
fn a_connection_that_one_side_closes_is_not_reused() {
    for head in [
        "HTTP/1.1 200 OK\r\nConnection: close\r\n",
        "HTTP/1.1 200 OK\r\nConnection: x\r\nConnection: CLOSE, y\r\n",
        "HTTP/1.0 200 OK\r\n",
    ] {
        let exchange = answered(format!("{head}Content-Length: 2\r\n\r\nhi").as_bytes());
        assert_eq!(exchange.end, Some((false, false)), "{head:?}");
    }
    let response = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let closing = Request { headers: &[("connection", "Close")], ..GET };
    let exchange = Exchange::of(closing, Limits::default(), [&response[..]], None);
    assert_eq!(exchange.end, Some((false, false)));
}

#[test]
fn an_early_response_is_read_and_the_connection_is_not_reused() {
    let response = b"HTTP/1.1 413 Payload Too Large\r\nContent-Length: 3\r\n\r\nbig";
    let mut connection = Connection::new(Limits::default());
    let request = connection.send(Request { method: "POST", body: &[0; 1000], ..GET }).unwrap();
    connection.written(request.len() - 1);
    connection.receive(Bytes::from_static(response));
    let mut exchange = Exchange::default();
    exchange.drain(&mut connection);
    assert_eq!((exchange.status, &exchange.body[..]), (Some(413), &b"big"[..]));
    assert_eq!(exchange.end, Some((false, false)));
    connection.written(1);
    assert!(!connection.is_ready());
    assert_eq!(connection.send(GET), Err(Http1Error::NotReady));
}

#[test]
fn bytes_that_answer_no_request_are_an_error_and_end_the_connection() {
    let mut fresh = Connection::new(Limits::default());
    fresh.receive(Bytes::from_static(b"HTTP/1.1 408 Request Timeout\r\n\r\n"));
    assert!(!fresh.is_ready());
    assert_eq!(fresh.send(GET), Err(Http1Error::NotReady));
    assert!(matches!(fresh.poll(), Err(Http1Error::UnexpectedData)));

    let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
    let together = answered(&[&response[..], b"HTTP/1.1 200 OK\r\n"].concat());
    assert_eq!(together.end, Some((false, false)));
    assert_eq!(together.error, Some(Http1Error::UnexpectedData));

    let later = Exchange::of(GET, Limits::default(), [&response[..], b"\r\n"], None);
    assert_eq!(later.end, Some((true, false)));
    assert_eq!(later.error, Some(Http1Error::UnexpectedData));
}

#[test]
fn an_idle_connection_that_the_peer_closes_is_no_error_and_not_ready() {
    let mut connection = Connection::new(Limits::default());
    connection.eof(true);
    assert!(matches!(connection.poll(), Ok(None)));
    assert!(!connection.is_ready());
}

#[test]
fn a_close_that_came_with_the_response_makes_it_not_reusable() {
    let mut connection = asked(GET, Limits::default());
    connection.receive(Bytes::from_static(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"));
    connection.eof(true);
    let mut exchange = Exchange::default();
    exchange.drain(&mut connection);
    assert_eq!((exchange.end, exchange.error), (Some((false, false)), None));
}

#[test]
fn a_body_that_ends_with_the_connection_needs_a_clean_end() {
    let response = b"HTTP/1.1 200 OK\r\n\r\nall of it";
    let clean = answered_and_closed(response);
    assert_eq!((&clean.body[..], clean.end), (&b"all of it"[..], Some((false, true))));
    let broken = Exchange::of(GET, Limits::default(), [&response[..]], Some(false));
    assert_eq!(&broken.body[..], b"all of it");
    assert_eq!(broken.error, Some(Http1Error::ClosedInBody { got: 9, expected: None }));
}

#[test]
fn where_the_connection_ended_is_told() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(answered_and_closed(b"").error, Some(Http1Error::ClosedBeforeResponse));
    let interim = answered_and_closed(b"HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(interim.error, Some(Http1Error::ClosedBeforeResponse));
    for cut in [1, 4, 15, 17, head.len() - 1] {
        let error = answered_and_closed(&head.as_bytes()[..cut]).error;
        assert_eq!(error, Some(Http1Error::ClosedInHead), "cut at {cut}");
    }
    let error = answered_and_closed(format!("{head}hel").as_bytes()).error;
    assert_eq!(error, Some(Http1Error::ClosedInBody { got: 3, expected: Some(5) }));
    for (chunks, got) in
        [("", 0), ("5", 0), ("5\r\nhel", 3), ("5\r\nhello", 5), ("1\r\na\r\n0\r\n", 1)]
    {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let error = answered_and_closed(format!("{head}{chunks}").as_bytes()).error;
        assert_eq!(error, Some(Http1Error::ClosedInBody { got, expected: None }), "{chunks:?}");
    }
}

#[test]
fn a_peer_that_does_not_speak_http_is_recognised_at_its_first_wrong_byte() {
    for hello in
        [&b"SSH-2.0-x"[..], b"\x15\x03\x01", b"HTTP/2", b"\r\nHTTP/1.1 200 OK", b"http/1.1"]
    {
        assert_eq!(answered(hello).error, Some(Http1Error::NotHttp), "{hello:?}");
    }
}

#[test]
fn a_head_is_bounded_whether_or_not_it_ever_ends() {
    let limits = Limits { max_head_bytes: 100, ..Limits::default() };
    let too_long = Some(Http1Error::HeadTooLong { limit: 100 });
    let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(200));
    let ended = format!("{endless}\r\n\r\n");
    let fits = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(76));
    assert_eq!(fits.len(), 100);
    for size in [1, 7, 1000] {
        let of = |text: &str| Exchange::of(GET, limits, text.as_bytes().chunks(size), None);
        assert_eq!(of(&endless).error, too_long);
        assert_eq!(of(&ended).error, too_long);
        assert_eq!(of(&fits).status, Some(200));
        assert_eq!(of(&fits.replacen("x", "xx", 1)).error, too_long);
    }
}

#[test]
fn chunk_extensions_are_skipped_up_to_the_limit_of_their_line() {
    assert_eq!(chunked("2;a=b;c=\"d\"\r\nhi\r\n0;e\r\n\r\n").body, b"hi");
    let limits = Limits { max_chunk_line_bytes: 10, ..Limits::default() };
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for size in [1, 7, 1000] {
        let of = |chunks: &str| {
            let text = format!("{head}{chunks}");
            Exchange::of(GET, limits, text.as_bytes().chunks(size), None)
        };
        let too_long = Some(Http1Error::ChunkLineTooLong { limit: 10 });
        assert_eq!(of("2;345678\r\nhi\r\n0\r\n\r\n").body, b"hi");
        assert_eq!(of("2;3456789\r\nhi\r\n0\r\n\r\n").error, too_long);
        assert_eq!(of("00000000002\r\nhi\r\n0\r\n\r\n").error, too_long);
        assert_eq!(of("2;345678901234").error, too_long);
    }
}

#[test]
fn a_chunk_that_two_readers_could_read_in_two_ways_is_refused() {
    for chunks in [
        "2\r\nhiX\r\n0\r\n\r\n",
        "2\r\nhi\n0\r\n\r\n",
        "2\r\nhi\r0\r\n\r\n",
        "2\nhi\r\n0\r\n\r\n",
        "2;a\nhi\r\n0\r\n\r\n",
        "\r\nhi\r\n0\r\n\r\n",
        "0x2\r\nhi\r\n0\r\n\r\n",
        "10000000000000000\r\nhi\r\n",
    ] {
        let error = chunked(chunks).error;
        assert!(matches!(error, Some(Http1Error::MalformedChunk { .. })), "{chunks:?}: {error:?}");
    }
}

#[test]
fn trailers_are_skipped_checked_and_bounded() {
    let good = chunked("2\r\nhi\r\n0\r\nX-Sum: 1\r\nEmpty:\r\n\r\n");
    assert_eq!((good.headers.len(), good.end), (1, Some((true, false))));
    for bad in ["no colon\r\n", " folded: x\r\n", "A : b\r\n", "A: b\n", "A: b\rc\r\n", ": b\r\n"] {
        let error = chunked(&format!("0\r\n{bad}\r\n")).error;
        assert_eq!(error, Some(Http1Error::MalformedTrailer), "{bad:?}");
    }
    let limits = Limits { max_trailer_bytes: 20, ..Limits::default() };
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n";
    for size in [1, 1000] {
        let of = |trailers: &str| {
            let text = format!("{head}{trailers}");
            Exchange::of(GET, limits, text.as_bytes().chunks(size), None)
        };
        assert_eq!(of("A: 3456789\r\nB: 4\r\n\r\n").end, Some((true, false)));
        let too_long = Some(Http1Error::TrailersTooLong { limit: 20 });
        assert_eq!(of("A: 3456789\r\nB: 45\r\n\r\n").error, too_long);
        assert_eq!(of("A: 3456789012345678901").error, too_long);
    }
}

#[test]
fn a_body_of_any_announced_size_is_handed_out_as_it_comes() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\nsome";
    assert_eq!(answered(head).body, b"some");
    assert_eq!(chunked("ffffffffffffffff\r\nsome").body, b"some");
}

#[test]
fn no_debug_output_or_error_shows_what_was_sent() {
    let mut connection = asked(GET, Limits::default());
    connection.receive(Bytes::from_static(
        b"HTTP/1.1 200 OK\r\nX: secret\r\nContent-Length: 9\r\n\r\nsecret",
    ));
    let mut shown = String::new();
    while let Some(event) = connection.poll().unwrap() {
        shown += &format!("{event:?} {connection:?} ");
    }
    connection.eof(false);
    let error = connection.poll().unwrap_err();
    shown += &format!("{error} {error:?}");
    assert!(shown.contains("after 6 bytes of 9") && !shown.contains("secret"), "{shown}");
}
