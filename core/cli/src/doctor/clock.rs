//! The clocks of the two sides, as far as the `Date` header of an answer tells.

use super::report::Finding;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const CURE: &str = "set both clocks by NTP: certificates and times in the log depend on them";

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Compares the clock of an answer with that of this machine before the request left and after the answer came.
pub(super) fn compare(
    date: Option<&str>,
    before: SystemTime,
    after: SystemTime,
    tolerance: Duration,
) -> Finding {
    let Some(text) = date else {
        return Finding::ok("the answer says no time, so that the clocks cannot be compared");
    };
    let Some(theirs) = seconds(text) else {
        return Finding::warning(
            "the answer says a time that is no date of HTTP, so that the clocks cannot be compared",
            "check what answers there",
        );
    };
    // Their clock was somewhere in that second, at a moment between the two of ours.
    let ahead = theirs - millis(after) / 1_000 - 1;
    let behind = millis(before) / 1_000 - theirs - 1;
    let tolerance = i64::try_from(tolerance.as_secs()).unwrap_or(i64::MAX);
    if ahead > tolerance {
        Finding::warning(format!("the service's clock is about {ahead} s ahead of this one"), CURE)
    } else if behind > tolerance {
        Finding::warning(format!("the service's clock is about {behind} s behind this one"), CURE)
    } else {
        Finding::ok(format!("the clocks differ by no more than {tolerance} s"))
    }
}

fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Seconds since 1970 of a date like `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110 §5.6.7).
fn seconds(text: &str) -> Option<i64> {
    let mut words = text.split_once(", ")?.1.split(' ');
    let day: i64 = words.next()?.parse().ok().filter(|day| (1..=31).contains(day))?;
    let month = words.next()?;
    let month = MONTHS.iter().position(|name| *name == month)?;
    let year: i64 = words.next()?.parse().ok().filter(|year| (1970..=9999).contains(year))?;
    let mut clock = words.next()?.split(':');
    let mut part = |limit: i64| -> Option<i64> {
        clock.next()?.parse().ok().filter(|part| (0..limit).contains(part))
    };
    // A leap second is the 61st of its minute.
    let (hour, minute, second) = (part(24)?, part(60)?, part(61)?);
    if words.next() != Some("GMT") {
        return None;
    }
    Some(((days(year, i64::try_from(month).ok()?, day) * 24 + hour) * 60 + minute) * 60 + second)
}

/// Days from the beginning of 1970 to a day; `month` counts from 0. The year is taken to begin with March, so that the leap day is its
/// last.
const fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month < 2 { (year - 1, month + 10) } else { (year, month - 2) };
    let before = year * 365 + year / 4 - year / 100 + year / 400;
    // Months of 31 and 30 days by turns, from March on: five of them have 153 days.
    before + (153 * month + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::super::report::Level;
    use super::*;

    #[test]
    fn dates_are_seconds_since_1970() {
        for (text, expected) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777)),
            ("Tue, 29 Feb 2000 12:00:00 GMT", Some(951_825_600)),
            ("Fri, 31 Dec 2027 23:59:60 GMT", Some(1_830_297_600)),
            ("Sun, 06 Nov 1994 08:49:37 CET", None),
            ("Sun, 06 Foo 1994 08:49:37 GMT", None),
            ("Sun, 32 Nov 1994 08:49:37 GMT", None),
            ("Sunday, 06-Nov-94 08:49:37 GMT", None),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }

    #[test]
    fn only_a_difference_beyond_the_tolerance_is_told() {
        let date = Some("Sun, 06 Nov 1994 08:49:37 GMT");
        let theirs = UNIX_EPOCH + Duration::from_secs(784_111_777);
        let tolerance = Duration::from_secs(5);
        for (ours, level, part) in [
            (theirs, Level::Ok, "no more than 5 s"),
            (theirs + Duration::from_secs(6), Level::Ok, ""),
            (theirs - Duration::from_secs(6), Level::Ok, ""),
            (theirs + Duration::from_secs(8), Level::Warning, "about 7 s behind"),
            (theirs - Duration::from_secs(8), Level::Warning, "about 7 s ahead"),
        ] {
            let finding = compare(date, ours, ours, tolerance);
            assert_eq!(finding.level, level, "{finding:?}");
            assert!(finding.found.contains(part), "{finding:?}");
        }
        // An answer that took long says nothing more exact.
        let slow = compare(date, theirs - Duration::from_secs(60), theirs, tolerance);
        assert_eq!(slow.level, Level::Ok);
    }
}
