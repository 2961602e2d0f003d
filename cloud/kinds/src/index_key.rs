//! The keys by which the caches find the objects that a change may affect.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use neptune_wire::Resource;

use crate::kubernetes::labels::Labels;

/// What an object refers to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum IndexKey {
    /// A change of this node may affect the object.
    Node(String),
    /// A change of a node with this label, or of its agent, may: labels select the nodes of the
    /// object, and this is one of them.
    SelectsAgents(String, String),
    /// The same, but for a change of the agent: the object has its nodes by its status, and a
    /// connected agent is only preferred when a node is chosen.
    SelectsNodes(String, String),
    /// A change of any node of the cloud with an address may: the Service of the object has the
    /// address of one of them.
    CloudNodes,
    /// The object is on more nodes than its status lists: on all that its labels select.
    OnManyNodes,
    /// The status of the object has reports of this node, on which it no longer is.
    ReportsOf(String),
    /// The spec of the object names this object.
    Uses(Resource, String, String),
    /// The spec of the object selects objects of this kind in the namespace by labels, of which
    /// this is one.
    Selects(Resource, String, String, String),
    /// The object is in this namespace and has this label.
    Label(String, String, String),
    /// The object waits for this port on one of its nodes; `None` for a port in the range of cloud
    /// workers.
    AwaitsPort(Option<u16>),
    /// The object is a node of the cloud with an address.
    CloudAddress,
    /// The controller of the object is the object with this uid.
    Owner(String),
    /// The owner of the object is the object of this kind, namespace and name.
    OwnerName(Resource, String, String),
}

/// An object that is found by its keys.
pub trait Indexed {
    /// The keys of the object, without those of its selectors.
    fn index_keys(&self) -> Vec<IndexKey>;

    /// The keys of each selector of the object, one per label. The index uses one of them, which few
    /// other objects have.
    fn selector_keys(&self) -> Vec<Vec<IndexKey>> {
        Vec::new()
    }

    /// The labels that select its nodes. An object with [`IndexKey::SelectsAgents`] or
    /// [`IndexKey::SelectsNodes`] has some.
    fn selects_nodes(&self) -> Option<&Labels> {
        None
    }
}

/// The keys of a selector.
pub fn selector_keys(labels: &Labels, key: impl Fn(String, String) -> IndexKey) -> Vec<IndexKey> {
    labels.iter().map(|(name, value)| key(name.clone(), value.clone())).collect()
}

/// The keys of an object by its own labels.
pub fn by_label(metadata: &ObjectMeta) -> impl Iterator<Item = IndexKey> {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let labels = metadata.labels.iter().flatten();
    labels.map(move |(name, value)| {
        IndexKey::Label(namespace.to_owned(), name.clone(), value.clone())
    })
}

/// The keys of an object by its controller.
pub fn by_owner(metadata: &ObjectMeta) -> Vec<IndexKey> {
    let owners = metadata.owner_references.iter().flatten();
    let controllers = owners.filter(|owner| owner.controller == Some(true));
    controllers.map(|owner| IndexKey::Owner(owner.uid.clone())).collect()
}
