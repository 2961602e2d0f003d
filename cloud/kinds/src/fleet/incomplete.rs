//! The kinds whose objects are not all known and planned, because their CRD is missing or was
//! missing at the start. What a node has because of such an object stays on the node: the object
//! may exist.

use std::collections::{BTreeMap, BTreeSet};

use neptune_wire::{EncodedContent, ObjectKey, Resource, Sync};

/// Resources that objects of other kinds require too.
const SHARED: [Resource; 2] = [Resource::Models, Resource::Datasets];

/// Whether objects of other kinds may require this one too.
pub fn is_shared(key: &ObjectKey) -> bool {
    SHARED.contains(&key.resource)
}

/// The kinds whose objects are not all known and planned.
#[derive(Debug, Default)]
pub struct Incomplete(BTreeMap<Resource, Unplanned>);

#[derive(Debug)]
enum Unplanned {
    /// It is not known which objects of the kind exist.
    Unknown,
    /// These objects exist and were not planned yet.
    Objects(BTreeSet<ObjectKey>),
}

impl Incomplete {
    /// The objects of these kinds are not known.
    pub fn new(resources: BTreeSet<Resource>) -> Self {
        Self(resources.into_iter().map(|resource| (resource, Unplanned::Unknown)).collect())
    }

    /// Whether every kind is complete.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a node that has this object keeps it, although no planned object requires it.
    pub fn protects(&self, key: &ObjectKey) -> bool {
        self.0.contains_key(&key.resource) || !self.0.is_empty() && is_shared(key)
    }

    /// The objects of a kind are known. Returns whether the kind is complete now.
    pub fn on_listed(&mut self, resource: Resource, objects: BTreeSet<ObjectKey>) -> bool {
        let Some(unplanned @ Unplanned::Unknown) = self.0.get_mut(&resource) else { return false };
        if objects.is_empty() {
            return self.0.remove(&resource).is_some();
        }
        *unplanned = Unplanned::Objects(objects);
        false
    }

    /// The objects that exist and were not planned yet.
    pub fn unplanned(&self) -> impl Iterator<Item = &ObjectKey> {
        let known = self.0.values().filter_map(|unplanned| match unplanned {
            Unplanned::Unknown => None,
            Unplanned::Objects(objects) => Some(objects),
        });
        known.flatten()
    }

    /// Whether this object exists and was not planned yet.
    pub fn awaits(&self, object: &ObjectKey) -> bool {
        matches!(
            self.0.get(&object.resource),
            Some(Unplanned::Objects(objects)) if objects.contains(object)
        )
    }

    /// An object was planned or removed. Returns whether its kind is complete now.
    pub fn on_planned(&mut self, object: &ObjectKey) -> bool {
        let Some(Unplanned::Objects(objects)) = self.0.get_mut(&object.resource) else {
            return false;
        };
        objects.remove(object);
        objects.is_empty() && self.0.remove(&object.resource).is_some()
    }
}

/// What a node has because of objects that are not known, while kinds are incomplete.
#[derive(Debug, Default)]
pub struct Found {
    /// The node has sent a sync.
    pub has_synced: bool,
    /// What it had of these kinds at its last sync, and what was dropped since.
    pub objects: BTreeSet<ObjectKey>,
    /// An index was not published, because the node has not sent a sync.
    pub owes_index: bool,
}

impl Found {
    /// Records what the node has by its sync, and what it should no longer have although an object
    /// that is not known may require it.
    pub fn update(
        &mut self,
        incomplete: &Incomplete,
        sync: Option<&Sync>,
        changed: &BTreeMap<ObjectKey, Option<EncodedContent>>,
    ) {
        if incomplete.is_empty() {
            return;
        }
        if let Some(sync) = sync {
            self.has_synced = true;
            self.objects = sync.objects.keys().cloned().collect();
        }
        let dropped = changed.iter().filter(|(_, content)| content.is_none());
        self.objects.extend(dropped.map(|(key, _)| key.clone()));
        self.objects.retain(|key| incomplete.protects(key));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn key(text: &str) -> ObjectKey {
        format!("default/{text}").parse().unwrap()
    }

    #[test]
    fn kind_is_complete_when_each_object_was_planned() {
        let mut incomplete = Incomplete::new([Resource::InferenceModels].into());
        let (a, b) = (key("inferencemodels/a"), key("inferencemodels/b"));
        assert!(!incomplete.on_planned(&a), "not listed yet");
        assert!(!incomplete.on_listed(Resource::InferenceModels, [a.clone(), b.clone()].into()));
        assert!(!incomplete.on_listed(Resource::InferenceModels, BTreeSet::new()), "only once");
        assert!(!incomplete.on_planned(&a) && !incomplete.on_planned(&key("models/b")));
        assert!(incomplete.on_planned(&b) && incomplete.is_empty());
        assert!(!incomplete.on_planned(&b));
    }

    #[test]
    fn listed_kind_without_objects_is_complete() {
        let mut incomplete = Incomplete::new([Resource::Models, Resource::Datasets].into());
        assert!(incomplete.on_listed(Resource::Models, BTreeSet::new()));
        assert!(!incomplete.on_listed(Resource::TrainingModels, BTreeSet::new()));
        assert!(incomplete.protects(&key("models/m")), "of another incomplete kind");
        assert!(incomplete.on_listed(Resource::Datasets, BTreeSet::new()));
        assert!(!incomplete.protects(&key("models/m")));
    }

    #[test]
    fn objects_of_incomplete_kinds_and_what_they_share_are_protected() {
        let incomplete = Incomplete::new([Resource::TrainingModels].into());
        for (text, expected) in [
            ("trainingmodels/t", true),
            ("models/m", true),
            ("datasets/d", true),
            ("jointinferenceservices/s", false),
            ("inferencemodels/i", false),
            ("peers/edge0", false),
        ] {
            assert_eq!(incomplete.protects(&key(text)), expected, "{text}");
        }
    }
}
