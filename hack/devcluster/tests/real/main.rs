//! Compares the answers of a devcluster with those of the CRD API server of Kubernetes.
//!
//! `hack/test-apiextensions.sh` builds that server and runs this test.
#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(clippy::too_many_lines, reason = "lists of requests")]

mod comparison;
#[path = "../harness/mod.rs"]
mod harness;
mod requests;

use std::path::PathBuf;
use std::process::Command;

use comparison::{Comparison, TestRequest, documents, root};
use serde_json::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

/// Known differences: the case, and the reason for which it stays.
const KNOWN: &[(&str, &str)] = &[
    ("status", WARNED),
    ("status with duplicate condition", WARNED),
    ("status of an old version", WARNED),
    ("status with wrong types", "the real server drops the first element of the path in the text"),
    ("list as body", "the text of Go's JSON decoder"),
    ("number as label", "the text of Go's JSON decoder"),
    ("resourceVersion on create", "the real server accepts it in a dry run, but not in a create"),
    ("replace with another uid", "the real server names the key in etcd"),
    ("strict patch with unknown field", "the object is quoted with another order of keys"),
    ("JSON patch of a missing field", "the real server sends empty details"),
    ("JSON patch with failing test", "the real server sends empty details"),
    ("generated name", "the real server reports generateName too"),
    ("apply with another name", "both refuse it, the real server reports another conflict first"),
    ("list ?labelSelector=,", "the text of the real parser"),
    ("list ?labelSelector=a%3D%3D%3Db", "the text of the real parser"),
    ("watch &labelSelector=,", "the text of the real parser"),
];
const WARNED: &str = "the real server warns of unknown fields in refused requests too";

/// The samples and examples of Neptune's kinds, with their placeholders filled in.
fn manifests() -> Vec<Value> {
    let mut folders = vec![root().join("common/api/tests/samples")];
    folders.extend(
        std::fs::read_dir(root().join("examples")).unwrap().map(|entry| entry.unwrap().path()),
    );
    folders.sort();
    let mut files: Vec<PathBuf> = folders
        .iter()
        .filter(|folder| folder.is_dir())
        .flat_map(|folder| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    let is_compared = |object: &Value| collection(object).is_some();
    files.iter().flat_map(|file| documents(file)).filter(is_compared).collect()
}

/// The path of an object's collection; none for kinds that the real server does not serve.
fn collection(object: &Value) -> Option<String> {
    let plural = match object["kind"].as_str().unwrap() {
        "Dataset" => "datasets",
        "Model" => "models",
        "InferenceModel" => "inferencemodels",
        "TrainingModel" => "trainingmodels",
        "JointInferenceService" => "jointinferenceservices",
        "Widget" => "widgets",
        _ => return None,
    };
    Some(format!("/apis/{}/namespaces/default/{plural}", object["apiVersion"].as_str().unwrap()))
}

fn sample(file: &str) -> Value {
    documents(&root().join("common/api/tests/samples").join(file)).remove(0)
}

async fn definitions(comparison: &mut Comparison) {
    let mut files: Vec<PathBuf> = std::fs::read_dir(root().join("crds"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.push(root().join("hack/devcluster/tests/fixtures/widget-crd.yaml"));
    files.sort();
    for definition in files.iter().flat_map(|file| documents(file)) {
        let name = definition["metadata"]["name"].as_str().unwrap().to_owned();
        let create = TestRequest::new("POST", format!("{DEFINITIONS}?fieldValidation=Strict"))
            .body(&definition);
        let (ours, _) = comparison.compare(&format!("{name} is created"), &create).await;
        assert_eq!(ours["code"], 201, "{ours}");
        let established = |answer: &Value| {
            let conditions = answer["body"]["status"]["conditions"].as_array().cloned();
            conditions
                .unwrap_or_default()
                .iter()
                .any(|one| one["type"] == "Established" && one["status"] == "True")
        };
        let get = TestRequest::new("GET", format!("{DEFINITIONS}/{name}"));
        comparison.wait_until(&format!("{name} is established"), &get, established).await;
        let spec = &definition["spec"];
        let list = format!(
            "/apis/{}/{}/{}",
            spec["group"].as_str().unwrap(),
            spec["versions"][0]["name"].as_str().unwrap(),
            spec["names"]["plural"].as_str().unwrap()
        );
        comparison
            .wait_until(&format!("{name} is served"), &TestRequest::new("GET", list), |answer| {
                answer["code"] == 200
            })
            .await;
    }
}

async fn refused_cases(comparison: &mut Comparison) {
    let text = std::fs::read_to_string(root().join("cloud/tests/refused/cases.yaml")).unwrap();
    let cases: Vec<Value> = serde_saphyr::from_str(&text).unwrap();
    assert!(cases.len() > 50, "{}", cases.len());
    for case in cases {
        let mut object = match case["kind"].as_str().unwrap() {
            "dataset" => sample("dataset.yaml"),
            "model" => sample("model.yaml"),
            "serving" => sample("inferencemodel.yaml"),
            "service" => sample("jointinferenceservice.yaml"),
            other => panic!("no sample of {other}"),
        };
        json_patch::merge(&mut object["spec"], &case["change"]);
        let what = case["what"].as_str().unwrap();
        let create = TestRequest::new("POST", collection(&object).unwrap()).body(&object);
        let (_, real) = comparison.compare(what, &create).await;
        assert_eq!(real["code"], 422, "{what}: {real}");
        let found = real["body"]["details"]["causes"].as_array().unwrap();
        let is_expected = |cause: &Value| {
            cause["field"] == case["field"]
                && cause["message"].as_str().unwrap().contains(case["message"].as_str().unwrap())
        };
        assert!(found.iter().any(is_expected), "{what}: {found:?}");
    }
}

async fn samples(comparison: &mut Comparison) {
    let manifests = manifests();
    assert!(manifests.len() >= 10, "{}", manifests.len());
    for object in manifests {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let path = format!("{}?fieldValidation=Strict", collection(&object).unwrap());
        let (_, real) =
            comparison.compare(&name, &TestRequest::new("POST", path).body(&object)).await;
        assert!(real["code"] == 201 || real["code"] == 409, "{name}: {real}");
    }
}

async fn status_updates(comparison: &mut Comparison) {
    let service = sample("jointinferenceservice.yaml");
    let path = format!(
        "{}/{}",
        collection(&service).unwrap(),
        service["metadata"]["name"].as_str().unwrap()
    );
    let status = format!("{path}/status?fieldManager=neptune-cloud");
    let condition = json!({"type": "Ready", "status": "True", "reason": "Running", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1});
    let merge = "application/merge-patch+json";
    let text = |status: Value| json!({"metadata": {"resourceVersion": "*"}, "status": status});
    for (what, change) in [
        ("status", json!({"phase": "Running", "active": 2, "conditions": [condition]})),
        ("unchanged status", json!({"phase": "Running"})),
        ("status with unknown field", json!({"nothing": 1})),
        ("status with wrong types", json!({"active": "two", "conditions": {}})),
        ("status with incomplete condition", json!({"conditions": [{"type": "Ready"}]})),
        ("status with duplicate condition", json!({"conditions": [condition, condition]})),
        ("status without a former field", json!({"active": null})),
        ("null as status", Value::Null),
    ] {
        comparison
            .compare(
                what,
                &TestRequest::new("PATCH", &status).content_type(merge).body(&text(change)),
            )
            .await;
    }
    let stale = json!({"metadata": {"resourceVersion": "1"}, "status": {"phase": "Failed"}});
    comparison
        .compare(
            "status of an old version",
            &TestRequest::new("PATCH", &status).content_type(merge).body(&stale),
        )
        .await;
    let with_spec = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"edgeWorker": null}, "status": {"phase": "Pending"}});
    comparison
        .compare(
            "status with a spec",
            &TestRequest::new("PATCH", &status).content_type(merge).body(&with_spec),
        )
        .await;
    comparison.compare("get after status updates", &TestRequest::new("GET", &path)).await;
}

