//! What each node should have, put together from what each service asks for, and what to say so
//! that the nodes have it. Pure.
//!
//! Nothing is said before every service that exists was planned once: an index that left earlier
//! would not list the rest, and the nodes would remove it.

use std::collections::{BTreeMap, BTreeSet};

use neptune_wire::{NodeName, ObjectContent, ObjectKey, Source, Sync, source::DownstreamMessage};

/// The desired state of all nodes.
#[derive(Debug, Default)]
pub struct Desired {
    /// What each node should have.
    nodes: BTreeMap<NodeName, BTreeMap<ObjectKey, Asked>>,
    /// What each service asks for.
    asks: BTreeMap<ObjectKey, BTreeSet<(NodeName, ObjectKey)>>,
    /// What each node is to leave as it is, by the service that cannot be planned now.
    kept: BTreeMap<NodeName, BTreeMap<ObjectKey, BTreeSet<ObjectKey>>>,
    sources: BTreeMap<NodeName, Source>,
    gate: Gate,
    /// Nodes that spoke before the gate opened, with the sync that is to be answered.
    spoke: BTreeMap<NodeName, Option<Sync>>,
}

/// An object that a node should have.
#[derive(Debug)]
struct Asked {
    /// As handed in last: services that share a model hand in the same one.
    content: ObjectContent,
    /// Who asks for it.
    by: BTreeSet<ObjectKey>,
}

#[derive(Debug, Default)]
enum Gate {
    /// It is not known yet which services exist.
    #[default]
    Unknown,
    /// These were not planned yet.
    Awaiting(BTreeSet<ObjectKey>),
    /// All were.
    Open,
}

/// Messages in the order in which they are to leave, each with its node.
pub type Says = Vec<(NodeName, DownstreamMessage)>;

impl Desired {
    /// These services exist and will be planned.
    pub fn expect(&mut self, services: BTreeSet<ObjectKey>, wall_ms: u64) -> Says {
        self.gate = Gate::Awaiting(services);
        self.open_if_complete(wall_ms)
    }

    /// Whether anything may be said yet.
    pub fn is_open(&self) -> bool {
        matches!(self.gate, Gate::Open)
    }

    /// All that a service asks for now.
    pub fn set(
        &mut self,
        service: &ObjectKey,
        asks: BTreeMap<NodeName, BTreeMap<ObjectKey, ObjectContent>>,
        wall_ms: u64,
    ) -> Says {
        let mut touched = self.keep_on(service, &BTreeMap::new());
        let mut now = BTreeSet::new();
        for (node, contents) in asks {
            for (key, content) in contents {
                if self.ask(service, &node, &key, content) {
                    touched.insert(node.clone());
                }
                now.insert((node.clone(), key));
            }
        }
        let before = self.asks.insert(service.clone(), now.clone()).unwrap_or_default();
        for (node, key) in before.difference(&now) {
            self.drop_ask(service, node, key);
            touched.insert(node.clone());
        }
        self.planned(service, &touched, wall_ms)
    }

    /// A service that cannot be planned now. What it asked for before stays, and what the nodes that
    /// it names have of it stays also when this controller has not known it yet.
    pub fn keep(
        &mut self,
        service: &ObjectKey,
        keeps: &BTreeMap<NodeName, BTreeSet<ObjectKey>>,
        wall_ms: u64,
    ) -> Says {
        let touched = self.keep_on(service, keeps);
        self.planned(service, &touched, wall_ms)
    }

    /// A service that is gone.
    pub fn remove(&mut self, service: &ObjectKey, wall_ms: u64) -> Says {
        let mut touched = self.keep_on(service, &BTreeMap::new());
        let before = self.asks.remove(service).unwrap_or_default();
        for (node, key) in &before {
            self.drop_ask(service, node, key);
        }
        touched.extend(before.into_iter().map(|(node, _)| node));
        self.planned(service, &touched, wall_ms)
    }

    /// The services that ask for something.
    pub fn services(&self) -> BTreeSet<ObjectKey> {
        let kept = self.kept.values().flat_map(BTreeMap::keys);
        self.asks.keys().chain(kept).cloned().collect()
    }

