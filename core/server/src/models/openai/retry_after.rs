//! How long a provider asks to wait before the next request.

use hyper::header::{HeaderMap, RETRY_AFTER};
use std::time::{Duration, SystemTime};

/// The wait in milliseconds, as some providers put it beside the header of the standard.
const IN_MILLISECONDS: &str = "retry-after-ms";

/// Reads the headers of a refusal. The standard's header holds whole seconds or the time of day when it is over; others
/// send fractions. What cannot be read says nothing.
pub(super) fn read(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let number = |text: &str| text.parse::<f64>().ok().filter(|n| *n >= 0.0);
    let duration = |seconds: f64| Duration::try_from_secs_f64(seconds).ok();
    if let Some(ms) = text(IN_MILLISECONDS).and_then(number) {
        return duration(ms / 1000.0);
    }
    let told = text(RETRY_AFTER.as_str())?;
    number(told).map_or_else(|| until(told, now), duration)
}

fn until(time: &str, now: SystemTime) -> Option<Duration> {
    let at = jiff::fmt::rfc2822::parse(time).ok()?.timestamp().as_millisecond();
    let at = Duration::from_millis(u64::try_from(at).ok()?);
    let now = now.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    // A time that has passed asks for no wait.
    Some(at.saturating_sub(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(pairs: &[(&'static str, &'static str)]) -> Option<u128> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, value.parse().unwrap());
        }
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_445_412_480);
        read(&headers, now).map(|wait| wait.as_millis())
    }

    #[test]
    fn seconds_fractions_and_times_of_day_are_read_and_milliseconds_go_first() {
        for (value, ms) in [
            ("7", Some(7_000)),
            (" 0.25 ", Some(250)),
            ("Wed, 21 Oct 2015 07:29:00 GMT", Some(60_000)),
            ("Wed, 21 Oct 2015 07:00:00 GMT", Some(0)),
            ("-1", None),
            ("NaN", None),
            ("1e400", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(wait(&[("retry-after", value)]), ms, "{value:?}");
        }
        assert_eq!(wait(&[("retry-after", "7"), ("retry-after-ms", "1500")]), Some(1_500));
        assert_eq!(wait(&[]), None);
    }
}
