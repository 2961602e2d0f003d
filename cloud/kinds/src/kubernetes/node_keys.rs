//! The `ConfigMap` with the trusted keys of the nodes, and its entries. Pure.
//!
//! One entry per node: the pin of the trusted key, and after a space the pin of another key that
//! the node reports and that waits for `neptune-cloud trust`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use k8s_openapi::api::core::v1::ConfigMap;
use neptune_wire::{KeyPin, NodeName};

/// Name of the `ConfigMap` with the keys, in the controller's namespace.
pub const NODE_KEYS: &str = "neptune-node-keys";

/// The keys of all recorded nodes.
pub type KeyRecords = BTreeMap<NodeName, KeyRecord>;

/// What is recorded of a node's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// The key that is used.
    pub trusted: KeyPin,
    /// Another key that the node reports, and that is not used.
    pub waiting: Option<KeyPin>,
}

impl fmt::Display for KeyRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.trusted.0)?;
        self.waiting.iter().try_for_each(|pin| write!(f, " {}", pin.0))
    }
}

impl FromStr for KeyRecord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut pins = text.split_whitespace().map(|pin| KeyPin(pin.to_owned()));
        let trusted = pins.next().ok_or("is empty")?;
        let record = Self { trusted, waiting: pins.next() };
        let invalid = std::iter::once(&record.trusted).chain(&record.waiting);
        if let Some(pin) = invalid.into_iter().find(|pin| !pin.is_valid()) {
            return Err(format!("{:?} is not sha256: and 64 lower-case hex digits", pin.0));
        }
        match pins.next() {
            Some(_) => Err("has more than two pins".to_owned()),
            None => Ok(record),
        }
    }
}

/// The entries of a `ConfigMap`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyEntries {
    /// The valid entries, by node.
    pub records: KeyRecords,
    /// What is wrong with the others, by name. An invalid entry is not a missing one: a person wrote
    /// it to decide which key is trusted.
    pub invalid: BTreeMap<String, String>,
}

impl KeyEntries {
    /// The nodes whose entry is another one in `now`.
    pub fn changed(&self, now: &Self) -> BTreeSet<NodeName> {
        let recorded = self.records.keys().chain(now.records.keys());
        let recorded = recorded.filter(|node| self.records.get(node) != now.records.get(node));
        let invalid = self.invalid.keys().chain(now.invalid.keys());
        let invalid = invalid.filter(|name| self.invalid.get(*name) != now.invalid.get(*name));
        recorded.cloned().chain(invalid.filter_map(|name| name.parse().ok())).collect()
    }
}

/// The entries of a `ConfigMap`.
pub fn parse(config_map: Option<&ConfigMap>) -> KeyEntries {
    let mut entries = KeyEntries::default();
    let data = config_map.and_then(|config_map| config_map.data.as_ref());
    for (name, text) in data.into_iter().flatten() {
        let node = name.parse::<NodeName>().map_err(|error| error.to_string());
        match node.and_then(|node| Ok((node, text.parse::<KeyRecord>()?))) {
            Ok((node, record)) => drop(entries.records.insert(node, record)),
            Err(why) => drop(entries.invalid.insert(name.clone(), why)),
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::fixtures::pin;

    use super::*;

    #[test]
    fn record_is_parsed_from_its_text() {
        for waiting in [None, Some(pin('b'))] {
            let record = KeyRecord { trusted: pin('a'), waiting };
            assert_eq!(record.to_string().parse(), Ok(record));
        }
        let three = ['a', 'b', 'c'].map(|digit| pin(digit).0).join(" ");
        for text in ["", " ", "sha256:ab", "ab", &three, &pin('A').0] {
            assert!(text.parse::<KeyRecord>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn invalid_entry_is_named_and_the_others_are_used() {
        let data = [("edge0", pin('a').0), ("edge1", "x".to_owned()), ("Edge", pin('a').0)];
        let data = data.map(|(node, text)| (node.to_owned(), text));
        let config_map = ConfigMap { data: Some(data.into()), ..ConfigMap::default() };
        let KeyEntries { records, invalid } = parse(Some(&config_map));
        assert_eq!(records.keys().map(NodeName::as_str).collect::<Vec<_>>(), ["edge0"]);
        assert_eq!(invalid.keys().collect::<Vec<_>>(), ["Edge", "edge1"]);
        assert!(invalid["edge1"].starts_with("\"x\" is not sha256:"), "{invalid:?}");
        assert_eq!(parse(None), KeyEntries::default());
    }

    #[test]
    fn changed_entries_name_their_nodes() {
        let entries = |data: &[(&str, &str)]| {
            let data = data.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
            parse(Some(&ConfigMap { data: Some(data.collect()), ..ConfigMap::default() }))
        };
        let (one, two) = (pin('1').0, pin('2').0);
        let before = entries(&[("edge0", &one), ("edge1", &one), ("edge2", "x"), ("edge3", "x")]);
        let after = entries(&[("edge0", &one), ("edge1", &two), ("edge2", &one), ("edge4", "x")]);
        let changed = |a: &KeyEntries, b: &KeyEntries| -> Vec<String> {
            a.changed(b).iter().map(ToString::to_string).collect()
        };
        assert_eq!(changed(&before, &after), ["edge1", "edge2", "edge3", "edge4"]);
        assert_eq!(changed(&after, &before), ["edge1", "edge2", "edge3", "edge4"]);
        assert_eq!(changed(&after, &after), [""; 0]);
    }
}
