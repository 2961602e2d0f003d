//! Collects the users of a model and the reports of the nodes that need it, from the caches and the
//! fleet.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use neptune_api::{JointInferenceService, Model, TrainingModel};
use neptune_cloud_kinds::{
    fleet::{FleetState, Presence},
    model::{
        ModelFile,
        memory::Changes,
        place::PlacedModel,
        rows::{NodeRows, RowState, RowSummary},
        status::{
            MAX_LISTED, MeasuredByTraining, ModelObservation, NodeObservation,
            PlacementObservation, kept_states,
        },
        users::{entry, used},
    },
    training_model::output,
};
use neptune_wire::{ModelPresenceReport, NodeName, ObjectKey, Resource};

use super::users::{first_users, used_on};
use crate::{
    cache::Cached as _,
    controllers::runtime::{Context, NODES_PER_LOCK},
};

/// The observation of a model.
pub fn observe(
    model: &Model,
    key: &ObjectKey,
    placed: &PlacedModel,
    context: &Context,
    now: Timestamp,
) -> ModelObservation {
    let generation = model.metadata.generation;
    let (mut rows, changes) = context.object_state(model, |state| state.memory.take(generation));
    let file = ModelFile::from_spec(&model.spec);
    let unread = update(&mut rows, changes, key, &placed.nodes, context);
    let reports = Reports { model, key, file: &file, context };
    // Not one lock for all: reports of nodes must not wait for it.
    for nodes in unread.into_iter().collect::<Vec<_>>().chunks(NODES_PER_LOCK) {
        reports.read(&mut rows, nodes);
    }
    let (summary, mut nodes) = reports.listed(&mut rows, now);
    context.object_state(model, |state| state.memory.put(rows));
    for node in &mut nodes {
        node.awaited_rollout = context.publisher().awaited_rollout(&node.node, key);
    }
    let (users, user_count) = first_users(model, MAX_LISTED, context);
    let uid = model.metadata.uid.as_deref().unwrap_or_default();
    let evaluation = context.fleet().evaluation(uid).cloned();
    ModelObservation {
        file,
        users,
        user_count,
        rows: summary,
        nodes,
        placement: model.spec.placement.is_some().then(|| PlacementObservation {
            unusable: placed.unusable.clone(),
            nothing: placed.nothing.clone(),
        }),
        evaluation,
        measured: measured(model, context),
    }
}

/// Applies the changes of services and of the placement. Returns the nodes whose reports have to be
/// read.
fn update(
    rows: &mut NodeRows,
    changes: Changes,
    model: &ObjectKey,
    placed: &Arc<[NodeName]>,
    context: &Context,
) -> BTreeSet<NodeName> {
    let (namespace, name) = (model.namespace.as_str(), model.name.as_str());
    let mut unread: BTreeSet<NodeName> = rows.set_placed(placed).into_iter().collect();
    match changes {
        Changes::All => {
            let services = JointInferenceService::cache(context.caches());
            for service in services.with_key(&used(namespace, name)) {
                let nodes = used_on(&service, name, context);
                unread.extend(rows.set_service(&service.name_any(), nodes));
            }
        }
        Changes::Some { services, nodes } => {
            for service in services {
                let cached = context.caches().get::<JointInferenceService>(namespace, &service);
                let nodes = cached.map(|service| used_on(&service, name, context));
                rows.set_service(&service, nodes.unwrap_or_default());
                unread.extend(rows.nodes_of(&service).cloned());
            }
            unread.extend(nodes);
        }
    }
    unread
}

/// Reads what nodes report of a model.
struct Reports<'a> {
    model: &'a Model,
    key: &'a ObjectKey,
    file: &'a ModelFile,
    context: &'a Context,
}

impl Reports<'_> {
    /// Reads the reports of nodes into their rows.
    fn read(&self, rows: &mut NodeRows, nodes: &[NodeName]) {
        let fleet = self.context.fleet();
        for node in nodes {
            self.read_node(rows, node, &fleet);
        }
    }

    /// Reads the report of a node into its row. Returns whether it was another one before.
    fn read_node(&self, rows: &mut NodeRows, node: &NodeName, fleet: &FleetState) -> bool {
        let is_offline = matches!(fleet.presence(node), Presence::Offline { .. });
        rows.set_report(node, self.state(self.presence(node, fleet)), is_offline)
    }

    /// The numbers of the rows, and the nodes that the status lists. Their rows are read at the same
    /// time as the numbers, so that both agree.
    fn listed(&self, rows: &mut NodeRows, now: Timestamp) -> (RowSummary, Vec<NodeObservation>) {
        let previous = self.model.status.clone().unwrap_or_default();
        let fleet = self.context.fleet();
        loop {
            let kept = kept_states(&previous, self.model.metadata.generation);
            let summary = rows.summary(kept, MAX_LISTED);
            let listed = summary.missing.iter().chain(&summary.has).chain(&summary.first);
            let listed: BTreeSet<_> = listed.collect();
            let mut is_current = true;
            for node in &listed {
                is_current &= !self.read_node(rows, node, &fleet);
            }
            if !is_current {
                continue;
            }
            let node = |node: &&NodeName| NodeObservation {
                presence: self.presence(node, &fleet).cloned().map(Box::new),
                agent: fleet.agent(node, now),
                awaited_rollout: None,
                node: (*node).clone(),
            };
            let nodes = listed.iter().map(node).collect();
            return (summary, nodes);
        }
    }

    fn presence<'a>(
        &self,
        node: &NodeName,
        fleet: &'a FleetState,
    ) -> Option<&'a ModelPresenceReport> {
        let uid = self.model.metadata.uid.as_deref().unwrap_or_default();
        fleet.report(node, self.key, uid)?.model.as_deref()
    }

    fn state(&self, presence: Option<&ModelPresenceReport>) -> Option<RowState> {
        self.file.row_state(presence)
    }
}

/// What the `TrainingModel` that made the file of the model measured.
fn measured(model: &Model, context: &Context) -> Option<MeasuredByTraining> {
    let (owner, namespace) = (output::owner(model)?, model.metadata.namespace.as_deref()?);
    let training = context.caches().get::<TrainingModel>(namespace, owner)?;
    let output = training.status.as_ref()?.output.as_ref()?;
    let is_of_file = Some(&output.model) == model.metadata.name.as_ref()
        && output.sha256sum.is_some()
        && output.sha256sum == model.spec.digest();
    let measured = output.measured.as_deref().filter(|_| is_of_file)?.clone();
    Some(MeasuredByTraining { object: entry(Resource::TrainingModels, owner), measured })
}
