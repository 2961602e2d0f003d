//! What a model that can be served means: a task for a node's agent, or a Deployment with a Service.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};

use kube::Resource as _;
use neptune_api::InferenceModel;
use neptune_wire::{Content, NodeName, ObjectKey, Resources, Serving};

use super::{super::objects::KubernetesObjects, kubernetes, place::Place, validate::Checked};

/// All that one model asks for.
#[must_use]
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What the node's agent should have because of this model.
    pub downstream: BTreeMap<NodeName, BTreeMap<ObjectKey, Content>>,
    /// What the API server should have; `None` where an agent runs the server.
    pub objects: Option<KubernetesObjects>,
}

/// The plan of a model.
pub fn plan(model: &InferenceModel, checked: &Checked, fetch_image: &str) -> Plan {
    match &checked.place {
        Place::Agent { node } => {
            let contents = [(checked.key.clone(), content(model, checked))].into();
            Plan { downstream: [(node.clone(), contents)].into(), objects: None }
        }
        Place::Cluster { .. } => {
            let objects = kubernetes::objects(model, checked, fetch_image);
            Plan { downstream: BTreeMap::new(), objects: Some(objects) }
        }
    }
}

/// What nodes may have of a model that cannot be planned now.
pub fn keeps(model: &InferenceModel, key: &ObjectKey) -> BTreeMap<NodeName, BTreeSet<ObjectKey>> {
    let before = model.status.as_ref().and_then(|status| status.node.as_deref());
    let nodes = [before, model.spec.node_name.as_deref()].into_iter().flatten();
    nodes.filter_map(|node| node.parse().ok()).map(|node| (node, [key.clone()].into())).collect()
}

/// The server's variables, less what only its host knows.
pub fn environment(checked: &Checked, model_name: &str) -> BTreeMap<String, String> {
    let port = checked.port.to_string();
    [
        ("NAMESPACE", checked.metadata.namespace.as_str()),
        ("SERVICE_NAME", checked.metadata.name.as_str()),
        ("MODEL_NAME", model_name),
        ("SERVING_PORT", &port),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

fn content(model: &InferenceModel, checked: &Checked) -> Content {
    let program = &checked.program;
    let serving = Serving {
        name: checked.name.clone(),
        model_name: model.spec.model_name.clone(),
        image: program.image.clone(),
        command: program.command.clone(),
        args: program.args.clone(),
        env: environment(checked, &model.spec.model_name),
        port: checked.port,
        model: checked.version.clone(),
        reload: program.reload,
        health: program.health.clone(),
        hold: checked.hold,
        resources: Resources::default(),
    };
    Content {
        api_version: InferenceModel::api_version(&()).into_owned(),
        kind: InferenceModel::kind(&()).into_owned(),
        metadata: checked.metadata.clone(),
        spec: serde_json::to_value(&model.spec).expect("a spec came from JSON"),
        workers: Vec::new(),
        serving: Some(Box::new(serving)),
    }
}
