//! One way in and one way out for every payload, with the schema version checked in one place.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The version of all messages here. It grows only when an older reader would misunderstand a
/// newer message; a field that may be ignored does not change it.
pub const SCHEMA_VERSION: u32 = 1;

/// Why a payload was not understood.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not JSON, or not of this message's shape.
    #[error("not a valid message: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Written by a version that this one cannot follow.
    #[error(
        "schema version {found} is newer than {SCHEMA_VERSION}, the newest this version reads: upgrade it"
    )]
    TooNew {
        /// The version in the payload.
        found: u32,
    },
    /// Well-formed, and yet impossible.
    #[error("{0}")]
    OutOfRange(&'static str),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    #[serde(default)]
    schema_version: u32,
}

/// Reads a message. Fields that it does not know are ignored; a missing version is the first one.
///
/// # Errors
/// [`DecodeError`] when the payload is not such a message or is too new.
pub fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, DecodeError> {
    let Envelope { schema_version } = serde_json::from_slice(payload)?;
    if schema_version > SCHEMA_VERSION {
        return Err(DecodeError::TooNew { found: schema_version });
    }
    Ok(serde_json::from_slice(payload)?)
}

/// Writes a message with its schema version first.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Versioned<'a, T> {
        schema_version: u32,
        #[serde(flatten)]
        message: &'a T,
    }
    serde_json::to_vec(&Versioned { schema_version: SCHEMA_VERSION, message })
        .expect("wire values have text keys and finite numbers")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::Delete;

    use super::*;

    #[test]
    fn a_message_of_a_newer_schema_is_refused_by_version_and_not_by_accident() {
        let error = decode::<Delete>(br#"{"schemaVersion":2,"revision":5}"#).unwrap_err();
        assert!(matches!(error, DecodeError::TooNew { found: 2 }), "{error}");
        assert_eq!(decode::<Delete>(br#"{"revision":5,"later":"field"}"#).unwrap().revision.0, 5);
    }

    #[test]
    fn what_is_written_carries_its_version() {
        let text = String::from_utf8(encode(&Delete { revision: crate::Revision(7) })).unwrap();
        assert_eq!(text, r#"{"schemaVersion":1,"revision":7}"#);
    }
}
