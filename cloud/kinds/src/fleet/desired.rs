//! What each node should have, assembled from the requirements of each object, and the messages
//! that bring the nodes there. A change adds its nodes to the backlog; the messages of a node are
//! decided when they can be sent, so that they never wait for all nodes at once.
//!
//! Nothing is published before every object that exists was planned once. An earlier index would
//! not list the rest, and the nodes would delete it. A kind whose objects are not known, because its
//! CRD is missing, does not delay the others: what a node has of it is in `keep`, and a node gets no
//! index before its sync, which lists it.

#[cfg(test)]
mod guarded;
pub mod pending;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use neptune_wire::{
    ContentHash, NodeName, ObjectKey, Resource, Sync, SyncNotices, source::DownstreamMessage,
};

use super::{
    backlog::Backlog,
    contents::{Contents, NodeContents},
    incomplete::Incomplete,
    node_desired::{Guards, NodeDesired},
};

/// What each node's agent should have because of one object.
pub type Requirements = BTreeMap<NodeName, NodeContents>;

/// The generations of the Kubernetes objects from which the contents of shared objects were made.
pub type Generations = BTreeMap<ObjectKey, i64>;

/// The plan of an object for one node.
#[derive(Debug)]
struct Planned {
    contents: NodeContents,
    /// Those of the plan, which its nodes share.
    generations: Arc<Generations>,
}

/// What nodes keep as it is because of one object that cannot be planned now.
pub type Retained = BTreeMap<NodeName, Arc<BTreeSet<ObjectKey>>>;

/// The desired state of all nodes.
#[derive(Debug, Default)]
pub struct FleetDesired {
    nodes: BTreeMap<NodeName, NodeDesired>,
    /// What each planned object requires.
    plans: BTreeMap<ObjectKey, BTreeMap<NodeName, Planned>>,
    /// The nodes that retain something because of an object that cannot be planned now.
    retained: BTreeMap<ObjectKey, BTreeSet<NodeName>>,
    initial_sync: InitialSync,
    /// The kinds whose objects are not all known and planned. They do not delay the initial sync.
    incomplete: Incomplete,
    /// The objects with a rollout.
    guards: Guards,
    /// The nodes on which the newest content of an object waits for a rollout.
    delayed: BTreeSet<NodeName>,
    /// The nodes on which objects require different contents of one that they share. There the
    /// next plan counts, also if it is equal to the one before.
    contested: BTreeSet<NodeName>,
    /// The nodes whose messages are not decided yet.
    backlog: Backlog,
    contents: Contents,
    /// The value of [`neptune_wire::Index::batch_seconds`] for all nodes.
    batch_seconds: Option<u32>,
    /// The nodes whose desired state was compared with a plan.
    #[cfg(test)]
    visits: usize,
}

#[derive(Debug, Default)]
enum InitialSync {
    /// It is not known yet which objects exist.
    #[default]
    NotStarted,
    /// These objects exist and were not planned yet.
    Pending(BTreeSet<ObjectKey>),
    /// All objects were planned.
    Complete,
}

impl FleetDesired {
    /// These objects exist and will be planned. Those of the resources `incomplete` are not known.
    pub fn begin_initial_sync(
        &mut self,
        objects: BTreeSet<ObjectKey>,
        incomplete: BTreeSet<Resource>,
    ) {
        self.initial_sync = InitialSync::Pending(objects);
        self.incomplete = Incomplete::new(incomplete);
        self.complete_initial_sync();
    }

    /// The objects of a resource are known, and will be planned.
    pub fn on_listed(&mut self, resource: Resource, objects: BTreeSet<ObjectKey>) {
        if self.incomplete.on_listed(resource, objects) {
            self.on_kind_complete();
        }
    }

    /// Decides the messages of the next node, in the order in which they are published. `None` if no
    /// node waits, or before the initial sync is complete.
    pub fn next(&mut self, wall_ms: u64) -> Option<(NodeName, Vec<DownstreamMessage>)> {
        if !self.is_synced() {
            return None;
        }
        let (node, due) = self.backlog.pop()?;
        let desired = self.nodes.entry(node.clone()).or_default();
        let rules = (&self.incomplete, &self.guards);
        let messages = desired.decide(due, rules, self.batch_seconds, wall_ms);
        if desired.delayed().is_empty() {
            self.delayed.remove(&node);
        } else {
            self.delayed.insert(node.clone());
        }
        Some((node, messages))
    }

