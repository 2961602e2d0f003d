//! Test fixtures of the pure steps: the sample in a cluster that has every object that it refers
//! to.

use std::{collections::BTreeMap, sync::Arc};

use neptune_api::{InferenceModel, TransitionStatus};
use neptune_wire::DownloadProgress;
use serde_json::json;

use crate::kubernetes::node_view::{NodeView, node_view};
use crate::{
    finding::Finding,
    fleet::observed::Observed,
    inference_model::{
        observed::{ObservedServer, ReportedServer, progress},
        target::InferenceModelFacts,
    },
    kubernetes::{node_selector::SelectedNodes, pod_policy::PodPolicy},
    reason::Reason,
    rollout::planned::GrantedNodes,
    worker::{
        config::objects::ConfigObjects,
        frameworks::Frameworks,
        needs::NodeOffers,
        ports::{NodePort, of_model},
    },
};

const SAMPLE: &str = include_str!("../../../../common/api/tests/samples/inferencemodel.yaml");

/// The sample, served on an edge node.
pub fn model() -> InferenceModel {
    let mut model: InferenceModel =
        serde_saphyr::from_str(SAMPLE).expect("the sample is an InferenceModel");
    model.metadata.namespace = Some("default".to_owned());
    model.metadata.uid = Some("uid-of-the-model".to_owned());
    model.metadata.generation = Some(1);
    model
}

/// The sample without a node name, served in the cloud.
pub fn cloud_model() -> InferenceModel {
    let mut model = model();
    "cloud".clone_into(&mut model.spec.deploy_to_layer);
    model.spec.node_name = None;
    model.spec.node_selector.clear();
    model
}

/// Puts a transformer that is an image before the server of a model.
pub fn with_transformer(mut model: InferenceModel) -> InferenceModel {
    "openvino".clone_into(&mut model.spec.framework_type);
    model.spec.transformer = serde_json::from_value(json!({
        "image": "resize:1", "frameworkType": "kserve", "port": 13_501,
        "resources": {"limits": {"memory": "64Mi"}},
    }))
    .expect("a transformer");
    model
}

/// Puts a transformer that is a script before the server of a model.
pub fn with_transformer_script(model: InferenceModel) -> InferenceModel {
    let mut model = with_transformer(model);
    model.spec.transformer = serde_json::from_value(json!({
        "scriptDir": "/code", "scriptBootFile": "resize.py", "frameworkType": "python",
        "frameworkVersion": "3.12",
    }))
    .expect("a transformer");
    model
}

pub fn facts() -> InferenceModelFacts {
    InferenceModelFacts {
        named: Some(edge_node("precision-5820")),
        selected: SelectedNodes::default(),
        offers: NodeOffers::new(),
        config: ConfigObjects::default(),
        seal_keys: BTreeMap::new(),
        frameworks: Ok(Arc::new(Frameworks::default())),
        source: None,
        deployed: None,
        used_ports: Vec::new(),
        pod_policy: PodPolicy::default(),
        gateway_image: "neptune-edge:1".to_owned(),
        granted: GrantedNodes::default(),
    }
}

/// The report of a server that serves this version, if any. With the reason `ModelDownloading` it has progress.
pub fn reported(
    serving: Option<&str>,
    transition: TransitionStatus,
    reason: Reason,
) -> ObservedServer {
    let download =
        DownloadProgress { received_bytes: 1, total_bytes: Some(4), bytes_per_second: 2 };
    Observed::Reported(Box::new(ReportedServer {
        answers: Some(serving.is_some()),
        serving_version: serving.map(str::to_owned),
        ready_replicas: i32::from(serving.is_some()),
        transition,
        finding: Finding::new(reason, "why"),
        progress: (reason == Reason::ModelDownloading).then(|| progress(&download)),
        failure: None,
    }))
}

/// A port that another model uses on a node.
pub fn used_port(node: &str, name: &str, port: u16) -> NodePort {
    let mut other = model();
    other.metadata.name = Some(name.to_owned());
    (other.spec.node_name, other.spec.serving_port) = (Some(node.to_owned()), Some(port.into()));
    of_model(&other).remove(0)
}

pub fn edge_node(name: &str) -> Arc<NodeView> {
    node(name, &[("node-role.kubernetes.io/edge", ""), ("kubernetes.io/hostname", name)])
}

pub fn node(name: &str, labels: &[(&str, &str)]) -> Arc<NodeView> {
    let view = node_view(name, labels);
    Arc::new(NodeView { internal_address: Some("192.0.2.7".to_owned()), ..view })
}

pub fn selected(nodes: Vec<Arc<NodeView>>) -> SelectedNodes {
    SelectedNodes { nodes, ..SelectedNodes::default() }
}

/// The node is chosen by labels, which these have.
pub fn by_labels(model: &mut InferenceModel, facts: &mut InferenceModelFacts, nodes: &[&str]) {
    model.spec.node_name = None;
    model.spec.node_selector = [("area".to_owned(), "north".to_owned())].into();
    facts.named = None;
    facts.selected = selected(nodes.iter().map(|name| edge_node(name)).collect());
}