async fn tables(comparison: &mut Comparison) {
    for kind in [
        "edgeai.io/v1alpha1/namespaces/default/datasets",
        "edgeai.io/v1alpha1/namespaces/default/models",
        "sedna.io/v1alpha1/namespaces/default/inferencemodels",
        "sedna.io/v1alpha1/namespaces/default/trainingmodels",
        "neptune.io/v1alpha1/namespaces/default/jointinferenceservices",
    ] {
        comparison
            .compare("table", &TestRequest::new("GET", format!("/apis/{kind}")).accept(TABLE))
            .await;
    }
}

/// Compares the output of kubectl; ages are replaced.
fn kubectl(comparison: &mut Comparison) {
    let program = std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".to_owned());
    let servers = comparison.kubectl();
    let mut compare = |arguments: &[&str]| {
        let mut texts = servers.iter().map(|server| {
            let output = Command::new(&program)
                .args(server)
                .args(arguments)
                .env("KUBECONFIG", "/dev/null")
                .env("HOME", std::env::temp_dir())
                .output()
                .unwrap();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            format!("{}{}{}", output.status, text(&output.stdout), text(&output.stderr))
        });
        let (ours, real) = (texts.next().unwrap(), texts.next().unwrap());
        let without_ages = |text: &str| {
            regex::Regex::new(r" +\d+[sm](\d+s)?\b").unwrap().replace_all(text, " AGE").into_owned()
        };
        comparison.compare_texts(
            &format!("kubectl {}", arguments.join(" ")),
            &without_ages(&ours),
            &without_ages(&real),
        );
    };
    let crds = root().join("crds");
    compare(&["apply", "-f", crds.to_str().unwrap()]);
    for kind in ["datasets", "models", "inferencemodels", "trainingmodels", "jis"] {
        compare(&["get", kind]);
        compare(&["get", kind, "-o", "wide"]);
        compare(&["explain", &format!("{kind}.spec")]);
    }
    let samples = root().join("common/api/tests/samples");
    compare(&["apply", "-f", samples.to_str().unwrap()]);
    compare(&["apply", "--server-side", "--force-conflicts", "-f", samples.to_str().unwrap()]);
    compare(&["get", "crd", "-o", "name"]);
    compare(&["api-resources", "--api-group", "neptune.io"]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the API server that hack/test-apiextensions.sh builds"]
async fn answers_are_those_of_the_real_api_server() {
    let mut comparison = Comparison::start().await;
    definitions(&mut comparison).await;
    refused_cases(&mut comparison).await;
    samples(&mut comparison).await;
    status_updates(&mut comparison).await;
    tables(&mut comparison).await;
    requests::all(&mut comparison).await;
    let comparison = tokio::task::spawn_blocking(move || {
        kubectl(&mut comparison);
        comparison
    });
    comparison.await.unwrap().finish(KNOWN);
}