    /// Whether [`FleetDesired::next`] returns messages.
    pub fn has_next(&self) -> bool {
        self.is_synced() && !self.backlog.is_empty()
    }

    /// Whether messages are published.
    pub fn is_synced(&self) -> bool {
        matches!(self.initial_sync, InitialSync::Complete)
    }

    /// An object that cannot be planned now. What it required before stays. What the nodes in
    /// `retained` have of it stays too, also if this controller never planned it.
    pub fn retain(&mut self, object: &ObjectKey, retained: &Retained) {
        self.set_retained(object, retained);
        self.planned(object);
    }

    /// Removes what an object requires on these nodes, because another object has priority there.
    pub fn withdraw(&mut self, object: &ObjectKey, nodes: &BTreeSet<NodeName>) {
        for node in nodes {
            self.withdraw_from(object, node);
        }
    }

    /// Forgets a deleted object, and withdraws what it required.
    pub fn remove(&mut self, object: &ObjectKey) {
        self.set_retained(object, &Retained::new());
        self.withdraw_all(object);
        self.planned(object);
    }

    /// The hash of the content that a node should have of an object, once it is published or about
    /// to be.
    pub fn published_hash(&self, node: &NodeName, object: &ObjectKey) -> Option<ContentHash> {
        let desired = self.nodes.get(node).filter(|_| self.is_synced())?;
        desired.published_hash(object, &self.guards)
    }

    /// Sets whether an object has a rollout. If it does, no other object replaces the content of a
    /// Model that it uses on a node before its plan for the node has the newest content.
    pub fn set_guard(&mut self, object: &ObjectKey, is_guard: bool) {
        if is_guard {
            self.guards.insert(object.clone());
        } else if self.guards.remove(object) {
            for node in &self.delayed {
                self.backlog.add(node);
            }
        }
    }

    /// What an object requires on a node by its last plan.
    pub fn planned_contents(&self, node: &NodeName, object: &ObjectKey) -> Option<NodeContents> {
        let planned = self.plans.get(object)?.get(node)?;
        Some(Arc::clone(&planned.contents))
    }

    /// The object for whose rollout the newest content of this one waits on a node.
    pub fn awaited_rollout(&self, node: &NodeName, key: &ObjectKey) -> Option<&ObjectKey> {
        self.nodes.get(node)?.awaited_rollout(key, &self.guards)
    }

    /// The nodes on which something that this object requires waits for a rollout.
    pub fn delayed_nodes(&self, object: &ObjectKey) -> BTreeSet<NodeName> {
        let Some(plan) = self.plans.get(object) else { return BTreeSet::new() };
        let is_delayed = |node: &&NodeName| {
            let desired = self.nodes.get(*node).map(NodeDesired::delayed);
            let contents = plan.get(*node).into_iter().flat_map(|plan| plan.contents.keys());
            desired.is_some_and(|delayed| contents.into_iter().any(|key| delayed.contains(key)))
        };
        self.delayed.iter().filter(is_delayed).cloned().collect()
    }

    /// The nodes that should have something because of an object.
    pub fn nodes(&self, object: &ObjectKey) -> impl Iterator<Item = &NodeName> {
        self.plans.get(object).into_iter().flat_map(BTreeMap::keys)
    }

    /// The objects of a resource that were planned, whose plan is retained, or that are awaited.
    pub fn objects(&self, resource: Resource) -> BTreeSet<ObjectKey> {
        let planned = self.plans.keys().chain(self.retained.keys());
        let awaited = self.pending().into_iter().flatten().chain(self.incomplete.unplanned());
        planned.chain(awaited).filter(|key| key.resource == resource).cloned().collect()
    }

    /// Whether messages wait until this object is planned.
    pub fn awaits(&self, object: &ObjectKey) -> bool {
        self.pending().is_some_and(|objects| objects.contains(object))
            || self.incomplete.awaits(object)
    }

    fn pending(&self) -> Option<&BTreeSet<ObjectKey>> {
        match &self.initial_sync {
            InitialSync::Pending(objects) => Some(objects),
            InitialSync::NotStarted | InitialSync::Complete => None,
        }
    }

