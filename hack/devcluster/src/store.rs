//! The objects in memory, the version counter, and the recent changes for watches. Pure.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use serde_json::Value;

use crate::object::{self, ObjectKey};

/// Number of changes in the history. Watches from an older version get 410 Expired.
pub const HISTORY: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    Added,
    Modified,
    Deleted,
}

/// One write in the history.
#[derive(Debug, Clone)]
pub struct Change {
    pub version: u64,
    pub kind: ChangeKind,
    pub storage: Arc<str>,
    /// The object after the write; for a delete the last state, with the version of the delete.
    pub object: Arc<Value>,
    pub previous: Option<Arc<Value>>,
}

/// The requested version is older than the history.
#[derive(Debug, PartialEq, Eq)]
pub struct Compacted {
    pub oldest: u64,
}

pub type Objects = BTreeMap<ObjectKey, Arc<Value>>;

#[derive(Debug)]
pub struct Store {
    version: u64,
    objects: HashMap<Arc<str>, Objects>,
    history: VecDeque<Change>,
    limit: usize,
    /// Versions up to this one are no longer in the history.
    compacted: u64,
}

impl Store {
    pub fn new(limit: usize) -> Self {
        Self { version: 0, objects: HashMap::new(), history: VecDeque::new(), limit, compacted: 0 }
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn get(&self, storage: &str, key: &ObjectKey) -> Option<Arc<Value>> {
        self.objects.get(storage)?.get(key).cloned()
    }

    /// Objects of a kind in the order of their keys, of one or all namespaces.
    pub fn list<'a>(
        &'a self,
        storage: &str,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Arc<Value>> {
        self.objects
            .get(storage)
            .into_iter()
            .flatten()
            .filter(move |(key, _)| namespace.is_none_or(|wanted| key.namespace == wanted))
            .map(|(_, object)| object)
    }

    /// Objects of a kind as they were at a version, by their keys.
    pub fn list_at(&self, storage: &str, version: u64) -> Result<Objects, Compacted> {
        let mut objects = self.objects.get(storage).cloned().unwrap_or_default();
        let later: Vec<_> = self.since(version)?.collect();
        for change in later.into_iter().rev().filter(|change| *change.storage == *storage) {
            let key = ObjectKey::from_object(&change.object);
            match &change.previous {
                Some(previous) => objects.insert(key, previous.clone()),
                None => objects.remove(&key),
            };
        }
        Ok(objects)
    }

    /// All objects with the key of their kind.
    pub fn all(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<Value>)> {
        self.objects
            .iter()
            .flat_map(|(storage, objects)| objects.values().map(move |object| (storage, object)))
    }

    /// Creates or replaces an object, and sets its version.
    pub fn put(&mut self, storage: &str, mut value: Value) -> Arc<Value> {
        self.version += 1;
        object::set_meta(&mut value, "resourceVersion", Some(self.version.to_string().into()));
        let value = Arc::new(value);
        let storage: Arc<str> = self.storage_name(storage);
        let previous = self
            .objects
            .entry(storage.clone())
            .or_default()
            .insert(ObjectKey::from_object(&value), value.clone());
        let kind = if previous.is_some() { ChangeKind::Modified } else { ChangeKind::Added };
        self.record(Change {
            version: self.version,
            kind,
            storage,
            object: value.clone(),
            previous,
        });
        value
    }

    /// Removes an object and returns its last state with the version of the delete.
    pub fn remove(&mut self, storage: &str, key: &ObjectKey) -> Option<Arc<Value>> {
        let previous = self.objects.get_mut(storage)?.remove(key)?;
        self.version += 1;
        let mut last = Value::clone(&previous);
        object::set_meta(&mut last, "resourceVersion", Some(self.version.to_string().into()));
        let last = Arc::new(last);
        let storage = self.storage_name(storage);
        let change = Change {
            version: self.version,
            kind: ChangeKind::Deleted,
            storage,
            object: last.clone(),
            previous: Some(previous),
        };
        self.record(change);
        Some(last)
    }

    fn storage_name(&self, storage: &str) -> Arc<str> {
        self.objects.get_key_value(storage).map_or_else(|| storage.into(), |(name, _)| name.clone())
    }

    fn record(&mut self, change: Change) {
        if self.history.len() == self.limit
            && let Some(oldest) = self.history.pop_front()
        {
            self.compacted = oldest.version;
        }
        self.history.push_back(change);
    }

    /// The changes after a version, oldest first.
    pub fn since(&self, version: u64) -> Result<impl Iterator<Item = &Change>, Compacted> {
        if version < self.compacted {
            return Err(Compacted { oldest: self.compacted });
        }
        let start = self.history.partition_point(|change| change.version <= version);
        Ok(self.history.range(start..))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn named(name: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "default"}})
    }

    #[test]
    fn every_write_takes_the_next_version() {
        let mut store = Store::new(8);
        let first = store.put("pods", named("a"));
        let second = store.put("nodes", named("b"));
        assert_eq!(
            (
                object::meta_str(&first, "resourceVersion"),
                object::meta_str(&second, "resourceVersion")
            ),
            ("1", "2")
        );
        let removed = store.remove("pods", &ObjectKey::new("default", "a")).unwrap();
        assert_eq!(object::meta_str(&removed, "resourceVersion"), "3");
        assert!(store.get("pods", &ObjectKey::new("default", "a")).is_none());
    }

    #[test]
    fn changes_are_added_modified_or_deleted() {
        let mut store = Store::new(8);
        store.put("pods", named("a"));
        store.put("pods", named("a"));
        store.remove("pods", &ObjectKey::new("default", "a"));
        let kinds: Vec<ChangeKind> = store.since(0).unwrap().map(|change| change.kind).collect();
        assert_eq!(kinds, [ChangeKind::Added, ChangeKind::Modified, ChangeKind::Deleted]);
        assert_eq!(store.since(2).unwrap().count(), 1);
    }

    #[test]
    fn list_at_an_earlier_version_undoes_later_changes() {
        let mut store = Store::new(4);
        for name in ["a", "b"] {
            store.put("pods", named(name));
        }
        store.put("pods", named("a"));
        store.remove("pods", &ObjectKey::new("default", "b"));
        store.put("nodes", named("c"));
        store.put("pods", named("d"));
        let listed = |version| {
            let objects = store.list_at("pods", version)?;
            let text = |object: &Arc<Value>| {
                let version = object::meta_str(object, "resourceVersion");
                format!("{}@{version}", object::name(object))
            };
            Ok::<_, Compacted>(objects.values().map(text).collect::<Vec<_>>())
        };
        assert_eq!(listed(6).unwrap(), ["a@3", "d@6"]);
        assert_eq!(listed(4).unwrap(), ["a@3"]);
        assert_eq!(listed(2).unwrap(), ["a@1", "b@2"]);
        assert_eq!(listed(1), Err(Compacted { oldest: 2 }));
    }

    #[test]
    fn version_before_the_history_is_compacted() {
        let mut store = Store::new(2);
        for name in ["a", "b", "c", "d"] {
            store.put("pods", named(name));
        }
        assert_eq!(store.since(1).err(), Some(Compacted { oldest: 2 }));
        assert_eq!(store.since(2).unwrap().count(), 2);
    }
}
