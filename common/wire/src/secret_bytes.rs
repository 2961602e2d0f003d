//! Values of Secrets in memory.

use std::{collections::BTreeMap, fmt};

use zeroize::Zeroizing;

/// The values of a Secret by key.
pub type SecretValues = BTreeMap<String, SecretBytes>;

/// A value of a Secret. It is overwritten when it is dropped, and `Debug` prints its length only.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(Zeroizing<Vec<u8>>);

impl SecretBytes {
    /// Takes the bytes of a value.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Returns the bytes of the value.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Returns the text of the value; `None` if it is no UTF-8.
    pub fn expose_text(&self) -> Option<&str> {
        str::from_utf8(&self.0).ok()
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretBytes({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_has_the_length_only() {
        let values = SecretValues::from([("a".to_owned(), SecretBytes::new(b"value".to_vec()))]);
        assert_eq!(format!("{values:?}"), r#"{"a": SecretBytes(5 bytes)}"#);
        assert_eq!(values["a"].expose_text(), Some("value"));
        assert_eq!(SecretBytes::new(vec![0xff]).expose_text(), None);
    }
}
