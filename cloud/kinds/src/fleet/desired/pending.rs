//! The plan of an object on its way into the desired state. A plan of thousands of nodes takes
//! effect in parts, so that the messages of other nodes never wait for all of it. A node for which
//! the plan is the same as before costs a comparison of pointers.

use std::{sync::Arc, vec};

use neptune_wire::{NodeName, ObjectKey};

use super::{FleetDesired, Generations, NodeContents, Planned, Requirements, Retained};

/// Nodes whose desired state changes at a time.
const NODES_PER_PART: usize = 256;

/// A plan that takes effect by calls of [`FleetDesired::apply`].
#[derive(Debug)]
pub struct PendingPlan {
    object: ObjectKey,
    generations: Arc<Generations>,
    kept: Retained,
    stage: Stage,
    /// The contents of the last node, and the same with the texts that other objects have.
    last: Option<(NodeContents, NodeContents)>,
}

#[derive(Debug)]
enum Stage {
    /// Nothing has taken effect.
    New(Requirements),
    /// These nodes do not have the plan yet. Those without contents are no longer in it.
    Changes(vec::IntoIter<(NodeName, Option<NodeContents>)>),
}

impl PendingPlan {
    /// Everything that an object requires now. Of objects that others require too, a content of an
    /// earlier generation does not replace a later one: the plan may have been made before theirs.
    /// The nodes in `kept`, for which nothing is required, keep what they have of the object, also
    /// if this controller never planned it.
    pub fn new(
        object: ObjectKey,
        requirements: Requirements,
        generations: Generations,
        kept: Retained,
    ) -> Self {
        let (generations, stage) = (Arc::new(generations), Stage::New(requirements));
        Self { object, generations, kept, stage, last: None }
    }
}

impl FleetDesired {
    /// Brings the next part of a plan into effect. Returns whether that was the last one.
    pub fn apply(&mut self, plan: &mut PendingPlan) -> bool {
        if let Stage::New(requirements) = &mut plan.stage {
            let requirements = std::mem::take(requirements);
            self.set_retained(&plan.object, &plan.kept);
            plan.stage = Stage::Changes(self.changes(plan, requirements).into_iter());
        }
        for _ in 0..NODES_PER_PART {
            let Stage::Changes(changes) = &mut plan.stage else { return true };
            match changes.next() {
                Some((node, Some(contents))) => {
                    let contents = self.interned(contents, &mut plan.last);
                    self.require(&plan.object, &node, &contents, &plan.generations);
                }
                Some((node, None)) => self.withdraw_from(&plan.object, &node),
                None => {
                    self.planned(&plan.object);
                    return true;
                }
            }
        }
        false
    }

    /// What differs between a plan and the one before, by node.
    fn changes(
        &mut self,
        plan: &mut PendingPlan,
        requirements: Requirements,
    ) -> Vec<(NodeName, Option<NodeContents>)> {
        let before = self.plans.entry(plan.object.clone()).or_default();
        if let Some((_, first)) = before.first_key_value()
            && first.generations == plan.generations
        {
            plan.generations = Arc::clone(&first.generations);
        }
        let mut changes = Vec::new();
        let mut comparison = Comparison::default();
        let mut earlier = before.iter().peekable();
        let leave = |node: &NodeName| {
            let is_kept = plan.kept.contains_key(node);
            (!is_kept).then(|| (node.clone(), None))
        };
        for (node, contents) in requirements {
            while let Some((gone, _)) = earlier.next_if(|(name, _)| **name < node) {
                changes.extend(leave(gone));
            }
            let known = earlier.next_if(|(name, _)| **name == node).map(|(_, known)| known);
            let is_same = known.is_some_and(|known| {
                Arc::ptr_eq(&known.generations, &plan.generations)
                    && comparison.are_equal(&known.contents, &contents)
                    && !self.contested.contains(&node)
                    && !self.delayed.contains(&node)
            });
            if !is_same {
                changes.push((node, Some(contents)));
            }
        }
        changes.extend(earlier.filter_map(|(gone, _)| leave(gone)));
        changes
    }

    /// The contents with the texts that other objects have. Most nodes of a plan have the same.
    fn interned(
        &mut self,
        contents: NodeContents,
        last: &mut Option<(NodeContents, NodeContents)>,
    ) -> NodeContents {
        if let Some((given, interned)) = last
            && NodeContents::ptr_eq(given, &contents)
        {
            return NodeContents::clone(interned);
        }
        let interned = self.contents.intern_all(&contents);
        *last = Some((contents, NodeContents::clone(&interned)));
        interned
    }

