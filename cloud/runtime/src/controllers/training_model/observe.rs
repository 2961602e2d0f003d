//! Collects what is known of a training, from the caches, the fleet and the aggregator's task.

use std::sync::Arc;

use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use neptune_api::{Model, TrainingModel};
use neptune_cloud_kinds::{
    kubernetes::pods::{
        available_replicas, deployment_problem, is_current, pod_pending, pod_problem,
    },
    training_model::{
        absence,
        evaluation_data::data_on,
        frozen::CurrentRun,
        observation::TrainingObservation,
        on_node::{self, AggregatorNode},
        outcome::earliest,
        request::{RequestInputs, request},
        resolved::ValidTrainingModel,
        rows::TrainingNode,
        workload,
    },
};
use neptune_wire::{NodeName, ObjectKey, aggregator::InitialWeights};

use crate::{
    cache::Caches,
    controllers::runtime::Context,
    training::{AggregatorTask, Publication, ReportedAggregator},
};

/// What is known of the training and its nodes.
pub fn observe(
    model: &TrainingModel,
    key: &ObjectKey,
    valid: Option<&ValidTrainingModel>,
    context: &Context,
    now: Timestamp,
) -> TrainingObservation {
    let Some(valid) = valid else { return TrainingObservation::default() };
    let uid = model.metadata.uid.as_deref().unwrap_or_default();
    let view = context.aggregators().view(uid);
    let caches = context.caches();
    let model_named = |name: &String| caches.get::<Model>(key.namespace.as_str(), name);
    let output = model.spec.output.as_ref().map(|output| &output.model.name);
    let output = output.and_then(model_named);
    let initial = model.spec.initial_weights.as_ref().and_then(|weights| weights.model.as_ref());
    let initial = initial.and_then(|reference| model_named(&reference.name));
    let current = model.status.as_ref().and_then(CurrentRun::from_status);
    let active = current.iter().filter(|current| !current.is_over);
    let fleet = context.fleet();
    let nodes = active.flat_map(|current| current.frozen.nodes()).map(|node| {
        let report = fleet.report(node, key, uid).and_then(|report| report.training.as_deref());
        let observed = TrainingNode {
            agent: fleet.agent(node, now),
            key: fleet.node_key(node),
            lacks_sessions: fleet.lacks_sessions(node),
            unmet: valid.unmet.get(node).and_then(|unmet| unmet.finding(node, None)),
            tasks: report.map(|report| report.tasks.clone()).unwrap_or_default(),
        };
        (node.clone(), observed)
    });
    let nodes = nodes.collect();
    // Reports of nodes do not wait for the rest.
    drop(fleet);
    TrainingObservation {
        nodes,
        next: Some(valid.next.clone()),
        url: valid.url(),
        pin: valid.aggregator.pin.clone().map(|pin| pin.0),
        state: view.state,
        problem: view.problem,
        node: valid.aggregator.node.clone(),
        pod: valid.aggregator.node.is_none().then(|| not_ready(model, caches)).flatten(),
        published: view.published,
        origins: initial.iter().chain(&output).filter_map(|model| weights(model)).collect(),
        output_digest: output.and_then(|model| model.spec.digest()),
        keep: usize::try_from(valid.keep).unwrap_or(usize::MAX),
        missing: valid.missing.clone(),
        samples: valid.samples,
        evaluation_data: current.as_ref().and_then(|current| {
            let evaluation = current.frozen.settings.evaluation.as_ref()?;
            let dataset = valid.datasets.get(evaluation.dataset.as_str())?;
            data_on(dataset, evaluation.node.as_str())
        }),
    }
}

/// The file that a Model names, if it names its digest.
fn weights(model: &Model) -> Option<InitialWeights> {
    let url = model.spec.model_url.clone();
    let sha256 = model.spec.digest()?;
    let is_web = ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme));
    is_web.then_some(InitialWeights { url: Some(url), sha256 })
}

/// Why the Pod of the aggregator is not ready; `None` if it is.
fn not_ready(model: &TrainingModel, caches: &Caches) -> Option<String> {
    let Some(deployment) = caches.deployment_of(model) else {
        return Some("the Deployment of the aggregator does not exist yet".to_owned());
    };
    if is_current(&deployment) && available_replicas(&deployment) > 0 {
        return None;
    }
    let pods = caches.pods_of(model);
    let pods: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
    let why = pods
        .iter()
        .find_map(|pod| pod_problem(pod))
        .or_else(|| deployment_problem(&deployment))
        .or_else(|| pods.iter().find_map(|pod| pod_pending(pod)));
    Some(why.unwrap_or_else(|| "the Pod of the aggregator is not ready yet".to_owned()))
}

