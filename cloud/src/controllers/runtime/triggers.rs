//! Wakes the objects that a change may concern, and forgets those that are gone.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use futures::{StreamExt as _, channel::mpsc::UnboundedReceiver};
use kube::{ResourceExt as _, runtime::reflector::ObjectRef};
use neptune_api::{Dataset, InferenceModel, JointInferenceService, Model};
use neptune_wire::Resource;

use crate::{
    cache::Change,
    controllers::{
        joint_inference_service::enqueue_port_neighbours,
        model::{enqueue_used_models, uses},
        runtime::{context::Context, controller::Kind},
    },
    kubernetes::{
        identity::{key, reference},
        nodes::{internal_address, readiness},
    },
};

/// Wakes the objects that a change may concern, until there are no more changes.
pub async fn dispatch(mut changes: UnboundedReceiver<Change>, context: Context) {
    let mut nodes = Nodes::default();
    while let Some(change) = changes.next().await {
        let is_relevant = match &change {
            Change::Node(name) => {
                update_readiness(name, &context);
                nodes.is_relevant(name, &context)
            }
            // A node may have gone, and come back, unseen.
            Change::Relisted => {
                let known = std::mem::take(&mut nodes.0).into_keys();
                let there = context.caches().nodes.state();
                let all: BTreeSet<_> = known.chain(there.iter().map(|n| n.name_any())).collect();
                for name in &all {
                    update_readiness(name, &context);
                }
                true
            }
            _ => true,
        };
        if is_relevant {
            on_change(change, &context);
        }
        let caches = context.caches();
        context.metrics().set_services(caches.joint_inference_services.len());
        context.metrics().set_inference_models(caches.inference_models.len());
        context.metrics().set_datasets(caches.datasets.len());
    }
}

/// Tells the transport whether Kubernetes takes a node for alive.
fn update_readiness(name: &str, context: &Context) {
    if let Ok(node) = name.parse() {
        let held = context.caches().nodes.get(&ObjectRef::new(name));
        context.publisher().transport().set_readiness(&node, readiness(held.as_deref()));
    }
}

/// What was known of each node when its change was last passed on. A kubelet writes its node again
/// and again, and of a large fleet most of that means nothing here.
#[derive(Default)]
struct Nodes(HashMap<String, Known>);

type Known = (BTreeMap<String, String>, Option<String>);

impl Nodes {
    fn is_relevant(&mut self, name: &str, context: &Context) -> bool {
        let Some(node) = context.caches().nodes.get(&ObjectRef::new(name)) else {
            self.0.remove(name);
            return true;
        };
        let now = (node.labels().clone(), internal_address(&node).map(str::to_owned));
        if self.0.get(name) == Some(&now) {
            return false;
        }
        self.0.insert(name.to_owned(), now);
        true
    }
}

fn on_change(change: Change, context: &Context) {
    match change {
        Change::Service(service) => {
            context.send(ObjectRef::from_obj(&*service));
            let seen = service.status.as_ref().and_then(|status| status.observed_generation);
            if seen != service.metadata.generation {
                enqueue_port_neighbours(&service, context);
                enqueue_used_models(&service, context);
            }
        }
        Change::ServiceGone(service) => {
            forget(&*service, context);
            enqueue_port_neighbours(&service, context);
            enqueue_used_models(&service, context);
        }
        Change::InferenceModel(model) => context.send(ObjectRef::from_obj(&*model)),
        Change::InferenceModelGone(model) => forget(&*model, context),
        Change::Dataset(dataset) => {
            context.send(ObjectRef::from_obj(&*dataset));
            let seen = dataset.status.as_ref().and_then(|status| status.observed_generation);
            // Its numbers mean nothing for the services.
            if seen != dataset.metadata.generation {
                enqueue_users_of_dataset(&dataset, context);
            }
        }
        Change::DatasetGone(dataset) => {
            forget(&*dataset, context);
            enqueue_users_of_dataset(&dataset, context);
        }
        Change::Model(model) => {
            context.send(ObjectRef::from_obj(&*model));
            let seen = model.status.as_ref().and_then(|status| status.observed_generation);
            if seen != model.metadata.generation {
                enqueue_users(&model, context);
            }
        }
        Change::ModelGone(model) => {
            forget(&*model, context);
            enqueue_users(&model, context);
        }
        Change::Node(name) => {
            context.publisher().transport().nodes_changed();
            context.enqueue_concerned(&name);
            // Who runs its workers may be another now: the node's agent, or its kubelet.
            let services = &context.caches().joint_inference_services;
            for service in services.state_filter(|service| service.concerns(&name)) {
                enqueue_used_models(&service, context);
            }
        }
        Change::Owned { namespace, owner, name, gone } => {
            let of = (&*namespace, &*name);
            match owner {
                Resource::JointInferenceServices => {
                    enqueue_owner::<JointInferenceService>(of, gone, context);
                }
                Resource::InferenceModels => enqueue_owner::<InferenceModel>(of, gone, context),
                // Nothing is made for these.
                Resource::Models | Resource::Datasets => {}
            }
        }
        Change::Frameworks => context.enqueue_all(),
        Change::Relisted => {
            context.publisher().transport().nodes_changed();
            forget_vanished::<JointInferenceService>(context);
            forget_vanished::<InferenceModel>(context);
            forget_vanished::<Model>(context);
            forget_vanished::<Dataset>(context);
            context.enqueue_all();
        }
    }
}

/// Looks at the services that name a model again.
fn enqueue_users(model: &Model, context: &Context) {
    let name = model.metadata.name.as_deref().unwrap_or_default();
    let namespace = model.metadata.namespace.as_ref();
    context.enqueue_where(|service: &JointInferenceService| uses(service, namespace, name));
}

/// Looks at the services whose edge worker infers on a dataset again.
fn enqueue_users_of_dataset(dataset: &Dataset, context: &Context) {
    let metadata = &dataset.metadata;
    context.enqueue_where(|service: &JointInferenceService| {
        service.metadata.namespace == metadata.namespace
            && service.spec.edge_worker.dataset.as_ref().map(|dataset| &dataset.name)
                == metadata.name.as_ref()
    });
}

fn enqueue_owner<K: Kind>((namespace, name): (&str, &str), gone: bool, context: &Context) {
    let reference = ObjectRef::<K>::new(name).within(namespace);
    if gone && let Some(owner) = K::store(context.caches()).get(&reference) {
        context.memory(&*owner, |memory| {
            memory.applied = None;
            memory.removals += 1;
        });
    }
    context.send(reference);
}

/// An object is gone: so is what its nodes had of it.
pub fn forget<K: Kind>(object: &K, context: &Context) {
    let uid = object.uid().unwrap_or_default();
    if let Some(key) = key(object) {
        context.publisher().remove(&key);
        context.fleet().forget(&key, &uid);
    }
    context.forget::<K>(&uid);
}

/// After a gap in the watch: what went in it left no event.
fn forget_vanished<K: Kind>(context: &Context) {
    let store = K::store(context.caches());
    for key in context.publisher().services() {
        if key.resource == K::RESOURCE && store.get(&reference(&key)).is_none() {
            context.publisher().remove(&key);
        }
    }
    context.remember_only::<K>(&store.state().iter().filter_map(|held| held.uid()).collect());
}
