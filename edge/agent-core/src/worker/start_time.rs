//! Normalizes the start times of workers, so that one instant is one text.

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

/// Numbers from here on are milliseconds: seconds would be beyond the year 5000.
const MIN_MILLISECONDS: f64 = 1e11;

/// A start time as an instant in UTC with nine decimals, or the text itself if it is not a time.
/// Without a time zone it is UTC; a number is seconds or milliseconds since 1970.
pub fn normalize(text: &str) -> String {
    let text = text.trim();
    match instant(text) {
        Some(instant) => format!("{instant:.9}"),
        None => text.to_owned(),
    }
}

fn instant(text: &str) -> Option<Timestamp> {
    if let Ok(instant) = text.parse::<Timestamp>() {
        return Some(instant);
    }
    if let Ok(number) = text.parse::<f64>() {
        let milliseconds = if number < MIN_MILLISECONDS { number * 1000.0 } else { number };
        let is_in_range = (0.0..1e14).contains(&milliseconds);
        #[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
        return is_in_range
            .then(|| Timestamp::from_millisecond(milliseconds.round() as i64).ok())?;
    }
    let local: DateTime = text.parse().ok()?;
    Some(local.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_instant_is_one_text() {
        for text in [
            "2020-11-03T08:39:22.517Z",
            "2020-11-03T08:39:22.517000+00:00",
            "2020-11-03T10:39:22.517+02:00",
            "2020-11-03 08:39:22.517Z",
            " 2020-11-03T08:39:22.517 ",
            "1604392762.517",
            "1604392762517",
        ] {
            assert_eq!(normalize(text), "2020-11-03T08:39:22.517000000Z", "{text}");
        }
    }

    #[test]
    fn text_that_is_not_a_time_is_unchanged() {
        for text in ["", "run-7", "NaN", "-5", "1e300", "2020-11-03T08:39:22+99:99"] {
            assert_eq!(normalize(text), text);
        }
    }
}
