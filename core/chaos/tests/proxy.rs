//! The proxy between real sockets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use broca_chaos::{ChaosProxy, Fault, ResponseFault};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Nothing here takes that long.
const DEADLINE: Duration = Duration::from_secs(20);

/// Serves every connection on a thread of its own.
fn serving(serve: fn(TcpStream) -> io::Result<()>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            // Its client went away, as many do here.
            std::thread::spawn(move || serve(stream).unwrap_or_default());
        }
    });
    address
}

/// Answers every byte with 100 bytes.
fn echo() -> SocketAddr {
    serving(|mut stream| {
        let mut byte = [0];
        loop {
            stream.read_exact(&mut byte)?;
            stream.write_all(&[byte[0]; 100])?;
        }
    })
}

/// Answers every request with three lines, each in a chunk of its own.
fn lines() -> SocketAddr {
    serving(|stream| {
        let mut requests = BufReader::new(stream.try_clone()?);
        let mut stream = stream;
        loop {
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                if requests.read_line(&mut line)? == 0 {
                    return Ok(());
                }
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n")?;
            stream.write_all(b"transfer-encoding: chunked\r\n\r\n")?;
            for chunk in ["2\r\n1\n\r\n", "2\r\n2\n\r\n", "2\r\n3\n\r\n0\r\n\r\n"] {
                stream.write_all(chunk.as_bytes())?;
            }
        }
    })
}

fn client(proxy: &ChaosProxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Asks and reads up to the end of the chunks or of the connection.
fn ask(stream: &mut TcpStream, path: &str) -> (String, io::Result<()>) {
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut got = Vec::new();
    let mut byte = [0];
    while !got.ends_with(b"0\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(0) => return (body(got), Err(ErrorKind::UnexpectedEof.into())),
            Ok(_) => got.push(byte[0]),
            Err(e) => return (body(got), Err(e)),
        }
    }
    (body(got), Ok(()))
}

/// What is in the chunks, whole or not: only the lines of the server are digits and a line feed alone.
fn body(got: Vec<u8>) -> String {
    let text = String::from_utf8(got).unwrap();
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    body.split("\r\n").filter(|part| part.ends_with('\n')).collect()
}

fn is_silent(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let silent = stream.read(&mut [0; 1]);
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    silent.is_err_and(|e| matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

#[test]
fn without_a_plan_bytes_pass_both_ways() {
    let proxy = ChaosProxy::start(echo()).unwrap();
    let mut stream = client(&proxy);
    stream.write_all(b"ab").unwrap();
    let mut got = [0; 200];
    stream.read_exact(&mut got).unwrap();
    assert_eq!((got[0], got[199]), (b'a', b'b'));
    assert_eq!((proxy.connections(), proxy.open()), (1, 1));
}

#[test]
fn a_planned_cut_comes_after_exactly_that_many_bytes_and_only_once() {
    let proxy = ChaosProxy::start(echo()).unwrap();
    proxy.plan(Fault { cut_after: Some(150), piece: 7, ..Fault::default() });
    let mut stream = client(&proxy);
    stream.write_all(b"ab").unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), 150);
    let mut next = client(&proxy);
    next.write_all(b"ab").unwrap();
    next.read_exact(&mut [0; 200]).unwrap();
}

#[test]
fn what_is_open_can_be_cut_and_a_restart_refuses_for_a_while() {
    let proxy = ChaosProxy::start(echo()).unwrap();
    let mut stream = client(&proxy);
    stream.write_all(b"a").unwrap();
    stream.read_exact(&mut [0; 100]).unwrap();
    assert_eq!(proxy.cut_all(), 1);
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    proxy.set_down(true);
    let mut refused = client(&proxy);
    let _ = refused.write_all(b"a");
    assert!(matches!(refused.read(&mut [0; 1]), Ok(0) | Err(_)));
    proxy.restart(Duration::ZERO);
    let mut again = client(&proxy);
    again.write_all(b"a").unwrap();
    again.read_exact(&mut [0; 100]).unwrap();
}

