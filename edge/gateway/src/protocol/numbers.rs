//! The numbers of nested lists, and their elements as text.

use std::fmt;

use serde::{
    Deserializer,
    de::{DeserializeSeed, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

/// The numbers of a value in order, however they are nested. `null`, which stands for a number that
/// JSON cannot represent, is not a number. `None` if there is anything else in it.
pub fn flat(value: &RawValue) -> Option<Vec<f64>> {
    let mut numbers = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_str(value.get());
    Flat(&mut numbers).deserialize(&mut deserializer).ok()?;
    Some(numbers)
}

/// The elements of a list; `None` if the value is none.
pub fn elements(value: &RawValue) -> Option<Vec<&RawValue>> {
    serde_json::from_str(value.get()).ok()
}

/// The elements of nested lists in order.
pub fn leaves(value: &RawValue) -> Vec<&RawValue> {
    fn collect<'a>(value: &'a RawValue, depth: usize, leaves: &mut Vec<&'a RawValue>) {
        match elements(value).filter(|_| value.get().starts_with('[') && depth < MAX_DEPTH) {
            Some(list) => list.into_iter().for_each(|value| collect(value, depth + 1, leaves)),
            None => leaves.push(value),
        }
    }
    let mut leaves = Vec::new();
    collect(value, 0, &mut leaves);
    leaves
}

/// More than tensors have.
const MAX_DEPTH: usize = 32;

struct Flat<'a>(&'a mut Vec<f64>);

impl<'de> DeserializeSeed<'de> for Flat<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Flat<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("numbers, or lists of them")
    }

    fn visit_f64<E>(self, number: f64) -> Result<(), E> {
        self.0.push(number);
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "scores above 2^53 do not differ in confidence")]
    fn visit_u64<E>(self, number: u64) -> Result<(), E> {
        self.0.push(number as f64);
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "as above")]
    fn visit_i64<E>(self, number: i64) -> Result<(), E> {
        self.0.push(number as f64);
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.0.push(f64::NAN);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Flat(&mut *self.0))?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::json::raw;

    #[test]
    fn numbers_of_nested_lists_are_in_order() {
        let nested = raw(&serde_json::json!([[1, -2], [[0.5], null]]));
        let numbers = flat(&nested).unwrap_or_default();
        assert_eq!(numbers[..3], [1.0, -2.0, 0.5]);
        assert!(numbers[3].is_nan());
        assert_eq!(flat(&raw("text")), None);
        let texts: Vec<_> = leaves(&nested).into_iter().map(RawValue::get).collect();
        assert_eq!(texts, ["1", "-2", "0.5", "null"]);
    }
}
