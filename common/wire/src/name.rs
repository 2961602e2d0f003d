//! Names as parsed values: labels and subdomains of RFC 1123, as in Kubernetes. A name is valid as
//! a topic level, a path segment and a container name without escaping. A clone shares the text: many
//! maps have the same names as keys.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::Resource;

/// Why a text is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text has a character or a length that RFC 1123 does not allow.
    #[error(
        "{kind} {text:?} must consist of lower case letters, digits, '-' or '.', start and end with a letter or digit, and have at most {max} characters"
    )]
    Malformed {
        /// What is named, such as "node name".
        kind: &'static str,
        /// The text that was parsed.
        text: String,
        /// Maximum length in characters.
        max: usize,
    },
    /// The name is reserved for a topic level.
    #[error("{kind} {text:?} is reserved for the topic level of that name")]
    Reserved {
        /// What is named, such as "node name".
        kind: &'static str,
        /// The text that was parsed.
        text: String,
    },
    /// The text is not an object key of the form `namespace/resource/name`.
    #[error("{0:?} is not namespace/resource/name")]
    Key(String),
}

fn check(kind: &'static str, text: &str, max: usize, dots: bool) -> Result<(), NameError> {
    let label = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
    };
    let fits = text.len() <= max && if dots { text.split('.').all(label) } else { label(text) };
    if fits { Ok(()) } else { Err(NameError::Malformed { kind, text: text.to_owned(), max }) }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $max:literal, dots: $dots:literal $(, reserved: $reserved:literal)?) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                check($kind, text, $max, $dots)?;
                $(if text == $reserved {
                    return Err(NameError::Reserved { kind: $kind, text: text.to_owned() });
                })?
                Ok(Self(text.into()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(
    /// The name of a Kubernetes node. `workers` is reserved, because workers use the topics
    /// `<prefix>/workers/...`.
    NodeName, "node name", 253, dots: true, reserved: "workers"
);
name!(
    /// The name of a Kubernetes namespace.
    Namespace, "namespace", 63, dots: false
);
name!(
    /// The name of an object in its namespace.
    ObjectName, "object name", 253, dots: true
);
name!(
    /// The name of a worker, unique on its node. It is also a topic level, and the name of a
    /// container or Deployment.
    WorkerName, "worker name", 63, dots: false
);

name!(
    /// The ID of a request to a node.
    RequestId, "request ID", 63, dots: false
);

/// Maximum length of the value of a label in characters.
pub const MAX_LABEL_VALUE: usize = 63;

/// Returns whether a text is a value of a label that is not empty, and so the name of a directory and
/// of an extended resource in its domain.
pub fn is_label_value(text: &str) -> bool {
    let is_outer = |c: char| c.is_ascii_alphanumeric();
    text.len() <= MAX_LABEL_VALUE
        && text.chars().all(|c| is_outer(c) || matches!(c, '.' | '-' | '_'))
        && text.starts_with(is_outer)
        && text.ends_with(is_outer)
}

/// Identifies an object of the API: `namespace/resource/name`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ObjectKey {
    /// Namespace of the object.
    pub namespace: Namespace,
    /// Resource of the object, the plural of its kind.
    pub resource: Resource,
    /// Name of the object.
    pub name: ObjectName,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.resource, self.name)
    }
}

impl FromStr for ObjectKey {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        let malformed = || NameError::Key(text.to_owned());
        let mut parts = text.split('/');
        let (Some(namespace), Some(resource), Some(name), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(malformed());
        };
        Ok(Self {
            namespace: namespace.parse()?,
            resource: resource.parse().map_err(|_| malformed())?,
            name: name.parse()?,
        })
    }
}

impl TryFrom<String> for ObjectKey {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<ObjectKey> for String {
    fn from(key: ObjectKey) -> String {
        key.to_string()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_follow_the_rules_of_kubernetes() {
        for good in ["a", "edge0", "precision-5820", "node.example.com", "0"] {
            assert_eq!(good.parse::<NodeName>().unwrap().as_str(), good);
        }
        for bad in ["", "A", "a_b", "a/b", "+", "#", "-a", "a-", "a..b", ".a", "a b", "ä"] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad:?} was accepted");
        }
        assert!("a.b".parse::<Namespace>().is_err());
        assert!("a".repeat(64).parse::<WorkerName>().is_err());
        assert!("a".repeat(253).parse::<ObjectName>().is_ok());
    }

    #[test]
    fn node_name_workers_is_reserved() {
        let error = "workers".parse::<NodeName>().unwrap_err();
        assert!(error.to_string().contains("reserved"), "{error}");
    }

    #[test]
    fn object_key_round_trips() {
        let key: ObjectKey = "default/models/big-model".parse().unwrap();
        assert_eq!(key.resource, Resource::Models);
        assert_eq!(key.to_string(), "default/models/big-model");
        for bad in ["default/models", "default/pods/x", "default/models/x/y", "//"] {
            assert!(bad.parse::<ObjectKey>().is_err(), "{bad:?} was accepted");
        }
    }
}
