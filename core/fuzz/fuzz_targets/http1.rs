//! Any bytes as a response, whole and cut: no crash, no hang, no bound passed, and both ways the
//! same is read.
//!
//! The first byte chooses request, limits and end of the connection; the second how the rest is
//! cut.

#![no_main]

use broca::http1::{Connection, Event, Http1Error, Limits, Request, Target};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Default, PartialEq)]
struct Exchange {
    status: Option<u16>,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    tunnel: Option<Vec<u8>>,
    end: Option<(bool, bool)>,
    error: Option<Http1Error>,
}

fuzz_target!(|data: &[u8]| {
    let [choice, cut, response @ ..] = data else { return };
    let piece = usize::from(*cut % 64) + 1;
    let whole = exchange(*choice, response, usize::MAX);
    let pieces = exchange(*choice, response, piece);
    assert_eq!(whole, pieces, "by {piece}");
    assert!(whole.body.len() <= response.len());
});

fn exchange(choice: u8, response: &[u8], piece: usize) -> Exchange {
    let get =
        Request { method: "GET", target: Target::Origin("/"), host: "h", headers: &[], body: b"" };
    let request = match choice % 3 {
        0 => get,
        1 => Request { method: "HEAD", ..get },
        _ => Request { method: "CONNECT", target: Target::Authority("h:1"), ..get },
    };
    let limits = if choice & 0x80 == 0 {
        Limits::default()
    } else {
        Limits {
            max_head_bytes: 60,
            max_headers: 2,
            max_chunk_line_bytes: 5,
            max_trailer_bytes: 8,
            max_informational: 1,
        }
    };
    let mut connection = Connection::new(limits);
    let Ok(bytes) = connection.send(request) else { unreachable!("the request is good") };
    connection.written(bytes.len());
    let mut exchange = Exchange::default();
    for piece in response.chunks(piece) {
        connection.receive(Bytes::copy_from_slice(piece));
        exchange.drain(&mut connection);
    }
    match choice & 0x60 {
        0 => {}
        0x20 => connection.eof(false),
        _ => connection.eof(true),
    }
    exchange.drain(&mut connection);
    // Bytes after the end come with it or later, as the cut has it; the error follows either way.
    if exchange.error == Some(Http1Error::UnexpectedData)
        && let Some((reusable, _)) = &mut exchange.end
    {
        *reusable = false;
    }
    exchange
}

impl Exchange {
    fn drain(&mut self, connection: &mut Connection) {
        loop {
            match connection.poll() {
                Ok(None) => return,
                Err(error) => {
                    self.error = Some(error);
                    return;
                }
                Ok(Some(event)) => self.note(event),
            }
        }
    }

    fn note(&mut self, event: Event) {
        assert!(self.error.is_none() && self.end.is_none(), "{event:?} after the end");
        match event {
            Event::Head(head) => {
                assert!(self.status.is_none() && head.status() >= 200);
                self.status = Some(head.status());
                self.headers = head.headers().map(|(n, v)| (n.to_owned(), v.to_vec())).collect();
            }
            Event::Body(data) => {
                assert!(!data.is_empty() && self.status.is_some());
                self.body.extend_from_slice(&data);
            }
            Event::End { reusable, complete_by_close } => {
                assert!(self.status.is_some() && !(reusable && complete_by_close));
                self.end = Some((reusable, complete_by_close));
            }
            Event::Tunnel(data) => {
                assert!(self.status.is_some());
                self.tunnel.get_or_insert_default().extend_from_slice(&data);
            }
        }
    }
}
