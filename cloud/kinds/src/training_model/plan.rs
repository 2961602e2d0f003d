//! The plan of a `TrainingModel`: the open tasks of each node with their Datasets, and the
//! aggregator.

use std::{collections::BTreeMap, sync::Arc};

use neptune_api::TrainingModel;
use neptune_wire::{
    AggregatorEndpoint, NodeName, ObjectContent, ObjectKey, ObjectName, SessionPlace,
    SessionServer, TaskKind, TrainingContent, TrainingTask,
};

use super::{frozen::CurrentRun, on_node, resolved::ValidTrainingModel, workload};
use crate::{
    dataset,
    fleet::{Generations, Requirements, Retained, encode_contents},
    kubernetes::identity::content,
    steps::ObjectPlan,
    worker::{names::training_name, needs::Unmet},
};

/// The plan of a `TrainingModel` that is valid or has a run.
pub fn plan(model: &TrainingModel, valid: &ValidTrainingModel, fetch_image: &str) -> ObjectPlan {
    if let Some(node) = &valid.aggregator.node {
        return plan_on_node(model, valid, node);
    }
    // A controller that has just started, or has no rights in the namespace, stops nothing.
    let Some(controller) = &valid.aggregator.controller_pin else {
        let retained = Some(run_objects(valid));
        return ObjectPlan { retained, keeps_objects: true, ..ObjectPlan::default() };
    };
    let objects = Some(workload::objects(model, valid, controller, fetch_image));
    let active = valid.current.as_ref().filter(|current| !current.is_over);
    let Some(current) = active else { return ObjectPlan { objects, ..ObjectPlan::default() } };
    let Some(requirements) = requirements(model, valid, current) else {
        // A controller that has just started does not know the tasks yet: they go on.
        return ObjectPlan { objects, retained: Some(run_objects(valid)), ..ObjectPlan::default() };
    };
    ObjectPlan { objects, ..on_nodes(valid, current, requirements) }
}

/// The plan of the nodes of a run. Those whose agents have not reported what they offer keep what they
/// have.
fn on_nodes(
    valid: &ValidTrainingModel,
    current: &CurrentRun,
    mut requirements: ContentsByNode,
) -> ObjectPlan {
    let mut kept = objects_of(current, &valid.key);
    kept.retain(|node, _| valid.unmet.get(node) == Some(&Unmet::NotReported));
    requirements.retain(|node, _| !kept.contains_key(node));
    ObjectPlan { requirements: encoded(requirements), kept, ..ObjectPlan::default() }
}

/// What each node of a run needs.
type ContentsByNode = BTreeMap<NodeName, BTreeMap<ObjectKey, ObjectContent>>;

fn encoded(contents: ContentsByNode) -> Requirements {
    contents.into_iter().map(|(node, contents)| (node, encode_contents(contents))).collect()
}

/// The plan if a node runs the aggregator.
fn plan_on_node(model: &TrainingModel, valid: &ValidTrainingModel, node: &NodeName) -> ObjectPlan {
    let active = valid.current.as_ref().filter(|current| !current.is_over);
    let known = active.map(|current| (current, requirements(model, valid, current)));
    let mut requirements = match known {
        Some((current, None)) if current.was_accepted => {
            return ObjectPlan { retained: Some(run_objects(valid)), ..ObjectPlan::default() };
        }
        // It does not run yet, so that no task is open.
        Some((_, None)) | None => ContentsByNode::new(),
        Some((_, Some(requirements))) => requirements,
    };
    let contents = requirements.entry(node.clone()).or_default();
    let content = contents
        .entry(valid.key.clone())
        .or_insert_with(|| content::<TrainingModel>(valid.metadata.clone(), &model.spec));
    content.aggregator = Some(Box::new(on_node::content(model, valid)));
    match active {
        Some(current) => on_nodes(valid, current, requirements),
        None => ObjectPlan { requirements: encoded(requirements), ..ObjectPlan::default() },
    }
}

/// What each node of a run needs; `None` while the open tasks or the aggregator's key are unknown.
fn requirements(
    model: &TrainingModel,
    valid: &ValidTrainingModel,
    current: &CurrentRun,
) -> Option<ContentsByNode> {
    valid.aggregator.state.as_ref()?;
    if current.frozen.session.is_some() && valid.state().is_some_and(|it| !it.tasks.is_empty()) {
        session_server(valid)?;
    }
    let aggregator = AggregatorEndpoint { url: valid.url()?, pin: valid.aggregator.pin.clone()? };
    let nodes = current.frozen.nodes().into_iter();
    let contents =
        nodes.map(|node| (node.clone(), contents(model, valid, current, node, &aggregator)));
    Some(contents.collect())
}

