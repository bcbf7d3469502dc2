//! What a client key may use, and what is said when it wants more.
//!
//! A limit that is not set is none. A key's own limits stand before those of its profile, one by one; what is used is
//! counted for each key alone.

use crate::Json;
use crate::session::problem::Problem;
use crate::session::rpc::{RpcFailure, code};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The window of [`KeyLimits::requests_per_minute`].
const MINUTE_MS: u64 = 60_000;

/// The largest [`KeyLimits::requests_per_minute`]; each request of the last minute is remembered.
pub const MOST_REQUESTS: u32 = 100_000;

/// The limits of a client key, or of each key of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyLimits {
    /// Requests in any minute, all routes of the client port together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// Calls of `session.sendMessage` that run or wait at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrent_turns: Option<u32>,
    /// Sessions that the key opened and that are open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_sessions: Option<u32>,
    /// Input and output tokens of models in one day of UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_day: Option<u64>,
}

impl KeyLimits {
    /// Reads the member `limits` of a body.
    ///
    /// # Errors
    /// What it should look like.
    pub fn read(limits: &Json) -> Result<Self, String> {
        let shape = "limits must be an object of requests_per_minute, concurrent_turns, open_sessions and \
                     tokens_per_day, each a whole number of at least 1 or null";
        if !limits.is_object() {
            return Err(shape.to_owned());
        }
        let read: Self = limits.decode().map_err(|_| shape.to_owned())?;
        let small = [read.requests_per_minute, read.concurrent_turns, read.open_sessions];
        if small.contains(&Some(0)) || read.tokens_per_day == Some(0) {
            return Err(shape.to_owned());
        }
        if read.requests_per_minute.is_some_and(|most| most > MOST_REQUESTS) {
            return Err(format!("requests_per_minute must be at most {MOST_REQUESTS}"));
        }
        Ok(read)
    }

    /// These limits, and those of the profile where there are none.
    #[must_use]
    pub fn or(self, profile: Self) -> Self {
        Self {
            requests_per_minute: self.requests_per_minute.or(profile.requests_per_minute),
            concurrent_turns: self.concurrent_turns.or(profile.concurrent_turns),
            open_sessions: self.open_sessions.or(profile.open_sessions),
            tokens_per_day: self.tokens_per_day.or(profile.tokens_per_day),
        }
    }

    /// Whether nothing is limited.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// A limit that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exceeded {
    what: &'static str,
    most: u64,
    /// After how long the same request may go through, where that is known.
    retry_after_ms: Option<u64>,
}

impl Exceeded {
    /// Too many calls of `session.sendMessage` at the same time.
    #[must_use]
    pub fn concurrent_turns(most: u32) -> Self {
        Self { what: "turns at the same time", most: most.into(), retry_after_ms: None }
    }

    /// Too many open sessions.
    #[must_use]
    pub fn open_sessions(most: u32) -> Self {
        Self { what: "open sessions", most: most.into(), retry_after_ms: None }
    }

    /// Too many tokens in a day of UTC.
    #[must_use]
    pub const fn tokens_per_day(most: u64, now_ms: u64) -> Self {
        let retry_after_ms = Some(DAY_MS - now_ms % DAY_MS);
        Self { what: "tokens per day", most, retry_after_ms }
    }

    /// Whole seconds until the same request may go through, where that is known.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after_ms.map(|ms| ms.div_ceil(1000).max(1))
    }

    /// The answer of a REST call: `429 limit_exceeded`.
    #[must_use]
    pub fn problem(&self) -> Problem {
        Problem::new(429, "limit_exceeded", self.sentence())
    }

    /// The answer of a JSON-RPC call: `-32026 limit exceeded: …`.
    #[must_use]
    pub fn failure(&self) -> RpcFailure {
        RpcFailure::new(code::LIMIT_EXCEEDED, format!("limit exceeded: {}", self.sentence()))
    }

    fn sentence(&self) -> String {
        let Self { what, most, .. } = self;
        let again = match self.retry_after_seconds() {
            Some(seconds) => format!("try again in {seconds} s"),
            None => "end one first".to_owned(),
        };
        format!("this client key is limited to {most} {what}; {again}")
    }
}

/// A day, in milliseconds.
const DAY_MS: u64 = 86_400_000;

/// The day of UTC at a time in milliseconds since the Unix epoch.
#[must_use]
pub const fn day(now_ms: u64) -> u64 {
    now_ms / DAY_MS
}

