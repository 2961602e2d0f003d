//! What a watch reports, as a value. What follows from it is decided by
//! `controllers::runtime::triggers`.

use std::sync::Arc;

use neptune_cloud_kinds::kubernetes::node_view::NodeView;
use neptune_wire::Resource;

/// An object, and what the cache had until the change.
#[derive(Debug, Clone)]
pub struct Versions<K> {
    /// The object as the watch reports it.
    pub now: K,
    /// The object before. `None` for a new object, and for a deletion.
    pub before: Option<Arc<K>>,
}

macro_rules! define_object {
    ([] $($kind:ident($resource:ident, $field:ident, $gauge:literal);)*) => {
        /// An object of any registered kind.
        #[derive(Debug, Clone)]
        pub enum Object { $(
            #[doc = concat!("A `", stringify!($kind), "`.")]
            $kind(Box<Versions<neptune_api::$kind>>)
        ),* }

        $(impl From<Versions<neptune_api::$kind>> for Object {
            fn from(versions: Versions<neptune_api::$kind>) -> Self {
                Self::$kind(Box::new(versions))
            }
        })*
    };
}

neptune_cloud_kinds::for_each_kind!(define_object!());

/// Evaluates an expression for the [`Versions`] of an [`Object`] of any kind.
macro_rules! with_object {
    ($value:expr, $object:ident => $body:expr) => { neptune_cloud_kinds::for_each_kind!(with_object_body!($value, $object => $body)) };
}

macro_rules! with_object_body {
    ([$value:expr, $object:ident => $body:expr] $($kind:ident($resource:ident, $field:ident, $gauge:literal);)*) => {
        match $value { $($crate::cache::Object::$kind($object) => $body),* }
    };
}

pub(crate) use {with_object, with_object_body};

/// How an event changed an object.
#[derive(Debug)]
pub enum Update<K> {
    /// The object was created or changed. `before` is what the cache had until then.
    Applied {
        /// The object before the change; `None` if it was created.
        before: Option<Arc<K>>,
    },
    /// The object was deleted from the API server.
    Deleted,
}

/// A node, and what it was before and is after a change; `None` if it does not exist or is revoked.
#[derive(Debug, Clone)]
pub struct NodeChange {
    /// The name of the node.
    pub name: String,
    /// The node until the change.
    pub before: Option<Arc<NodeView>>,
    /// The node since the change.
    pub after: Option<Arc<NodeView>>,
}

impl NodeChange {
    /// Whether the change may affect an object. A kubelet updates its Node every few seconds, and
    /// most of these updates do not. What is recorded of a revoked node may.
    pub fn has_effect(&self) -> bool {
        let versions = self.before.as_deref().zip(self.after.as_deref());
        versions.is_none_or(|(before, after)| !before.has_same_effect(after))
    }

    /// Whether other objects may select the node than before.
    pub fn changes_selection(&self) -> bool {
        let versions = self.before.as_deref().zip(self.after.as_deref());
        versions.is_none_or(|(before, after)| !before.is_selected_as(after))
    }
}

/// A change that a watch reports.
#[derive(Debug, Clone)]
pub enum Change {
    /// An object was created or changed.
    Applied(Object),
    /// An object was deleted.
    Deleted(Object),
    /// The Node or the `EdgeNode` of a node was created, changed or deleted.
    Node(NodeChange),
    /// A Deployment, Service or Pod of this controller was created, changed or deleted.
    Workload {
        /// The kind of the owner.
        owner: Resource,
        /// The namespace of the owner.
        namespace: String,
        /// The name of the owner.
        name: String,
        /// Whether it was deleted.
        deleted: bool,
    },
    /// The framework table was created, changed or deleted.
    Frameworks,
    /// A watch listed its objects, again or for the first time: any change may have been missed.
    Relisted,
    /// The CRD of a kind is missing.
    KindMissing,
}

impl Change {
    /// The change of an object of a registered kind.
    pub fn of_object<K: Clone>(object: &K, update: Update<K>) -> Self
    where
        Versions<K>: Into<Object>,
    {
        let now = object.clone();
        match update {
            Update::Applied { before } => Self::Applied(Versions { now, before }.into()),
            Update::Deleted => Self::Deleted(Versions { now, before: None }.into()),
        }
    }
}
