//! The CustomResourceDefinitions as YAML, named as they are committed in `crds/`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

use crate::{Dataset, InferenceModel, JointInferenceService, Model};

/// Every CRD, in the order of their file names.
pub fn crds() -> [CustomResourceDefinition; 4] {
    [Dataset::crd(), InferenceModel::crd(), JointInferenceService::crd(), Model::crd()]
}

/// The file name and the content of every CRD: `<plural>.<group>.yaml`.
pub fn files() -> Vec<(String, String)> {
    let file = |crd: CustomResourceDefinition| {
        let name = crd.metadata.name.clone().expect("kube's derive names every CRD");
        (format!("{name}.yaml"), yaml(&crd))
    };
    crds().into_iter().map(file).collect()
}

/// All CRDs as one YAML stream, as `kubectl apply -f -` takes it.
pub fn stream() -> String {
    crds().iter().flat_map(|crd| ["---\n".to_owned(), yaml(crd)]).collect()
}

fn yaml(crd: &CustomResourceDefinition) -> String {
    let mut text = serde_saphyr::to_string(crd).expect("a CRD is plain maps, lists and text");
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}