    /// A node should have these contents because of an object, and nothing else because of it.
    fn require(
        &mut self,
        object: &ObjectKey,
        node: &NodeName,
        contents: &NodeContents,
        generations: &Arc<Generations>,
    ) {
        self.count_visit();
        let mut is_changed = false;
        let desired = self.nodes.entry(node.clone()).or_default();
        for (key, content) in &**contents {
            let generation = generations.get(key).copied();
            is_changed |= desired.require(object, key, (content, generation));
        }
        let plan = self.plans.entry(object.clone()).or_default();
        let planned =
            Planned { contents: Arc::clone(contents), generations: Arc::clone(generations) };
        let before = plan.insert(node.clone(), planned);
        for key in before.iter().flat_map(|before| before.contents.keys()) {
            if !contents.contains_key(key) {
                desired.drop_requirement(object, key);
                is_changed = true;
            }
        }
        let is_contested = desired.is_contested();
        self.set_contested(node, is_contested);
        if is_changed {
            self.touch(node);
        }
    }

    /// Sets whether objects require different contents on a node.
    fn set_contested(&mut self, node: &NodeName, is_contested: bool) {
        if is_contested {
            self.contested.insert(node.clone());
        } else {
            self.contested.remove(node);
        }
    }

    /// A node should have nothing because of an object.
    pub(super) fn withdraw_from(&mut self, object: &ObjectKey, node: &NodeName) {
        let planned = self.plans.get_mut(object).and_then(|plan| plan.remove(node));
        if let Some(planned) = planned {
            self.drop_contents(object, node, &planned.contents);
        }
    }

    /// No node should have anything because of an object.
    pub(super) fn withdraw_all(&mut self, object: &ObjectKey) {
        for (node, planned) in self.plans.remove(object).into_iter().flatten() {
            self.drop_contents(object, &node, &planned.contents);
        }
    }

    fn drop_contents(&mut self, object: &ObjectKey, node: &NodeName, contents: &NodeContents) {
        self.count_visit();
        if let Some(desired) = self.nodes.get_mut(node) {
            contents.keys().for_each(|key| desired.drop_requirement(object, key));
            let is_contested = desired.is_contested();
            self.set_contested(node, is_contested);
        }
        if !contents.is_empty() {
            self.touch(node);
        }
    }
}

/// Compares contents. Most nodes of a plan have the same ones, which are compared once.
#[derive(Default)]
struct Comparison(Option<(NodeContents, NodeContents, bool)>);

