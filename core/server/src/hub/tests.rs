//! Readers, rings and lanes, without sockets.

use super::*;

fn event(seq: u64) -> Publication {
    let line = Bytes::from(format!("e{seq}\n"));
    let needs = Some(Features::NONE);
    Publication { seq, line, reduced: Vec::new(), needs, withheld_from: None }
}

fn poll(reader: &mut Reader) -> Poll<Batch> {
    reader.poll_batch(&Context::from_waker(Waker::noop()))
}

fn text(reader: &mut Reader) -> (String, Then) {
    match poll(reader) {
        Poll::Ready(batch) => (String::from_utf8(batch.lines.to_vec()).unwrap(), batch.then),
        Poll::Pending => ("(pending)".to_owned(), Then::More),
    }
}

fn hub(limits: impl FnOnce(&mut HubLimits)) -> Arc<Hub> {
    let mut standard = HubLimits::default();
    limits(&mut standard);
    Hub::new(standard)
}

#[test]
fn what_is_there_comes_in_one_batch_and_the_ring_is_empty_once_all_have_read() {
    let hub = hub(|_| {});
    let mut a = hub.attach(ReaderKind::Subscription, Features::NONE);
    let mut b = hub.attach(ReaderKind::Subscription, Features::NONE);
    hub.publish([event(1), event(2)]);
    assert_eq!(text(&mut a), ("e1\ne2\n".to_owned(), Then::More));
    assert!(poll(&mut a).is_pending());
    assert_eq!(hub.lock().entries.len(), 2);
    assert_eq!(text(&mut b).0, "e1\ne2\n");
    let ring = hub.lock();
    assert_eq!((ring.entries.len(), ring.bytes), (0, 0));
}

#[test]
fn each_reader_gets_the_line_for_what_it_asked_for() {
    let hub = hub(|_| {});
    let asked = |words: &[&str]| Features::parse(words.iter().copied());
    let mut readers = [[].as_slice(), &["options", "cancel"], &["blocks"], &["options", "blocks"]]
        .map(|words| hub.attach(ReaderKind::Subscription, asked(words)));
    let less = |readers: &[&[&str]], line: &'static str| {
        (readers.iter().map(|words| asked(words)).collect(), Bytes::from_static(line.as_bytes()))
    };
    let reduced = vec![less(&[&[], &["blocks"]], "less\n"), less(&[&["options"]], "more\n")];
    hub.publish([Publication { reduced, ..event(1) }]);
    assert_eq!(hub.lock().bytes, "e1\nless\nmore\n".len());
    let lines = readers.each_mut().map(|reader| text(reader).0);
    assert_eq!(lines, ["less\n", "more\n", "less\n", "e1\n"]);
    assert_eq!(hub.lock().bytes, 0);
}

#[test]
fn a_reader_that_goes_away_gives_up_what_was_kept_for_it() {
    let hub = hub(|_| {});
    let mut a = hub.attach(ReaderKind::Subscription, Features::NONE);
    let b = hub.attach(ReaderKind::Subscription, Features::NONE);
    hub.publish([event(1), event(2)]);
    assert_eq!(text(&mut a).0, "e1\ne2\n");
    drop(b);
    assert_eq!(hub.lock().entries.len(), 0);
}

#[test]
fn a_reader_that_the_ring_overtakes_gets_the_lag_line_and_the_end() {
    let hub = hub(|l| {
        l.ring_events = 2;
        l.stream_lines = 1;
    });
    let mut slow = hub.attach(ReaderKind::Subscription, Features::NONE);
    hub.publish([event(1), event(2), event(3)]);
    assert!(!slow.has_lagged());
    hub.publish([event(4)]);
    assert!(slow.has_lagged());
    let (line, then) = text(&mut slow);
    assert_eq!(
        line,
        "{\"jsonrpc\":\"2.0\",\"error\":{\"code\":-32000,\"message\":\"lagged; reconnect with since_event_id\"}}\n"
    );
    assert_eq!(then, Then::Lagged);
    assert_eq!(text(&mut slow), (String::new(), Then::End));
}

#[test]
fn the_ring_is_bounded_in_bytes_too() {
    let hub = hub(|l| l.ring_bytes = 100);
    let mut slow = hub.attach(ReaderKind::Subscription, Features::NONE);
    let big = |seq| Publication { line: Bytes::from(vec![b'x'; 60]), ..event(seq) };
    hub.publish([big(1)]);
    hub.publish([big(2)]);
    hub.publish([big(3)]);
    assert!(hub.lock().bytes <= 160);
    assert_eq!(text(&mut slow).1, Then::Lagged);
}

#[test]
fn one_event_over_the_bound_drops_nobody_who_takes_it_late() {
    let hub = hub(|l| l.ring_bytes = 100);
    let mut reader = hub.attach(ReaderKind::Call, Features::NONE);
    hub.publish([event(1)]);
    hub.publish([Publication { line: Bytes::from(vec![b'x'; 1000]), ..event(2) }]);
    hub.publish([event(3)]);
    let (lines, then) = text(&mut reader);
    assert_eq!((lines.len(), then), (3 + 1000 + 3, Then::More));
}

