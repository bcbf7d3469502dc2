//! What a stream says of itself: that it lives (feature `heartbeat`), and where its call stands in the queue
//! (feature `queue`). Notifications without id; nothing of them is logged or replayed.

use super::rpc;
use crate::Json;
use bytes::Bytes;

/// The method of the sign of life; it has no parameters.
pub const HEARTBEAT: &str = "session.heartbeat";

/// The method of the notification that tells a waiting call its place.
pub const QUEUED: &str = "session.queued";

/// The line that shows that a silent stream lives, newline included.
#[must_use]
pub const fn heartbeat_line() -> Bytes {
    Bytes::from_static(b"{\"jsonrpc\":\"2.0\",\"method\":\"session.heartbeat\"}\n")
}

/// Where a call stands that waits at the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queued {
    /// Its place; 1 goes next.
    pub position: u64,
    /// How many calls wait, itself included.
    pub waiting: u64,
}

impl Queued {
    /// Reads the parameters of a notification; nothing when they name no place.
    #[must_use]
    pub fn read(params: &Json) -> Option<Self> {
        let number = |name: &str| params.member(name).and_then(|n| n.decode::<u64>().ok());
        let position = number("position").filter(|position| *position > 0)?;
        Some(Self { position, waiting: number("waiting").unwrap_or(position).max(position) })
    }

    /// The parameters of the notification.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let number = |n: u64| Json::integer(i64::try_from(n).unwrap_or(i64::MAX));
        Json::object([("position", &number(self.position)), ("waiting", &number(self.waiting))])
    }

    /// The notification line, newline included.
    #[must_use]
    pub fn line(&self) -> Bytes {
        rpc::notification_line(QUEUED, &self.to_json())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::rpc::Line;

    fn params(line: &Bytes, expected: &str) -> Json {
        let line = line.slice(..line.len() - 1);
        let Ok(Line::Notification { method, params, .. }) = Line::parse(&line) else { panic!() };
        assert_eq!(method, expected);
        params
    }

    #[test]
    fn notices_are_notifications_without_id() {
        assert_eq!(params(&heartbeat_line(), HEARTBEAT).as_str(), "{}");
        let place = Queued { position: 1, waiting: 3 };
        let read = params(&place.line(), QUEUED);
        assert_eq!(read.as_str(), r#"{"position":1,"waiting":3}"#);
        assert_eq!(Queued::read(&read), Some(place));
    }

    #[test]
    fn a_place_that_makes_no_sense_is_none() {
        let read = |text: &str| Queued::read(&Json::parse(text.to_owned()).unwrap());
        assert_eq!(read(r#"{"position":0,"waiting":3}"#), None);
        assert_eq!(read(r#"{"position":"1"}"#), None);
        assert_eq!(read("{}"), None);
        assert_eq!(read(r#"{"position":2}"#), Some(Queued { position: 2, waiting: 2 }));
        assert_eq!(
            read(r#"{"position":2,"waiting":1,"x":[]}"#),
            Some(Queued { position: 2, waiting: 2 })
        );
    }
}
