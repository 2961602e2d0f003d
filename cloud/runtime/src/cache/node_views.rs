//! The nodes: two watches, of Nodes and of `EdgeNodes`, feed one map. What the two objects of one
//! name mean together is decided by `kubernetes::node_view`.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, PoisonError, RwLock},
};

use futures::channel::mpsc::UnboundedSender;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
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

use super::{
    Change, IndexedStore,
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
        let this = Self { nodes, edge_nodes, views, visits };
        let (by_node, by_edge_node) = (this.clone(), this.clone());
        node_watch.start(
            Api::all(client.clone()),
            watcher::Config::default(),
            |node, _| Some(Change::Node(node.name_any())),
            move |node| by_node.update(node.map(ResourceExt::name_any)),
            drop_unused,
        );
        edge_node_watch.start(
            Api::all(client.clone()),
            watcher::Config::default(),
            |object, _| Some(Change::Node(object.name_any())),
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
        read(&self.views.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Updates the view of a node, or of every node after a list. Under the lock, because both
    /// watches may do so at the same time.
    fn update(&self, name: Option<String>) {
        let mut views = self.views.write().unwrap_or_else(PoisonError::into_inner);
        let Some(name) = name else {
            let nodes = self.nodes.store().state().into_iter().map(|node| node.name_any());
            let objects = self.edge_nodes.store().state();
            let names = nodes.chain(objects.iter().map(|object| object.name_any()));
            let known = std::mem::take(&mut *views).by_name.into_keys();
            for name in known.chain(names).collect::<BTreeSet<_>>() {
                self.update_one(&mut views, name);
            }
            return;
        };
        self.update_one(&mut views, name);
    }

    fn update_one(&self, views: &mut Views, name: String) {
        let node = self.nodes.get(&ObjectRef::new(&name));
        let view = NodeView::new(&name, node.as_deref(), self.edge_node(&name).as_deref());
        let keys = view.as_ref().map(NodeView::index_keys).unwrap_or_default();
        views.index.set(ObjectId::new((String::new(), name.clone())), keys, Vec::new());
        match view {
            Some(view) => drop(views.by_name.insert(name, Arc::new(view))),
            None => drop(views.by_name.remove(&name)),
        }
    }
}

/// Drops the parts of a Node that nobody reads and that are large.
fn drop_unused(node: &mut Node) {
    node.spec = None;
    if let Some(status) = &mut node.status {
        status.images = None;
        status.volumes_in_use = None;
        status.volumes_attached = None;
    }
}
