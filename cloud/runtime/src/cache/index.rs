//! A cache that also finds objects by what they refer to, so that a change of a node, a model or a
//! workload visits only the objects that it may affect.

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Debug,
    ops::Deref,
    sync::Arc,
};

use kube::{
    Resource, ResourceExt as _,
    runtime::reflector::{ObjectRef, Store},
};
use neptune_cloud_kinds::{
    index_key::{IndexKey, Indexed},
    kubernetes::labels::{Labels, contains, has_labels},
};
use parking_lot::RwLock;
use tokio::sync::watch::Receiver;

use super::{listing::Listing, visits::Visits};

/// The namespace and the name of an object.
pub type ObjectId = Arc<(String, String)>;

/// The objects by their keys.
#[derive(Debug, Default)]
pub struct Index {
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
    visits: Visits,
}

impl<K: Resource<DynamicType = ()> + 'static> Clone for IndexedStore<K> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            index: Arc::clone(&self.index),
            listing: self.listing.clone(),
            visits: self.visits.clone(),
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
        Self { store, index: Arc::default(), listing, visits: Visits::default() }
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

    /// All objects: a walk that no message of a node may cause.
    pub fn state(&self) -> Vec<Arc<K>> {
        self.visits.add(self.store.len());
        self.store.state()
    }

    /// The objects that match: a walk over all, which no message of a node may cause.
    pub fn state_filter(&self, matches: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        self.visits.add(self.store.len());
        self.store.state_filter(matches)
    }

    /// The number of objects that were returned or tested since the start.
    #[cfg(test)]
    pub fn visited(&self) -> usize {
        self.visits.count()
    }

    /// The objects with this key.
    pub fn with_key(&self, key: &IndexKey) -> Vec<Arc<K>> {
        let index = self.index.read();
        let ids: Vec<ObjectId> = index.by_key.get(key).into_iter().flatten().cloned().collect();
        drop(index);
        self.visits.add(ids.len());
        ids.iter().filter_map(|id| self.get(&ObjectRef::new(&id.1).within(&id.0))).collect()
    }

    /// The names of the first objects with this key, sorted, and the number of all.
    pub fn first_with_key(&self, key: &IndexKey, limit: usize) -> (Vec<String>, usize) {
        let index = self.index.read();
        let Some(ids) = index.by_key.get(key) else { return (Vec::new(), 0) };
        (ids.iter().take(limit).map(|id| id.1.clone()).collect(), ids.len())
    }

    /// The objects of a namespace with all these labels, sorted by name. None without labels. Visits
    /// only the objects that have the rarest of the labels.
    pub fn with_labels(&self, namespace: &str, labels: &Labels) -> Vec<Arc<K>> {
        let key = |(name, value): (&String, &String)| {
            IndexKey::Label(namespace.to_owned(), name.clone(), value.clone())
        };
        let rarest = {
            let index = self.index.read();
            let count = |key: &IndexKey| index.by_key.get(key).map_or(0, BTreeSet::len);
            labels.iter().map(key).min_by_key(count)
        };
        let mut objects = rarest.map_or_else(Vec::new, |key| self.with_key(&key));
        objects.retain(|object| has_labels(object.meta(), labels));
        objects
    }

    /// The objects that a change of the agent of this node may affect. `versions` are the labels of
    /// its Node object.
    pub fn on_agent(&self, node: &str, versions: &[&Labels]) -> Vec<Arc<K>> {
        let mut objects = self.with_key(&IndexKey::Node(node.to_owned()));
        objects.extend(self.selecting(IndexKey::SelectsAgents, versions));
        objects
    }

    /// The objects that a change of the labels of this node may affect. `versions` are its labels before
    /// and after it.
    pub fn on_node(&self, node: &str, versions: &[&Labels]) -> Vec<Arc<K>> {
        let mut objects = self.on_agent(node, versions);
        objects.extend(self.selecting(IndexKey::SelectsNodes, versions));
        objects
    }

    /// The objects whose labels select a node that has one of these sets of labels.
    fn selecting(
        &self,
        key: impl Fn(String, String) -> IndexKey,
        versions: &[&Labels],
    ) -> Vec<Arc<K>> {
        let pairs: BTreeSet<_> = versions.iter().copied().flatten().collect();
        let keys = pairs.into_iter().map(|(name, value)| key(name.clone(), value.clone()));
        let mut objects: Vec<_> = keys.flat_map(|key| self.with_key(&key)).collect();
        objects.retain(|object| {
            let selector = object.selects_nodes();
            selector
                .is_some_and(|selector| versions.iter().any(|labels| contains(labels, selector)))
        });
        objects
    }

    /// Records an object that the cache has now.
    pub fn apply(&self, object: &K) {
        let id = Arc::new((object.namespace().unwrap_or_default(), object.name_any()));
        self.write(|index| index.set(id, object.index_keys(), object.selector_keys()));
    }

    /// Records that the cache no longer has an object.
    pub fn delete(&self, object: &K) {
        let id = Arc::new((object.namespace().unwrap_or_default(), object.name_any()));
        self.write(|index| index.set(id, Vec::new(), Vec::new()));
    }

    /// Records all objects of the cache and forgets the others.
    pub fn rebuild(&self) {
        let mut new = Index::default();
        for object in self.store.state() {
            let id = Arc::new((object.namespace().unwrap_or_default(), object.name_any()));
            new.set(id, object.index_keys(), object.selector_keys());
        }
        self.write(|index| *index = new);
    }

    fn write(&self, change: impl FnOnce(&mut Index)) {
        change(&mut self.index.write());
    }
}