#[test]
fn a_reset_is_one() {
    let proxy = ChaosProxy::start(echo()).unwrap();
    let mut stream = client(&proxy);
    stream.write_all(b"a").unwrap();
    stream.read_exact(&mut [0; 100]).unwrap();
    assert_eq!(proxy.reset_all(), 1);
    assert_eq!(stream.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!((proxy.reset_all(), proxy.open()), (0, 0));
    proxy.plan(Fault { refuse: true, reset: true, ..Fault::default() });
    let mut refused = client(&proxy);
    assert_eq!(refused.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_stalled_connection_stays_open_and_silent_until_it_is_cut() {
    let proxy = ChaosProxy::start(echo()).unwrap();
    proxy.plan(Fault { stall_after: Some(50), ..Fault::default() });
    let mut stream = client(&proxy);
    stream.write_all(b"a").unwrap();
    stream.read_exact(&mut [0; 50]).unwrap();
    assert!(is_silent(&mut stream));
    proxy.cut_all();
    assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)));
    let begun = Instant::now();
    drop(proxy);
    assert!(begun.elapsed() < DEADLINE);
}

#[test]
fn what_a_silence_held_back_comes_when_all_is_healed() {
    let proxy = ChaosProxy::start(echo()).unwrap();
    proxy.plan(Fault { stall_after: Some(50), ..Fault::default() });
    let (mut limited, mut stalled) = (client(&proxy), client(&proxy));
    for stream in [&mut limited, &mut stalled] {
        stream.write_all(b"a").unwrap();
    }
    limited.read_exact(&mut [0; 50]).unwrap();
    stalled.read_exact(&mut [0; 100]).unwrap();
    assert_eq!(proxy.stall_all(), 2);
    stalled.write_all(b"b").unwrap();
    assert!(is_silent(&mut limited) && is_silent(&mut stalled));
    proxy.heal().unwrap();
    limited.read_exact(&mut [0; 50]).unwrap();
    stalled.read_exact(&mut [0; 100]).unwrap();
    limited.write_all(b"c").unwrap();
    limited.read_exact(&mut [0; 100]).unwrap();
}

#[test]
fn a_delay_holds_back_without_changing_anything() {
    let proxy = ChaosProxy::start(echo()).unwrap();
    let mut stream = client(&proxy);
    let (up, down) = (Duration::from_millis(40), Duration::from_millis(30));
    proxy.always(Fault { delay: down, delay_up: up, ..Fault::default() });
    for (always, least) in [(up + down, up + down), (Duration::ZERO, Duration::ZERO)] {
        let begun = Instant::now();
        stream.write_all(b"xyz").unwrap();
        let mut got = [0; 300];
        stream.read_exact(&mut got).unwrap();
        assert!(begun.elapsed() >= least, "{always:?}");
        assert_eq!((got[0], got[299]), (b'x', b'z'));
        proxy.heal().unwrap();
    }
}

