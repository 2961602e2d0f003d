//! Collects the Models that `edgeWorker.model.selector` selects, from the caches and the fleet.

use std::sync::Arc;

use kube::{Resource as _, ResourceExt as _};
use neptune_api::{InferenceModel, JointInferenceService, Model, RolloutState};
use neptune_cloud_kinds::{
    joint_inference_service::{
        facts::Selection,
        selection::selected::{LabelledModel, is_on_nodes, select},
        spec::names::owned_name,
    },
    kubernetes::identity::key,
    model::{ModelFile, rows::RowState},
};
use neptune_wire::{NodeName, Role};

use crate::{
    cache::Cached as _,
    controllers::{joint_inference_service::collect::slices::nodes_with_worker, runtime::Context},
};

/// Chooses among the Models that the service selects; `None` without a selector.
pub fn selection(service: &JointInferenceService, context: &Context) -> Option<Selection> {
    let spec = service.spec.edge_worker.model.as_ref()?;
    let selector = spec.selector.as_ref()?;
    let namespace = service.namespace().unwrap_or_default();
    let mut models = Model::cache(context.caches()).with_labels(&namespace, &selector.match_labels);
    models.retain(|model| model.meta().deletion_timestamp.is_none());
    let nodes = nodes(service, context);
    let labelled = |model: Arc<Model>| LabelledModel {
        is_present: is_present(&model, &nodes, context),
        model,
    };
    let models: Vec<_> = models.into_iter().map(labelled).collect();
    let owned = owned_name(service, Role::Edge);
    let owned = context.caches().get::<InferenceModel>(&namespace, &owned);
    let failure = owned.as_deref().and_then(|owned| owned.status.as_ref()?.last_failure.clone());
    let of_server = owned.as_deref().and_then(|owned| owned.status.as_ref()?.rollout.as_deref());
    let own = service.status.as_ref().and_then(|status| status.rollout.as_deref());
    let mut rollouts = own.into_iter().chain(of_server);
    let rolls_out = rollouts.any(|rollout| rollout.state != RolloutState::Complete);
    let (models, now) = (&models, Context::wall_now());
    Some(select(service, (spec, selector), models, (failure, rolls_out), now))
}

/// The nodes of the edge worker.
fn nodes(service: &JointInferenceService, context: &Context) -> Vec<NodeName> {
    let named = service.spec.edge_worker.node_name.clone();
    let nodes = named.into_iter().chain(nodes_with_worker(service, context));
    nodes.filter_map(|node| node.parse().ok()).collect()
}

/// Whether the model's file is on the nodes, as far as they are not offline.
fn is_present(model: &Model, nodes: &[NodeName], context: &Context) -> bool {
    let (Some(key), uid) = (key(model), model.uid().unwrap_or_default()) else { return false };
    let fleet = context.fleet();
    let file = ModelFile::from_spec(&model.spec);
    let has = |node: &NodeName| {
        let report = fleet.report(node, &key, &uid).and_then(|report| report.model.as_deref());
        file.row_state(report) == Some(RowState::Present)
    };
    is_on_nodes(nodes.iter().map(|node| (fleet.presence(node), has(node))))
}