impl Index {
    /// The objects with this key, sorted.
    pub fn with_key(&self, key: &IndexKey) -> impl Iterator<Item = &ObjectId> {
        self.by_key.get(key).into_iter().flatten()
    }

    /// The number of objects with this key.
    pub fn count(&self, key: &IndexKey) -> usize {
        self.by_key.get(key).map_or(0, BTreeSet::len)
    }

    /// Records the keys of an object; none if it does not exist any more.
    pub fn set(&mut self, id: ObjectId, mut keys: Vec<IndexKey>, selectors: Vec<Vec<IndexKey>>) {
        let held = self.keys.get(&id).map(|held| &**held).unwrap_or_default();
        keys.extend(selectors.into_iter().filter_map(|selector| self.choose(held, selector)));
        keys.dedup();
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

    /// The key of a selector by which an object is found: the one that it has, or the rarest.
    fn choose(&self, held: &[Arc<IndexKey>], selector: Vec<IndexKey>) -> Option<IndexKey> {
        let is_held = |key: &IndexKey| held.iter().any(|held| **held == *key);
        let count = |key: &IndexKey| self.by_key.get(key).map_or(0, BTreeSet::len);
        selector.into_iter().min_by_key(|key| if is_held(key) { 0 } else { 1 + count(key) })
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
    use neptune_api::{InferenceModel, InferenceModelSpec, InferenceModelStatus, Model, ModelSpec};

    use super::*;

    fn id(name: &str) -> ObjectId {
        Arc::new(("default".to_owned(), name.to_owned()))
    }

    fn on(node: &str) -> IndexKey {
        IndexKey::Node(node.to_owned())
    }

    fn area(name: &str) -> Labels {
        [("area".to_owned(), name.to_owned()), ("line".to_owned(), "1".to_owned())].into()
    }

    /// A store with these models, by their names, selectors and nodes.
    fn store(models: &[(&str, Labels, Option<&str>)]) -> IndexedStore<InferenceModel> {
        let mut writer = Writer::<InferenceModel>::default();
        let (_listed, listing) = tokio::sync::watch::channel(Listing::default());
        let store = IndexedStore::new(writer.as_reader(), listing);
        for (name, selector, node) in models {
            let mut model = InferenceModel::new(name, InferenceModelSpec::default());
            model.metadata.namespace = Some("default".to_owned());
            model.spec.node_selector.clone_from(selector);
            let node = node.map(str::to_owned);
            model.status =
                node.map(|node| InferenceModelStatus { node: Some(node), ..Default::default() });
            store.apply(&model);
            writer.apply_watcher_event(&watcher::Event::Apply(model));
        }
        store
    }

    fn names(models: &[Arc<InferenceModel>]) -> Vec<String> {
        models.iter().map(|model| model.name_any()).collect()
    }

    #[test]
    fn change_of_an_agent_visits_only_objects_whose_labels_select_its_node() {
        let other_line =
            [("area".to_owned(), "north".to_owned()), ("line".to_owned(), "2".to_owned())];
        let store = store(&[
            ("north", area("north"), None),
            ("south", area("south"), None),
            ("line", other_line.into(), None),
            ("cloud", Labels::new(), None),
            ("placed", area("north"), Some("edge1")),
        ]);
        let (north, none) = (area("north"), Labels::new());
        let on_agent = |node: &str, labels: &Labels| names(&store.on_agent(node, &[labels]));
        assert_eq!(on_agent("edge0", &north), ["north"], "the placed one has its node");
        assert_eq!(on_agent("edge1", &north), ["placed", "north"]);
        assert_eq!(on_agent("edge2", &none), [""; 0]);
        let on_node = |versions: &[&Labels]| names(&store.on_node("edge0", versions));
        assert_eq!(on_node(&[&north]), ["north", "placed"]);
        assert_eq!(on_node(&[&area("south"), &north]), ["north", "south", "placed"]);
        assert_eq!(on_node(&[]), [""; 0]);
        assert_eq!(names(&store.with_key(&IndexKey::CloudNodes)), ["cloud"]);
    }

    #[test]
    fn objects_are_found_by_all_labels_through_the_rarest() {
        let mut writer = Writer::<Model>::default();
        let (_listed, listing) = tokio::sync::watch::channel(Listing::default());
        let store = IndexedStore::new(writer.as_reader(), listing);
        for n in 0..100 {
            let mut model = Model::new(&format!("model{n:03}"), ModelSpec::default());
            let labels = [("task", "yes".to_owned()), ("site", (n % 10).to_string())];
            let labels = labels.into_iter().map(|(name, value)| (name.to_owned(), value));
            model.metadata.labels = Some(labels.collect());
            store.apply(&model);
            writer.apply_watcher_event(&watcher::Event::Apply(model));
        }
        let select = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let before = store.visited();
            let models = store.with_labels("", &pairs.collect());
            let names: Vec<_> = models.iter().map(|model| model.name_any()).collect();
            (names.len(), names.first().cloned(), store.visited() - before)
        };
        assert_eq!(
            select(&[("task", "yes"), ("site", "7")]),
            (10, Some("model007".to_owned()), 10)
        );
        assert_eq!(select(&[("task", "yes")]), (100, Some("model000".to_owned()), 100));
        assert_eq!(select(&[("task", "yes"), ("site", "x")]), (0, None, 0));
        assert_eq!(select(&[]), (0, None, 0), "no labels select nothing");
    }

    #[test]
    fn change_of_a_node_visits_only_its_objects() {
        let mut index = Index::default();
        for n in 0..1000 {
            let keys = vec![on(&format!("edge{n}")), IndexKey::CloudNodes];
            index.set(id(&format!("s{n}")), keys, Vec::new());
        }
        assert_eq!(index.by_key[&on("edge7")].len(), 1);
        index.set(id("s7"), vec![on("edge8")], Vec::new());
        assert!(!index.by_key.contains_key(&on("edge7")), "an unused key is forgotten");
        assert_eq!(index.by_key[&on("edge8")].len(), 2);
        for n in 0..1000 {
            index.set(id(&format!("s{n}")), Vec::new(), Vec::new());
        }
        assert!(index.by_key.is_empty() && index.keys.is_empty());
    }

    #[test]
    fn selector_with_a_common_label_is_found_by_its_rare_one() {
        let mut index = Index::default();
        let label = |name: &str, value: String| IndexKey::SelectsAgents(name.to_owned(), value);
        let common = label("edge", "yes".to_owned());
        let selector = |n: usize| vec![vec![common.clone(), label("site", n.to_string())]];
        for n in (0..1000).chain(0..1000) {
            index.set(id(&format!("s{n}")), Vec::new(), selector(n));
        }
        assert_eq!(index.by_key[&common].len(), 1, "the first one");
        assert_eq!(index.by_key[&label("site", "7".to_owned())].len(), 1);
        assert_eq!(index.keys.len(), 1000);
    }
}
