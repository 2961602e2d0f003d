//! What an API server refuses when a spec is applied, by the schemas and rules of the CRDs: each case is
//! the document's sample with one thing wrong, and the answer names the field and says what helps.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Config, Error,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
    runtime::wait::{await_condition, conditions::is_crd_established},
};
use neptune_api::crdgen;
use serde::Deserialize;
use serde_json::{Value, json};

/// The sample of each kind.
const SAMPLES: [(&str, &str); 4] = [
    ("dataset", include_str!("../../common/api/tests/samples/dataset.yaml")),
    ("model", include_str!("../../common/api/tests/samples/model.yaml")),
    ("serving", include_str!("../../common/api/tests/samples/inferencemodel.yaml")),
    ("service", include_str!("../../common/api/tests/samples/jointinferenceservice.yaml")),
];

/// A cluster of its own in this process, with the CRDs.
async fn cluster() -> (Client, String) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(devcluster::serve(listener, std::future::pending()));
    let client = Client::try_from(Config::new(url.parse().unwrap())).unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in crdgen::crds() {
        let name = crd.metadata.name.clone().unwrap();
        crds.create(&PostParams::default(), &crd).await.unwrap();
        await_condition(crds.clone(), &name, is_crd_established()).await.unwrap();
    }
    (client, url)
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

/// One thing that is wrong.
#[derive(Deserialize)]
struct Case {
    what: String,
    kind: String,
    change: Value,
    field: String,
    says: String,
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = serde_saphyr::from_str(include_str!("refused/cases.yaml")).unwrap();
    let version = |number| json!({"version": format!("{number}"), "downloadURL": "http://h/a"});
    cases.push(Case {
        what: "too many versions".to_owned(),
        kind: "serving".to_owned(),
        change: json!({ "manifest": (0..129).map(version).collect::<Vec<_>>() }),
        field: "spec.manifest".to_owned(),
        says: "must have at most 128 items".to_owned(),
    });
    cases
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_refused_with_its_field_and_the_remedy() {
    let (client, _) = cluster().await;
    for Case { what, kind, change, field, says } in cases() {
        let causes = causes(&client, &sample(&kind, &change)).await;
        let told = |(at, message): &(String, String)| *at == field && message.contains(&says);
        assert!(causes.iter().any(told), "{what}: {causes:#?}");
        // What else is said is the API server's remark that it has not evaluated the rules.
        let rest = causes.iter().filter(|cause| !told(cause));
        assert!(rest.clone().all(|(at, _)| at == "<nil>"), "{what}: {causes:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_null_and_an_empty_text_say_that_an_optional_field_is_not_given() {
    let (client, _) = cluster().await;
    let nothing = json!({
        "image": "", "serviceType": "", "health": {"httpPath": "", "tcp": true},
        "manifest": [{"version": "4", "downloadURL": "/models/4", "sha256sum": ""}],
    });
    let mut object = sample("serving", &nothing);
    object.data["spec"]["replicas"] = Value::Null;
    let made = api(&client, &object).create(&PostParams::default(), &object).await.unwrap();
    assert!(made.data["spec"].get("replicas").is_none(), "{}", made.data);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_an_image_the_manifest_is_not_looked_at() {
    let (client, _) = cluster().await;
    let ignored = json!({
        "image": "registry.test/served:1", "targetVersion": "9",
        "manifest": [{"version": "../4", "sha256sum": "abc"}, {"version": "../4", "downloadURL": "x"}],
    });
    assert_eq!(causes(&client, &sample("serving", &ignored)).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_is_held_to_the_rules_as_well() {
    let (client, _) = cluster().await;
    let object = sample("serving", &json!({}));
    let api = api(&client, &object);
    let made = api.create(&PostParams::default(), &object).await.unwrap();
    let name = made.metadata.name.unwrap();
    let patch = Patch::Merge(json!({"spec": {"targetVersion": "9"}}));
    let refused = api.patch(&name, &PatchParams::default(), &patch).await.unwrap_err();
    assert!(
        refused.to_string().contains("spec.targetVersion: Invalid value: version \"9\" is not in"),
        "{refused}"
    );
    let status = Patch::Merge(json!({"status": {"servingVersion": "3"}}));
    api.patch_status(&name, &PatchParams::default(), &status).await.unwrap();
}

fn kubectl(url: &str, arguments: &[&str]) -> (bool, String, String) {
    let output = Command::new("kubectl")
        .args(["--server", url])
        .args(arguments)
        .env("KUBECONFIG", "/dev/null")
        .output();
    let output = output.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

/// The manifests of the documents and of the examples.
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
async fn every_sample_and_every_example_is_applied_as_it_is() {
    let (_, url) = cluster().await;
    let files = manifests();
    assert!(files.len() >= 11, "{files:?}");
    let apply = move || {
        // One of the examples is for the controller's own namespace.
        assert!(kubectl(&url, &["create", "namespace", "neptune-system"]).0);
        let directory = tempfile::tempdir().unwrap();
        let filled = directory.path().join("manifest.yaml");
        for file in files {
            // Nothing is changed but what the examples' own instructions have a user fill in.
            let text = std::fs::read_to_string(&file).unwrap();
            let text = text.replace("${MODEL_SERVER}", "http://192.0.2.1:8000");
            std::fs::write(&filled, text).unwrap();
            let apply = || kubectl(&url, &["apply", "-f", filled.to_str().unwrap()]);
            let (applied, _, told) = apply();
            assert!(applied && told.is_empty(), "{}: {told}", file.display());
            let (_, again, _) = apply();
            assert!(again.lines().all(|line| line.ends_with(" unchanged")), "{again}");
        }
    };
    tokio::task::spawn_blocking(apply).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_shows_a_refusal_with_every_finding() {
    let (_, url) = cluster().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("model.json");
    let change = json!({"targetVersion": "5", "manifest": [
        {"version": "4", "downloadURL": "http://h/4", "sha256sum": "abc"}, {"version": "4", "downloadURL": "http://h/4"}]});
    std::fs::write(&file, serde_json::to_string(&sample("serving", &change)).unwrap()).unwrap();
    let path = file.to_str().unwrap().to_owned();
    let (applied, _, told) =
        tokio::task::spawn_blocking(move || kubectl(&url, &["apply", "-f", &path])).await.unwrap();
    assert!(!applied);
    assert_eq!(
        told,
        "The InferenceModel \"facialexpression\" is invalid: \n\
         * spec.manifest: Invalid value: duplicate version; remove one of the entries\n\
         * spec.manifest: Invalid value: every sha256sum must be 64 hex digits, as printed by sha256sum, or not set\n\
         * spec.targetVersion: Invalid value: version \"5\" is not in spec.manifest; correct it or add the version\n"
    );
}
