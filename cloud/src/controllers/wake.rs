//! Wakes the objects that a change may concern, and forgets those that are gone.

use std::collections::{BTreeMap, HashMap};

use futures::{StreamExt as _, channel::mpsc::UnboundedReceiver};
use kube::{ResourceExt as _, runtime::reflector::ObjectRef};
use neptune_api::{InferenceModel, JointInferenceService};
use neptune_wire::Resource;

use super::{
    context::Context,
    identity::{key, reference},
    jointinferenceservice::wake_neighbours,
    kind::Kind,
    nodes::internal_address,
};
use crate::stores::Change;

/// Wakes the objects that a change may concern, until there are no more changes.
pub async fn dispatch(mut changes: UnboundedReceiver<Change>, context: Context) {
    let mut nodes = Nodes::default();
    while let Some(change) = changes.next().await {
        let is_news = match &change {
            Change::Node(name) => nodes.is_news(name, &context),
            // A node may have gone, and come back, unseen.
            Change::Relisted => {
                nodes.0.clear();
                true
            }
            _ => true,
        };
        if is_news {
            on_change(change, &context);
        }
        let stores = context.stores();
        context.metrics().set_services(stores.joint_inference_services.len());
        context.metrics().set_inference_models(stores.inference_models.len());
    }
}

/// What was known of each node when its change was last passed on. A kubelet writes its node again
/// and again, and of a large fleet most of that means nothing here.
#[derive(Default)]
struct Nodes(HashMap<String, Known>);

type Known = (BTreeMap<String, String>, Option<String>);

impl Nodes {
    fn is_news(&mut self, name: &str, context: &Context) -> bool {
        let Some(node) = context.stores().nodes.get(&ObjectRef::new(name)) else {
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
                wake_neighbours(&service, context);
            }
        }
        Change::ServiceGone(service) => {
            forget(&*service, context);
            wake_neighbours(&service, context);
        }
        Change::InferenceModel(model) => context.send(ObjectRef::from_obj(&*model)),
        Change::InferenceModelGone(model) => forget(&*model, context),
        Change::Model { namespace, name } => {
            context.wake_where(|service: &JointInferenceService| {
                let spec = &service.spec;
                service.metadata.namespace.as_ref() == Some(&namespace)
                    && [&spec.edge_worker.model, &spec.cloud_worker.model]
                        .iter()
                        .any(|model| model.name == name)
            });
        }
        Change::Node(name) => context.wake_concerned(&name),
        Change::Owned { namespace, owner, name, gone } => {
            let of = (&*namespace, &*name);
            match owner {
                Resource::JointInferenceServices => {
                    wake_owner::<JointInferenceService>(of, gone, context);
                }
                Resource::InferenceModels => wake_owner::<InferenceModel>(of, gone, context),
                Resource::Models | Resource::Datasets => {}
            }
        }
        Change::Frameworks => context.wake_all(),
        Change::Relisted => {
            forget_vanished::<JointInferenceService>(context);
            forget_vanished::<InferenceModel>(context);
            context.wake_all();
        }
    }
}

fn wake_owner<K: Kind>((namespace, name): (&str, &str), gone: bool, context: &Context) {
    let reference = ObjectRef::<K>::new(name).within(namespace);
    if gone && let Some(owner) = K::store(context.stores()).get(&reference) {
        context.memory(&*owner, |memory| memory.applied = None);
    }
    context.send(reference);
}

/// An object is gone: so is what its nodes had of it.
pub fn forget<K: Kind>(object: &K, context: &Context) {
    let uid = object.uid().unwrap_or_default();
    if let Some(key) = key(object) {
        context.downstream().remove(&key);
        context.fleet().forget(&key, &uid);
    }
    context.forget::<K>(&uid);
}

/// After a gap in the watch: what went in it left no event.
fn forget_vanished<K: Kind>(context: &Context) {
    let store = K::store(context.stores());
    for key in context.downstream().services() {
        if key.resource == K::RESOURCE && store.get(&reference(&key)).is_none() {
            context.downstream().remove(&key);
        }
    }
    context.remember_only::<K>(&store.state().iter().filter_map(|held| held.uid()).collect());
}
