//! Decodes what a neighbouring version may extend: maps keyed by object, lists, and closed enums.
//! An entry of an unknown resource, a list element that is not understood and an unknown enum value
//! are skipped and counted; the rest of the message counts.

use std::{cell::Cell, collections::BTreeMap, collections::BTreeSet, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Value, value::RawValue};

use crate::{Namespace, ObjectKey};

/// Maximum number of objects in one index or sync. Further ones are skipped, so that invented
/// objects cost bounded memory.
pub const MAX_OBJECTS: usize = 32_768;

/// Maximum number of elements of a list in one message. Further ones are skipped.
pub const MAX_ELEMENTS: usize = 1024;

thread_local! {
    /// Skipped entries of the message that this thread decodes. Serde has no other channel for a
    /// remark on a value that was decoded.
    static SKIPPED: Cell<usize> = const { Cell::new(0) };
}

/// Records a skipped entry of the message that is being decoded.
pub fn skip() {
    SKIPPED.set(SKIPPED.get() + 1);
}

/// Returns the number of skipped entries since the last call in this thread.
pub fn take_skipped() -> usize {
    SKIPPED.take()
}

/// Whether a key is well-formed, but of a resource that this version does not know.
fn is_of_unknown_resource(key: &str) -> bool {
    let parts: Vec<&str> = key.split('/').collect();
    let [namespace, resource, name] = parts[..] else { return false };
    let is_name = |text: &str| text.parse::<crate::ObjectName>().is_ok();
    let is_plural = !resource.is_empty() && resource.bytes().all(|byte| byte.is_ascii_lowercase());
    namespace.parse::<Namespace>().is_ok()
        && is_name(name)
        && is_plural
        && resource.parse::<crate::Resource>().is_err()
}

/// Parses a key; `None` if it is of an unknown resource.
fn known<E: serde::de::Error>(text: &str) -> Result<Option<ObjectKey>, E> {
    match text.parse() {
        Ok(key) => Ok(Some(key)),
        Err(_) if is_of_unknown_resource(text) => {
            skip();
            Ok(None)
        }
        Err(error) => Err(E::custom(error)),
    }
}

/// Decodes a map by object, without the objects of unknown resources.
///
/// # Errors
/// A key that is not an object key, or an entry of a known object that is not a `T`.
pub fn objects<'de, D, T>(deserializer: D) -> Result<BTreeMap<ObjectKey, T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Objects<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Objects<T> {
        type Value = BTreeMap<ObjectKey, T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map by namespace/resource/name")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut objects = BTreeMap::new();
            while let Some(text) = map.next_key::<String>()? {
                if objects.len() >= MAX_OBJECTS {
                    skip();
                    map.next_value::<IgnoredAny>()?;
                } else if let Some(key) = known(&text)? {
                    objects.insert(key, map.next_value()?);
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(objects)
        }
    }

    deserializer.deserialize_map(Objects(PhantomData))
}

/// Decodes a set of objects, without those of unknown resources.
///
/// # Errors
/// An element that is not an object key.
pub fn keys<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<ObjectKey>, D::Error> {
    struct Keys;

    impl<'de> Visitor<'de> for Keys {
        type Value = BTreeSet<ObjectKey>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of namespace/resource/name")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut keys = BTreeSet::new();
            while let Some(text) = seq.next_element::<String>()? {
                if keys.len() >= MAX_OBJECTS {
                    skip();
                } else if let Some(key) = known(&text)? {
                    keys.insert(key);
                }
            }
            Ok(keys)
        }
    }

    deserializer.deserialize_seq(Keys)
}

/// Decodes a list, without the elements that are not a `T`. Elements are parsed one by one from
/// their text, so that invented ones cost little memory.
///
/// # Errors
/// The value is not a list.
pub fn raw_list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    elements::<D, Box<RawValue>, T>(deserializer, |raw| serde_json::from_str(raw.get()))
}

/// Decodes a value, or `None` if it is not understood.
///
/// # Errors
/// The text is not JSON.
pub fn optional<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let Some(value) = Option::<Value>::deserialize(deserializer)? else { return Ok(None) };
    let known = serde_json::from_value(value).ok();
    if known.is_none() {
        skip();
    }
    Ok(known)
}

