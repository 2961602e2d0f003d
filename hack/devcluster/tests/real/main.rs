//! Whether a devcluster says what the CRD API server of Kubernetes says, request by request.
//!
//! hack/test-apiextensions.sh makes such a server and runs this.
#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(clippy::too_many_lines, reason = "lists of requests")]

#[path = "../bed/mod.rs"]
mod bed;
mod both;
mod requests;

use std::path::PathBuf;
use std::process::Command;

use both::{Ask, Both, documents, root};
use serde_json::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

/// Requests that are answered otherwise, and why that is left so.
const KNOWN: &[(&str, &str)] = &[
    ("a status", WARNED),
    ("two conditions of one type", WARNED),
    ("a status over an old version", WARNED),
    (
        "a status of wrong types",
        "the real one drops the first word of the path in the text, not in the field",
    ),
    ("a pattern that is none", "in the words of Go's regexp"),
    ("a rule on a field that is not there", "the real one quotes the rule with the place in it"),
    ("a rule that compares types", "the real one quotes the rule with the place in it"),
    ("no storage version", "the real one shows the versions as Go has them"),
    ("a column without a path", "said twice here, with the old and the new name of the field"),
    (
        "an unknown field, yaml",
        "y is true in the YAML of Go, and a key twice is a fault in that of Rust",
    ),
    ("no object", "in the words of Go's JSON"),
    ("labels that are no texts", "in the words of Go's JSON"),
    ("a version on create", "a dry run lets it pass, a create does not"),
    ("a spec that is a list", "a scale is not checked beyond its schema here"),
    ("many faults", "a scale is not checked beyond its schema here"),
    ("a replace of another uid", "the real one names the key in etcd"),
    ("a strict patch with unknown fields", "the object is quoted, with the keys in another order"),
    ("a JSON patch of nothing", "the real one has empty details"),
    ("a JSON patch whose test fails", "the real one has empty details"),
    ("a generated name", "the beginning of the name is told of as well"),
    ("another name", "refused by both, the real one finds another conflict first"),
    ("a list ?labelSelector=,", "in the words of the real parser"),
    ("a list ?labelSelector=a%3D%3D%3Db", "in the words of the real parser"),
    ("a list ?continue=x", "tokens are not base64 here"),
    ("a watch &labelSelector=,", "in the words of the real parser"),
];
const WARNED: &str = "the real one warns of unknown fields also when it refuses the request";

/// The folders' manifests of our kinds, as their instructions have a user fill them in.
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
    let ours = |object: &Value| collection(object).is_some();
    files.iter().flat_map(|file| documents(file)).filter(ours).collect()
}

/// Where the objects of our kinds are.
fn collection(object: &Value) -> Option<String> {
    let plural = match object["kind"].as_str().unwrap() {
        "Dataset" => "datasets",
        "Model" => "models",
        "InferenceModel" => "inferencemodels",
        "JointInferenceService" => "jointinferenceservices",
        "Widget" => "widgets",
        _ => return None,
    };
    Some(format!("/apis/{}/namespaces/default/{plural}", object["apiVersion"].as_str().unwrap()))
}

fn sample(file: &str) -> Value {
    documents(&root().join("common/api/tests/samples").join(file)).remove(0)
}