    /// A node is online: it gets an index, also an empty one.
    pub fn on_node_online(&mut self, node: &NodeName) {
        if !self.has_source(node) {
            self.backlog.add(node);
        }
    }

    /// Answers a node's sync. Before the initial sync is complete the notices are dropped; the
    /// node's next sync is answered with them.
    pub fn on_sync(&mut self, node: &NodeName, sync: Sync, notices: SyncNotices) {
        let notices = if self.is_synced() { notices } else { SyncNotices::default() };
        self.backlog.add(node).sync = Some(Box::new((sync, notices)));
    }

    /// Publishes everything again: the transport may have lost it.
    pub fn republish(&mut self) {
        for (node, _) in self.nodes.iter().filter(|(_, desired)| desired.source.is_some()) {
            self.backlog.add(node).snapshot = true;
        }
    }

    /// The desired state of a node changed.
    fn touch(&mut self, node: &NodeName) {
        if self.is_synced() {
            self.backlog.add(node);
        }
    }

    /// The plan of an object is in effect, or the object does not exist any more.
    fn planned(&mut self, object: &ObjectKey) {
        if self.incomplete.on_planned(object) {
            self.on_kind_complete();
        }
        if let InitialSync::Pending(objects) = &mut self.initial_sync {
            objects.remove(object);
            self.complete_initial_sync();
        }
    }

    /// Counts a node that was visited because of a plan. Only tests count.
    fn count_visit(&mut self) {
        #[cfg(test)]
        {
            self.visits += 1;
        }
        #[cfg(not(test))]
        let _ = self;
    }

    /// What no object requires leaves the nodes now.
    fn on_kind_complete(&mut self) {
        for (node, desired) in &mut self.nodes {
            desired.held.objects.retain(|key| self.incomplete.protects(key));
            self.backlog.add(node);
        }
    }

    fn complete_initial_sync(&mut self) {
        if !matches!(&self.initial_sync, InitialSync::Pending(objects) if objects.is_empty()) {
            return;
        }
        self.initial_sync = InitialSync::Complete;
        for node in self.nodes.keys() {
            self.backlog.add(node);
        }
    }

    /// Sets how often nodes may send batches. Each gets it with its next index, at the latest with
    /// the answer to its next sync.
    pub fn set_batch_seconds(&mut self, batch_seconds: Option<u32>) {
        self.batch_seconds = batch_seconds;
    }

    /// Replaces all that nodes retain for an object.
    fn set_retained(&mut self, object: &ObjectKey, retained: &Retained) {
        for node in self.retained.remove(object).into_iter().flatten() {
            if !retained.contains_key(&node)
                && let Some(desired) = self.nodes.get_mut(&node)
                && desired.retained.remove(object).is_some()
            {
                self.touch(&node);
            }
        }
        for (node, keys) in retained {
            let desired = self.nodes.entry(node.clone()).or_default();
            let before = desired.retained.insert(object.clone(), Arc::clone(keys));
            if before.as_ref() != Some(keys) {
                self.touch(node);
            }
        }
        if !retained.is_empty() {
            self.retained.insert(object.clone(), retained.keys().cloned().collect());
        }
    }

