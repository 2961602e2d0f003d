//! Enqueues the objects that a change affects, and drops the state of deleted objects.
//!
//! A change of a spec, a node or the cluster runs all steps again. A report of a node, and the
//! watch event of our own status write, only compute the status again.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use futures::{
    StreamExt as _,
    channel::mpsc::UnboundedReceiver,
    future::{Either, select},
};
use kube::{Resource as _, ResourceExt as _};
use neptune_cloud_kinds::{
    each_kind,
    kubernetes::{node_view::NodeView, nodes::NodeReadiness},
    with_kind,
};

use super::{
    context::Context,
    controller::{Cause, Controller},
    queue::on_listed,
    state::ObjectState,
};
use crate::upstream::FleetChange;
use crate::{
    cache::{Cached as _, Change, with_object, with_object_body},
    kubernetes::reference::reference,
};

/// Enqueues the objects that a change affects, until the program exits.
pub async fn dispatch(
    mut changes: UnboundedReceiver<Change>,
    mut reports: UnboundedReceiver<FleetChange>,
    context: Context,
) {
    let mut nodes = KnownNodes::default();
    nodes.update_all(&context);
    measure(&context);
    loop {
        match select(changes.next(), reports.next()).await {
            Either::Left((Some(change), _)) => {
                let before = nodes.before(&change);
                if nodes.is_relevant(&change, &context) {
                    on_change(change, before.as_deref(), &context);
                }
                measure(&context);
            }
            Either::Right((Some(FleetChange::Node(node)), _)) => {
                context.update_peer(&node);
                context.key_reports().notify_one();
                context.enqueue_node(&node);
            }
            Either::Right((Some(FleetChange::Object(key, node)), _)) => {
                with_kind!(key.resource, K => context.enqueue_report::<K>(&key, &node));
            }
            Either::Left((None, _)) | Either::Right((None, _)) => return,
        }
    }
}

fn measure(context: &Context) {
    each_kind!(K => {
        let cache = K::cache(context.caches());
        context.metrics().set_objects::<K>(cache.len());
        context.metrics().set_missing::<K>(cache.listing().is_missing);
    });
}

/// The caches are complete: drops the changes that led there. Every object is reconciled when the
/// controllers start.
pub fn synced(changes: &mut UnboundedReceiver<Change>) {
    while changes.try_recv().is_ok() {}
}

/// Each node at its last update, shared with the cache. A kubelet updates its node every few seconds,
/// and most of these updates change neither its labels nor its address.
#[derive(Default)]
struct KnownNodes(HashMap<String, Arc<NodeView>>);

impl KnownNodes {
    /// The node of a change, as it was before.
    fn before(&self, change: &Change) -> Option<Arc<NodeView>> {
        match change {
            Change::Node(name) => self.0.get(name).cloned(),
            _ => None,
        }
    }

    /// Whether a change affects any object. Reports the readiness of nodes to the transport.
    fn is_relevant(&mut self, change: &Change, context: &Context) -> bool {
        match change {
            Change::Node(name) => {
                update_readiness(name, context);
                context.load_node_key(name);
                self.update(name, context)
            }
            // A node may have been deleted and recreated without a watch event.
            Change::Relisted => {
                self.update_all(context);
                true
            }
            _ => true,
        }
    }

    fn update_all(&mut self, context: &Context) {
        let known = std::mem::take(&mut self.0).into_keys();
        let all: BTreeSet<_> = known.chain(context.caches().nodes.names()).collect();
        for name in &all {
            update_readiness(name, context);
            self.update(name, context);
        }
    }

    fn update(&mut self, name: &str, context: &Context) -> bool {
        let Some(node) = context.caches().node(name) else {
            self.0.remove(name);
            if let Ok(node) = name.parse() {
                context.forget_node(&node);
            }
            return true;
        };
        if let Some(known) = self.0.get_mut(name) {
            let is_relevant = !known.has_same_effect(&node);
            *known = node;
            return is_relevant;
        }
        self.0.insert(name.to_owned(), node);
        true
    }
}

fn update_readiness(name: &str, context: &Context) {
    if let Ok(node) = name.parse() {
        let cached = context.caches().node(name);
        let readiness = cached.map_or(NodeReadiness::Gone, |view| view.readiness);
        context.publisher().transport().set_readiness(&node, readiness);
    }
}