async fn definitions(both: &mut Both) {
    let mut files: Vec<PathBuf> = std::fs::read_dir(root().join("crds"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.push(root().join("hack/devcluster/tests/fixtures/widget-crd.yaml"));
    files.sort();
    for definition in files.iter().flat_map(|file| documents(file)) {
        let name = definition["metadata"]["name"].as_str().unwrap().to_owned();
        let create =
            Ask::new("POST", format!("{DEFINITIONS}?fieldValidation=Strict")).body(&definition);
        let (ours, _) = both.ask(&format!("{name} is created"), &create).await;
        assert_eq!(ours["code"], 201, "{ours}");
        let established = |answer: &Value| {
            let conditions = answer["body"]["status"]["conditions"].as_array().cloned();
            conditions
                .unwrap_or_default()
                .iter()
                .any(|one| one["type"] == "Established" && one["status"] == "True")
        };
        let get = Ask::new("GET", format!("{DEFINITIONS}/{name}"));
        both.settle(&format!("{name} is established"), &get, established).await;
        let spec = &definition["spec"];
        let list = format!(
            "/apis/{}/{}/{}",
            spec["group"].as_str().unwrap(),
            spec["versions"][0]["name"].as_str().unwrap(),
            spec["names"]["plural"].as_str().unwrap()
        );
        both.settle(&format!("{name} is served"), &Ask::new("GET", list), |answer| {
            answer["code"] == 200
        })
        .await;
    }
}

async fn refused_cases(both: &mut Both) {
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
        let create = Ask::new("POST", collection(&object).unwrap()).body(&object);
        let (_, real) = both.ask(what, &create).await;
        assert_eq!(real["code"], 422, "{what}: {real}");
        let found = real["body"]["details"]["causes"].as_array().unwrap();
        let told = |cause: &Value| {
            cause["field"] == case["field"]
                && cause["message"].as_str().unwrap().contains(case["says"].as_str().unwrap())
        };
        assert!(found.iter().any(told), "{what}: {found:?}");
    }
}

async fn samples(both: &mut Both) {
    let manifests = manifests();
    assert!(manifests.len() >= 10, "{}", manifests.len());
    for object in manifests {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let path = format!("{}?fieldValidation=Strict", collection(&object).unwrap());
        let (_, real) = both.ask(&name, &Ask::new("POST", path).body(&object)).await;
        assert!(real["code"] == 201 || real["code"] == 409, "{name}: {real}");
    }
}

async fn status_of_ours(both: &mut Both) {
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
        ("a status", json!({"phase": "Running", "active": 2, "conditions": [condition]})),
        ("the same status", json!({"phase": "Running"})),
        ("a status of unknown fields", json!({"nothing": 1})),
        ("a status of wrong types", json!({"active": "two", "conditions": {}})),
        ("a condition that lacks most", json!({"conditions": [{"type": "Ready"}]})),
        ("two conditions of one type", json!({"conditions": [condition, condition]})),
        ("a field taken away", json!({"active": null})),
        ("no status", Value::Null),
    ] {
        both.ask(what, &Ask::new("PATCH", &status).content_type(merge).body(&text(change))).await;
    }
    let stale = json!({"metadata": {"resourceVersion": "1"}, "status": {"phase": "Failed"}});
    both.ask(
        "a status over an old version",
        &Ask::new("PATCH", &status).content_type(merge).body(&stale),
    )
    .await;
    let both_parts = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"edgeWorker": null}, "status": {"phase": "Pending"}});
    both.ask(
        "a status that brings a spec",
        &Ask::new("PATCH", &status).content_type(merge).body(&both_parts),
    )
    .await;
    both.ask("the object after it", &Ask::new("GET", &path)).await;
}

async fn tables(both: &mut Both) {
    for kind in [
        "edgeai.io/v1alpha1/namespaces/default/datasets",
        "edgeai.io/v1alpha1/namespaces/default/models",
        "sedna.io/v1alpha1/namespaces/default/inferencemodels",
        "neptune.io/v1alpha1/namespaces/default/jointinferenceservices",
    ] {
        both.ask("a table", &Ask::new("GET", format!("/apis/{kind}")).accept(TABLE)).await;
    }
}

/// kubectl against both; ages are cut off by the last column of each row.
fn kubectl(both: &mut Both) {
    let program = std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".to_owned());
    let servers = both.kubectl();
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
        let ageless = |text: &str| {
            regex::Regex::new(r" +\d+[sm](\d+s)?\b").unwrap().replace_all(text, " AGE").into_owned()
        };
        both.differ(&format!("kubectl {}", arguments.join(" ")), &ageless(&ours), &ageless(&real));
    };
    let crds = root().join("crds");
    compare(&["apply", "-f", crds.to_str().unwrap()]);
    for kind in ["datasets", "models", "inferencemodels", "jis"] {
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
#[ignore = "needs the real API server that hack/test-apiextensions.sh makes"]
async fn a_devcluster_and_a_real_api_server_say_the_same() {
    let mut both = Both::start().await;
    definitions(&mut both).await;
    refused_cases(&mut both).await;
    samples(&mut both).await;
    status_of_ours(&mut both).await;
    tables(&mut both).await;
    requests::all(&mut both).await;
    let both = tokio::task::spawn_blocking(move || {
        kubectl(&mut both);
        both
    });
    both.await.unwrap().end(KNOWN);
}
