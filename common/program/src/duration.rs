//! Durations as text: those of specs, options and messages. Pure.

use std::time::Duration;

use jiff::SignedDuration;

/// The units of a spec, with their milliseconds. `ms` ends like `s`, so it comes before.
const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
/// The most digits of a duration in a spec.
const MAX_DIGITS: usize = 6;

/// Returns the duration that a text names, such as `720h`, `1m 30s` or `0`; `None` if it names none
/// or a negative one.
pub fn parse(text: &str) -> Option<Duration> {
    let parsed = if text == "0" { SignedDuration::ZERO } else { text.parse().ok()? };
    Duration::try_from(parsed).ok()
}

/// Returns the duration of a field of a spec, as its CRD has it: a whole number above 0 of at most 6
/// digits with one unit, such as `500ms`, `10s`, `2m` or `12h`.
pub fn parse_spec(text: &str) -> Option<Duration> {
    let (number, factor) = UNITS.iter().find_map(|(unit, factor)| {
        let number = text.strip_suffix(unit)?;
        number.bytes().all(|b| b.is_ascii_digit()).then_some((number, *factor))
    })?;
    let fits = (1..=MAX_DIGITS).contains(&number.len()) && !number.starts_with('0');
    let number: u64 = number.parse().ok().filter(|_| fits)?;
    Some(Duration::from_millis(number * factor))
}

/// Returns seconds as in a spec: `1h`, `90m`, `45s`.
pub fn spec_seconds(seconds: u64) -> String {
    match seconds {
        0 => "0s".to_owned(),
        _ if seconds.is_multiple_of(3600) => format!("{}h", seconds / 3600),
        _ if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        _ => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn duration_of_an_option_has_units_or_is_zero() {
        for (text, seconds) in [("720h", 2_592_000), ("1m 30s", 90), ("0", 0), ("0s", 0)] {
            assert_eq!(parse(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "1", "-1s", "long"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn duration_of_a_spec_is_a_whole_number_with_one_unit() {
        let milliseconds = |text| parse_spec(text).map(|duration| duration.as_millis());
        assert_eq!(milliseconds("500ms"), Some(500));
        assert_eq!(milliseconds("1s"), Some(1000));
        assert_eq!(milliseconds("2m"), Some(120_000));
        assert_eq!(milliseconds("999999h"), Some(3_599_996_400_000));
        for text in ["", "s", "0s", "01s", "1", "1.5s", "1d", "1234567s", "-1s", "1 s", "1m30s"] {
            assert_eq!(parse_spec(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn written_duration_is_read_again(seconds in 1_u64..1_000_000) {
            let parsed = parse_spec(&spec_seconds(seconds));
            prop_assert_eq!(parsed, Some(Duration::from_secs(seconds)));
        }
    }
}
