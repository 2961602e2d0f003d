//! Encodes and decodes [`Counters`] as members of a message, with the names of
//! [`Counters::numbers`].
//!
//! The encoding of [`Counters`] itself has other names. Agents store it, and gateways report earlier
//! runs in it.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serializer, de::Error as _, ser::SerializeMap as _};
use serde_json::Value;

use crate::{counters::Counters, lenient};

/// Name of [`Counters::tiers`] in messages, where it is a list.
const TIERS: &str = "tierNumbers";
/// Number of members that no message lacks.
const REQUIRED: usize = 2;

/// Encodes counters; most of them only if they are not zero.
pub fn serialize<S: Serializer>(counters: &Counters, to: S) -> Result<S::Ok, S::Error> {
    let mut members = to.serialize_map(None)?;
    for (position, (name, number)) in counters.numbers().into_iter().enumerate() {
        if position < REQUIRED || number > 0 {
            members.serialize_entry(name, &number)?;
        }
    }
    if !counters.tiers.is_zero() {
        members.serialize_entry(TIERS, &counters.tiers)?;
    }
    members.end()
}

/// Decodes counters. A number may also be a string, or have a fraction of zeros.
pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Counters, D::Error> {
    let mut members = BTreeMap::<String, Value>::deserialize(input)?;
    let mut counters = Counters::default();
    for (position, (name, number)) in counters.numbers_mut().into_iter().enumerate() {
        match members.remove(name) {
            Some(value) => {
                let whole = lenient::whole_number(value);
                *number = whole.map_err(|why| D::Error::custom(format!("{name}: {why}")))?;
            }
            None if position < REQUIRED => return Err(D::Error::missing_field(name)),
            None => {}
        }
    }
    if let Some(tiers) = members.remove(TIERS) {
        counters.tiers = serde_json::from_value(tiers).map_err(D::Error::custom)?;
    }
    Ok(counters)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_number_has_its_own_name_in_messages() {
        let message = json!({
            "inferenceNumber": 2, "hardExampleNumber": 3, "fallbackNumber": 5, "hardNumber": 7,
            "overBudgetNumber": 11, "unjudgedNumber": 13, "shadowNumber": 17, "deadlineNumber": 19,
            "tierNumbers": [23, 29],
        });
        let counters = Counters {
            inference: 2,
            hard: 3,
            fallback: 5,
            decided_hard: 7,
            over_budget: 11,
            unjudged: 13,
            shadow: 17,
            deadline: 19,
            tiers: [23, 29].into_iter().collect(),
        };
        let encode = |counters| serialize(&counters, serde_json::value::Serializer);
        assert_eq!(encode(counters).expect("plain data"), message);
        assert_eq!(deserialize(&message).expect("all members"), counters);
        let zeros = json!({"inferenceNumber": 0, "hardExampleNumber": 0});
        assert_eq!(encode(Counters::default()).expect("plain data"), zeros);
        assert_eq!(deserialize(&zeros).expect("the others are 0"), Counters::default());
        for bad in [json!({"inferenceNumber": 0}), json!({"hardExampleNumber": 0})] {
            let error = deserialize(&bad).expect_err("incomplete").to_string();
            assert!(error.contains("missing field"), "{error}");
        }
        let bad = json!({"inferenceNumber": 1, "hardExampleNumber": 0, "shadowNumber": -1});
        let error = deserialize(&bad).expect_err("negative").to_string();
        assert!(error.starts_with("shadowNumber: -1 is not a whole number"), "{error}");
    }
}