    /// A node is there: it is told what it should have, also if that is nothing.
    pub fn spoke(&mut self, node: &NodeName, wall_ms: u64) -> Says {
        if self.sources.contains_key(node) {
            return Vec::new();
        }
        if !self.is_open() {
            self.spoke.entry(node.clone()).or_default();
            return Vec::new();
        }
        self.refresh(node, wall_ms)
    }

    /// Answers a node that told what it has.
    pub fn answer(&mut self, node: &NodeName, sync: Sync, wall_ms: u64) -> Says {
        if !self.is_open() {
            self.spoke.insert(node.clone(), Some(sync));
            return Vec::new();
        }
        // Of a node that speaks first by a sync: the answer says all that a first index would.
        let _ = self.spoke(node, wall_ms);
        let source = self.sources.get_mut(node).expect("a node that spoke has a source");
        with_node(node, source.answer(&sync, wall_ms))
    }

    /// Everything, for a transport that may have forgotten it.
    pub fn everything(&self) -> Says {
        self.sources.iter().flat_map(|(node, source)| with_node(node, source.snapshot())).collect()
    }

    /// Returns whether the node is to have something else than before.
    fn ask(
        &mut self,
        service: &ObjectKey,
        node: &NodeName,
        key: &ObjectKey,
        content: ObjectContent,
    ) -> bool {
        let objects = self.nodes.entry(node.clone()).or_default();
        let Some(asked) = objects.get_mut(key) else {
            let by = [service.clone()].into();
            objects.insert(key.clone(), Asked { content, by });
            return true;
        };
        asked.by.insert(service.clone());
        let differs = asked.content != content;
        asked.content = content;
        differs
    }

    fn drop_ask(&mut self, service: &ObjectKey, node: &NodeName, key: &ObjectKey) {
        let Some(objects) = self.nodes.get_mut(node) else { return };
        if let Some(asked) = objects.get_mut(key) {
            asked.by.remove(service);
            if asked.by.is_empty() {
                objects.remove(key);
            }
        }
    }

    fn planned(&mut self, service: &ObjectKey, touched: &BTreeSet<NodeName>, wall_ms: u64) -> Says {
        match &mut self.gate {
            Gate::Open => touched.iter().flat_map(|node| self.refresh(node, wall_ms)).collect(),
            Gate::Awaiting(services) => {
                services.remove(service);
                self.open_if_complete(wall_ms)
            }
            Gate::Unknown => Vec::new(),
        }
    }

    fn open_if_complete(&mut self, wall_ms: u64) -> Says {
        if !matches!(&self.gate, Gate::Awaiting(services) if services.is_empty()) {
            return Vec::new();
        }
        self.gate = Gate::Open;
        let nodes: BTreeSet<_> = self.nodes.keys().chain(self.kept.keys()).cloned().collect();
        let mut says: Says = nodes.iter().flat_map(|node| self.refresh(node, wall_ms)).collect();
        for (node, sync) in std::mem::take(&mut self.spoke) {
            says.extend(match sync {
                Some(sync) => self.answer(&node, sync, wall_ms),
                None => self.spoke(&node, wall_ms),
            });
        }
        says
    }

    fn refresh(&mut self, node: &NodeName, wall_ms: u64) -> Says {
        let (desired, keep) = (self.desired(node), self.keeps(node));
        let source = self.sources.entry(node.clone()).or_default();
        with_node(node, source.set(desired, keep, wall_ms))
    }

    /// Makes this all that nodes keep for a service. Returns the nodes where that changes something.
    fn keep_on(
        &mut self,
        service: &ObjectKey,
        keeps: &BTreeMap<NodeName, BTreeSet<ObjectKey>>,
    ) -> BTreeSet<NodeName> {
        let mut touched = BTreeSet::new();
        for (node, kept) in &mut self.kept {
            if !keeps.contains_key(node) && kept.remove(service).is_some() {
                touched.insert(node.clone());
            }
        }
        self.kept.retain(|_, kept| !kept.is_empty());
        for (node, keys) in keeps {
            let kept = self.kept.entry(node.clone()).or_default();
            if kept.insert(service.clone(), keys.clone()).as_ref() != Some(keys) {
                touched.insert(node.clone());
            }
        }
        touched
    }

