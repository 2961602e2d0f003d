//! Generates the CustomResourceDefinitions as YAML, with the file names that they have in `crds/`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt as _;

use crate::{
    Dataset, EdgeNode, InferenceModel, JointInferenceService, LogRequest, Model, NodeReportSlice,
    TrainingModel,
};

/// Returns every CRD, in the order of the file names.
pub fn crds() -> [CustomResourceDefinition; 8] {
    let crds = [
        Dataset::crd(),
        EdgeNode::crd(),
        InferenceModel::crd(),
        JointInferenceService::crd(),
        LogRequest::crd(),
        Model::crd(),
        NodeReportSlice::crd(),
        TrainingModel::crd(),
    ];
    crds.map(|mut crd| {
        for version in &mut crd.spec.versions {
            let schema = version.schema.as_mut();
            drop_default(schema.and_then(|schema| schema.open_api_v3_schema.as_mut()));
        }
        crd
    })
}

/// Leaves out `nullable: false`, as API servers do.
fn drop_default(schema: Option<&mut JSONSchemaProps>) {
    let Some(schema) = schema else { return };
    schema.nullable = schema.nullable.filter(|nullable| *nullable);
    for property in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        drop_default(Some(property));
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        drop_default(Some(&mut **items));
    }
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
    let mut text = serde_saphyr::to_string(crd).expect("a CRD consists of maps, lists and scalars");
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}
