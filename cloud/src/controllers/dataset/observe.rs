//! Collects what a dataset depends on: from the copies of the API's objects and from the fleet.

use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use neptune_api::Dataset;
use neptune_wire::{ContentHash, NodeName, ObjectKey};

use crate::{
    controllers::{
        dataset::{
            observed::{self, View},
            validate,
        },
        runtime::context::Context,
    },
    reason::{Finding, Reason},
};

/// What the cluster has of what the dataset names.
pub fn facts(dataset: &Dataset, context: &Context) -> validate::Facts {
    validate::Facts { node: context.caches().nodes.get(&ObjectRef::new(&dataset.spec.node_name)) }
}

/// What the node's agent says.
pub fn view(
    dataset: &Dataset,
    key: &ObjectKey,
    told: Option<&ContentHash>,
    context: &Context,
    now: Timestamp,
) -> View {
    let Ok(node) = dataset.spec.node_name.parse::<NodeName>() else {
        // `validate` says so as well, and its word comes first.
        return View::Awaited(Finding::new(Reason::NodeRequired, "it has no node"));
    };
    let uid = dataset.metadata.uid.as_deref().unwrap_or_default();
    let fleet = context.fleet();
    observed::view(observed::Facts {
        node: &node,
        content: told,
        presence: fleet.presence(&node),
        report: fleet.report(&node, key, uid),
        settled: now >= fleet.settled_at(),
        connected: context.publisher().transport().is_connected(),
    })
}