impl Comparison {
    fn are_equal(&mut self, known: &NodeContents, contents: &NodeContents) -> bool {
        if let Some((first, second, are_equal)) = &self.0
            && Arc::ptr_eq(first, known)
            && Arc::ptr_eq(second, contents)
        {
            return *are_equal;
        }
        let mut pairs = known.iter().zip(&**contents);
        let are_equal = known.len() == contents.len()
            && pairs.all(|((a, known), (b, given))| a == b && known.is_same(given));
        self.0 = Some((Arc::clone(known), Arc::clone(contents), are_equal));
        are_equal
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{collections::BTreeSet, sync::Arc};

    use neptune_wire::ObjectContent;
    use serde_json::json;

    use super::*;
    use crate::fleet::contents::encode_contents;

    fn service(name: &str) -> ObjectKey {
        format!("default/jointinferenceservices/{name}").parse().unwrap()
    }

    fn node(at: usize) -> NodeName {
        format!("edge{at:05}").parse().unwrap()
    }

    fn contents(name: &str, value: u32) -> NodeContents {
        let key = service(name);
        let content: ObjectContent = serde_json::from_value(json!({
            "apiVersion": "v", "kind": "k", "spec": value,
            "metadata": {"namespace": "default", "name": name, "uid": "u"},
        }))
        .unwrap();
        encode_contents([(key, content)].into())
    }

    /// A plan of equal contents on the first nodes.
    fn plan(name: &str, value: u32, nodes: usize) -> PendingPlan {
        let contents = contents(name, value);
        let requirements = (0..nodes).map(|at| (node(at), Arc::clone(&contents))).collect();
        PendingPlan::new(service(name), requirements, Generations::new(), Retained::new())
    }

    fn apply(desired: &mut FleetDesired, mut plan: PendingPlan) -> usize {
        1 + std::iter::repeat_with(|| desired.apply(&mut plan)).take_while(|done| !done).count()
    }

    fn synced() -> FleetDesired {
        let mut desired = FleetDesired::default();
        desired.begin_initial_sync(BTreeSet::new(), BTreeSet::new());
        desired
    }

    fn messages(desired: &mut FleetDesired) -> usize {
        std::iter::from_fn(|| desired.next(1)).map(|(_, messages)| messages.len()).sum()
    }

    #[test]
    fn plan_of_many_nodes_takes_effect_in_parts_and_visits_each_once() {
        let mut desired = synced();
        let mut first = plan("a", 1, 1000);
        assert!(!desired.apply(&mut first));
        assert_eq!(desired.visits, NODES_PER_PART);
        assert_eq!(messages(&mut desired), 2 * NODES_PER_PART, "they do not wait for the others");
        while !desired.apply(&mut first) {}
        assert_eq!((desired.visits, messages(&mut desired)), (1000, 2 * (1000 - NODES_PER_PART)));
        let texts: BTreeSet<_> =
            desired.plans[&service("a")].values().map(|it| Arc::as_ptr(&it.contents)).collect();
        assert_eq!(texts.len(), 1, "all nodes share them");
    }

    #[test]
    fn node_that_joins_or_leaves_is_the_only_one_with_messages() {
        let mut desired = synced();
        apply(&mut desired, plan("a", 1, 999));
        messages(&mut desired);
        desired.visits = 0;
        apply(&mut desired, plan("a", 1, 1000));
        assert_eq!((desired.visits, messages(&mut desired)), (1, 2), "the others are the same");
        apply(&mut desired, plan("a", 1, 999));
        assert_eq!(messages(&mut desired), 2, "a deletion and the index");
        assert_eq!(desired.plans[&service("a")].len(), 999);
    }

    #[test]
    fn equal_plan_counts_where_another_object_left_its_content() {
        let mut desired = synced();
        let of_model = |name: &str, value: u32| {
            let requirements = [(node(0), contents("shared", value))].into();
            PendingPlan::new(service(name), requirements, Generations::new(), Retained::new())
        };
        apply(&mut desired, of_model("a", 1));
        apply(&mut desired, of_model("b", 2));
        desired.remove(&service("b"));
        apply(&mut desired, of_model("a", 1));
        messages(&mut desired);
        let hash = contents("shared", 1)[&service("shared")].hash().clone();
        assert_eq!(desired.published_hash(&node(0), &service("shared")), Some(hash));
        desired.visits = 0;
        apply(&mut desired, of_model("a", 1));
        assert_eq!(desired.visits, 0);
    }

    #[test]
    fn removal_visits_only_nodes_of_the_object() {
        let mut desired = synced();
        apply(&mut desired, plan("a", 1, 1000));
        apply(&mut desired, plan("b", 1, 3));
        messages(&mut desired);
        desired.visits = 0;
        desired.withdraw(&service("a"), &[node(7)].into());
        assert_eq!((desired.visits, messages(&mut desired)), (1, 2));
        desired.remove(&service("b"));
        assert_eq!((desired.visits, messages(&mut desired)), (4, 6));
    }

    #[test]
    fn object_deleted_while_its_plan_takes_effect_leaves_nothing() {
        let mut desired = synced();
        let mut first = plan("a", 1, 600);
        assert!(!desired.apply(&mut first));
        desired.remove(&service("a"));
        while !desired.apply(&mut first) {}
        // A reconcile of a deleted object ends with another removal.
        desired.remove(&service("a"));
        messages(&mut desired);
        assert!(desired.plans.is_empty());
        let has = |at| desired.published_hash(&node(at), &service("a")).is_some();
        assert!(!(0..600).any(has));
    }

    #[test]
    fn later_plan_replaces_contents_on_every_node() {
        let mut desired = synced();
        apply(&mut desired, plan("a", 1, 300));
        messages(&mut desired);
        apply(&mut desired, plan("a", 2, 300));
        let hash = contents("a", 2)[&service("a")].hash().clone();
        let has = |at| desired.published_hash(&node(at), &service("a")).as_ref() == Some(&hash);
        assert!((0..300).all(has));
        assert_eq!(messages(&mut desired), 600);
    }
}