#[test]
fn a_port_that_is_given_up_refuses_and_comes_back() {
    let proxy = ChaosProxy::start(echo()).unwrap();
    let mut open = client(&proxy);
    open.write_all(b"a").unwrap();
    open.read_exact(&mut [0; 100]).unwrap();
    proxy.set_listening(false).unwrap();
    let refused = TcpStream::connect(proxy.address()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    open.write_all(b"a").unwrap();
    open.read_exact(&mut [0; 100]).unwrap();
    proxy.set_listening(true).unwrap();
    let mut again = client(&proxy);
    again.write_all(b"a").unwrap();
    again.read_exact(&mut [0; 100]).unwrap();
}

#[test]
fn a_server_that_is_not_there_looks_like_a_reset() {
    let gone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let proxy = ChaosProxy::start(gone).unwrap();
    let mut stream = client(&proxy);
    assert_eq!(stream.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    proxy.retarget(echo());
    let mut stream = client(&proxy);
    stream.write_all(b"a").unwrap();
    stream.read_exact(&mut [0; 100]).unwrap();
}

#[test]
fn faults_of_responses_take_the_next_response_of_any_connection_in_order() {
    let proxy = ChaosProxy::start(lines()).unwrap();
    let mut kept = client(&proxy);
    assert_eq!(ask(&mut kept, "/").0, "1\n2\n3\n");
    proxy.plan_response(ResponseFault { duplicate_line: Some(2), ..ResponseFault::default() });
    proxy.plan_response(ResponseFault { cut_after_lines: Some(1), ..ResponseFault::default() });
    let (got, end) = ask(&mut kept, "/");
    assert_eq!((got.as_str(), end.is_ok()), ("1\n2\n2\n3\n", true));
    let (got, end) = ask(&mut kept, "/");
    assert_eq!((got.as_str(), end.unwrap_err().kind()), ("1\n", ErrorKind::UnexpectedEof));
    assert_eq!(ask(&mut client(&proxy), "/").0, "1\n2\n3\n");
    assert_eq!(proxy.planned(), 0);
}

#[test]
fn a_fault_of_responses_may_wait_for_its_request() {
    let proxy = ChaosProxy::start(lines()).unwrap();
    let mut stream = client(&proxy);
    proxy.always_response(ResponseFault { duplicate_line: Some(1), ..ResponseFault::default() });
    proxy.plan_response(ResponseFault {
        cut_after_bytes: Some(0),
        request: Some("/watched".to_owned()),
        ..ResponseFault::default()
    });
    assert_eq!(ask(&mut stream, "/other").0, "1\n1\n2\n3\n");
    let (got, end) = ask(&mut stream, "/watched");
    assert_eq!((got.as_str(), end.is_err()), ("", true));
    assert_eq!(ask(&mut client(&proxy), "/watched").0, "1\n1\n2\n3\n");
}

#[test]
fn a_silence_after_lines_goes_on_where_it_was() {
    let proxy = ChaosProxy::start(lines()).unwrap();
    proxy.plan_response(ResponseFault { stall_after_lines: Some(2), ..ResponseFault::default() });
    let mut stream = client(&proxy);
    let asking = std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask(&mut stream, "/"));
        let until = Instant::now() + DEADLINE;
        while proxy.planned() > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(50));
        assert!(!asking.is_finished());
        proxy.heal().unwrap();
        asking.join().unwrap()
    });
    assert_eq!((asking.0.as_str(), asking.1.is_ok()), ("1\n2\n3\n", true));
}

#[test]
fn what_is_sent_on_a_repeated_connection_arrives_twice_and_is_answered_once() {
    let (told, heard) = mpsc::channel();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = ChaosProxy::start(listener.local_addr().unwrap()).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, told) = (stream.unwrap(), told.clone());
            std::thread::spawn(move || {
                let mut got = [0; 3];
                stream.read_exact(&mut got).unwrap();
                told.send(got).unwrap();
                // The copy may have been given up by now.
                let _ = stream.write_all(b"yes");
                let _ = stream.read(&mut [0; 1]);
            });
        }
    });
    proxy.plan(Fault { repeat: true, ..Fault::default() });
    let mut stream = client(&proxy);
    stream.write_all(b"ask").unwrap();
    for _ in 0..2 {
        assert_eq!(&heard.recv_timeout(DEADLINE).unwrap(), b"ask");
    }
    let mut answer = [0; 3];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"yes");
    assert!(is_silent(&mut stream), "the copy's answer goes to nobody");
    drop(stream);
    client(&proxy).write_all(b"one").unwrap();
    assert_eq!(&heard.recv_timeout(DEADLINE).unwrap(), b"one");
    assert!(heard.recv_timeout(Duration::from_millis(100)).is_err(), "others arrive once");
}

#[test]
fn a_connection_that_is_behind_is_overtaken_by_the_next_and_goes_on_without_one() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = ChaosProxy::start(listener.local_addr().unwrap()).unwrap();
    std::thread::spawn(move || {
        for (number, stream) in (1..=3).zip(listener.incoming()) {
            let mut stream = stream.unwrap();
            stream.write_all(&[number]).unwrap();
            std::thread::spawn(move || stream.read(&mut [0; 1]));
        }
    });
    let arrived = |stream: &mut TcpStream| {
        let mut number = [0];
        stream.read_exact(&mut number).unwrap();
        number[0]
    };
    proxy.plan(Fault { behind: true, ..Fault::default() });
    let (mut first, mut second) = (client(&proxy), client(&proxy));
    assert_eq!((arrived(&mut first), arrived(&mut second)), (2, 1));
    proxy.plan(Fault { behind: true, ..Fault::default() });
    assert_eq!(arrived(&mut client(&proxy)), 3);
}
