//! The time of a requested restart. It only orders requests: no clock is compared with it.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The form of a time, in which `0` stands for any digit.
const FORM: &[u8] = b"0000-00-00T00:00:00.000Z";

/// When a person last requested the restart of a container: RFC 3339 in UTC with milliseconds, such
/// that later times are greater. A container that was created for an earlier time, or for none, is
/// replaced.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RestartTime(String);

/// The text of a time is not RFC 3339 in UTC with milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} must be a time such as 2026-11-24T06:00:00.000Z")]
pub struct RestartTimeError(String);

impl RestartTime {
    /// Returns the time as it is sent.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RestartTime {
    type Err = RestartTimeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fits = |(byte, form): (u8, &u8)| match form {
            b'0' => byte.is_ascii_digit(),
            form => byte == *form,
        };
        if text.len() == FORM.len() && text.bytes().zip(FORM).all(fits) {
            Ok(Self(text.to_owned()))
        } else {
            Err(RestartTimeError(text.chars().take(40).collect()))
        }
    }
}

impl TryFrom<String> for RestartTime {
    type Error = RestartTimeError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<RestartTime> for String {
    fn from(time: RestartTime) -> Self {
        time.0
    }
}

impl fmt::Display for RestartTime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn times_in_the_form_of_messages_are_ordered_by_time() {
        let time = |text: &str| text.parse::<RestartTime>().unwrap();
        let (first, second) = (time("2026-11-24T06:00:00.000Z"), time("2026-11-24T06:00:00.001Z"));
        assert!(first < second && second < time("2027-01-01T00:00:00.000Z"));
        assert!(None < Some(&first), "a container without a restart is the oldest");
        let json = serde_json::to_string(&first).unwrap();
        assert_eq!(json, "\"2026-11-24T06:00:00.000Z\"");
        assert_eq!(serde_json::from_str::<RestartTime>(&json).unwrap(), first);
    }

    #[test]
    fn other_forms_are_refused() {
        for text in [
            "",
            "now",
            "2026-11-24T06:00:00Z",
            "2026-11-24T06:00:00.000+01:00",
            "2026-11-24 06:00:00.000Z",
            "2026-11-24T06:00:00.0000Z",
            "2026-1a-24T06:00:00.000Z",
        ] {
            assert!(text.parse::<RestartTime>().is_err(), "{text}");
        }
    }
}
