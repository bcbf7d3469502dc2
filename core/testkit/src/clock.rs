//! Time that passes when a test says so.

use broca_proto::Time;

/// A monotonic clock that stands still until it is moved.
#[derive(Debug, Clone, Default)]
pub struct VirtualClock {
    now: Time,
}

impl VirtualClock {
    /// A clock at the origin.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What it shows.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// Moves it on by `ms` milliseconds.
    pub fn advance(&mut self, ms: u64) {
        self.now = self.now.plus(ms);
    }

    /// Moves it on to `at`; a time that has passed changes nothing.
    pub fn advance_to(&mut self, at: Time) {
        self.now = self.now.max(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_runs_backwards() {
        let mut clock = VirtualClock::new();
        clock.advance(50);
        clock.advance_to(Time::from_millis(20));
        assert_eq!(clock.now(), Time::from_millis(50));
        clock.advance_to(Time::from_millis(70));
        assert_eq!(clock.now(), Time::from_millis(70));
    }
}
