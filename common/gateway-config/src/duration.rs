//! A length of time as text, such as `500ms` or `1m 30s`.

use std::time::Duration;

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

/// The length of time that a text names; `None` if it names none above 0.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    neptune_program::duration::parse(text).filter(|duration| !duration.is_zero())
}

pub(crate) fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    let duration = SignedDuration::try_from(*value).map_err(serde::ser::Error::custom)?;
    serializer.collect_str(&format_args!("{duration:#}"))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(d)?;
    parse(&text)
        .ok_or_else(|| D::Error::custom(format!("{text:?} is no duration; write 500ms or 10s")))
}

/// A length of time that has a default of its protocol.
pub(crate) mod optional {
    use super::{Deserializer, Duration, Serializer};

    #[expect(clippy::ref_option, reason = "the signature that serde calls")]
    pub(crate) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::serialize(value, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        d: D,
    ) -> Result<Option<Duration>, D::Error> {
        super::deserialize(d).map(Some)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn written_duration_is_read_again(milliseconds in 1_u64..1 << 42) {
            let duration = Duration::from_millis(milliseconds);
            let text = serialize(&duration, serde_json::value::Serializer).unwrap();
            prop_assert_eq!(parse(text.as_str().unwrap()), Some(duration));
        }
    }
}