#[test]
fn a_call_misses_what_is_withheld_from_it_and_ends_with_its_terminal() {
    let hub = hub(|_| {});
    let mut call = hub.attach(ReaderKind::Call, Features::NONE);
    let mut other = hub.attach(ReaderKind::Subscription, Features::NONE);
    let mut beside = hub.attach_beside(ReaderKind::Call, Features::NONE, Some(call.id()));
    hub.publish([Publication { withheld_from: Some(call.id()), ..event(1) }, event(2)]);
    for (reader, terminal) in [(call.id(), "T\n"), (beside.id(), "U\n")] {
        hub.finish(reader, Bytes::from_static(terminal.as_bytes()));
    }
    hub.publish([event(3)]);
    assert_eq!(text(&mut call), ("e2\nT\n".to_owned(), Then::End));
    assert_eq!(text(&mut beside), ("e2\nU\n".to_owned(), Then::End));
    assert_eq!(text(&mut other).0, "e1\ne2\ne3\n");
    assert_eq!(hub.lock().entries.len(), 0);
}

#[test]
fn ending_subscriptions_lets_them_read_what_came_before_and_leaves_calls_alone() {
    let hub = hub(|_| {});
    let mut watch = hub.attach(ReaderKind::Subscription, Features::NONE);
    let mut call = hub.attach(ReaderKind::Call, Features::NONE);
    hub.publish([event(1)]);
    hub.end_subscriptions();
    hub.publish([event(2)]);
    assert_eq!(text(&mut watch), ("e1\n".to_owned(), Then::End));
    assert_eq!(text(&mut call), ("e1\ne2\n".to_owned(), Then::More));
}

#[test]
fn events_beyond_the_plain_contract_are_shown_only_to_who_asked() {
    let hub = hub(|_| {});
    let mut plain = hub.attach(ReaderKind::Subscription, Features::NONE);
    let mut cancel = hub.attach(ReaderKind::Subscription, Features::ALL);
    let needs = Some(Features { cancel: true, ..Features::NONE });
    let nobody = Publication { needs: None, ..event(3) };
    hub.publish([Publication { needs, ..event(1) }, event(2), nobody]);
    assert_eq!(text(&mut plain).0, "e2\n");
    assert_eq!(text(&mut cancel).0, "e1\ne2\n");
}

#[test]
fn what_a_replay_has_shown_is_skipped() {
    let hub = hub(|_| {});
    let mut reader = hub.attach(ReaderKind::Subscription, Features::NONE);
    hub.publish([event(1), event(2), event(3)]);
    reader.skip_to(2);
    assert_eq!(text(&mut reader).0, "e3\n");
}

#[test]
fn a_batch_is_bounded_and_the_rest_follows() {
    let hub = hub(|l| l.batch_bytes = 5);
    let mut reader = hub.attach(ReaderKind::Subscription, Features::NONE);
    hub.publish([event(1), event(2), event(3)]);
    assert_eq!(text(&mut reader).0, "e1\ne2\n");
    assert_eq!(text(&mut reader).0, "e3\n");
}

fn says(message: &str, text: &str) -> Delta {
    Delta::Text { message_id: message.into(), delta: text.to_owned() }
}

#[test]
fn deltas_come_joined_before_the_event_that_was_logged_after_them() {
    let hub = hub(|_| {});
    let mut shown = hub.attach(ReaderKind::Subscription, Features::ALL);
    let mut plain = hub.attach(ReaderKind::Subscription, Features::NONE);
    hub.show(&says("m1", "Hel"));
    hub.show(&says("m1", "lo"));
    hub.publish([event(1)]);
    hub.show(&says("m2", "x"));
    let delta = |m: &str, t: &str| {
        format!(
            "{{\"jsonrpc\":\"2.0\",\"method\":\"session.display\",\"params\":{{\"type\":\"text_delta\",\"message_id\":\"{m}\",\"delta\":\"{t}\"}}}}\n"
        )
    };
    let expected = format!("{}e1\n{}", delta("m1", "Hello"), delta("m2", "x"));
    assert_eq!(text(&mut shown).0, expected);
    assert_eq!(text(&mut plain).0, "e1\n");
}

#[test]
fn a_full_lane_sheds_the_oldest_deltas_and_says_how_many() {
    let hub = hub(|l| {
        l.display_bytes = 8;
        l.display_join = 4;
    });
    let mut reader = hub.attach(ReaderKind::Subscription, Features::ALL);
    for piece in ["aaaa", "bbbb", "cccc", "dddd"] {
        hub.show(&says("m", piece));
    }
    hub.publish([event(1)]);
    let (lines, _) = text(&mut reader);
    assert!(lines.starts_with(
        "{\"jsonrpc\":\"2.0\",\"method\":\"session.display\",\"params\":{\"type\":\"display_gap\",\"dropped\":2}}\n"
    ));
    assert!(lines.contains("cccc") && lines.contains("dddd") && lines.ends_with("e1\n"));
    assert!(!lines.contains("aaaa") && !lines.contains("bbbb"));
}

#[test]
fn a_reader_far_behind_gets_events_without_deltas_they_replace() {
    let hub = hub(|l| l.stream_lines = 2);
    let mut reader = hub.attach(ReaderKind::Subscription, Features::ALL);
    hub.show(&says("m", "old"));
    hub.publish([event(1), event(2), event(3)]);
    let (lines, _) = text(&mut reader);
    assert!(lines.contains("\"dropped\":1") && !lines.contains("old"), "{lines}");
    assert!(lines.contains("e1\ne2\ne3\n"));
}

#[test]
fn a_reset_voids_the_deltas_that_have_not_left() {
    let hub = hub(|_| {});
    let mut reader = hub.attach(ReaderKind::Subscription, Features::ALL);
    hub.show(&says("m", "half"));
    hub.show(&Delta::Reset);
    let (lines, _) = text(&mut reader);
    assert!(!lines.contains("half"));
    assert!(lines.contains("{\"type\":\"display_reset\"}"), "{lines}");
}
