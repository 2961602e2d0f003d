//! The way of the trusted keys from the `ConfigMap` of earlier versions to `EdgeNodes`.
//!
//! An entry of the `ConfigMap` is the trusted pin of a node, and after a space the pin that waits.
//! Each step adds only what is missing, so that a controller that stops between two steps repeats
//! them harmlessly.

use std::str::FromStr;

use k8s_openapi::api::core::v1::ConfigMap;
use neptune_api::EdgeNodeSpec;
use neptune_wire::{KeyPin, NodeName};

use super::keys::KeyRecord;

/// Name of the `ConfigMap`, in the controller's namespace.
pub const NODE_KEYS: &str = "neptune-node-keys";

/// The annotation of the `ConfigMap` once its entries are in `EdgeNodes`.
pub const MIGRATED: &str = "neptune.io/migrated";

/// A step of the migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Create the `EdgeNode` of a Node.
    Create(NodeName, EdgeNodeSpec),
    /// Write the keys of the status: `status.trustedKey` and `status.reportedKey`.
    Record(NodeName, [Option<KeyPin>; 2]),
    /// Publish an Event with this message: not every entry was migrated.
    Report(String),
    /// Annotate the `ConfigMap`: the migration is done.
    Finish,
}

/// A valid entry of the `ConfigMap`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    trusted: KeyPin,
    waiting: Option<KeyPin>,
}

impl FromStr for Entry {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut pins = text.split_whitespace().map(|pin| KeyPin(pin.to_owned()));
        let entry = Self { trusted: pins.next().ok_or(())?, waiting: pins.next() };
        let mut all = std::iter::once(&entry.trusted).chain(&entry.waiting);
        if all.all(KeyPin::is_valid) && pins.next().is_none() { Ok(entry) } else { Err(()) }
    }
}

/// The remaining steps of the migration, none if there is no `ConfigMap` or it is done. Entries of
/// names without a Node are left out: such a node may not exist. An `EdgeNode` that has
/// a key wins. `is_required` is whether a key is used only if a person trusts it.
pub fn steps(
    config_map: Option<&ConfigMap>,
    has_node: impl Fn(&NodeName) -> bool,
    edge_node: impl Fn(&NodeName) -> Option<KeyRecord>,
    is_required: bool,
) -> Vec<Step> {
    let Some(config_map) = config_map else { return Vec::new() };
    let annotations = config_map.metadata.annotations.as_ref();
    if annotations.is_some_and(|annotations| annotations.contains_key(MIGRATED)) {
        return Vec::new();
    }
    let (mut steps, mut invalid, mut absent) = (Vec::new(), 0, 0);
    for (name, text) in config_map.data.iter().flatten() {
        let (Ok(node), Ok(entry)) = (name.parse::<NodeName>(), text.parse::<Entry>()) else {
            invalid += 1;
            continue;
        };
        if has_node(&node) {
            add_steps(&node, entry, edge_node(&node).as_ref(), is_required, &mut steps);
        } else {
            absent += 1;
        }
    }
    if invalid + absent > 0 {
        steps.push(Step::Report(format!(
            "the keys of {absent} names without a Node and {invalid} invalid entries were not migrated to EdgeNodes; to use a key: kubectl neptune trust NODE --pin PIN"
        )));
    }
    steps.push(Step::Finish);
    steps
}

