//! A cache that also finds objects by what they refer to, so that a change of a node, a model or a
//! workload visits only the objects that it may affect.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
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
    /// A change of any Node object may, for example of its address; a change of its agent does not.
    EveryNodeObject,
    /// Its spec names this object.
    Uses(WireResource, String, String),
    /// Its spec selects objects of kind `Model` in this namespace by labels.
    SelectsModels(String),
    /// Its spec may use any object of this kind in the namespace.
    UsesAny(WireResource, String),
    /// Its controller is the object with this uid.
    Owner(String),
    /// Its owner is the object of this kind, namespace and name.
    OwnerName(WireResource, String, String),
}

/// An object that is found by its keys.
pub trait Indexed {
    /// All keys of the object.
    fn index_keys(&self) -> Vec<IndexKey>;

    /// The labels of the nodes whose agents may affect an object with [`IndexKey::EveryNode`]; `None`
    /// if every agent may.
    fn selects_nodes(&self) -> Option<&BTreeMap<String, String>> {
        None
    }

    /// Whether an object with [`IndexKey::EveryNode`] has its nodes, by its status. Then the agents of
    /// other nodes do not affect it: a connected one is only preferred when a node is chosen.
    fn has_nodes(&self) -> bool {
        false
    }
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

    /// The names of the first objects with this key, sorted, and the number of all.
    pub fn first_with_key(&self, key: &IndexKey, limit: usize) -> (Vec<String>, usize) {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let Some(ids) = index.by_key.get(key) else { return (Vec::new(), 0) };
        (ids.iter().take(limit).map(|id| id.1.clone()).collect(), ids.len())
    }

    /// The objects that a change of the Node object may affect. `has_labels` returns whether the node
    /// has these labels, or had them before.
    pub fn on_node(
        &self,
        node: &str,
        has_labels: impl Fn(&BTreeMap<String, String>) -> bool,
    ) -> Vec<Arc<K>> {
        let mut found = self.with_key(&IndexKey::Node(node.to_owned()));
        let every = self.with_key(&IndexKey::EveryNode).into_iter();
        found.extend(every.filter(|object| object.selects_nodes().is_none_or(&has_labels)));
        found.extend(self.with_key(&IndexKey::EveryNodeObject));
        found
    }

    /// The objects that a change of the agent of this node may affect. `has_labels` returns whether the
    /// node has these labels.
    pub fn on_agent(
        &self,
        node: &str,
        has_labels: impl Fn(&BTreeMap<String, String>) -> bool,
    ) -> Vec<Arc<K>> {
        let mut found = self.with_key(&IndexKey::Node(node.to_owned()));
        let every = self.with_key(&IndexKey::EveryNode).into_iter();
        found.extend(every.filter(|object| {
            !object.has_nodes() && object.selects_nodes().is_none_or(&has_labels)
        }));
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
    use kube::runtime::{reflector::store::Writer, watcher};
    use neptune_api::{InferenceModel, InferenceModelSpec, InferenceModelStatus};

    use super::*;

    fn id(name: &str) -> ObjectId {
        Arc::new(("default".to_owned(), name.to_owned()))
    }

    fn on(node: &str) -> IndexKey {
        IndexKey::Node(node.to_owned())
    }

    #[test]
    fn change_of_an_agent_visits_only_objects_whose_labels_select_its_node() {
        let mut writer = Writer::<InferenceModel>::default();
        let (_listed, listing) = tokio::sync::watch::channel(Listing::default());
        let store = IndexedStore::new(writer.as_reader(), listing);
        for (name, labels) in [("north", Some("north")), ("south", Some("south")), ("cloud", None)]
        {
            let mut model = InferenceModel::new(name, InferenceModelSpec::default());
            model.metadata.namespace = Some("default".to_owned());
            model.spec.node_selector =
                labels.map(|area| ("area".to_owned(), area.to_owned())).into_iter().collect();
            store.apply(&model);
            writer.apply_watcher_event(&watcher::Event::Apply(model));
        }
        let mut placed = InferenceModel::new("placed", InferenceModelSpec::default());
        placed.metadata.namespace = Some("default".to_owned());
        placed.spec.node_selector = [("area".to_owned(), "north".to_owned())].into();
        let node = Some("edge1".to_owned());
        placed.status = Some(InferenceModelStatus { node, ..InferenceModelStatus::default() });
        store.apply(&placed);
        writer.apply_watcher_event(&watcher::Event::Apply(placed));
        let names = |found: Vec<Arc<InferenceModel>>| -> Vec<String> {
            found.iter().map(|model| model.name_any()).collect()
        };
        let in_north = |labels: &BTreeMap<String, String>| labels["area"] == "north";
        assert_eq!(names(store.on_agent("edge0", in_north)), ["north"], "it has no node yet");
        assert_eq!(names(store.on_agent("edge1", in_north)), ["placed", "north"]);
        assert_eq!(names(store.on_node("edge0", in_north)), ["north", "placed", "cloud"]);
        for node in 2..1_000 {
            let found = store.on_agent(&format!("edge{node}"), |_| false);
            assert_eq!(names(found), Vec::<String>::new(), "edge{node} is used by none");
        }
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
