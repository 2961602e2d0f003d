//! Specs that the API server refuses by the schemas and rules of the CRDs. Each case is a sample
//! with one mistake; the answer names the field and the remedy.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Error,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
    runtime::wait::{await_condition, conditions::is_crd_established},
};
use neptune_api::crdgen;
use neptune_harness::Cluster;
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The sample of each kind.
const SAMPLES: [(&str, &str); 6] = [
    ("dataset", include_str!("../../common/api/tests/samples/dataset.yaml")),
    ("model", include_str!("../../common/api/tests/samples/model.yaml")),
    ("serving", include_str!("../../common/api/tests/samples/inferencemodel.yaml")),
    ("service", include_str!("../../common/api/tests/samples/jointinferenceservice.yaml")),
    ("gateway", include_str!("../../examples/digits/gateway.yaml")),
    ("training", include_str!("../../common/api/tests/samples/trainingmodel.yaml")),
];

/// An API server in this process with the CRDs, and its directory.
async fn cluster() -> (Cluster, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Cluster::in_process(directory.path()).await;
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client());
    for crd in crdgen::crds() {
        let name = crd.metadata.name.clone().unwrap();
        crds.create(&PostParams::default(), &crd).await.unwrap();
        await_condition(crds.clone(), &name, is_crd_established()).await.unwrap();
    }
    (cluster, directory)
}

fn sample(kind: &str, change: &Value) -> DynamicObject {
    let text = SAMPLES.iter().find(|(name, _)| *name == kind).unwrap().1;
    let mut object: Value = serde_saphyr::from_str(text).unwrap();
    json_patch_merge(&mut object["spec"], change);
    serde_json::from_value(object).unwrap()
}

/// RFC 7386, as `kubectl patch --type merge` does it.
fn json_patch_merge(value: &mut Value, change: &Value) {
    let Some(fields) = change.as_object() else {
        *value = change.clone();
        return;
    };
    if !value.is_object() {
        *value = json!({});
    }
    for (name, change) in fields {
        if change.is_null() {
            value.as_object_mut().unwrap().remove(name);
        } else {
            json_patch_merge(&mut value[name], change);
        }
    }
}

fn api(client: &Client, object: &DynamicObject) -> Api<DynamicObject> {
    let types = object.types.as_ref().unwrap();
    let kind = GroupVersionKind::try_from(types).unwrap();
    Api::default_namespaced_with(client.clone(), &ApiResource::from_gvk(&kind))
}

/// The findings of a refusal: field and message.
async fn causes(client: &Client, object: &DynamicObject) -> Vec<(String, String)> {
    let refused = api(client, object).create(&PostParams::default(), object).await;
    let Err(Error::Api(status)) = refused else { return Vec::new() };
    assert_eq!(status.code, 422, "{status:?}");
    let details = status.details.unwrap();
    details.causes.into_iter().map(|cause| (cause.field, cause.message)).collect()
}

