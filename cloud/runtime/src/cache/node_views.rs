//! The nodes: two watches, of Nodes and of `EdgeNodes`, feed one map. What the two objects of one
//! name mean together is decided by `kubernetes::node_view`.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use futures::channel::mpsc::UnboundedSender;
use k8s_openapi::api::core::v1::{Node, NodeStatus, ObjectReference};
use kube::{
    Api, Client, Resource as _, ResourceExt,
    runtime::{
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use neptune_api::EdgeNode;
use neptune_cloud_kinds::{
    index_key::{IndexKey, Indexed as _},
    kind::crd_name,
    kubernetes::{
        labels::{Labels, contains},
        node_view::NodeView,
    },
    nodes::keys::KeyRecord,
};
use neptune_wire::NodeName;
use parking_lot::RwLock;

use super::{
    Change, IndexedStore,
    change::NodeChange,
    index::{Index, ObjectId},
    visits::Visits,
    watch::prepare,
};
use crate::kubernetes::outage::ApiServer;

/// The nodes of the cluster. Cheap to clone.
#[derive(Debug, Clone)]
pub struct NodeViews {
    nodes: IndexedStore<Node>,
    edge_nodes: IndexedStore<EdgeNode>,
    views: Arc<RwLock<Views>>,
    /// Gets each change of a node, in the order in which the views change.
    changes: UnboundedSender<Change>,
    visits: Visits,
}

#[derive(Debug, Default)]
struct Views {
    by_name: HashMap<String, Arc<NodeView>>,
    index: Index,
}

impl NodeViews {
    /// Starts both watches. A change of either object is a change of the node.
    pub fn watch(
        client: &Client,
        (changes, api_server): (&UnboundedSender<Change>, &Arc<ApiServer>),
    ) -> Self {
        let (nodes, node_watch) = prepare::<Node>((changes, api_server));
        let (edge_nodes, edge_node_watch) = prepare::<EdgeNode>((changes, api_server));
        let (views, visits) = (Arc::default(), Visits::default());
        let this = Self { nodes, edge_nodes, views, changes: changes.clone(), visits };
        let (by_node, by_edge_node) = (this.clone(), this.clone());
        node_watch.start(
            Api::all(client.clone()),
            watcher::Config::default(),
            |_, _| None,
            move |node| by_node.update(node.map(ResourceExt::name_any)),
            drop_unused,
        );
        edge_node_watch.start(
            Api::all(client.clone()),
            watcher::Config::default(),
            |_, _| None,
            move |object| by_edge_node.update(object.map(ResourceExt::name_any)),
            |_| {},
        );
        this
    }

    /// Resolves when both lists are complete, or the CRD of `EdgeNodes` is missing.
    pub async fn ready(&self) {
        self.nodes.ready().await;
        self.edge_nodes.ready().await;
    }

    /// The name of the CRD, if it is missing.
    pub fn missing_crd(&self) -> Option<String> {
        self.edge_nodes.listing().is_missing.then(crd_name::<EdgeNode>)
    }

    /// The Node objects, for what needs a kubelet.
    pub fn objects(&self) -> &Store<Node> {
        self.nodes.store()
    }

    /// The `EdgeNode` of a node, if it exists.
    pub fn edge_node(&self, name: &str) -> Option<Arc<EdgeNode>> {
        self.edge_nodes.get(&ObjectRef::new(name))
    }

    /// All `EdgeNodes`: a walk that no message of a node may cause.
    pub fn edge_nodes(&self) -> Vec<Arc<EdgeNode>> {
        self.edge_nodes.state()
    }

    /// Whether a Node of that name exists.
    pub fn has_node_object(&self, node: &NodeName) -> bool {
        self.nodes.get(&ObjectRef::new(node.as_str())).is_some()
    }

    /// A node that exists and is not revoked.
    pub fn get(&self, name: &str) -> Option<Arc<NodeView>> {
        self.read(|views| views.by_name.get(name).cloned())
    }

    /// Whether a person revoked the node.
    pub fn is_revoked(&self, name: &str) -> bool {
        self.edge_node(name).is_some_and(|object| object.spec.revoked)
    }

    /// The keys of a node; `None` without an `EdgeNode`.
    pub fn keys(&self, name: &str) -> Option<KeyRecord> {
        self.edge_node(name).map(|object| KeyRecord::from_edge_node(&object))
    }

    /// The names of all nodes: a walk that no message of a node may cause.
    pub fn names(&self) -> BTreeSet<String> {
        let names: BTreeSet<String> = self.read(|views| views.by_name.keys().cloned().collect());
        self.visits.add(names.len());
        names
    }

    /// The nodes with all these labels, sorted by name. None without labels. Visits only the nodes
    /// that have the rarest of the labels.
    pub fn matching(&self, selector: &Labels) -> Vec<Arc<NodeView>> {
        let key = |(name, value): (&String, &String)| {
            IndexKey::Label(String::new(), name.clone(), value.clone())
        };
        let mut nodes: Vec<Arc<NodeView>> = self.read(|views| {
            let rarest = selector.iter().map(key).min_by_key(|key| views.index.count(key));
            let Some(rarest) = rarest else { return Vec::new() };
            let ids = views.index.with_key(&rarest);
            ids.filter_map(|id| views.by_name.get(&id.1).cloned()).collect()
        });
        self.visits.add(nodes.len());
        nodes.retain(|node| contains(&node.labels, selector));
        nodes
    }

    /// The first node of the cloud with an address, by name.
    pub fn first_cloud_address(&self) -> Option<Arc<NodeView>> {
        self.read(|views| {
            let id = views.index.with_key(&IndexKey::CloudAddress).next()?;
            views.by_name.get(&id.1).cloned()
        })
    }

    /// The reference to the object that Events about a node name.
    pub fn reference(&self, name: &str) -> Option<ObjectReference> {
        let node = self.nodes.get(&ObjectRef::new(name)).map(|node| node.object_ref(&()));
        node.or_else(|| self.edge_node(name).map(|object| object.object_ref(&())))
    }

    /// The number of nodes that were returned since the start.
    #[cfg(test)]
    pub fn visited(&self) -> usize {
        self.visits.count() + self.nodes.visited() + self.edge_nodes.visited()
    }

    fn read<T>(&self, read: impl FnOnce(&Views) -> T) -> T {
        read(&self.views.read())
    }

    /// Updates the view of a node, or of every node after a list, and reports what changed: of a
    /// list, only what differs. Under the lock, because both watches may do so at the same time.
    fn update(&self, name: Option<String>) {
        let mut views = self.views.write();
        let Some(name) = name else {
            let nodes = self.nodes.store().state().into_iter().map(|node| node.name_any());
            let objects = self.edge_nodes.store().state();
            let names = nodes.chain(objects.iter().map(|object| object.name_any()));
            let known = views.by_name.keys().cloned();
            for name in known.chain(names).collect::<BTreeSet<_>>() {
                let change = self.update_one(&mut views, name);
                if change.before != change.after {
                    self.report(change);
                }
            }
            return;
        };
        let change = self.update_one(&mut views, name);
        self.report(change);
    }

    fn update_one(&self, views: &mut Views, name: String) -> NodeChange {
        let node = self.nodes.get(&ObjectRef::new(&name));
        let view = NodeView::new(&name, node.as_deref(), self.edge_node(&name).as_deref());
        let keys = view.as_ref().map(NodeView::index_keys).unwrap_or_default();
        views.index.set(ObjectId::new((String::new(), name.clone())), keys, Vec::new());
        let after = view.map(Arc::new);
        let before = match &after {
            Some(view) => views.by_name.insert(name.clone(), Arc::clone(view)),
            None => views.by_name.remove(&name),
        };
        NodeChange { name, before, after }
    }

    fn report(&self, change: NodeChange) {
        // Without a receiver the watches end.
        let _ = self.changes.unbounded_send(Change::Node(change));
    }
}

/// Drops the parts of a Node that nobody reads: most of its bytes.
fn drop_unused(node: &mut Node) {
    (node.spec, node.metadata.annotations) = (None, None);
    if let Some(status) = node.status.take() {
        let mut conditions = status.conditions;
        if let Some(conditions) = &mut conditions {
            conditions.retain(|condition| condition.type_ == "Ready");
        }
        let addresses = status.addresses;
        node.status = Some(NodeStatus { addresses, conditions, ..NodeStatus::default() });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use futures::channel::mpsc::UnboundedReceiver;
    use kube::runtime::reflector::store::Writer;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use crate::cache::listing::Listing;

    struct Cluster {
        nodes: Writer<Node>,
        edge_nodes: Writer<EdgeNode>,
        views: NodeViews,
        changes: UnboundedReceiver<Change>,
    }

    impl Cluster {
        fn new() -> Self {
            let (nodes, edge_nodes) = (Writer::<Node>::default(), Writer::<EdgeNode>::default());
            let (_listed, listing) = tokio::sync::watch::channel(Listing::default());
            let (sender, changes) = futures::channel::mpsc::unbounded();
            let views = NodeViews {
                nodes: IndexedStore::new(nodes.as_reader(), listing.clone()),
                edge_nodes: IndexedStore::new(edge_nodes.as_reader(), listing),
                views: Arc::default(),
                changes: sender,
                visits: Visits::default(),
            };
            Self { nodes, edge_nodes, views, changes }
        }

        /// The sites of the nodes before and after each change that was reported since the last call.
        fn reported(&mut self) -> Vec<String> {
            let site = |view: Option<Arc<NodeView>>| {
                let site = view.map(|view| view.label("site").unwrap_or_default().to_owned());
                site.unwrap_or_else(|| "none".to_owned())
            };
            let changes = std::iter::from_fn(|| self.changes.try_recv().ok());
            let texts = changes.map(|change| match change {
                Change::Node(NodeChange { name, before, after }) => {
                    format!("{name} {} -> {}", site(before), site(after))
                }
                other => unreachable!("{other:?} is no change of a node"),
            });
            texts.collect()
        }

        fn node(&mut self, name: &str, labels: &Value) {
            let node = object(json!({"metadata": {"name": name, "labels": labels}}));
            self.nodes.apply_watcher_event(&watcher::Event::Apply(node));
            self.views.update(Some(name.to_owned()));
        }

        fn edge_node(&mut self, name: &str, labels: &Value, spec: &Value) {
            let edge_node = object(json!({
                "apiVersion": "neptune.io/v1alpha1", "kind": "EdgeNode", "spec": spec,
                "metadata": {"name": name, "labels": labels},
            }));
            self.edge_nodes.apply_watcher_event(&watcher::Event::Apply(edge_node));
            self.views.update(Some(name.to_owned()));
        }

        /// The names of the nodes with these labels, and how many nodes were visited for that.
        fn matching(&self, labels: &[(&str, &str)]) -> (Vec<String>, usize) {
            let before = self.views.visited();
            let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            let nodes = self.views.matching(&labels.collect());
            let names = nodes.iter().map(|node| node.name.to_string()).collect();
            (names, self.views.visited() - before)
        }
    }

    fn object<K: DeserializeOwned>(object: Value) -> K {
        serde_json::from_value(object).unwrap()
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn nodes_are_selected_by_the_labels_of_both_objects_through_the_rarest() {
        let mut cluster = Cluster::new();
        for n in 0..30 {
            let labels = json!({"edge": "yes", "site": (n % 10).to_string()});
            cluster.node(&format!("edge{n:02}"), &labels);
        }
        let site = [("edge", "yes"), ("site", "7")];
        let of_site = names(&["edge07", "edge17", "edge27"]);
        assert_eq!(cluster.matching(&site), (of_site, 3));
        assert_eq!(cluster.matching(&[]), (Vec::new(), 0), "no labels select nothing");
        cluster.edge_node("edge07", &json!({"site": "8"}), &json!({}));
        cluster.edge_node("shop", &json!({"site": "7", "edge": "yes"}), &json!({}));
        assert_eq!(cluster.matching(&site).0, names(&["edge17", "edge27", "shop"]));
    }

    #[test]
    fn revoked_node_does_not_exist_and_has_its_keys() {
        let mut cluster = Cluster::new();
        cluster.node("edge0", &json!({"edge": "yes"}));
        assert_eq!(cluster.views.keys("edge0"), None);
        let spec = json!({"revoked": true, "trustedKey": "sha256:1"});
        cluster.edge_node("edge0", &json!({}), &spec);
        assert!(cluster.views.get("edge0").is_none() && cluster.views.is_revoked("edge0"));
        assert_eq!(cluster.matching(&[("edge", "yes")]).0, [""; 0]);
        assert!(cluster.views.keys("edge0").unwrap().trusted.is_some());
        cluster.edge_node("edge0", &json!({}), &json!({}));
        assert!(cluster.views.get("edge0").is_some() && !cluster.views.is_revoked("edge0"));
    }

    #[test]
    fn change_of_either_object_is_reported_with_both_versions_of_the_node() {
        let mut cluster = Cluster::new();
        cluster.node("edge0", &json!({"site": "1"}));
        cluster.edge_node("edge0", &json!({"site": "2"}), &json!({}));
        assert_eq!(cluster.reported(), ["edge0 none -> 1", "edge0 1 -> 2"]);
        cluster.edge_node("edge0", &json!({}), &json!({"revoked": true}));
        assert_eq!(cluster.reported(), ["edge0 2 -> none"]);
        cluster.edge_node("edge0", &json!({}), &json!({}));
        assert_eq!(cluster.reported(), ["edge0 none -> 1"]);
    }

    #[test]
    fn list_without_a_node_forgets_it_and_reports_only_what_differs() {
        let mut cluster = Cluster::new();
        cluster.node("edge0", &json!({"edge": "yes"}));
        cluster.node("edge1", &json!({"edge": "yes"}));
        assert_eq!(cluster.reported().len(), 2);
        cluster.nodes.apply_watcher_event(&watcher::Event::Init);
        let node = object(json!({"metadata": {"name": "edge1", "labels": {"edge": "yes"}}}));
        cluster.nodes.apply_watcher_event(&watcher::Event::InitApply(node));
        cluster.nodes.apply_watcher_event(&watcher::Event::InitDone);
        cluster.views.update(None);
        assert_eq!(cluster.reported(), ["edge0  -> none"]);
        assert_eq!(cluster.views.names(), ["edge1".to_owned()].into());
        assert_eq!(cluster.matching(&[("edge", "yes")]).0, names(&["edge1"]));
    }

    #[test]
    fn cached_node_has_only_what_views_need() {
        let mut node: Node = object(json!({
            "metadata": {"name": "edge0", "labels": {"a": "b"}, "annotations": {"c": "d"}},
            "spec": {"podCIDR": "10.0.0.0/24"},
            "status": {
                "images": [{"names": ["a"]}],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "conditions": [{"type": "DiskPressure", "status": "False"},
                    {"type": "Ready", "status": "False"}],
            },
        }));
        let view = NodeView::new("edge0", Some(&node), None);
        drop_unused(&mut node);
        assert_eq!(NodeView::new("edge0", Some(&node), None), view);
        let kept = serde_json::to_string(&node).unwrap();
        assert!(
            ["podCIDR", "images", "DiskPressure", "annotations"]
                .iter()
                .all(|it| !kept.contains(it))
        );
    }
}
