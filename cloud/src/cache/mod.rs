//! Caches of the API server's objects, kept up to date by watches. What a change means is decided
//! by `controllers::runtime::triggers`.

mod change;
mod framework_table;
mod watch;

use std::{fmt::Debug, sync::Arc};

use futures::channel::mpsc::UnboundedSender;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Node, Pod, Service},
    },
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    runtime::{
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use neptune_wire::{NodeName, ObjectKey};
use serde::de::DeserializeOwned;

pub use change::{Change, Object};
pub(crate) use change::{with_object, with_object_body};
use watch::watch;

use crate::{
    kinds::Kind,
    kubernetes::{
        identity::reference,
        labels::{MANAGED_BY, owner_annotation},
    },
    worker::frameworks::CONFIG_MAP,
};

/// A kind with a cache: every registered kind.
pub trait Cached: Kind {
    /// Its objects.
    fn cache(caches: &Caches) -> &Store<Self>;
}

macro_rules! define_caches {
    ([] $($kind:ident($resource:ident, $field:ident, $gauge:literal);)*) => {
        /// The cached objects of the API server. Cheap to clone.
        #[derive(Debug, Clone)]
        pub struct Caches {
            $($field: Store<neptune_api::$kind>,)*
            /// The nodes.
            pub nodes: Store<Node>,
            /// The Deployments of this controller.
            pub deployments: Store<Deployment>,
            /// The Services of this controller.
            pub services: Store<Service>,
            /// The Pods of these Deployments, for more specific messages. Empty without the
            /// permission to read Pods.
            pub pods: Store<Pod>,
            /// The framework table, if it exists.
            pub frameworks: Store<ConfigMap>,
        }

        $(impl Cached for neptune_api::$kind {
            fn cache(caches: &Caches) -> &Store<Self> {
                &caches.$field
            }
        })*

        impl Caches {
            /// Starts all watches. They stop when the receiver of `changes` is dropped.
            ///
            /// Objects are watched in the namespace `only`, or in all namespaces; the framework
            /// table in `namespace`.
            pub fn watch(
                client: &Client,
                only: Option<&str>,
                namespace: &str,
                changes: &UnboundedSender<Change>,
            ) -> Self {
                let managed = format!("{}={}", MANAGED_BY.0, MANAGED_BY.1);
                let managed = watcher::Config::default().labels(&managed);
                let table = watcher::Config::default().fields(&format!("metadata.name={CONFIG_MAP}"));
                let table_api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
                let all = watcher::Config::default;
                Self {
                    $($field: watch(scoped(client, only), all(), changes, |object: &neptune_api::$kind, deleted| {
                        let object = Object::from(object);
                        Some(if deleted { Change::Deleted(object) } else { Change::Applied(object) })
                    }),)*
                    nodes: watch(Api::all(client.clone()), all(), changes, |node: &Node, _| {
                        Some(Change::Node(node.name_any()))
                    }),
                    deployments: watch_workloads(scoped(client, only), managed.clone(), changes),
                    services: watch_workloads(scoped(client, only), managed.clone(), changes),
                    pods: watch(scoped(client, only), managed, changes, |pod, _| on_pod(pod)),
                    frameworks: watch(table_api, table, changes, |_, _| Some(Change::Frameworks)),
                }
            }
        }
    };
}

for_each_kind!(define_caches!());

impl Caches {
    /// Resolves when each cache is complete. Pods are not waited for.
    pub async fn ready(&self) {
        // The writers live in separate tasks. The only error is a dropped writer, at shutdown.
        each_kind!(K => drop(K::cache(self).wait_until_ready().await));
        let _ = self.nodes.wait_until_ready().await;
        let _ = self.deployments.wait_until_ready().await;
        let _ = self.services.wait_until_ready().await;
        let _ = self.frameworks.wait_until_ready().await;
    }

    /// An object by its namespace and name.
    pub fn get<K: Cached>(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        K::cache(self).get(&ObjectRef::new(name).within(namespace))
    }

    /// Whether an object of that key and uid exists.
    pub fn contains(&self, key: &ObjectKey, uid: &str) -> bool {
        let found = with_kind!(key.resource, K => {
            K::cache(self).get(&reference::<K>(key)).and_then(|object| object.metadata.uid.clone())
        });
        found.as_deref() == Some(uid)
    }

    /// The Pods of an owner that are not being deleted.
    pub fn pods_of<K: Kind>(&self, owner: &K) -> Vec<Arc<Pod>> {
        let (namespace, name) = (owner.namespace(), owner.name_any());
        let annotation = owner_annotation::<K>();
        self.pods.state_filter(|pod| {
            pod.namespace() == namespace
                && pod.annotations().get(&annotation) == Some(&name)
                && pod.metadata.deletion_timestamp.is_none()
        })
    }

    /// A node by its name.
    pub fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.get(&ObjectRef::new(name))
    }

    /// Whether a Node of that name exists.
    pub fn has_node(&self, node: &NodeName) -> bool {
        self.node(node.as_str()).is_some()
    }
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

fn scoped<K>(client: &Client, only: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match only {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn watch_workloads<W>(
    api: Api<W>,
    config: watcher::Config,
    changes: &UnboundedSender<Change>,
) -> Store<W>
where
    W: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    watch(api, config, changes, |object: &W, deleted| {
        let owner =
            object.owner_references().iter().find(|owner| owner.controller == Some(true))?;
        let (namespace, name) = (object.namespace().unwrap_or_default(), owner.name.clone());
        let owner = kind_of_owner(&owner.kind)?;
        Some(Change::Workload { owner, namespace, name, deleted })
    })
}

fn kind_of_owner(kind: &str) -> Option<neptune_wire::Resource> {
    let mut found = None;
    each_kind!(K => {
        if K::kind(&()) == kind {
            found = Some(K::RESOURCE);
        }
    });
    found
}
