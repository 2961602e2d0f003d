//! Generates the CustomResourceDefinitions as YAML, with the file names that they have in `crds/`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

use crate::{
    Dataset, EdgeNode, InferenceModel, JointInferenceService, Model, NodeReportSlice, TrainingModel,
};

/// Returns every CRD, in the order of the file names.
pub fn crds() -> [CustomResourceDefinition; 7] {
    [
        Dataset::crd(),
        EdgeNode::crd(),
        InferenceModel::crd(),
        JointInferenceService::crd(),
        Model::crd(),
        NodeReportSlice::crd(),
        TrainingModel::crd(),
    ]
}

/// Returns the file name (`<plural>.<group>.yaml`) and the content of every CRD.
pub fn files() -> Vec<(String, String)> {
    let file = |crd: CustomResourceDefinition| {
        let name = crd.metadata.name.clone().expect("kube's derive names every CRD");
        (format!("{name}.yaml"), yaml(&crd))
    };
    crds().into_iter().map(file).collect()
}

/// Returns all CRDs as one YAML stream, for `kubectl apply -f -`.
pub fn stream() -> String {
    crds().iter().flat_map(|crd| ["---\n".to_owned(), yaml(crd)]).collect()
}

fn yaml(crd: &CustomResourceDefinition) -> String {
    let text = serde_saphyr::to_string(crd).expect("a CRD consists of maps, lists and scalars");
    // API servers drop the default.
    let lines = text.lines().filter(|line| line.trim() != "nullable: false");
    lines.flat_map(|line| [line, "\n"]).collect()
}