/// What the aggregator's task has to do, by the written status.
pub fn aggregator_task(
    model: &TrainingModel,
    key: &ObjectKey,
    valid: &ValidTrainingModel,
    context: &Context,
) -> AggregatorTask {
    let uid = model.metadata.uid.as_deref().unwrap_or_default();
    let status = model.status.clone().unwrap_or_default();
    let current = CurrentRun::from_status(&status);
    let view = context.aggregators().view(uid);
    let state = view.state.as_deref().filter(|state| state.run == 0 || state.uid == uid);
    let (keys, tasks, is_settled) = {
        let (fleet, now) = (context.fleet(), context.fleet_now());
        let nodes = current.iter().flat_map(|current| current.frozen.nodes());
        let nodes: Vec<_> = nodes.cloned().collect();
        let keys = nodes.iter().filter_map(|node| Some((node.clone(), fleet.trusted_pin(node)?)));
        let tasks = nodes.iter().filter_map(|node| {
            let report = fleet.report(node, key, uid)?.training.as_deref()?;
            Some((node.clone(), report.tasks.clone()))
        });
        (keys.collect(), tasks.collect(), now >= fleet.settled_at())
    };
    let output = status.output.as_ref();
    let sent = output.and_then(|output| output.sha256sum.clone());
    let kept = output.map(|output| output.kept.clone()).unwrap_or_default();
    let keep = sent.into_iter().chain(kept).fold(Vec::new(), |mut all, digest| {
        if !all.contains(&digest) {
            all.push(digest);
        }
        all
    });
    let active = current.as_ref().filter(|current| !current.is_over);
    let deadline = active.and_then(|active| active.deadline(&model.spec));
    let over = current.as_ref().filter(|current| current.is_over);
    let next_start = over.and_then(|over| earliest(&model.spec, Some(over)));
    let is_waiting = current.is_none() && !valid.missing.is_empty();
    let created = model.metadata.creation_timestamp.as_ref().filter(|_| is_waiting);
    let first_start = absence::start(created);
    AggregatorTask {
        object: format!("{}/{}", key.namespace, key.name),
        node: valid.aggregator.node.as_ref().map(|node| reported(node, key, valid, context)),
        volume: workload::volume(model, valid),
        has_output: model.spec.output.is_some(),
        url: valid.url(),
        pin: valid.aggregator.pin.clone(),
        is_behind: current
            .as_ref()
            .is_some_and(|current| state.is_some_and(|state| state.run < current.number)),
        publication: publication(valid, current.as_ref(), output),
        request: request(RequestInputs {
            uid,
            current: current.as_ref(),
            next: valid.next.as_ref().ok(),
            state,
            unavailable: active
                .map(|active| absence::unavailable(active, &valid.datasets))
                .unwrap_or_default(),
            keys,
            is_settled,
            tasks,
            session_address: valid.aggregator.session_address.as_deref(),
            is_suspended: model.spec.suspend == Some(true),
            keep,
        }),
        reconcile_at: deadline.into_iter().chain(next_start).chain(first_start).min(),
    }
}

/// What the node of the aggregator reports, and why it cannot be used.
fn reported(
    node: &NodeName,
    key: &ObjectKey,
    valid: &ValidTrainingModel,
    context: &Context,
) -> ReportedAggregator {
    let (fleet, now) = (context.fleet(), context.fleet_now());
    let report = fleet.report(node, key, &valid.metadata.uid);
    let report = report.and_then(|report| report.aggregator.as_deref()).cloned();
    let aggregator = AggregatorNode {
        name: node.clone(),
        exists: context.caches().node(node.as_str()).is_some(),
        agent: fleet.agent(node, now),
        is_capable: fleet.runs_aggregators(node),
        report: report.clone(),
    };
    ReportedAggregator {
        problem: on_node::problem(&aggregator, valid.aggregator.address.as_deref()),
        report: report.unwrap_or_default(),
    }
}

/// The weights that the output Model should have.
fn publication(
    valid: &ValidTrainingModel,
    current: Option<&CurrentRun>,
    output: Option<&neptune_api::TrainingOutputStatus>,
) -> Option<Publication> {
    let (current, output) = (current.filter(|current| !current.is_over)?, output?);
    current.frozen.output.as_ref().filter(|frozen| frozen.model == output.model)?;
    let sha256 = output.sha256sum.clone().filter(|_| !output.published)?;
    let address = valid.aggregator.address.as_ref()?;
    // The last segment names the downloaded file, and model servers go by its extension. Earlier
    // aggregators report no format and serve no names.
    let name = output.format.as_ref().map_or_else(String::new, |it| format!("/weights.{it}"));
    Some(Publication {
        model: output.model.clone(),
        owner: valid.key.name.to_string(),
        url: format!("http://{address}/v1/content/{sha256}{name}"),
        sha256,
        format: output.format.clone(),
    })
}
