//! Judges the definitions and manifests of the repository on the CRD API server of Kubernetes, and
//! compares the answers of a devcluster with those of that server.
//!
//! `hack/test-apiextensions.sh` builds the server and runs this test.
#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(clippy::too_many_lines, reason = "lists of requests")]

mod comparison;
mod definitions;
#[path = "../harness/mod.rs"]
mod harness;
mod manifests;
mod requests;

use std::process::Command;

use comparison::{Comparison, TestRequest};
use manifests::{Kinds, documents, root};
use serde_json::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

/// Known differences: the case, and the reason for which it stays.
const KNOWN: &[(&str, &str)] = &[
    ("a volume that the schema does not have", WARNED),
    ("status", WARNED),
    ("status with duplicate condition", WARNED),
    ("status of an old version", WARNED),
    ("status with wrong types", "the real server drops the first element of the path in the text"),
    ("list as spec", "the real server reports that it finds no replicas in it, too"),
    ("repeated delete of a definition", "only then the real server sets a grace period"),
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

fn sample(file: &str) -> Value {
    documents(&root().join("common/api/tests/samples").join(file)).remove(0)
}

async fn refused_cases(comparison: &mut Comparison, kinds: &Kinds) {
    let text = std::fs::read_to_string(root().join("cloud/tests/refused/cases.yaml")).unwrap();
    let cases: Vec<Value> = serde_saphyr::from_str(&text).unwrap();
    assert!(cases.len() > 50, "{}", cases.len());
    for case in cases {
        let mut object = match case["kind"].as_str().unwrap() {
            "dataset" => sample("dataset.yaml"),
            "model" => sample("model.yaml"),
            "serving" => sample("inferencemodel.yaml"),
            "service" => sample("jointinferenceservice.yaml"),
            "gateway" => documents(&root().join("examples/digits/gateway.yaml")).remove(0),
            "training" => sample("trainingmodel.yaml"),
            other => panic!("no sample of {other}"),
        };
        json_patch::merge(&mut object["spec"], &case["change"]);
        let what = case["what"].as_str().unwrap();
        let create = TestRequest::new("POST", kinds.collection(&object).unwrap()).body(&object);
        let (_, real) = comparison.compare(what, &create).await;
        let refusals = real["body"]["details"]["causes"].as_array().cloned().unwrap_or_default();
        let is_expected = |cause: &Value| {
            cause["field"] == case["field"]
                && cause["message"].as_str().unwrap().contains(case["message"].as_str().unwrap())
        };
        let is_refused = real["code"] == 422 && refusals.iter().any(is_expected);
        comparison.expect(is_refused, || format!("{what} is not refused as expected: {real}"));
    }
}

/// The object of a manifest with a name: only a creation takes `generateName`.
fn named(object: &Value) -> Value {
    let mut object = object.clone();
    let metadata = object["metadata"].as_object_mut().unwrap();
    if let Some(prefix) = metadata.remove("generateName") {
        metadata.insert("name".to_owned(), json!(format!("{}1", prefix.as_str().unwrap())));
    }
    object
}

/// Applies every manifest with a dry run, before there is any object. Then creates the objects, for
/// tables and for kubectl; some have the same name.
async fn manifests_apply(comparison: &mut Comparison, kinds: &Kinds) {
    let manifests = kinds.manifests();
    println!("{} manifests", manifests.len());
    assert!(manifests.len() >= 50, "{}", manifests.len());
    for manifest in &manifests {
        let object = &named(&manifest.object);
        let name = object["metadata"]["name"].as_str().unwrap();
        let case = format!("{}: {} {name}", manifest.place, object["kind"].as_str().unwrap());
        let collection = kinds.collection(object).unwrap();
        let options = "dryRun=All&fieldManager=judge&force=true&fieldValidation=Strict";
        let apply = TestRequest::new("PATCH", format!("{collection}/{name}?{options}"))
            .content_type("application/apply-patch+yaml")
            .body(object);
        let (_, real) = comparison.compare(&case, &apply).await;
        let is_clean = real["code"].as_u64().is_some_and(|code| code < 300)
            && real["warnings"].as_array().is_some_and(Vec::is_empty);
        comparison.expect(is_clean, || {
            format!("{case}: {} {}", real["warnings"], real["body"]["message"])
        });
    }
    for manifest in manifests.iter().filter(|manifest| !manifest.is_definition()) {
        let path = kinds.collection(&manifest.object).unwrap() + "?fieldValidation=Strict";
        let create = TestRequest::new("POST", path).body(&named(&manifest.object));
        comparison.compare(&format!("create of {}", manifest.place), &create).await;
    }
}

async fn status_updates(comparison: &mut Comparison, kinds: &Kinds) {
    let service = sample("jointinferenceservice.yaml");
    let path = format!(
        "{}/{}",
        kinds.collection(&service).unwrap(),
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
    // kubectl keeps what it discovered by address, and another run may have had the same port.
    let home = tempfile::tempdir().unwrap();
    let mut compare = |arguments: &[&str]| {
        let mut texts = servers.iter().map(|server| {
            let output = Command::new(&program)
                .args(server)
                .args(arguments)
                .env("KUBECONFIG", "/dev/null")
                .env("HOME", home.path())
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
    let kinds = Kinds::new(&definitions::all());
    definitions::accepted(&mut comparison).await;
    definitions::refused(&mut comparison).await;
    refused_cases(&mut comparison, &kinds).await;
    manifests_apply(&mut comparison, &kinds).await;
    status_updates(&mut comparison, &kinds).await;
    tables(&mut comparison).await;
    requests::all(&mut comparison).await;
    definitions::deleted(&mut comparison).await;
    let comparison = tokio::task::spawn_blocking(move || {
        kubectl(&mut comparison);
        comparison
    });
    comparison.await.unwrap().finish(KNOWN);
}