fn add_steps(
    node: &NodeName,
    entry: Entry,
    existing: Option<&KeyRecord>,
    is_required: bool,
    steps: &mut Vec<Step>,
) {
    let record = existing.cloned().unwrap_or_else(|| KeyRecord {
        trusted: is_required.then(|| entry.trusted.clone()),
        ..KeyRecord::default()
    });
    if existing.is_none() {
        let trusted_key = record.trusted.as_ref().map(|pin| pin.0.clone());
        let spec = EdgeNodeSpec { trusted_key, requires_node: true, ..EdgeNodeSpec::default() };
        steps.push(Step::Create(node.clone(), spec));
    }
    let has_key = record.trusted.is_some() || record.seen.is_some();
    let seen = if has_key || is_required { &record.seen } else { &Some(entry.trusted.clone()) };
    let in_use = record.trusted.as_ref().or(seen.as_ref());
    let is_own = in_use == Some(&entry.trusted);
    let waiting = record.waiting.clone().or(entry.waiting.filter(|_| is_own));
    if (seen, &waiting) != (&record.seen, &record.waiting) {
        steps.push(Step::Record(node.clone(), [seen.clone(), waiting]));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::collections::{BTreeMap, BTreeSet};

    use neptune_wire::fixtures::pin;
    use proptest::prelude::*;

    use super::*;

    /// The API server, as far as the migration uses it.
    #[derive(Debug, Clone, Default, PartialEq)]
    struct Cluster {
        config_map: ConfigMap,
        nodes: BTreeSet<NodeName>,
        edge_nodes: BTreeMap<NodeName, KeyRecord>,
    }

    impl Cluster {
        fn steps(&self, is_required: bool) -> Vec<Step> {
            let has_node = |node: &NodeName| self.nodes.contains(node);
            let edge_node = |node: &NodeName| self.edge_nodes.get(node).cloned();
            steps(Some(&self.config_map), has_node, edge_node, is_required)
        }

        fn apply(&mut self, step: Step) {
            match step {
                Step::Create(node, spec) => {
                    assert!(spec.requires_node);
                    let trusted = spec.trusted_key.map(KeyPin);
                    let record = KeyRecord { trusted, ..KeyRecord::default() };
                    assert_eq!(self.edge_nodes.insert(node, record), None, "it exists");
                }
                Step::Record(node, [seen, waiting]) => {
                    let record = self.edge_nodes.get_mut(&node).unwrap();
                    (record.seen, record.waiting) = (seen, waiting);
                }
                Step::Report(_) => {}
                Step::Finish => {
                    let annotations = self.config_map.metadata.annotations.get_or_insert_default();
                    annotations.insert(MIGRATED.to_owned(), "true".to_owned());
                }
            }
        }
    }

    fn name(n: u8) -> NodeName {
        format!("edge{n}").parse().unwrap()
    }

    fn config_map(entries: &[(&str, String)]) -> ConfigMap {
        let data = entries.iter().map(|(name, text)| ((*name).to_owned(), text.clone()));
        ConfigMap { data: Some(data.collect()), ..ConfigMap::default() }
    }

    #[test]
    fn entry_of_a_node_becomes_its_edge_node() {
        let entries = [("edge0", format!("{} {}", pin(1).0, pin(2).0))];
        let config_map = config_map(&entries);
        for is_required in [false, true] {
            let nodes = [name(0)].into();
            let mut cluster =
                Cluster { config_map: config_map.clone(), nodes, ..Cluster::default() };
            cluster.steps(is_required).into_iter().for_each(|step| cluster.apply(step));
            let (trusted, seen) = (is_required.then(|| pin(1)), (!is_required).then(|| pin(1)));
            let expected = KeyRecord { trusted, seen, waiting: Some(pin(2)), sealing: None };
            assert_eq!(cluster.edge_nodes, [(name(0), expected)].into());
            assert_eq!(cluster.steps(is_required), [], "it is annotated");
        }
    }

    #[test]
    fn edge_node_with_a_key_wins() {
        let nodes = [name(0)].into();
        for (trusted, seen) in [(Some(pin(7)), None), (None, Some(pin(7)))] {
            let record = KeyRecord { trusted, seen, ..KeyRecord::default() };
            let config_map = config_map(&[("edge0", format!("{} {}", pin(1).0, pin(2).0))]);
            let edge_nodes = [(name(0), record)].into();
            let cluster = Cluster { config_map, nodes: BTreeSet::clone(&nodes), edge_nodes };
            assert_eq!(cluster.steps(false), [Step::Finish]);
        }
    }

    #[test]
    fn entries_without_a_node_and_invalid_ones_are_only_counted() {
        let long = ['a', 'b', 'c'].map(|digit| pin(digit).0).join(" ");
        let entries = [
            ("edge8", pin(1).0),
            ("edge9", pin(1).0),
            ("edge0", long),
            ("edge1", String::new()),
            ("Edge", pin(1).0),
            ("edge2", pin('A').0),
        ];
        let nodes = [name(0), name(1), name(2)].into();
        let cluster = Cluster { config_map: config_map(&entries), nodes, ..Cluster::default() };
        let steps = cluster.steps(false);
        let [Step::Report(text), Step::Finish] = &steps[..] else { panic!("{steps:?}") };
        assert!(text.starts_with("the keys of 2 names without a Node and 4 invalid"), "{text}");
        assert_eq!(super::steps(None, |_| true, |_| None, false), []);
    }

    fn record() -> impl Strategy<Value = KeyRecord> {
        let key = || proptest::option::of((1_u8..4).prop_map(pin));
        (key(), key(), key()).prop_map(|(trusted, seen, waiting)| KeyRecord {
            sealing: None,
            trusted,
            seen,
            waiting,
        })
    }

    proptest! {
        /// The controller stops before any of its steps, several times.
        #[test]
        fn migration_that_is_interrupted_and_repeated_ends_the_same(
            entries in proptest::collection::btree_map(0_u8..6, (1_u8..4, proptest::option::of(1_u8..4)), 0..6),
            nodes in proptest::collection::btree_set(0_u8..6, 0..6),
            edge_nodes in proptest::collection::btree_map(0_u8..6, record(), 0..3),
            stops in proptest::collection::vec(0_usize..8, 0..6),
            is_required in any::<bool>(),
        ) {
            let text = |(trusted, waiting): (u8, Option<u8>)| {
                waiting.map_or(pin(trusted).0, |it| format!("{} {}", pin(trusted).0, pin(it).0))
            };
            let data = entries.into_iter().map(|(n, entry)| (name(n).to_string(), text(entry)));
            let start = Cluster {
                config_map: ConfigMap { data: Some(data.collect()), ..ConfigMap::default() },
                nodes: nodes.into_iter().map(name).collect(),
                edge_nodes: edge_nodes.into_iter().map(|(n, record)| (name(n), record)).collect(),
            };
            let mut expected = start.clone();
            start.steps(is_required).into_iter().for_each(|step| expected.apply(step));
            let mut actual = start;
            for stop in stops {
                let steps = actual.steps(is_required);
                steps.into_iter().take(stop).for_each(|step| actual.apply(step));
            }
            actual.steps(is_required).into_iter().for_each(|step| actual.apply(step));
            prop_assert_eq!(&actual, &expected);
            prop_assert_eq!(actual.steps(is_required), []);
        }
    }
}
