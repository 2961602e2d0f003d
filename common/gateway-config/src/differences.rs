//! Writes a section without the members that have their defaults.

use serde::{Serialize, Serializer, ser::Error as _};
use serde_json::{Map, Value};

pub(crate) fn write<T, S>(section: &T, serializer: S) -> Result<S::Ok, S::Error>
where
    T: Serialize + Default,
    S: Serializer,
{
    let mut members = members::<_, S>(section)?;
    let defaults = self::members::<_, S>(&T::default())?;
    members.retain(|name, value| defaults.get(name) != Some(value));
    members.serialize(serializer)
}

#[expect(clippy::ref_option, reason = "the signature that serde calls")]
pub(crate) fn write_optional<T, S>(section: &Option<T>, serializer: S) -> Result<S::Ok, S::Error>
where
    T: Serialize + Default,
    S: Serializer,
{
    match section {
        Some(section) => write(section, serializer),
        None => serializer.serialize_none(),
    }
}

fn members<T: Serialize, S: Serializer>(section: &T) -> Result<Map<String, Value>, S::Error> {
    match serde_json::to_value(section) {
        Ok(Value::Object(members)) => Ok(members),
        Ok(other) => Err(S::Error::custom(format!("{other} has no members"))),
        Err(error) => Err(S::Error::custom(error)),
    }
}