/// A mistake and its finding.
#[derive(Deserialize)]
struct Case {
    what: String,
    kind: String,
    change: Value,
    field: String,
    message: String,
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = serde_saphyr::from_str(include_str!("refused/cases.yaml")).unwrap();
    let version = |number| json!({"version": format!("{number}"), "downloadURL": "http://h/a"});
    cases.push(Case {
        what: "too many versions".to_owned(),
        kind: "serving".to_owned(),
        change: json!({ "manifest": (0..129).map(version).collect::<Vec<_>>() }),
        field: "spec.manifest".to_owned(),
        message: "must have at most 128 items".to_owned(),
    });
    cases
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_specs_are_refused_with_field_and_remedy() {
    let (cluster, _directory) = cluster().await;
    let client = cluster.client();
    for Case { what, kind, change, field, message } in cases() {
        let causes = causes(&client, &sample(&kind, &change)).await;
        let matches = |(at, text): &(String, String)| *at == field && text.contains(&message);
        assert!(causes.iter().any(matches), "{what}: {causes:#?}");
        // The API server adds that it has not evaluated the rules, and refuses what does not fit
        // into a Scale again.
        let rest = causes.iter().filter(|cause| !matches(cause));
        let is_added = |at: &str| matches!(at, "<nil>" | ".spec.replicas");
        assert!(rest.clone().all(|(at, _)| is_added(at)), "{what}: {causes:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn null_and_empty_string_mean_an_absent_optional_field() {
    let (cluster, _directory) = cluster().await;
    let client = cluster.client();
    let nothing = json!({
        "image": "", "serviceType": "", "health": {"httpPath": "", "tcp": true},
        "manifest": [{"version": "4", "downloadURL": "/models/4", "sha256sum": ""}],
    });
    let mut object = sample("serving", &nothing);
    object.data["spec"]["replicas"] = Value::Null;
    object.data["spec"]["placement"] = Value::Null;
    let made = api(&client, &object).create(&PostParams::default(), &object).await.unwrap();
    assert!(made.data["spec"].get("placement").is_none(), "{}", made.data);
    assert_eq!(made.data["spec"]["replicas"], 1, "the default");
}

#[tokio::test(flavor = "multi_thread")]
async fn manifest_is_not_validated_for_a_model_in_an_image() {
    let (cluster, _directory) = cluster().await;
    let client = cluster.client();
    let ignored = json!({
        "image": "registry.test/served:1", "targetVersion": "9",
        "manifest": [{"version": "../4", "sha256sum": "abc"}, {"version": "../4", "downloadURL": "x"}],
    });
    assert_eq!(causes(&client, &sample("serving", &ignored)).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_are_validated_too() {
    let (cluster, _directory) = cluster().await;
    let client = cluster.client();
    let object = sample("serving", &json!({}));
    let api = api(&client, &object);
    let made = api.create(&PostParams::default(), &object).await.unwrap();
    let name = made.metadata.name.unwrap();
    let patch = Patch::Merge(json!({"spec": {"targetVersion": "9"}}));
    let refused = api.patch(&name, &PatchParams::default(), &patch).await.unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("spec.targetVersion: Invalid value: must be one of the versions"),
        "{refused}"
    );
    let status = Patch::Merge(json!({"status": {"servingVersion": "3"}}));
    api.patch_status(&name, &PatchParams::default(), &status).await.unwrap();
}

/// The sample manifests and those of the examples.
fn manifests() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let samples = root.join("common/api/tests/samples");
    let examples = std::fs::read_dir(root.join("examples")).unwrap();
    let mut folders: Vec<PathBuf> = examples.map(|entry| entry.unwrap().path()).collect();
    folders.push(samples);
    let files = folders.iter().filter(|folder| folder.is_dir());
    let files = files.flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let is_yaml = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "yaml");
    let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).filter(is_yaml).collect();
    files.sort();
    files
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sample_and_example_applies_unchanged() {
    let (cluster, _directory) = cluster().await;
    let files = manifests();
    assert!(files.len() >= 11, "{files:?}");
    // One of the examples is in the controller's namespace.
    cluster.kubectl(&["create", "namespace", "neptune-system"]);
    for file in files {
        // Nothing is changed but the placeholders that the examples' instructions name.
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text.replace("${MODEL_SERVER}", "http://192.0.2.1:8000");
        let text = text.replace("${SCRIPT_SERVER}", "http://192.0.2.1:8000");
        let text = text.replace("${SCRIPT_SHA256}", &"0".repeat(64));
        let apply = || cluster.try_kubectl(&["apply", "-f", "-"], &text);
        let first = apply();
        assert!(first.ok && first.stderr.is_empty(), "{}: {first:?}", file.display());
        let again = apply().stdout;
        assert!(again.lines().all(|line| line.ends_with(" unchanged")), "{again}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_shows_every_finding_of_a_refusal() {
    let (cluster, _directory) = cluster().await;
    let change = json!({"targetVersion": "5", "manifest": [
        {"version": "4", "downloadURL": "http://h/4", "sha256sum": "abc"}, {"version": "4", "downloadURL": "http://h/4"}]});
    let model = serde_json::to_string(&sample("serving", &change)).unwrap();
    let refused = cluster.try_kubectl(&["apply", "-f", "-"], &model);
    assert!(!refused.ok);
    assert_eq!(
        refused.stderr,
        "The InferenceModel \"facialexpression\" is invalid: \n\
         * spec.manifest: Invalid value: duplicate version; remove one of the entries\n\
         * spec.manifest: Invalid value: every sha256sum must be 64 hex digits, as printed by sha256sum, or not set\n\
         * spec.targetVersion: Invalid value: must be one of the versions in spec.manifest; correct it or add the version\n"
    );
}
