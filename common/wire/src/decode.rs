//! Decodes and encodes every payload, and checks the schema version in one place.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::unknown;

/// The schema version of all messages. It changes only when an older reader would misunderstand a
/// newer message; an additional field that a reader may ignore does not change it.
pub const SCHEMA_VERSION: u32 = 1;

/// Why a payload cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The payload is not JSON, or does not have the fields of the message.
    #[error("not a valid message: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The payload has a newer, incompatible schema version.
    #[error(
        "schema version {schema_version} is newer than {SCHEMA_VERSION}, the newest supported version: upgrade the receiver"
    )]
    TooNew {
        /// The schema version of the payload.
        schema_version: u32,
    },
    /// The payload is well-formed, but a value is outside its valid range.
    #[error("{0}")]
    OutOfRange(&'static str),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    #[serde(default)]
    schema_version: u32,
}

/// Decodes a message. Unknown fields are ignored, and so are unknown resources, list elements and
/// enum values where a later version may add them. A missing schema version means version 1 or
/// older.
///
/// # Errors
/// [`DecodeError`] when the payload is not a valid `T` or has a newer schema version.
pub fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, DecodeError> {
    let Envelope { schema_version } = serde_json::from_slice(payload)?;
    if schema_version > SCHEMA_VERSION {
        return Err(DecodeError::TooNew { schema_version });
    }
    Ok(serde_json::from_slice(payload)?)
}

/// Decodes a message like [`decode`]. Also returns how many of its entries were skipped because
/// this version does not know them.
///
/// # Errors
/// As of [`decode`].
pub fn decode_counted<T: DeserializeOwned>(payload: &[u8]) -> Result<(T, usize), DecodeError> {
    unknown::take_skipped();
    let message = decode(payload)?;
    Ok((message, unknown::take_skipped()))
}

/// Encodes a message, with `schemaVersion` as its first field. The result has no spare capacity:
/// messages of a whole fleet may wait for a broker.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Versioned<'a, T> {
        schema_version: u32,
        #[serde(flatten)]
        message: &'a T,
    }
    let versioned = Versioned { schema_version: SCHEMA_VERSION, message };
    let mut json =
        serde_json::to_vec(&versioned).expect("wire values have text keys and finite numbers");
    json.shrink_to_fit();
    json
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::Delete;

    use super::*;

    #[test]
    fn newer_schema_version_is_refused() {
        let error = decode::<Delete>(br#"{"schemaVersion":2,"revision":5}"#).unwrap_err();
        assert!(matches!(error, DecodeError::TooNew { schema_version: 2 }), "{error}");
        assert_eq!(decode::<Delete>(br#"{"revision":5,"later":"field"}"#).unwrap().revision.0, 5);
    }

    #[test]
    fn encoded_message_has_schema_version() {
        let text = String::from_utf8(encode(&Delete { revision: crate::Revision(7) })).unwrap();
        assert_eq!(text, r#"{"schemaVersion":1,"revision":7}"#);
    }
}