    fn keeps(&self, node: &NodeName) -> BTreeSet<ObjectKey> {
        self.kept.get(node).into_iter().flat_map(BTreeMap::values).flatten().cloned().collect()
    }

    fn desired(&self, node: &NodeName) -> BTreeMap<ObjectKey, ObjectContent> {
        let objects = self.nodes.get(node).into_iter().flatten();
        objects.map(|(key, asked)| (key.clone(), asked.content.clone())).collect()
    }
}

fn with_node(node: &NodeName, says: Vec<DownstreamMessage>) -> Says {
    says.into_iter().map(|say| (node.clone(), say)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::{AgentInstance, Revision};
    use serde_json::json;

    use super::*;

    fn service(name: &str) -> ObjectKey {
        format!("default/jointinferenceservices/{name}").parse().unwrap()
    }

    fn node(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    fn content(key: &ObjectKey, value: u32) -> ObjectContent {
        serde_json::from_value(json!({
            "apiVersion": "v", "kind": "k", "spec": value,
            "metadata": {"namespace": "default", "name": key.name, "uid": "u"},
        }))
        .unwrap()
    }

    /// A service's task of that value, and the model that all share, on one node.
    fn asks(
        on: &str,
        name: &str,
        value: u32,
    ) -> BTreeMap<NodeName, BTreeMap<ObjectKey, ObjectContent>> {
        let model: ObjectKey = "default/models/shared".parse().unwrap();
        let objects =
            [(service(name), content(&service(name), value)), (model.clone(), content(&model, 0))];
        [(node(on), objects.into())].into()
    }

    fn text(says: &Says) -> Vec<String> {
        let one = |(node, say): &(NodeName, DownstreamMessage)| match say {
            DownstreamMessage::Insert(key, insert) => {
                format!("{node} + {}={}", key.name, insert.content.spec)
            }
            DownstreamMessage::Delete(key, _) => format!("{node} - {}", key.name),
            DownstreamMessage::Index(index) => format!("{node} index {}", index.objects.len()),
        };
        says.iter().map(one).collect()
    }

    fn open() -> Desired {
        let mut desired = Desired::default();
        assert!(desired.expect(BTreeSet::new(), 1).is_empty());
        desired
    }

    fn sync(objects: &[&str]) -> Sync {
        let listed = |name: &&str| {
            let key = service(name);
            let hash = content(&key, 1).hash();
            (key, neptune_wire::IndexEntry { revision: Revision(7), hash })
        };
        Sync {
            instance: AgentInstance("i".into()),
            epoch: 1,
            index_revision: Revision(7),
            highest: Revision(7),
            complete: true,
            objects: objects.iter().map(listed).collect(),
        }
    }

    #[test]
    fn no_index_leaves_before_every_service_was_planned() {
        let mut desired = Desired::default();
        assert!(desired.set(&service("a"), asks("edge0", "a", 1), 1).is_empty(), "not known yet");
        let all = [service("a"), service("b"), service("c")].into();
        assert!(desired.expect(all, 2).is_empty());
        assert!(desired.set(&service("a"), asks("edge0", "a", 1), 3).is_empty());
        assert!(desired.spoke(&node("idle"), 4).is_empty());
        assert!(desired.answer(&node("edge0"), sync(&["a", "b", "old"]), 5).is_empty());
        assert!(desired.set(&service("b"), asks("edge0", "b", 1), 6).is_empty());
        let says = desired.keep(&service("c"), &BTreeMap::new(), 7);
        assert_eq!(
            text(&says),
            [
                "edge0 + a=1",
                "edge0 + b=1",
                "edge0 + shared=0",
                "edge0 index 3",
                // The answer to the sync that waited: what is to go, and what it has not.
                "edge0 - old",
                "edge0 + shared=0",
                "edge0 index 3",
                "idle index 0",
            ]
        );
    }

    #[test]
    fn a_service_that_vanished_before_it_was_planned_does_not_hold_the_gate() {
        let mut desired = Desired::default();
        assert!(desired.expect([service("a")].into(), 1).is_empty());
        assert!(!desired.is_open());
        assert!(desired.remove(&service("a"), 2).is_empty());
        assert!(desired.is_open());
    }

    #[test]
    fn a_model_stays_while_one_service_uses_it_and_a_change_of_it_is_said_once() {
        let mut desired = open();
        let _ = desired.set(&service("a"), asks("edge0", "a", 1), 1);
        let says = desired.set(&service("b"), asks("edge0", "b", 1), 2);
        assert_eq!(text(&says), ["edge0 + b=1", "edge0 index 3"]);
        assert!(desired.set(&service("b"), asks("edge0", "b", 1), 3).is_empty(), "no change");
        assert_eq!(text(&desired.remove(&service("a"), 4)), ["edge0 - a", "edge0 index 2"]);
        let says = desired.remove(&service("b"), 5);
        assert_eq!(text(&says), ["edge0 - b", "edge0 - shared", "edge0 index 0"]);
        assert!(desired.asks.is_empty() && desired.nodes[&node("edge0")].is_empty());
    }

    #[test]
    fn a_worker_that_moves_leaves_its_old_node() {
        let mut desired = open();
        let _ = desired.set(&service("a"), asks("edge0", "a", 1), 1);
        let mut says = text(&desired.set(&service("a"), asks("edge1", "a", 1), 2));
        says.sort();
        assert_eq!(
            says,
            [
                "edge0 - a",
                "edge0 - shared",
                "edge0 index 0",
                "edge1 + a=1",
                "edge1 + shared=0",
                "edge1 index 2",
            ]
        );
    }

    #[test]
    fn what_cannot_be_planned_now_stays_whether_it_was_known_before_or_not() {
        let kept = |says: &Says| match says.last() {
            Some((_, DownstreamMessage::Index(index))) => {
                index.keep.iter().map(|k| k.name.to_string()).collect()
            }
            _ => Vec::new(),
        };
        let mut desired = open();
        let _ = desired.set(&service("a"), asks("edge0", "a", 1), 1);
        let keeps = [(node("edge0"), [service("a")].into())].into();
        let says = desired.keep(&service("a"), &keeps, 2);
        assert_eq!((text(&says), kept(&says)), (vec![], vec![]), "it is known: nothing changes");
        assert_eq!(desired.everything().len(), 3);

        let mut fresh = open();
        let says = fresh.keep(&service("a"), &keeps, 3);
        assert_eq!(text(&says), ["edge0 index 0"]);
        assert_eq!(kept(&says), ["a"]);
        assert!(fresh.keep(&service("a"), &keeps, 4).is_empty(), "said once");
        assert_eq!(fresh.services(), [service("a")].into());
        let says = fresh.set(&service("a"), asks("edge0", "a", 1), 5);
        assert_eq!(text(&says), ["edge0 + a=1", "edge0 + shared=0", "edge0 index 2"]);
        assert_eq!(kept(&says), Vec::<String>::new());
        let _ = fresh.keep(&service("b"), &keeps, 6);
        let says = fresh.remove(&service("b"), 7);
        assert_eq!(kept(&says), Vec::<String>::new());
    }

    #[test]
    fn a_node_that_should_have_nothing_is_told_so_and_its_leftovers_are_deleted() {
        let mut desired = open();
        assert_eq!(text(&desired.spoke(&node("edge0"), 1)), ["edge0 index 0"]);
        assert!(desired.spoke(&node("edge0"), 2).is_empty());
        let says = desired.answer(&node("edge1"), sync(&["old"]), 3);
        assert_eq!(text(&says), ["edge1 - old", "edge1 index 0"]);
    }

    #[test]
    fn after_a_restart_equal_content_has_an_equal_hash() {
        let hashes = |wall_ms| {
            let mut desired = open();
            let says = desired.set(&service("a"), asks("edge0", "a", 1), wall_ms);
            says.into_iter()
                .filter_map(|(_, say)| match say {
                    DownstreamMessage::Insert(key, insert) => Some((key, insert.hash)),
                    _ => None,
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(hashes(1), hashes(1_000_000));
        assert_eq!(hashes(1).len(), 2);
    }
}
