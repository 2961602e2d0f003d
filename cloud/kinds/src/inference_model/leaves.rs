//! Tests that each field of the spec has an effect.

use neptune_api::InferenceModel;
use neptune_wire::NodeName;
use serde_json::{Value, json};

use super::{fixtures, plan::plan, validate::validate};
use crate::{
    leaves::{Outcome, OutcomeOf, assert_each_has_an_effect, assert_labels_have_no_effect},
    worker::config::fixtures as config,
};

fn outcome(model: &InferenceModel) -> Outcome {
    let mut facts = fixtures::facts();
    if model.spec.server.as_ref().is_some_and(|server| !server.volumes.is_empty()) {
        let node: NodeName = "precision-5820".parse().expect("a name");
        facts.offers = config::offers(&node);
        facts.seal_keys = config::seal_keys(&node);
        facts.config = config::objects();
        facts.pod_policy.host_paths = vec!["/".into()];
    }
    match validate(model, &facts) {
        Ok(valid) => Ok(format!("{:?}", plan(model, &valid, "fetch:test"))),
        Err(findings) => Err(format!("{findings:?}")),
    }
}

/// Leaves that no plan shows, with the reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("grpcPort", "no sample has a server with gRPC"),
    ("manifest.[].version", "another version is not the target"),
    ("model.name", "the Model is looked up in the cluster"),
    ("rollout.", "the steps of a rollout read its settings"),
    ("server.env.[].valueFrom.nodeLabel", "only workers get values of labels"),
    ("server.env.[].valueFrom.optional", "it belongs to nodeLabel"),
    ("server.volumes.[].name", "a mount names it"),
];

/// A server with a variable of a Secret, and this volume.
fn with_inputs(mut model: InferenceModel, mut volume: Value) -> InferenceModel {
    // Pods mount paths of the node read-only.
    let read_only = volume.get("hostPath").is_some();
    volume["name"] = "one".into();
    let server = json!({
        "env": [{"name": "A", "value": "a"}],
        "envFrom": [{"secretRef": {"name": "one"}}],
        "volumes": [volume, {"name": "two", "emptyDir": {}}],
        "volumeMounts": [{"name": "one", "mountPath": "/one", "readOnly": read_only}],
    });
    model.spec.server = Some(serde_json::from_value(server).expect("a server"));
    model
}

/// The sample with a mirror of its file, which needs a digest.
fn with_mirror(mut model: InferenceModel) -> InferenceModel {
    let target = model.spec.target_version.clone();
    model.spec.manifest.retain(|file| file.version == target);
    for file in &mut model.spec.manifest {
        file.sha256sum = Some("ab".repeat(32));
        file.mirrors = vec!["https://mirror.example/one".to_owned()];
    }
    model
}

/// The sample with the files of a repository.
fn with_files(mut model: InferenceModel) -> InferenceModel {
    for file in &mut model.spec.manifest {
        file.download_url = Some("hf://org/model@v1".to_owned());
        file.files = vec!["*.json".to_owned()];
    }
    model
}

fn samples() -> Vec<(InferenceModel, OutcomeOf<'static, InferenceModel>)> {
    let mut samples = vec![
        fixtures::model(),
        fixtures::cloud_model(),
        with_mirror(fixtures::model()),
        with_files(fixtures::model()),
        fixtures::with_transformer(fixtures::model()),
        fixtures::with_transformer_script(fixtures::model()),
    ];
    for volume in [
        json!({"emptyDir": {}}),
        json!({"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}),
        json!({"hostPath": {"path": "/srv"}}),
        json!({"secret": {"secretName": "one"}}),
        json!({"configMap": {"name": "one"}}),
    ] {
        samples.extend(
            [fixtures::model(), fixtures::cloud_model()].map(|it| with_inputs(it, volume.clone())),
        );
    }
    samples.push(with_inputs(
        fixtures::cloud_model(),
        json!({"persistentVolumeClaim": {"claimName": "one"}}),
    ));
    samples.into_iter().map(|model| (model, &outcome as _)).collect()
}

#[test]
fn each_field_has_an_effect() {
    assert_each_has_an_effect(&samples(), EXCEPTIONS);
}

#[test]
fn labels_and_annotations_are_in_no_plan_of_an_inference_model() {
    assert_labels_have_no_effect(&samples());
}