/// Like [`raw_list`], for lists in a flattened structure, whose text serde does not keep.
///
/// # Errors
/// The value is not a list.
pub fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    elements::<D, Value, T>(deserializer, serde_json::from_value)
}

fn elements<'de, D, E, T>(
    deserializer: D,
    parse: fn(E) -> serde_json::Result<T>,
) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    E: Deserialize<'de>,
{
    struct List<E, T>(fn(E) -> serde_json::Result<T>);

    impl<'de, E: Deserialize<'de>, T> Visitor<'de> for List<E, T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut list = Vec::new();
            loop {
                if list.len() >= MAX_ELEMENTS {
                    let Some(IgnoredAny) = seq.next_element()? else { return Ok(list) };
                    skip();
                    continue;
                }
                let Some(element) = seq.next_element::<E>()? else { return Ok(list) };
                match (self.0)(element) {
                    Ok(element) => list.push(element),
                    Err(_) => skip(),
                }
            }
        }
    }

    deserializer.deserialize_seq(List(parse))
}

/// Implements `Deserialize` for an enum whose values are texts. An unknown value becomes
/// `$fallback` and counts as skipped.
macro_rules! deserialize_known {
    ($type:ident { $($text:literal => $variant:ident),+ $(,)? } else $fallback:ident) => {
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(from)?;
                Ok(match text.as_str() {
                    $($text => Self::$variant,)+
                    _ => {
                        $crate::unknown::skip();
                        Self::$fallback
                    }
                })
            }
        }
    };
}

pub(crate) use deserialize_known;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::{Index, Phase, Resource, WorkerState, decode, decode_counted};

    #[test]
    fn skipped_entries_are_counted_per_message() {
        let payload =
            br#"{"revision":1,"objects":{"a/pipelines/b":{},"a/models/b":{"revision":1,"hash":""}},
            "keep":["a/pipelines/c"]}"#;
        let (index, skipped) = decode_counted::<Index>(payload).unwrap();
        assert_eq!((index.objects.len(), index.keep.len(), skipped), (1, 0, 2));
        assert_eq!(decode_counted::<Index>(br#"{"revision":1,"objects":{}}"#).unwrap().1, 0);
    }

    #[test]
    fn malformed_key_or_entry_is_still_refused() {
        for bad in [
            r#"{"revision":1,"objects":{"nonsense":{"revision":1,"hash":""}}}"#,
            r#"{"revision":1,"objects":{"a/models/b":{}}}"#,
            r#"{"revision":1,"objects":{"A/models/b":{"revision":1,"hash":""}}}"#,
            r#"{"revision":1,"objects":{"a/Pipelines/b":{}}}"#,
            r#"{"revision":1,"objects":{"a//b":{}}}"#,
            r#"{"revision":1,"objects":{},"keep":["a/b"]}"#,
        ] {
            assert!(decode::<Index>(bad.as_bytes()).is_err(), "{bad}");
        }
        let error = decode::<Index>(br#"{"revision":1,"objects":{},"keep":5}"#).unwrap_err();
        assert!(
            error.to_string().contains("expected a list of namespace/resource/name"),
            "{error}"
        );
    }

    #[test]
    fn known_enum_values_round_trip() {
        for phase in [Phase::Running, Phase::Pending, Phase::Failed] {
            let text = serde_json::to_string(&phase).unwrap();
            assert_eq!(serde_json::from_str::<Phase>(&text).unwrap(), phase);
        }
        for state in [WorkerState::Running, WorkerState::Pending, WorkerState::Failed] {
            let text = serde_json::to_string(&state).unwrap();
            assert_eq!(serde_json::from_str::<WorkerState>(&text).unwrap(), state);
        }
        assert!(serde_json::from_str::<Phase>("1").is_err(), "not a text");
    }

    #[test]
    fn invented_objects_are_bounded() {
        let count = super::MAX_OBJECTS + 10;
        let entry = |n| format!(r#""a/{}/n{n}":{{"revision":1,"hash":""}}"#, Resource::Models);
        let entries: Vec<_> = (0..count).map(entry).collect();
        let payload = format!(r#"{{"revision":1,"objects":{{{}}}}}"#, entries.join(","));
        let (index, skipped) = decode_counted::<Index>(payload.as_bytes()).unwrap();
        assert_eq!((index.objects.len(), skipped), (super::MAX_OBJECTS, 10));
    }
}