    fn has_source(&self, node: &NodeName) -> bool {
        self.nodes.get(node).is_some_and(|desired| desired.source.is_some())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::{AgentInstance, EncodedContent, ObjectContent, Replica, Revision};
    use serde_json::json;

    use super::{pending::PendingPlan, *};
    use crate::fleet::contents::encode_contents;

    impl FleetDesired {
        fn set(&mut self, object: &ObjectKey, plan: Requirements, generations: &Generations) {
            self.set_and_keep(object, plan, generations, &Retained::new());
        }

        fn set_and_keep(
            &mut self,
            object: &ObjectKey,
            plan: Requirements,
            generations: &Generations,
            kept: &Retained,
        ) {
            let (object, generations) = (object.clone(), generations.clone());
            let mut plan = PendingPlan::new(object, plan, generations, kept.clone());
            while !self.apply(&mut plan) {}
        }
    }

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
    fn requirements(on: &str, name: &str, value: u32) -> Requirements {
        let model: ObjectKey = "default/models/shared".parse().unwrap();
        let objects =
            [(service(name), content(&service(name), value)), (model.clone(), content(&model, 0))];
        [(node(on), encode_contents(objects.into()))].into()
    }

    type Messages = Vec<(NodeName, DownstreamMessage)>;

    /// The messages of all nodes that wait.
    fn next(desired: &mut FleetDesired, wall_ms: u64) -> Messages {
        let nodes = std::iter::from_fn(|| desired.next(wall_ms));
        nodes.flat_map(|(node, all)| all.into_iter().map(move |one| (node.clone(), one))).collect()
    }

    fn set(desired: &mut FleetDesired, on: &str, name: &str, value: u32) -> Messages {
        desired.set(&service(name), requirements(on, name, value), &Generations::new());
        next(desired, 1)
    }

    fn retain(desired: &mut FleetDesired, name: &str, retained: &Retained) -> Messages {
        desired.retain(&service(name), retained);
        next(desired, 2)
    }

    fn remove(desired: &mut FleetDesired, name: &str) -> Messages {
        desired.remove(&service(name));
        next(desired, 3)
    }

    fn text(messages: &Messages) -> Vec<String> {
        let one = |(node, message): &(NodeName, DownstreamMessage)| match message {
            DownstreamMessage::Insert(key, insert) => {
                format!("{node} + {}={}", key.name, insert.content.content().spec)
            }
            DownstreamMessage::Delete(key, _) => format!("{node} - {}", key.name),
            DownstreamMessage::Index(index) => format!("{node} index {}", index.objects.len()),
        };
        messages.iter().map(one).collect()
    }

    fn synced() -> FleetDesired {
        let mut desired = FleetDesired::default();
        desired.begin_initial_sync(BTreeSet::new(), BTreeSet::new());
        assert!(!desired.has_next());
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
            request_index: false,
            objects: objects.iter().map(listed).collect(),
            departed: BTreeMap::new(),
        }
    }

    #[test]
    fn no_index_is_published_before_every_object_was_planned() {
        let mut desired = FleetDesired::default();
        assert!(set(&mut desired, "edge0", "a", 1).is_empty(), "not known yet");
        let all = [service("a"), service("b"), service("c")].into();
        desired.begin_initial_sync(all, BTreeSet::new());
        assert!(set(&mut desired, "edge0", "a", 1).is_empty());
        desired.on_node_online(&node("idle"));
        desired.on_sync(&node("edge0"), sync(&["a", "b", "old"]), SyncNotices::default());
        desired.republish();
        assert!(!desired.has_next() && next(&mut desired, 1).is_empty());
        assert!(set(&mut desired, "edge0", "b", 1).is_empty());
        let messages = retain(&mut desired, "c", &BTreeMap::new());
        assert_eq!(
            text(&messages),
            [
                "idle index 0",
                "edge0 + a=1",
                "edge0 + b=1",
                // The answer to the pending sync: what it has too much, and what it lacks.
                "edge0 - old",
                "edge0 + shared=0",
                "edge0 index 3",
            ]
        );
    }

    #[test]
    fn notices_before_every_object_was_planned_are_dropped() {
        let mut desired = FleetDesired::default();
        desired.begin_initial_sync([service("a")].into(), BTreeSet::new());
        let gone_uids = |desired: &mut FleetDesired, has_planned| {
            let gone_uids: BTreeSet<_> = ["of an object that may exist".to_owned()].into();
            let notices = SyncNotices { gone_uids, newer_start: None };
            desired.on_sync(&node("edge0"), sync(&["a"]), notices);
            let messages =
                if has_planned { next(desired, 2) } else { set(desired, "edge0", "a", 1) };
            match messages.last() {
                Some((_, DownstreamMessage::Index(index))) => index.gone_uids.len(),
                last => unreachable!("{last:?} is no index"),
            }
        };
        assert_eq!(gone_uids(&mut desired, false), 0, "the node keeps its totals");
        assert_eq!(gone_uids(&mut desired, true), 1);
    }

