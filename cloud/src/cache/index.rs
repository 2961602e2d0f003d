//! A cache that also finds objects by what they refer to, so that a change of a node, a model or a
//! workload visits only the objects that it may affect.

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Debug,
    ops::Deref,
    sync::{Arc, PoisonError, RwLock},
};

use kube::{
    Resource, ResourceExt as _,
    runtime::reflector::{ObjectRef, Store},
};
use neptune_wire::Resource as WireResource;
use tokio::sync::watch::Receiver;

use super::listing::Listing;

/// What an object refers to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum IndexKey {
    /// A change of this node may affect the object.
    Node(String),
    /// A change of any node may.
    EveryNode,
    /// Its spec names this object.
    Uses(WireResource, String, String),
    /// Its spec selects objects of kind `Model` in this namespace by labels.
    SelectsModels(String),
    /// Its spec may use any object of this kind in the namespace.
    UsesAny(WireResource, String),
    /// Its status names this service, by namespace and name, as a user.
    UsedBy(String, String),
    /// Any service may be a user.
    UsedByAny,
    /// Its controller is the object with this uid.
    Owner(String),
    /// Its owner is the object of this kind, namespace and name.
    OwnerName(WireResource, String, String),
}

/// An object that is found by its keys.
pub trait Indexed {
    /// All keys of the object.
    fn index_keys(&self) -> Vec<IndexKey>;
}

type ObjectId = Arc<(String, String)>;

#[derive(Debug, Default)]
struct Index {
    by_key: HashMap<Arc<IndexKey>, BTreeSet<ObjectId>>,
    /// The keys of each object. Thousands of objects may have the same key.
    keys: HashMap<ObjectId, Box<[Arc<IndexKey>]>>,
}

/// A cache with an index. Cheap to clone.
#[derive(Debug)]
pub struct IndexedStore<K: Resource<DynamicType = ()> + 'static> {
    store: Store<K>,
    index: Arc<RwLock<Index>>,
    listing: Receiver<Listing>,
}

impl<K: Resource<DynamicType = ()> + 'static> Clone for IndexedStore<K> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            index: Arc::clone(&self.index),
            listing: self.listing.clone(),
        }
    }
}

impl<K: Resource<DynamicType = ()> + 'static> Deref for IndexedStore<K> {
    type Target = Store<K>;

    fn deref(&self) -> &Store<K> {
        &self.store
    }
}

impl<K: Resource<DynamicType = ()> + Indexed + Clone + 'static> IndexedStore<K> {
    /// An empty index over a cache. `listing` has what of it is known.
    pub fn new(store: Store<K>, listing: Receiver<Listing>) -> Self {
        Self { store, index: Arc::default(), listing }
    }

    /// What is known of the objects.
    pub fn listing(&self) -> Listing {
        *self.listing.borrow()
    }

    /// Resolves when the cache and its index are complete, or the CRD of the kind is missing.
    pub async fn ready(&self) {
        // The writer lives in a separate task. The only error is that it ended, at shutdown.
        drop(self.listing.clone().wait_for(|listing| listing.is_decided()).await);
    }

    /// The cache without its index.
    pub fn store(&self) -> &Store<K> {
        &self.store
    }

    /// The objects with this key.
    pub fn with_key(&self, key: &IndexKey) -> Vec<Arc<K>> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let ids: Vec<ObjectId> = index.by_key.get(key).into_iter().flatten().cloned().collect();
        drop(index);
        ids.iter().filter_map(|id| self.get(&ObjectRef::new(&id.1).within(&id.0))).collect()
    }

    /// The objects that a change of the node may affect.
    pub fn on_node(&self, node: &str) -> Vec<Arc<K>> {
        let mut found = self.with_key(&IndexKey::Node(node.to_owned()));
        found.extend(self.with_key(&IndexKey::EveryNode));
        found
    }

    /// Records an object that the cache has now.
    pub fn apply(&self, object: &K) {
        let id = Arc::new((object.namespace().unwrap_or_default(), object.name_any()));
        self.write(|index| index.set(id, object.index_keys()));
    }

    /// Records that the cache no longer has an object.
    pub fn delete(&self, object: &K) {
        let id = Arc::new((object.namespace().unwrap_or_default(), object.name_any()));
        self.write(|index| index.set(id, Vec::new()));
    }

    /// Records all objects of the cache and forgets the others.
    pub fn rebuild(&self) {
        let mut new = Index::default();
        for object in self.store.state() {
            let id = Arc::new((object.namespace().unwrap_or_default(), object.name_any()));
            new.set(id, object.index_keys());
        }
        self.write(|index| *index = new);
    }

    fn write(&self, change: impl FnOnce(&mut Index)) {
        change(&mut self.index.write().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Index {
    fn set(&mut self, id: ObjectId, mut keys: Vec<IndexKey>) {
        keys.dedup();
        let held = self.keys.get(&id).map(|held| &**held).unwrap_or_default();
        if held.iter().map(|key| &**key).eq(&keys) {
            return;
        }
        for key in self.keys.remove(&id).into_iter().flatten() {
            if let Some(ids) = self.by_key.get_mut(&key) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.by_key.remove(&key);
                }
            }
        }
        let keys: Box<[_]> = keys.into_iter().map(|key| self.add(key, &id)).collect();
        if !keys.is_empty() {
            self.keys.insert(id, keys);
        }
    }

    /// Adds an object to a key. Returns the key that all its objects share.
    fn add(&mut self, key: IndexKey, id: &ObjectId) -> Arc<IndexKey> {
        let shared = self.by_key.get_key_value(&key).map(|(held, _)| Arc::clone(held));
        let shared = shared.unwrap_or_else(|| Arc::new(key));
        self.by_key.entry(Arc::clone(&shared)).or_default().insert(Arc::clone(id));
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> ObjectId {
        Arc::new(("default".to_owned(), name.to_owned()))
    }

    fn on(node: &str) -> IndexKey {
        IndexKey::Node(node.to_owned())
    }

    #[test]
    fn change_of_a_node_visits_only_its_objects() {
        let mut index = Index::default();
        for n in 0..1000 {
            index.set(id(&format!("s{n}")), vec![on(&format!("edge{n}")), IndexKey::EveryNode]);
        }
        assert_eq!(index.by_key[&on("edge7")].len(), 1);
        index.set(id("s7"), vec![on("edge8")]);
        assert!(!index.by_key.contains_key(&on("edge7")), "an unused key is forgotten");
        assert_eq!(index.by_key[&on("edge8")].len(), 2);
        for n in 0..1000 {
            index.set(id(&format!("s{n}")), Vec::new());
        }
        assert!(index.by_key.is_empty() && index.keys.is_empty());
    }
}