/// The generations of the Datasets that nodes may need.
pub fn generations(valid: &ValidTrainingModel) -> Generations {
    let datasets = valid.datasets.iter().filter_map(|(name, dataset)| {
        let key = dataset::object_key(&valid.key, name.parse().ok()?);
        Some((key, dataset.metadata.generation?))
    });
    datasets.collect()
}

/// How workers reach the server of an engine; `None` while it is unknown.
fn session_server(valid: &ValidTrainingModel) -> Option<SessionServer> {
    let address = valid.aggregator.session_address.clone()?;
    Some(SessionServer { address, ca: valid.state()?.session.as_ref()?.ca.clone() })
}

/// The objects that nodes retain while the spec is invalid: without a run they have none.
pub fn retained(model: &TrainingModel, key: &ObjectKey) -> Retained {
    let current = model.status.as_ref().and_then(CurrentRun::from_status);
    let active = current.filter(|current| !current.is_over);
    active.map(|current| objects_of(&current, key)).unwrap_or_default()
}

fn run_objects(valid: &ValidTrainingModel) -> Retained {
    let active = valid.current.as_ref().filter(|current| !current.is_over);
    active.map(|current| objects_of(current, &valid.key)).unwrap_or_default()
}

/// The object and its Datasets, by node.
fn objects_of(current: &CurrentRun, key: &ObjectKey) -> Retained {
    let mut objects = Retained::new();
    for (node, name) in datasets(current) {
        let keys = [key.clone(), dataset::object_key(key, name.clone())];
        Arc::make_mut(objects.entry(node.clone()).or_default()).extend(keys);
    }
    if let Some(node) = &current.frozen.aggregator_node {
        Arc::make_mut(objects.entry(node.clone()).or_default()).insert(key.clone());
    }
    objects
}

/// The nodes of a run with their Datasets.
fn datasets(current: &CurrentRun) -> impl Iterator<Item = (&NodeName, &ObjectName)> {
    let settings = &current.frozen.settings;
    let workers = settings.workers.values().map(|worker| (&worker.node, &worker.dataset));
    workers.chain(settings.evaluation.iter().map(|it| (&it.node, &it.dataset)))
}

fn contents(
    model: &TrainingModel,
    valid: &ValidTrainingModel,
    current: &CurrentRun,
    node: &NodeName,
    aggregator: &AggregatorEndpoint,
) -> BTreeMap<ObjectKey, ObjectContent> {
    let own = datasets(current).filter(|(owner, _)| *owner == node);
    let mut contents: BTreeMap<_, _> = own
        .filter_map(|(_, name)| {
            let object = valid.datasets.get(name.as_str())?;
            let key = dataset::object_key(&valid.key, name.clone());
            let content = dataset::content(object, &key, node);
            // A Dataset that was moved is another node's.
            dataset::is_on(object, node.as_str()).then_some((key, content))
        })
        .collect();
    let training = TrainingContent {
        run: current.number,
        aggregator: aggregator.clone(),
        container: current.frozen.container.clone(),
        tasks: tasks(valid, current, node),
        session: current.frozen.session.as_ref().and_then(|_| session_server(valid)),
    };
    let content = ObjectContent {
        training: Some(Box::new(training)),
        ..content::<TrainingModel>(valid.metadata.clone(), &model.spec)
    };
    contents.insert(valid.key.clone(), content);
    contents
}

/// The place of a worker, by the names of all workers of the run.
fn place(current: &CurrentRun, worker: &str) -> SessionPlace {
    let workers = &current.frozen.settings.workers;
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let index = workers.keys().position(|name| name == worker).unwrap_or_default();
    SessionPlace { index: number(index), workers: number(workers.len()) }
}

