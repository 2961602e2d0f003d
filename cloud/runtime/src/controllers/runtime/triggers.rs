//! Enqueues the objects that a change affects, and drops the state of deleted objects.
//!
//! A change of a spec, a node or the cluster runs all steps again. A report of a node, and the
//! watch event of our own status write, only compute the status again.

use futures::{
    StreamExt as _,
    channel::mpsc::UnboundedReceiver,
    future::{Either, select},
};
use kube::{Resource as _, ResourceExt as _};
use neptune_cloud_kinds::{
    each_kind,
    index_key::IndexKey,
    kubernetes::{labels::Labels, node_view::NodeView, nodes::NodeReadiness},
    with_kind,
};
use neptune_wire::{NodeName, ObjectKey};

use super::{
    context::Context,
    controller::{AgentChange, Cause, Controller},
    queue::on_listed,
    state::ObjectState,
};
use crate::upstream::FleetChange;
use crate::{
    cache::{Cached as _, Change, NodeChange, with_object, with_object_body},
    kubernetes::reference::reference,
};

/// Enqueues the objects that a change affects, until the program exits.
pub async fn dispatch(
    mut changes: UnboundedReceiver<Change>,
    mut reports: UnboundedReceiver<FleetChange>,
    context: Context,
) {
    update_all_readiness(&context);
    measure(&context);
    loop {
        match select(changes.next(), reports.next()).await {
            Either::Left((Some(change), _)) => {
                on_change(change, &context);
                measure(&context);
            }
            Either::Right((Some(FleetChange::Presence(node)), _)) => {
                context.key_reports().notify_one();
                context.enqueue_node(&node, AgentChange::Presence);
            }
            Either::Right((Some(FleetChange::Node(node)), _)) => {
                context.update_peer(&node);
                context.key_reports().notify_one();
                context.enqueue_node(&node, AgentChange::Facts);
            }
            Either::Right((Some(FleetChange::Object(key, node)), _)) => {
                with_kind!(key.resource, K => context.enqueue_report::<K>(&key, &node));
            }
            Either::Left((None, _)) | Either::Right((None, _)) => return,
        }
    }
}

impl Context {
    /// Enqueues an object, if it exists, because of a report of this node.
    pub fn enqueue_report<K: Controller>(&self, key: &ObjectKey, node: &NodeName) {
        if let Some(object) = K::cache(self.caches()).get(&reference(key)) {
            object.enqueue_by_report(node, self);
        }
    }

    /// Enqueues every object that a change of the node's agent may affect.
    pub fn enqueue_node(&self, node: &NodeName, change: AgentChange) {
        let cached = self.caches().node(node.as_str());
        let without = Labels::new();
        let labels = cached.as_deref().map_or(&without, |node| &node.labels);
        each_kind!(K => {
            for object in K::cache(self.caches()).on_agent(node.as_str(), &[labels]) {
                object.enqueue_by_agent(node, change, self);
            }
        });
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

/// The transport starts with the readiness of all nodes. Later changes report that of one node.
fn update_all_readiness(context: &Context) {
    for name in context.caches().nodes.names() {
        let view = context.caches().node(&name);
        update_readiness(&name, view.as_deref(), context);
    }
}

fn update_readiness(name: &str, view: Option<&NodeView>, context: &Context) {
    if let Ok(node) = name.parse() {
        let readiness = view.map_or(NodeReadiness::Gone, |view| view.readiness);
        context.publisher().transport().set_readiness(&node, readiness);
    }
}

pub(super) fn on_change(change: Change, context: &Context) {
    match change {
        Change::Applied(object) => with_object!(object, versions => {
            on_applied(&versions.now, versions.before.as_deref(), context);
        }),
        Change::Deleted(object) => with_object!(object, versions => {
            context.forget(&versions.now);
            on_owned_changed(&versions.now, true, context);
            versions.now.enqueue_related(Cause::Spec, context);
        }),
        Change::Node(change) => on_node_changed(&change, context),
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

fn on_node_changed(change: &NodeChange, context: &Context) {
    let NodeChange { name, before, after } = change;
    update_readiness(name, after.as_deref(), context);
    context.load_node_key(name);
    let node = name.parse();
    if let (Ok(node), None) = (&node, after) {
        context.forget_node(node);
    }
    if !change.has_effect() {
        return;
    }
    context.key_reports().notify_one();
    context.publisher().transport().on_nodes_changed();
    if let Ok(node) = &node {
        context.update_peer(node);
    }
    let versions: Vec<_> = before.iter().chain(after).collect();
    let labels: Vec<_> = versions.iter().map(|view| &*view.labels).collect();
    let may_be_address = versions.iter().any(|view| view.is_cloud_address());
    if let (Ok(node), false) = (&node, change.changes_selection()) {
        // Only its address: that of an agent is another one, too.
        context.enqueue_node(node, AgentChange::Facts);
    }
    each_kind!(K => {
        let cache = K::cache(context.caches());
        let mut objects = Vec::new();
        if change.changes_selection() {
            objects.extend(cache.on_node(name, &labels));
        }
        if may_be_address {
            objects.extend(cache.with_key(&IndexKey::CloudNodes));
        }
        for object in objects {
            context.enqueue_by_nodes(&*object);
        }
    });
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