    #[test]
    fn content_that_changes_before_its_turn_is_sent_once() {
        let mut desired = synced();
        for (name, value) in [("a", 1), ("b", 1), ("a", 2)] {
            desired.set(
                &service(name),
                requirements(&format!("on-{name}"), name, value),
                &Generations::new(),
            );
        }
        let (first, messages) = desired.next(1).unwrap();
        let messages: Messages = messages.into_iter().map(|one| (first.clone(), one)).collect();
        assert_eq!(text(&messages), ["on-a + a=2", "on-a + shared=0", "on-a index 2"]);
        desired.set(&service("a"), requirements("on-a", "a", 3), &Generations::new());
        desired.remove(&service("b"));
        assert_eq!(text(&next(&mut desired, 2)), ["on-b index 0", "on-a + a=3", "on-a index 2"]);
        assert!(!desired.has_next());
    }

    #[test]
    fn node_that_is_kept_has_what_it_had_until_it_is_planned_again() {
        let mut desired = synced();
        let on_both = |value| {
            let mut both = requirements("edge0", "a", value);
            both.extend(requirements("edge1", "a", value));
            both
        };
        desired.set(&service("a"), on_both(1), &Generations::new());
        let _ = next(&mut desired, 1);
        let kept: Retained = [(node("edge1"), Arc::new([service("a")].into()))].into();
        let none = &Generations::new();
        desired.set_and_keep(&service("a"), requirements("edge0", "a", 2), none, &kept);
        let messages = text(&next(&mut desired, 2));
        assert_eq!(messages, ["edge0 + a=2", "edge0 index 2"], "nothing for edge1");
        desired.set(&service("a"), on_both(3), none);
        let messages = text(&next(&mut desired, 3));
        assert!(messages.contains(&"edge1 + a=3".to_owned()), "{messages:?}");
        desired.set_and_keep(&service("a"), requirements("edge0", "a", 3), none, &kept);
        desired.set(&service("a"), requirements("edge0", "a", 3), none);
        let messages = text(&next(&mut desired, 4));
        assert!(messages.contains(&"edge1 - a".to_owned()), "{messages:?}");
    }

    #[test]
    fn republished_node_gets_each_topic_once_with_its_newest_message() {
        let mut desired = synced();
        let _ = (set(&mut desired, "edge0", "a", 1), set(&mut desired, "edge0", "b", 1));
        desired.remove(&service("a"));
        desired.set(&service("b"), requirements("edge0", "b", 2), &Generations::new());
        desired.on_sync(&node("edge0"), sync(&["a"]), SyncNotices::default());
        desired.on_sync(&node("edge0"), sync(&["c"]), SyncNotices::default());
        desired.republish();
        let messages = text(&next(&mut desired, 9));
        let expected = ["- a", "- c", "+ b=2", "+ shared=0", "index 2"];
        assert_eq!(messages, expected.map(|message| format!("edge0 {message}")));
    }

    #[test]
    fn expected_hash_of_a_node_that_waits_is_that_of_its_next_message() {
        let mut desired = FleetDesired::default();
        let hash = |value| Some(content(&service("a"), value).hash());
        let published =
            |desired: &FleetDesired| desired.published_hash(&node("edge0"), &service("a"));
        desired.set(&service("a"), requirements("edge0", "a", 1), &Generations::new());
        assert_eq!(published(&desired), None, "before the initial sync");
        desired.begin_initial_sync([].into(), BTreeSet::new());
        assert_eq!(published(&desired), hash(1));
        let _ = next(&mut desired, 1);
        desired.set(&service("a"), requirements("edge0", "a", 2), &Generations::new());
        assert_eq!(published(&desired), hash(2));
        desired.remove(&service("a"));
        let retained = [(node("edge0"), Arc::new([service("a")].into()))].into();
        desired.retain(&service("a"), &retained);
        assert_eq!(published(&desired), hash(1), "the node keeps what it has");
    }

    #[test]
    fn object_deleted_before_it_was_planned_does_not_block_the_initial_sync() {
        let mut desired = FleetDesired::default();
        desired.begin_initial_sync([service("a")].into(), BTreeSet::new());
        assert!(!desired.is_synced());
        assert!(remove(&mut desired, "a").is_empty());
        assert!(desired.is_synced());
    }

