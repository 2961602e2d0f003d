//! Caches of the API server's objects, kept up to date by watches. What a change means is decided
//! by `controllers::runtime::triggers`.

mod change;
mod framework_table;
mod index;
mod listing;
mod node_ports;
mod node_views;
mod service_address;
mod visits;
mod watch;

use std::{fmt::Debug, sync::Arc};

use futures::channel::mpsc::UnboundedSender;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Pod, Service},
    },
};
use kube::{
    Api, Client, Resource as KubeResource, ResourceExt as _,
    runtime::{reflector::ObjectRef, watcher},
};
use neptune_cloud_kinds::{
    each_kind, for_each_kind,
    index_key::{IndexKey, Indexed},
    kind::{Kind, crd_name},
    kubernetes::{
        labels::{MANAGED_BY, owner_annotation},
        node_view::NodeView,
    },
    with_kind,
    worker::frameworks::CONFIG_MAP,
};
use neptune_wire::{NodeName, ObjectKey, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;

pub use change::{Change, NodeChange, Object, Update};
pub(crate) use change::{with_object, with_object_body};
pub use index::IndexedStore;
pub use node_views::NodeViews;
use watch::watch;

use crate::kubernetes::{outage::ApiServer, reference::reference};

/// A kind with a cache: every registered kind.
pub trait Cached: Kind + Indexed {
    /// Returns the store of the kind's objects.
    fn cache(caches: &Caches) -> &IndexedStore<Self>;
}

macro_rules! define_caches {
    ([] $($kind:ident($resource:ident, $field:ident, $gauge:literal);)*) => {
        /// The cached objects of the API server. Cheap to clone.
        #[derive(Debug, Clone)]
        pub struct Caches {
            $($field: IndexedStore<neptune_api::$kind>,)*
            /// The nodes of the cluster.
            pub nodes: NodeViews,
            /// The Deployments of this controller.
            pub deployments: IndexedStore<Deployment>,
            /// The Services of this controller.
            pub services: IndexedStore<Service>,
            /// The Pods of these Deployments, for more specific messages. Empty without the
            /// permission to read Pods.
            pub pods: IndexedStore<Pod>,
            /// Whether the API server answers.
            pub api_server: Arc<ApiServer>,
            /// The framework table, if it exists.
            pub frameworks: IndexedStore<ConfigMap>,
            /// The framework table as it was parsed last, until its `ConfigMap` changes.
            parsed_frameworks: Arc<Mutex<Option<framework_table::ParsedTable>>>,
        }

        $(impl Cached for neptune_api::$kind {
            fn cache(caches: &Caches) -> &IndexedStore<Self> {
                &caches.$field
            }
        })*

        impl Caches {
            /// Starts all watches. They stop when the receiver of `changes` is dropped.
            ///
            /// Objects are watched in the namespace `only`, or in all namespaces; the framework
            /// table and the keys of the nodes in `namespace`.
            pub fn watch(
                client: &Client,
                only: Option<&str>,
                namespace: &str,
                changes: &UnboundedSender<Change>,
            ) -> Self {
                let managed = format!("{}={}", MANAGED_BY.0, MANAGED_BY.1);
                let managed = watcher::Config::default().labels(&managed);
                let named = |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
                let own = Api::<ConfigMap>::namespaced(client.clone(), namespace);
                let all = watcher::Config::default;
                let api_server = Arc::<ApiServer>::default();
                let changes = (changes, &api_server);
                Self {
                    $($field: watch(scoped(client, only), all(), changes, |object: &neptune_api::$kind, update| {
                        Some(Change::of_object(object, update))
                    }),)*
                    nodes: NodeViews::watch(client, changes),
                    deployments: watch_workloads(scoped(client, only), managed.clone(), changes),
                    services: watch_workloads(scoped(client, only), managed.clone(), changes),
                    pods: watch(scoped(client, only), managed, changes, |pod, _| on_pod(pod)),
                    frameworks: watch(own, named(CONFIG_MAP), changes, |_, _| Some(Change::Frameworks)),
                    parsed_frameworks: Arc::default(),
                    api_server: Arc::clone(&api_server),
                }
            }
        }
    };
}

for_each_kind!(define_caches!());

impl Caches {
    /// Resolves when each cache is complete, or the CRD of its kind is missing. Pods are not waited
    /// for.
    pub async fn ready(&self) {
        each_kind!(K => K::cache(self).ready().await);
        self.nodes.ready().await;
        self.deployments.ready().await;
        self.services.ready().await;
        self.frameworks.ready().await;
    }

    /// Whether all objects of a resource are known. Otherwise one that the cache lacks may exist.
    pub fn is_complete(&self, resource: Resource) -> bool {
        resource == Resource::Peers
            || with_kind!(resource, K => K::cache(self).listing().is_complete)
    }

    /// The name of the CRD of a resource, if it is missing.
    pub fn missing_crd(&self, resource: Resource) -> Option<String> {
        with_kind!(resource, K => {
            K::cache(self).listing().is_missing.then(crd_name::<K>)
        })
    }

    /// The names of all missing CRDs.
    pub fn missing_crds(&self) -> Vec<String> {
        let of_kinds = Resource::ALL.iter().filter_map(|resource| self.missing_crd(*resource));
        of_kinds.chain(self.nodes.missing_crd()).collect()
    }

    /// An object by its namespace and name.
    pub fn get<K: Cached>(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        K::cache(self).get(&ObjectRef::new(name).within(namespace))
    }

    /// Whether an object of that key and uid exists.
    pub fn contains(&self, key: &ObjectKey, uid: &str) -> bool {
        let current_uid = with_kind!(key.resource, K => {
            K::cache(self).get(&reference::<K>(key)).and_then(|object| object.metadata.uid.clone())
        });
        current_uid.as_deref() == Some(uid)
    }

    /// The Pods of an owner that are not being deleted.
    pub fn pods_of<K: Kind>(&self, owner: &K) -> Vec<Arc<Pod>> {
        let namespace = owner.namespace().unwrap_or_default();
        let key = IndexKey::OwnerName(K::RESOURCE, namespace, owner.name_any());
        let mut pods = self.pods.with_key(&key);
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        pods
    }

    /// The Deployment of an owner.
    pub fn deployment_of<K: Kind>(&self, owner: &K) -> Option<Arc<Deployment>> {
        owned(&self.deployments, owner).into_iter().next()
    }

    /// A node by its name; `None` if it does not exist or is revoked.
    pub fn node(&self, name: &str) -> Option<Arc<NodeView>> {
        self.nodes.get(name)
    }

    /// Whether a node of that name exists and is not revoked.
    pub fn has_node(&self, node: &NodeName) -> bool {
        self.node(node.as_str()).is_some()
    }
}

/// The cached objects whose controller is this owner.
pub fn owned<K: Kind, W>(store: &IndexedStore<W>, owner: &K) -> Vec<Arc<W>>
where
    W: Indexed + KubeResource<DynamicType = ()> + Clone + 'static,
{
    let key = owner.meta().uid.clone().map(IndexKey::Owner);
    key.map_or_else(Vec::new, |key| store.with_key(&key))
}

fn on_pod(pod: &Pod) -> Option<Change> {
    let mut change = None;
    each_kind!(K => {
        if let Some(name) = pod.annotations().get(&owner_annotation::<K>()) {
            let namespace = pod.namespace().unwrap_or_default();
            let (owner, name) = (K::RESOURCE, name.clone());
            change = Some(Change::Workload { owner, namespace, name, deleted: false });
        }
    });
    change
}

/// The objects of a kind in this namespace, or in all.
pub fn scoped<K>(client: &Client, only: Option<&str>) -> Api<K>
where
    K: KubeResource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match only {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn watch_workloads<W>(
    api: Api<W>,
    config: watcher::Config,
    changes: (&UnboundedSender<Change>, &Arc<ApiServer>),
) -> IndexedStore<W>
where
    W: Indexed
        + KubeResource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    watch(api, config, changes, |object: &W, update| {
        let deleted = matches!(update, Update::Deleted);
        let owner =
            object.owner_references().iter().find(|owner| owner.controller == Some(true))?;
        let (namespace, name) = (object.namespace().unwrap_or_default(), owner.name.clone());
        let owner = kind_of_owner(&owner.kind)?;
        Some(Change::Workload { owner, namespace, name, deleted })
    })
}

fn kind_of_owner(kind: &str) -> Option<Resource> {
    let mut resource = None;
    each_kind!(K => {
        if K::kind(&()) == kind {
            resource = Some(K::RESOURCE);
        }
    });
    resource
}