/// `before` is the node of the change as it was before.
pub(super) fn on_change(change: Change, before: Option<&NodeView>, context: &Context) {
    match change {
        Change::Applied(object) => with_object!(object, versions => {
            on_applied(&versions.now, versions.before.as_deref(), context);
        }),
        Change::Deleted(object) => with_object!(object, versions => {
            context.forget(&versions.now);
            on_owned_changed(&versions.now, true, context);
            versions.now.enqueue_related(Cause::Spec, context);
        }),
        Change::Node(name) => {
            context.key_reports().notify_one();
            context.publisher().transport().on_nodes_changed();
            if let Ok(node) = name.parse() {
                context.update_peer(&node);
            }
            each_kind!(K => on_node_changed::<K>(&name, before, context));
        }
        Change::Workload { owner, namespace, name, deleted } => {
            with_kind!(owner, K => on_workload_changed::<K>(&namespace, &name, deleted, context));
        }
        // With a missing CRD the status of what refers to its objects names it.
        Change::Frameworks | Change::KindMissing => context.enqueue_all(),
        Change::Relisted => {
            context.load_node_keys();
            context.publisher().transport().on_nodes_changed();
            context.update_peers();
            each_kind!(K => {
                forget_missing::<K>(context);
                on_listed::<K>(context);
            });
            context.enqueue_all();
        }
    }
}

pub(super) fn on_applied<K: Controller>(object: &K, before: Option<&K>, context: &Context) {
    if is_own_write(object, before, context) {
        let reference = kube::runtime::reflector::ObjectRef::from_obj(object);
        K::state(context.states()).enqueue(reference);
    } else {
        context.enqueue(object);
    }
    object.enqueue_by_object(before, context);
    let observed = object.status().and_then(K::observed_generation);
    if observed != object.meta().generation {
        on_owned_changed(object, false, context);
        object.enqueue_related(Cause::Spec, context);
    }
}

/// The object belongs to the workload of its owner, if it has one.
fn on_owned_changed<K: Controller>(object: &K, deleted: bool, context: &Context) {
    let namespace = object.namespace().unwrap_or_default();
    for owner in object.owner_references().iter().filter(|owner| owner.controller == Some(true)) {
        each_kind!(O => {
            if O::kind(&()) == owner.kind {
                on_workload_changed::<O>(&namespace, &owner.name, deleted, context);
            }
        });
    }
}

/// Whether the change is the status that this controller wrote last.
fn is_own_write<K: Controller>(object: &K, before: Option<&K>, context: &Context) -> bool {
    let generation = object.meta().generation;
    let is_same = before.is_some_and(|before| before.meta().generation == generation);
    let version = object.resource_version();
    context.object_state(object, |state| state.is_own_write(version, is_same))
}

fn on_node_changed<K: Controller>(node: &str, before: Option<&NodeView>, context: &Context) {
    let now = context.caches().node(node);
    let versions: Vec<_> =
        before.into_iter().chain(now.as_deref()).map(|node| &*node.labels).collect();
    for object in K::cache(context.caches()).on_node(node, &versions) {
        context.enqueue(&*object);
        object.enqueue_related(Cause::Node, context);
    }
}

fn on_workload_changed<K: Controller>(
    namespace: &str,
    owner: &str,
    deleted: bool,
    context: &Context,
) {
    let Some(object) = context.caches().get::<K>(namespace, owner) else { return };
    if deleted {
        context.object_state(&*object, ObjectState::on_workload_deleted);
    }
    context.enqueue(&*object);
    object.enqueue_related(Cause::Workload, context);
}

/// Drops objects that were deleted during a gap of the watch, without an event.
pub fn forget_missing<K: Controller>(context: &Context) {
    let cache = K::cache(context.caches());
    for (key, uid) in context.publisher().objects(K::RESOURCE) {
        let exists = || match &*uid {
            "" => cache.get(&reference::<K>(&key)).is_some(),
            uid => context.caches().contains(&key, uid),
        };
        if !exists() {
            context.forget_key(&key, &uid);
        }
    }
    let uids = cache.state().iter().filter_map(|cached| cached.uid()).collect();
    K::state(context.states()).retain(&uids);
}