    #[test]
    fn awaited_objects_are_known_until_they_are_planned() {
        let mut desired = FleetDesired::default();
        let model: ObjectKey = MODEL.parse().unwrap();
        desired.begin_initial_sync([service("a")].into(), [Resource::InferenceModels].into());
        desired.on_listed(Resource::InferenceModels, [model.clone()].into());
        let objects = |desired: &FleetDesired| {
            let of_kind = |resource| desired.objects(resource);
            [Resource::JointInferenceServices, Resource::InferenceModels].map(of_kind)
        };
        assert_eq!(objects(&desired), [[service("a")].into(), [model.clone()].into()]);
        assert!(desired.awaits(&service("a")) && desired.awaits(&model));
        desired.retain(&service("a"), &BTreeMap::new());
        desired.remove(&model);
        assert!(desired.is_synced());
        assert_eq!(objects(&desired), [BTreeSet::new(), BTreeSet::new()]);
        assert!(!desired.awaits(&service("a")) && !desired.awaits(&model));
    }

    #[test]
    fn shared_model_stays_while_one_service_uses_it() {
        let mut desired = synced();
        let _ = set(&mut desired, "edge0", "a", 1);
        let messages = set(&mut desired, "edge0", "b", 1);
        assert_eq!(text(&messages), ["edge0 + b=1", "edge0 index 3"]);
        assert!(set(&mut desired, "edge0", "b", 1).is_empty(), "no change");
        assert_eq!(text(&remove(&mut desired, "a")), ["edge0 - a", "edge0 index 2"]);
        let messages = remove(&mut desired, "b");
        assert_eq!(text(&messages), ["edge0 - b", "edge0 - shared", "edge0 index 0"]);
        assert!(desired.plans.is_empty() && desired.nodes[&node("edge0")].objects.is_empty());
    }

    #[test]
    fn plan_with_an_earlier_shared_model_does_not_replace_a_later_one() {
        let model: ObjectKey = "default/models/shared".parse().unwrap();
        let mut desired = synced();
        let mut plan = |name: &str, generation: i64, value: u32, uid: &str| {
            let mut content = content(&model, value);
            uid.clone_into(&mut content.metadata.uid);
            let contents = encode_contents([(model.clone(), content)].into());
            let requirements = [(node("edge0"), contents)].into();
            desired.set(&service(name), requirements, &[(model.clone(), generation)].into());
            text(&next(&mut desired, 1)).first().cloned()
        };
        let sent = |value: u32| Some(format!("edge0 + shared={value}"));
        assert_eq!(plan("a", 2, 20, "u"), sent(20));
        assert_eq!(plan("b", 1, 10, "u"), None, "it was planned before the change");
        assert_eq!(plan("b", 2, 20, "u"), None);
        assert_eq!(plan("b", 3, 30, "u"), sent(30));
        assert_eq!(plan("a", 1, 11, "recreated"), sent(11), "another Model of that name");
    }

