//! Names as parsed values: what Kubernetes calls a label or a subdomain (RFC 1123), so that a name
//! can stand as one topic level, one path segment or one container name without being escaped.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::Resource;

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text has a character, a length or an end that RFC 1123 does not allow.
    #[error(
        "{kind} {text:?} must be lower case letters, digits, '-' or '.', begin and end with a letter or digit, and have at most {max} characters"
    )]
    Malformed {
        /// What the name names.
        kind: &'static str,
        /// The text as it came.
        text: String,
        /// The longest form allowed, in characters.
        max: usize,
    },
    /// The name has a meaning of its own in the topics.
    #[error("{kind} {text:?} is reserved: it would be taken for the topic level of that name")]
    Reserved {
        /// What the name names.
        kind: &'static str,
        /// The text as it came.
        text: String,
    },
    /// An object's key is not `namespace/resource/name`.
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
        pub struct $name(String);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::try_from(text.to_owned())
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                check($kind, &text, $max, $dots)?;
                $(if text == $reserved {
                    return Err(NameError::Reserved { kind: $kind, text });
                })?
                Ok(Self(text))
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
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
    /// A Kubernetes node. `workers` is refused: `<prefix>/workers/...` is the workers' own branch.
    NodeName, "node name", 253, dots: true, reserved: "workers"
);
name!(
    /// A Kubernetes namespace.
    Namespace, "namespace", 63, dots: false
);
name!(
    /// The name of a resource's object.
    ObjectName, "object name", 253, dots: true
);
name!(
    /// A worker, unique on its node: a topic level, a container's name, a Deployment's name.
    WorkerName, "worker name", 63, dots: false
);

/// Which object of the API a message speaks of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ObjectKey {
    /// The object's namespace.
    pub namespace: Namespace,
    /// The object's kind, as its plural.
    pub resource: Resource,
    /// The object's name.
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
    fn names_are_what_kubernetes_allows() {
        for good in ["a", "edge0", "precision-5820", "node.example.com", "0"] {
            assert_eq!(good.parse::<NodeName>().unwrap().as_str(), good);
        }
        for bad in ["", "A", "a_b", "a/b", "+", "#", "-a", "a-", "a..b", ".a", "a b", "ä"] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad:?} was taken");
        }
        assert!("a.b".parse::<Namespace>().is_err());
        assert!("a".repeat(64).parse::<WorkerName>().is_err());
        assert!("a".repeat(253).parse::<ObjectName>().is_ok());
    }

    #[test]
    fn a_node_cannot_take_the_workers_branch() {
        let error = "workers".parse::<NodeName>().unwrap_err();
        assert!(error.to_string().contains("reserved"), "{error}");
    }

    #[test]
    fn a_key_reads_back_as_it_was_written() {
        let key: ObjectKey = "default/models/big-model".parse().unwrap();
        assert_eq!(key.resource, Resource::Models);
        assert_eq!(key.to_string(), "default/models/big-model");
        for bad in ["default/models", "default/pods/x", "default/models/x/y", "//"] {
            assert!(bad.parse::<ObjectKey>().is_err(), "{bad:?} was taken");
        }
    }
}