/// The requests of the last minute.
#[derive(Debug, Clone, Default)]
pub struct Minute {
    times: VecDeque<u64>,
}

impl Minute {
    /// A request comes; it counts if it goes through. A clock that goes backwards makes nobody wait longer than a minute.
    ///
    /// # Errors
    /// When `most` went through in the last minute.
    pub fn admit(&mut self, now_ms: u64, most: u32) -> Result<(), Exceeded> {
        let is_over = |at: &u64| now_ms.abs_diff(*at) >= MINUTE_MS;
        while self.times.front().is_some_and(is_over) {
            self.times.pop_front();
        }
        if self.times.len() >= most as usize {
            let oldest = self.times.len() - most as usize;
            let passed = self.times.get(oldest).map_or(0, |at| now_ms.saturating_sub(*at));
            let retry_after_ms = Some(MINUTE_MS.saturating_sub(passed));
            let what = "requests per minute";
            return Err(Exceeded { what, most: most.into(), retry_after_ms });
        }
        self.times.push_back(now_ms);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<KeyLimits, String> {
        KeyLimits::read(&Json::parse(text.to_owned()).unwrap())
    }

    #[test]
    fn limits_are_whole_numbers_of_at_least_one() {
        assert!(read("{}").unwrap().is_none());
        let whole = read(r#"{"requests_per_minute":1,"concurrent_turns":null,"tokens_per_day":9}"#);
        let whole = whole.unwrap();
        assert_eq!((whole.requests_per_minute, whole.tokens_per_day), (Some(1), Some(9)));
        assert_eq!(
            Json::encode(&whole).unwrap().as_str(),
            r#"{"requests_per_minute":1,"tokens_per_day":9}"#
        );
        for wrong in [
            "[]",
            "5",
            r#"{"x":1}"#,
            r#"{"open_sessions":0}"#,
            r#"{"tokens_per_day":0}"#,
            r#"{"concurrent_turns":-1}"#,
            r#"{"concurrent_turns":1.5}"#,
            r#"{"tokens_per_day":"9"}"#,
        ] {
            assert!(read(wrong).unwrap_err().contains("at least 1 or null"), "{wrong}");
        }
        assert!(read(r#"{"requests_per_minute":100001}"#).unwrap_err().contains("at most"));
    }

    #[test]
    fn a_keys_own_limits_stand_before_those_of_its_profile() {
        let key = KeyLimits { open_sessions: Some(1), ..KeyLimits::default() };
        let profile =
            KeyLimits { open_sessions: Some(5), concurrent_turns: Some(2), ..KeyLimits::default() };
        let both =
            KeyLimits { open_sessions: Some(1), concurrent_turns: Some(2), ..KeyLimits::default() };
        assert_eq!(key.or(profile), both);
    }

    #[test]
    fn no_minute_holds_more_requests_than_the_limit() {
        let mut minute = Minute::default();
        for at in [0, 100, 59_999] {
            minute.admit(at, 3).unwrap();
        }
        let refused = minute.admit(59_999, 3).unwrap_err();
        assert_eq!(refused.retry_after_seconds(), Some(1));
        minute.admit(60_000, 3).unwrap();
        assert_eq!(minute.admit(60_000, 3).unwrap_err().retry_after_ms, Some(100));
        // A lower limit counts what was let through under the higher one.
        assert_eq!(minute.admit(60_050, 1).unwrap_err().retry_after_ms, Some(59_950));
        minute.admit(500_000, 1).unwrap();
        // The clock was set back by more than a minute: what was counted then counts no more.
        minute.admit(400_000, 1).unwrap();
    }

    #[test]
    fn what_was_exceeded_is_told_to_both_kinds_of_callers() {
        let problem = Exceeded::open_sessions(2).problem();
        assert_eq!((problem.status, problem.kind.as_str()), (429, "limit_exceeded"));
        assert_eq!(problem.detail, "this client key is limited to 2 open sessions; end one first");
        let failure = Exceeded::tokens_per_day(1_000, DAY_MS + DAY_MS / 2).failure();
        let words = "limit exceeded: this client key is limited to 1000 tokens per day; try again in 43200 s";
        assert_eq!((failure.code, failure.message.as_str()), (-32026, words));
        assert_eq!(day(DAY_MS - 1) + 1, day(DAY_MS));
    }
}