    #[test]
    fn moved_worker_is_deleted_from_its_old_node() {
        let mut desired = synced();
        let _ = set(&mut desired, "edge0", "a", 1);
        let mut messages = text(&set(&mut desired, "edge1", "a", 1));
        messages.sort();
        assert_eq!(
            messages,
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
    fn object_that_cannot_be_planned_is_retained_known_or_not() {
        let retained_keys = |messages: &Messages| match messages.last() {
            Some((_, DownstreamMessage::Index(index))) => {
                index.keep.iter().map(|k| k.name.to_string()).collect()
            }
            _ => Vec::new(),
        };
        let mut desired = synced();
        let _ = set(&mut desired, "edge0", "a", 1);
        let retained = [(node("edge0"), Arc::new([service("a")].into()))].into();
        let messages = retain(&mut desired, "a", &retained);
        assert_eq!(
            (text(&messages), retained_keys(&messages)),
            (vec![], vec![]),
            "it is known: nothing changes"
        );
        desired.republish();
        let everything = ["edge0 + a=1", "edge0 + shared=0", "edge0 index 2"];
        assert_eq!(text(&next(&mut desired, 2)), everything);

        let mut fresh = synced();
        let messages = retain(&mut fresh, "a", &retained);
        assert_eq!(text(&messages), ["edge0 index 0"]);
        assert_eq!(retained_keys(&messages), ["a"]);
        assert!(retain(&mut fresh, "a", &retained).is_empty(), "published once");
        let services = fresh.objects(Resource::JointInferenceServices);
        assert_eq!(services, [service("a")].into());
        let messages = set(&mut fresh, "edge0", "a", 1);
        assert_eq!(text(&messages), ["edge0 + a=1", "edge0 + shared=0", "edge0 index 2"]);
        assert_eq!(retained_keys(&messages), Vec::<String>::new());
        let _ = retain(&mut fresh, "b", &retained);
        let messages = remove(&mut fresh, "b");
        assert_eq!(retained_keys(&messages), Vec::<String>::new());
    }

    #[test]
    fn node_without_objects_gets_an_empty_index_that_removes_its_leftovers() {
        let mut desired = synced();
        desired.on_node_online(&node("edge0"));
        assert_eq!(text(&next(&mut desired, 1)), ["edge0 index 0"]);
        desired.on_node_online(&node("edge0"));
        assert!(!desired.has_next());
        desired.on_sync(&node("edge1"), sync(&["old"]), SyncNotices::default());
        assert_eq!(text(&next(&mut desired, 3)), ["edge1 - old", "edge1 index 0"]);
    }

    #[test]
    fn answer_is_hardly_larger_than_the_desired_state() {
        let mut desired = synced();
        let _ = set(&mut desired, "edge0", "a", 1);
        let invented: Vec<_> = (0..1000).map(|n| format!("x{n}")).collect();
        let mut invented: Vec<_> = invented.iter().map(String::as_str).collect();
        invented.push("a");
        desired.on_sync(&node("edge0"), sync(&invented), SyncNotices::default());
        let texts = text(&next(&mut desired, 2));
        assert_eq!(texts.iter().filter(|text| text.starts_with("edge0 - x")).count(), 64);
        assert_eq!(texts[64..], ["edge0 + shared=0", "edge0 index 2"]);
    }

    #[test]
    fn content_of_a_shared_model_is_held_once() {
        let mut desired = synced();
        for n in 0..100 {
            let (name, on) = (format!("s{n}"), format!("edge{n}"));
            let _ = set(&mut desired, &on, &name, 1);
        }
        let shared: ObjectKey = "default/models/shared".parse().unwrap();
        let held = &desired.nodes[&node("edge0")].objects.get(&shared).unwrap().content;
        assert!(held.shares() > 200, "{}", held.shares());
        assert_eq!(desired.contents.by_hash.len(), 101);
        for n in 0..100 {
            let _ = remove(&mut desired, &format!("s{n}"));
        }
        let _ = set(&mut desired, "edge0", "z", 1);
        desired.contents.sweep_at = 0;
        let _ = set(&mut desired, "edge0", "y", 1);
        assert_eq!(desired.contents.by_hash.len(), 3);
    }

    const MODEL: &str = "default/inferencemodels/m";

    /// The objects of an `InferenceModel` on edge0, with the Model that all share.
    fn serving() -> Requirements {
        let keys = [MODEL, "default/models/shared"].map(|key| key.parse::<ObjectKey>().unwrap());
        let contents = keys.map(|key| (key.clone(), content(&key, 0)));
        [(node("edge0"), encode_contents(contents.into()))].into()
    }

    /// The state of a controller before a CRD was missing, and a node that has it: a service, an
    /// `InferenceModel`, a service that was deleted meanwhile, and models of these.
    fn before() -> Replica {
        let mut replica = Replica::default();
        let mut desired = synced();
        desired.set(&service("a"), requirements("edge0", "a", 1), &Generations::new());
        desired.set(&MODEL.parse().unwrap(), serving(), &Generations::new());
        let mut old = requirements("edge0", "old", 1);
        let other: ObjectKey = "default/models/other".parse().unwrap();
        let contents = Arc::make_mut(old.get_mut(&node("edge0")).unwrap());
        contents.insert(other.clone(), EncodedContent::new(&content(&other, 0)));
        desired.set(&service("old"), old, &Generations::new());
        receive(&mut replica, next(&mut desired, 1));
        assert_eq!(held(&replica), ["a", "old", "other", "shared", "m"]);
        replica
    }

    fn receive(replica: &mut Replica, messages: Messages) {
        for (_, message) in messages {
            match message {
                DownstreamMessage::Insert(key, insert) => drop(replica.insert(&key, insert.into())),
                DownstreamMessage::Delete(key, delete) => drop(replica.delete(&key, &delete)),
                DownstreamMessage::Index(index) => drop(replica.index_received(index)),
            }
        }
    }

    fn held(replica: &Replica) -> Vec<String> {
        replica.objects().keys().map(|key| key.name.to_string()).collect()
    }

    fn incomplete(resource: Resource) -> FleetDesired {
        let mut desired = FleetDesired::default();
        desired.begin_initial_sync([service("a")].into(), [resource].into());
        desired.set(&service("a"), requirements("edge0", "a", 1), &Generations::new());
        desired
    }

    fn sync_of(replica: &Replica) -> Sync {
        replica.sync(AgentInstance("i".to_owned()), 1)
    }

    #[test]
    fn objects_of_an_unknown_kind_stay_on_the_node_and_others_go() {
        let mut replica = before();
        let mut desired = incomplete(Resource::InferenceModels);
        desired.on_node_online(&node("edge0"));
        receive(&mut replica, next(&mut desired, 10));
        assert_eq!(held(&replica), ["a", "old", "other", "shared", "m"], "no sync yet");
        desired.set(&service("a"), requirements("edge0", "a", 2), &Generations::new());
        desired.republish();
        let messages = next(&mut desired, 11);
        assert_eq!(text(&messages), ["edge0 + a=2", "edge0 + shared=0"], "works without an index");
        receive(&mut replica, messages);
        desired.on_sync(&node("edge0"), sync_of(&replica), SyncNotices::default());
        receive(&mut replica, next(&mut desired, 12));
        assert_eq!(
            held(&replica),
            ["a", "other", "shared", "m"],
            "only the service is known to be gone"
        );
        assert!(replica.is_complete());

        // A service is deleted; the model may be the InferenceModel's too.
        desired.remove(&service("a"));
        receive(&mut replica, next(&mut desired, 13));
        assert_eq!(held(&replica), ["other", "shared", "m"]);
        desired.on_sync(&node("edge0"), sync_of(&replica), SyncNotices::default());
        receive(&mut replica, next(&mut desired, 14));
        assert_eq!(held(&replica), ["other", "shared", "m"]);

        // The CRD appears with its object.
        desired.on_listed(Resource::InferenceModels, [MODEL.parse().unwrap()].into());
        receive(&mut replica, next(&mut desired, 15));
        assert_eq!(held(&replica), ["other", "shared", "m"], "not planned yet");
        desired.set(&MODEL.parse().unwrap(), serving(), &Generations::new());
        receive(&mut replica, next(&mut desired, 16));
        assert_eq!(held(&replica), ["shared", "m"]);
        assert!(replica.is_complete());
    }

    #[test]
    fn kind_that_appears_without_objects_leaves_nothing_on_the_node() {
        let mut replica = before();
        let mut desired = incomplete(Resource::InferenceModels);
        receive(&mut replica, next(&mut desired, 10));
        // The node has not sent a sync since the start of the controller.
        desired.on_listed(Resource::InferenceModels, BTreeSet::new());
        receive(&mut replica, next(&mut desired, 11));
        assert_eq!(held(&replica), ["a", "shared"]);
        assert!(replica.is_complete() && !desired.has_next());
    }

    #[test]
    fn kind_that_is_listed_before_the_start_is_complete() {
        let mut desired = FleetDesired::default();
        desired.on_listed(Resource::InferenceModels, BTreeSet::new());
        desired.begin_initial_sync(BTreeSet::new(), [Resource::InferenceModels].into());
        desired.on_listed(Resource::InferenceModels, BTreeSet::new());
        assert_eq!(text(&set(&mut desired, "edge0", "a", 1)).last().unwrap(), "edge0 index 2");
    }

    #[test]
    fn restarted_controller_computes_equal_hashes() {
        let hashes = |wall_ms| {
            let mut desired = synced();
            desired.set(&service("a"), requirements("edge0", "a", 1), &Generations::new());
            next(&mut desired, wall_ms)
                .into_iter()
                .filter_map(|(_, message)| match message {
                    DownstreamMessage::Insert(key, insert) => {
                        Some((key, insert.content.hash().clone()))
                    }
                    _ => None,
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(hashes(1), hashes(1_000_000));
        assert_eq!(hashes(1).len(), 2);
    }
}
