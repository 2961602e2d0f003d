//! JSON objects whose members can be replaced without touching the others: order, unknown members
//! and the text of numbers survive.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, Visitor},
    ser::SerializeMap as _,
};
use serde_json::value::{RawValue, to_raw_value};

/// An object as it was read, with members that were replaced.
#[derive(Debug, Clone, Default)]
pub struct Object<'a>(Vec<(Cow<'a, str>, Cow<'a, RawValue>)>);

impl<'a> Object<'a> {
    /// Parses an object.
    ///
    /// # Errors
    /// It is not an object, or not JSON.
    pub fn parse(text: &'a [u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text)
    }

    /// Parses a value as an object; `None` if it is none.
    pub fn from_raw(value: &'a RawValue) -> Option<Self> {
        serde_json::from_str(value.get()).ok()
    }

    /// The member; of several with the name, the last one, as most parsers do.
    pub fn raw(&self, name: &str) -> Option<&RawValue> {
        self.0.iter().rfind(|(key, _)| key == name).map(|(_, value)| &**value)
    }

    /// The member as it was read; `None` if it was replaced.
    pub fn original(&self, name: &str) -> Option<&'a RawValue> {
        match self.0.iter().rfind(|(key, _)| key == name)? {
            (_, Cow::Borrowed(value)) => Some(value),
            (_, Cow::Owned(_)) => None,
        }
    }

    /// The member, if it has the type.
    pub fn get<'b, T: Deserialize<'b>>(&'b self, name: &str) -> Option<T> {
        serde_json::from_str(self.raw(name)?.get()).ok()
    }

    /// Replaces the member in its place, or appends it.
    pub fn set(&mut self, name: &str, value: Box<RawValue>) {
        let place = self.0.iter().rposition(|(key, _)| key == name);
        match place {
            Some(place) => self.0[place].1 = Cow::Owned(value),
            None => self.0.push((Cow::Owned(name.to_owned()), Cow::Owned(value))),
        }
    }

    /// Sets a member like [`Object::set`], to a value that is serialised.
    pub fn put<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) {
        self.set(name, raw(value));
    }

    /// Removes the member of this name, if there is one.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(key, _)| key != name);
    }

    /// The names of the members.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(key, _)| &**key)
    }

    /// Returns the object as JSON text.
    pub fn to_vec(&self) -> Vec<u8> {
        raw(self).get().as_bytes().to_vec()
    }
}

/// A value as text.
pub fn raw<T: Serialize + ?Sized>(value: &T) -> Box<RawValue> {
    to_raw_value(value).expect("texts, numbers and what was parsed can be serialised")
}

/// A list of values as text.
pub fn list<'a>(values: impl IntoIterator<Item = &'a RawValue>) -> Box<RawValue> {
    raw(&values.into_iter().collect::<Vec<_>>())
}

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Borrows names without escapes.
        #[derive(Deserialize)]
        struct Name<'a>(#[serde(borrow)] Cow<'a, str>);
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((Name(name), value)) =
                    map.next_entry::<Name<'de>, &'de RawValue>()?
                {
                    members.push((name, Cow::Borrowed(value)));
                }
                Ok(Object(members))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, &**value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn replaced_member_leaves_the_others_as_they_were() {
        let text = br#"{"z":1.10,"x":{"n" : 12345678901234567890123},"a\u0062":null,"m":"old"}"#;
        let mut object = Object::parse(text).unwrap();
        object.put("m", "new");
        object.put("last", &true);
        object.remove("z");
        assert_eq!(
            String::from_utf8(object.to_vec()).unwrap(),
            r#"{"x":{"n" : 12345678901234567890123},"ab":null,"m":"new","last":true}"#
        );
        assert_eq!(object.get::<String>("m").as_deref(), Some("new"));
        assert_eq!(object.get::<u64>("m"), None);
        assert!(Object::parse(b"[1]").is_err());
    }
}