/// The open tasks of a node, in the order of their workers; none if it lacks something that they need.
fn tasks(valid: &ValidTrainingModel, current: &CurrentRun, node: &NodeName) -> Vec<TrainingTask> {
    let (namespace, name) = (valid.key.namespace.as_str(), valid.key.name.as_str());
    let state = valid.state().filter(|_| !valid.unmet.contains_key(node));
    let open = state.into_iter().flat_map(|state| &state.tasks);
    let mut tasks: Vec<_> = open
        .filter(|task| task.node == *node)
        .map(|task| TrainingTask {
            worker: task.worker.clone(),
            container: training_name(
                namespace,
                name,
                Some(task.worker.as_str()).filter(|worker| !worker.is_empty()),
            ),
            id: task.id.clone(),
            kind: task.kind,
            round: task.round,
            rounds: current.frozen.settings.rounds,
            seed: task.seed,
            base: task.base.clone(),
            dataset: task.dataset.clone(),
            place: (task.kind == TaskKind::Session).then(|| place(current, &task.worker)),
        })
        .collect();
    tasks.sort_by(|a, b| (&a.worker, &a.id).cmp(&(&b.worker, &b.id)));
    tasks
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::aggregator::{RunPhase, RunStatus};

    use super::*;
    use crate::nodes::offer::AgentOffer;
    use crate::training_model::{
        fixtures::{self, current, frozen, state},
        validate::validate,
    };
    use crate::worker::needs::unmet_on;

    fn valid(current: Option<CurrentRun>, state: Option<RunStatus>) -> ValidTrainingModel {
        let facts = fixtures::facts();
        let mut valid = validate(&fixtures::model(), &facts).unwrap();
        valid.datasets = facts.datasets;
        (valid.current, valid.aggregator.state) = (current, state.map(Arc::new));
        valid
    }

    #[test]
    fn node_without_the_devices_gets_no_task_and_an_unknown_one_keeps_what_it_has() {
        let model = fixtures::model();
        let mut frozen = frozen();
        frozen.container.program.devices = [("nvidia.com/gpu".to_owned(), 1)].into();
        let mut facts = fixtures::facts();
        let run = current(&frozen);
        let nodes: Vec<NodeName> = run.frozen.nodes().into_iter().cloned().collect();
        let [first, second, third] = &nodes[..] else { unreachable!("{nodes:?}") };
        for (node, devices) in [
            (first, serde_json::json!([{"resource": "nvidia.com/gpu", "total": 1, "free": 1}])),
            (second, serde_json::json!([])),
        ] {
            let report = serde_json::json!({
                "instance": "a", "epoch": 1, "online": true, "supports": ["devices"],
                "devices": devices,
            });
            let offer = AgentOffer::from_report(&serde_json::from_value(report).unwrap());
            facts.offers.insert(node.clone(), Arc::new(offer));
        }
        let mut valid = valid(Some(run.clone()), Some(state(1, RunPhase::Open)));
        valid.unmet = unmet_on(&frozen.container.program, run.frozen.nodes(), &facts.offers);
        let plan = plan(&model, &valid, "");
        let tasks = |node: &NodeName| {
            let content = plan.requirements.get(node)?[&valid.key].content();
            Some(content.training.unwrap().tasks.len())
        };
        assert!(tasks(first) > Some(0));
        assert_eq!((tasks(second), tasks(third)), (Some(0), None));
        assert_eq!(plan.kept.keys().collect::<Vec<_>>(), [third]);
    }

    #[test]
    fn each_node_of_a_run_gets_its_tasks_and_its_dataset() {
        let model = fixtures::model();
        let valid = valid(Some(current(&frozen())), Some(state(1, RunPhase::Open)));
        let plan = plan(&model, &valid, "");
        assert_eq!((plan.retained, plan.requirements.len()), (None, 3));
        let required = |node: &str| &plan.requirements[&node.parse::<NodeName>().unwrap()];
        let brief = |node: &str| {
            let content = required(node)[&valid.key].content();
            let training = content.training.as_ref().unwrap();
            let tasks: Vec<_> = training.tasks.iter().map(|task| task.id.0.clone()).collect();
            (tasks.join(" "), required(node).len())
        };
        assert_eq!(brief("edge0"), ("t-a".to_owned(), 3), "the Dataset of the evaluation, too");
        assert_eq!(brief("edge1"), ("t-b".to_owned(), 2));
        assert_eq!(brief("edge2"), (String::new(), 2), "it waits for the next round");
        let content = required("edge0")[&valid.key].content().training.unwrap();
        assert_eq!(content.aggregator.url, "https://192.0.2.7:30418");
        assert!(content.tasks[0].container.as_str().starts_with("digits-a-"));
        assert!(plan.objects.is_some());
    }

    #[test]
    fn nodes_keep_their_tasks_while_the_state_is_unknown_and_lose_them_at_the_end() {
        let model = fixtures::model();
        let unknown = plan(&model, &valid(Some(current(&frozen())), None), "");
        let retained = unknown.retained.unwrap();
        assert_eq!((retained.len(), unknown.requirements.len()), (3, 0));
        assert!(unknown.objects.is_some(), "the aggregator stays");
        let mut without_key = valid(Some(current(&frozen())), Some(state(1, RunPhase::Open)));
        without_key.aggregator.controller_pin = None;
        let without_key = plan(&model, &without_key, "");
        assert!(without_key.keeps_objects && without_key.objects.is_none());
        assert_eq!(without_key.retained.unwrap().len(), 3);
        let over = CurrentRun { is_over: true, ..current(&frozen()) };
        let ended = plan(&model, &valid(Some(over), None), "");
        assert_eq!((ended.retained, ended.requirements.len()), (None, 0));
        assert!(ended.objects.is_some(), "it serves the weights");
        let earlier =
            plan(&model, &valid(Some(current(&frozen())), Some(state(0, RunPhase::Open))), "");
        let contents = earlier.requirements.values().flat_map(|contents| contents.values());
        let trainings = contents.filter_map(|content| content.content().training);
        let tasks = trainings.flat_map(|training| training.tasks);
        assert_eq!(tasks.count(), 0, "tasks of another run");
    }
}
