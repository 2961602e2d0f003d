#![allow(clippy::unwrap_used)]
use std::{fs, path::Path};

use k8s_openapi::jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::commands::status::{
    build::{RelatedObjects, of_inference_model},
    dataset_page::of_dataset,
    model_page::of_model,
    page::{EventLine, Page},
    service_page::of_service,
    text::text,
};

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn now() -> Timestamp {
    "2026-08-01T12:00:00Z".parse().unwrap()
}

fn worker(name: &str, node: &str, model: &str) -> Value {
    json!({
        "name": name, "nodeName": node, "model": {"name": model},
        "hardExampleAlgorithm": {"name": "IBT"},
        "workerSpec": {"scriptDir": "/code", "scriptBootFile": "w.py",
            "frameworkType": "python", "frameworkVersion": "3.11"},
    })
}

fn service(generation: i64, status: &Value) -> Value {
    json!({
        "apiVersion": "neptune.io/v1alpha1", "kind": "JointInferenceService",
        "metadata": {"name": "digits", "namespace": "default", "uid": "u", "generation": generation},
        "spec": {"edgeWorker": worker("digits-edge", "edge0", "digits-small"),
            "cloudWorker": worker("digits-cloud", "cloud0", "digits-big")},
        "status": status,
    })
}

fn running() -> Value {
    json!({
        "conditions": [
            {"type": "Pending", "status": "False"},
            {"type": "Running", "status": "True", "reason": "WorkersRunning",
                "message": "edge and cloud worker are running",
                "lastTransitionTime": "2026-08-01T09:00:00Z",
                "lastHeartbeatTime": "2026-08-01T11:59:55Z"},
        ],
        "active": 2, "failed": 0, "observedGeneration": 1,
        "metrics": [{"key": "inferenceNumber", "value": "4312"},
            {"key": "hardExampleNumber", "value": "906"},
            {"key": "uploadCloudRatio", "value": "0.2101"}],
        "reports": [{"node": "edge0", "instance": "5f0c", "epoch": 3, "seq": 120,
            "inferenceNumber": 4312, "hardExampleNumber": 906}],
    })
}

fn model(name: &str, digest: Option<&str>, nodes: &Value) -> Value {
    json!({"apiVersion": "edgeai.io/v1alpha1", "kind": "Model",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"modelUrl": "http://models/x", "sha256sum": digest}, "status": {"nodes": nodes}})
}

fn node(name: &str, ready: &str) -> Value {
    json!({"metadata": {"name": name}, "status": {"conditions": [
        {"type": "Ready", "status": ready, "lastHeartbeatTime": "2026-08-01T11:59:30Z"}]}})
}

fn event(minute: u32, kind: &str, reason: &str, message: &str) -> Value {
    json!({"metadata": {}, "involvedObject": {}, "type": kind, "reason": reason, "message": message,
        "eventTime": format!("2026-08-01T11:{minute:02}:00.000000Z")})
}

fn deployment() -> Value {
    json!({"metadata": {"name": "digits-cloud"}, "spec": {"replicas": 1, "selector": {},
        "template": {}}, "status": {"readyReplicas": 1}})
}

const BIG: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const SMALL: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

fn healthy() -> Page {
    let related = RelatedObjects {
        models: read(json!([
            model(
                "digits-small",
                None,
                &json!([{"node": "edge0", "state": "Present", "sha256sum": SMALL}])
            ),
            model("digits-big", Some(BIG), &json!([])),
        ])),
        nodes: read(json!([node("edge0", "True"), node("cloud0", "True")])),
        deployments: read(json!([deployment()])),
        events: read(json!([
            event(1, "Normal", "Running", "both workers are running"),
            event(0, "Normal", "Dispatched", "the edge worker's node is output what to run"),
        ])),
        ..RelatedObjects::default()
    };
    of_service(&read(service(1, &running())), &related)
}

fn healthy_on_all() -> Page {
    let mut status = running();
    status["edgeWorkers"] = json!([{"node": "edge0", "state": "Running"},
        {"node": "edge1", "state": "Unknown", "reason": "NodeOffline", "message": "offline"}]);
    let mut second = status["reports"][0].clone();
    second["node"] = "edge1".into();
    status["reports"].as_array_mut().unwrap().push(second);
    let mut service = service(1, &status);
    let edge = &mut service["spec"]["edgeWorker"];
    edge.as_object_mut().unwrap().remove("nodeName");
    edge["nodeSelector"] = json!({"area": "north"});
    let nodes = read(json!([node("edge0", "True"), node("edge1", "True"), node("cloud0", "True")]));
    of_service(&read(service), &RelatedObjects { nodes, ..RelatedObjects::default() })
}

fn cascade() -> Page {
    let mut status = running();
    let left_alone = "https://llm.example is left alone after 3 failures";
    status["conditions"][1]["reason"] = "CloudLeftAlone".into();
    status["conditions"][1]["message"] = format!("edge worker on node edge0: {left_alone}").into();
    let metrics = status["metrics"].as_array_mut().unwrap();
    for (key, value) in
        [("fallbackNumber", "40"), ("overBudgetNumber", "4"), ("unjudgedNumber", "1")]
    {
        metrics.push(json!({"key": key, "value": value}));
    }
    status["gateway"] = json!({
        "url": "http://127.0.0.1:8080", "protocol": "openai", "signal": "Top2",
        "threshold": "0.713", "agreement": "0.962 (0.941-0.976)", "uploadRatio": "0.200",
        "cloud": "LeftAlone", "history": ["0.000", "0.050", "0.120", "0.210", "0.200"],
        "historyTime": "2026-08-01T11:59:00Z",
        "problems": [{"node": "edge0", "reason": "CloudLeftAlone", "message": left_alone}],
    });
    let nodes = read(json!([node("edge0", "True"), node("cloud0", "True")]));
    of_service(&read(service(1, &status)), &RelatedObjects { nodes, ..RelatedObjects::default() })
}

/// The gateway of this service calls that of another one.
fn chain() -> Page {
    let refusal = "http://192.0.2.9:8080 refuses every request (404 Not Found: no model digits-3): \
        hard samples get the edge's answers; check url and modelName of the cloud";
    let mut status = running();
    status["conditions"][1]["reason"] = "CloudRefusesRequests".into();
    status["conditions"][1]["message"] = format!("edge worker on node edge0: {refusal}").into();
    status["gateway"] = json!({
        "url": "http://192.0.2.7:8080", "protocol": "tfserving", "cloud": "RequestsRefused",
        "serviceUrl": "http://digits-edge-1a2b3c4d.default.svc.cluster.local:8080",
        "problems": [{"node": "edge0", "reason": "CloudRefusesRequests", "message": refusal}],
    });
    let mut cam = service(1, &status);
    cam["spec"]["edgeWorker"] = json!({"name": "edge", "nodeName": "edge0",
        "inferenceModel": {"name": "cam-small"}, "hardExampleAlgorithm": {"name": "Threshold"}});
    cam["spec"]["cloudWorker"] = json!({"name": "box", "service": {"name": "box"}});
    let server = json!({
        "metadata": {"name": "cam-small", "namespace": "default"},
        "spec": {"modelName": "digits", "deployToLayer": "edge", "frameworkType": "tensorflow"},
        "status": {"servingVersion": "3", "transitionStatus": "UpToDate"},
    });
    let mut box_ = service(1, &running());
    box_["metadata"]["name"] = "box".into();
    box_["status"]["conditions"] = json!([{"type": "Pending", "status": "True",
        "reason": "ModelNotFound", "message": "Model \"digits-3\" not found; create it"}]);
    let related = RelatedObjects {
        nodes: read(json!([node("edge0", "True")])),
        inference_models: read(json!([server])),
        cloud_service: Some(read(box_)),
        events: read(json!([event(
            1,
            "Warning",
            "CloudRefusesRequests",
            &format!("edge worker on node edge0: {refusal}")
        )])),
        ..RelatedObjects::default()
    };
    of_service(&read(cam), &related)
}

#[test]
fn cloud_row_names_what_answers_hard_samples() {
    let row = |cloud: Value, related: &RelatedObjects| {
        let mut service = service(1, &running());
        service["spec"]["cloudWorker"] = cloud;
        let page = of_service(&read(service), related);
        let [.., row] = &page.workers[..] else { unreachable!() };
        format!("{} {} {} {}", row.run_by, row.state, row.model, row.version)
    };
    let model = |name: &str, ready: &str| {
        json!({"metadata": {"name": name}, "spec": {"modelName": "m", "deployToLayer": "cloud",
            "frameworkType": "triton"}, "status": {"servingVersion": "7", "conditions": [
                {"type": "Ready", "status": ready, "reason": "r", "message": "",
                "lastTransitionTime": "2026-07-30T12:00:00Z"}]}})
    };
    let server =
        json!({"name": "cloud", "model": {"name": "big"}, "server": {"frameworkType": "triton"}});
    let named = json!({"name": "cloud", "inferenceModel": {"name": "mine"}});
    let endpoint =
        json!({"name": "cloud", "endpoint": {"url": "https://h/v1", "modelName": "large"}});
    let other = json!({"name": "cloud", "service": {"name": "box"}});
    let nothing = RelatedObjects::default();
    assert_eq!(row(other.clone(), &nothing), "JointInferenceService no such service box -");
    assert_eq!(row(endpoint, &nothing), "endpoint - large -");
    assert_eq!(row(named.clone(), &nothing), "InferenceModel - mine no such InferenceModel");
    let related = RelatedObjects {
        inference_models: read(json!([model("mine", "False"), model("digits-cloud", "True")])),
        cloud_service: Some(read(service(1, &running()))),
        ..nothing
    };
    assert_eq!(row(named, &related), "InferenceModel Pending mine 7");
    assert_eq!(row(server, &related), "InferenceModel Running digits-cloud 7");
    assert_eq!(row(other, &related), "JointInferenceService Running box -");
}

#[test]
fn offline_node_leaves_the_last_state_on_the_page() {
    let mut status = running();
    status["conditions"][1]["status"] = "Unknown".into();
    status["conditions"][1]["reason"] = "NodeOffline".into();
    status["conditions"][1]["message"] = "edge worker: node edge0 is offline".into();
    let page = of_service(&read(service(1, &status)), &RelatedObjects::default());
    let head = "JointInferenceService default/digits: Unknown, last Running (NodeOffline)";
    assert!(text(&page, now()).starts_with(head), "{}", text(&page, now()));
    assert!(page.advice.contains(&"edge worker: node edge0 is offline".to_owned()), "{page:?}");
    assert!(page.workers.iter().all(|worker| worker.state == "-"), "{page:?}");
}

#[test]
fn long_text_is_on_the_page_once() {
    let why =
        format!("version 3 failed (LoadFailed): {}; correct the file", "bad graph ".repeat(40));
    let page = |advice: Vec<String>| {
        let mut page = serving();
        page.message.clone_from(&why);
        page.serving.as_mut().unwrap().last_failure = Some(format!("3: {why}"));
        page.events = vec![EventLine {
            time: None,
            kind: "Warning".to_owned(),
            reason: "LoadFailed".to_owned(),
            message: format!("still serving version 2: {why}"),
        }];
        page.advice = advice;
        text(&page, now())
    };
    for (advice, place) in
        [(vec![why.clone(), "another step".to_owned()], "next steps"), (Vec::new(), "above")]
    {
        let text = page(advice);
        assert_eq!(text.matches("; correct the file").count(), 1, "{text}");
        let reference = format!("... (see {place})");
        let references = if place == "above" { 2 } else { 3 };
        assert_eq!(text.matches(&reference).count(), references, "{text}");
        assert!(text.contains("  version 3 failed (LoadFailed): bad graph"), "{text}");
    }
}

fn failing() -> Page {
    let mut status = running();
    status["conditions"][1] = json!({
        "type": "Pending", "status": "True", "reason": "ModelDigestMismatch",
        "message": "digits-edge on edge0: digits-small: the sha256sum differs; correct spec.sha256sum",
        "lastTransitionTime": "2026-08-01T11:50:00Z", "lastHeartbeatTime": "2026-08-01T11:50:00Z"});
    let failed = json!([{"node": "edge0", "state": "Failed", "reason": "ModelDigestMismatch",
        "message": "what the server sends has another sha256sum; correct the Model"}]);
    let related = RelatedObjects {
        models: read(json!([model("digits-small", Some(SMALL), &failed)])),
        nodes: read(json!([node("edge0", "False")])),
        events: (0..20)
            .map(|minute| read(event(minute, "Warning", "ModelDigestMismatch", "again")))
            .collect(),
        ..RelatedObjects::default()
    };
    of_service(&read(service(2, &status)), &related)
}

fn not_reconciled() -> Page {
    of_service(&read(service(1, &json!({}))), &RelatedObjects::default())
}

fn serving() -> Page {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-07-30T12:00:00Z"})
    };
    let model = json!({
        "metadata": {"name": "mnist", "namespace": "default", "uid": "u", "generation": 4},
        "spec": {"modelName": "mnist", "deployToLayer": "edge", "frameworkType": "tensorflow",
            "nodeName": "edge0", "targetVersion": "3", "servingPort": 8501},
        "status": {
            "url": "http://192.0.2.7:8501", "servingVersion": "2", "targetVersion": "3", "node": "edge0",
            "transitionStatus": "BlockedByFailedLoad", "observedGeneration": 4, "readyReplicas": 1,
            "progress": {"receivedBytes": 10, "totalBytes": 10, "bytesPerSecond": 0, "percent": 100,
                "summary": "100%"},
            "lastFailure": {"version": "3", "reason": "LoadFailed", "message": "the server ended: bad graph"},
            "conditions": [
                condition("Ready", "True", "Serving", "serving version 2"),
                condition("Progressing", "False", "LoadFailed", ""),
                condition("Degraded", "True", "LoadFailed", "version 3 ended: bad graph; correct the file, or name another targetVersion"),
            ],
        },
    });
    let nodes = read(json!([node("edge0", "True")]));
    of_inference_model(&read(model), &RelatedObjects { nodes, ..RelatedObjects::default() })
}

#[test]
fn page_of_a_model_shows_the_state_of_its_transformer() {
    let page = |ready: &str, transition: &str, failure: &str| {
        let model = json!({
            "metadata": {"name": "mnist", "namespace": "default", "uid": "u", "generation": 4},
            "spec": {"modelName": "mnist", "deployToLayer": "edge", "frameworkType": "onnx",
                "nodeName": "edge0", "transformer": {"image": "resize:1"}},
            "status": {
                "transitionStatus": transition,
                "lastFailure": {"version": "3", "reason": failure, "message": "m"},
                "conditions": [{"type": "Ready", "status": ready, "reason": "r", "message": "",
                    "lastTransitionTime": "2026-07-30T12:00:00Z"}],
            },
        });
        of_inference_model(&read(model), &RelatedObjects::default())
    };
    for (ready, transition, failure, expected) in [
        ("True", "UpToDate", "TransformerFailed", "running"),
        ("False", "InProgress", "LoadFailed", "not ready"),
        ("True", "BlockedByFailedLoad", "LoadFailed", "running"),
        ("True", "BlockedByFailedLoad", "TransformerFailed", "failed; the previous one is used"),
        ("False", "BlockedByFailedLoad", "TransformerFailed", "failed"),
    ] {
        let text = text(&page(ready, transition, failure), now());
        let line = format!("Through   transformer resize:1: {expected}\n");
        assert!(text.contains(&line), "{line}{text}");
    }
    assert!(!text(&serving(), now()).contains("transformer"));
}

fn serving_on_all() -> Page {
    let server = |node: &str, version: Option<&str>, ready: &str, reason: &str| {
        json!({"node": node, "url": format!("http://{node}:8501"), "servingVersion": version,
            "transitionStatus": if ready == "True" { "UpToDate" } else { "InProgress" },
            "ready": ready, "reason": reason, "message": ""})
    };
    let condition = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "reason": "ModelDownloading",
            "message": "1 of 2 servers are ready; node edge1: downloading version 3",
            "lastTransitionTime": "2026-08-01T11:59:00Z"})
    };
    let model = json!({
        "metadata": {"name": "mnist", "namespace": "default", "uid": "u", "generation": 4},
        "spec": {"modelName": "mnist", "deployToLayer": "edge", "frameworkType": "tensorflow",
            "nodeSelector": {"area": "north"}, "placement": "All", "targetVersion": "3",
            "servingPort": 8501},
        "status": {
            "servingVersion": "3", "targetVersion": "3", "transitionStatus": "InProgress",
            "observedGeneration": 4, "readyReplicas": 1,
            "servers": [server("edge0", Some("3"), "True", "Serving"),
                server("edge1", None, "False", "ModelDownloading")],
            "conditions": [condition("Ready", "False"), condition("Progressing", "True")],
        },
    });
    let nodes = read(json!([node("edge0", "True"), node("edge1", "True")]));
    of_inference_model(&read(model), &RelatedObjects { nodes, ..RelatedObjects::default() })
}

/// A service on 40 nodes in the middle of a rollout: one of them failed.
fn many() -> Page {
    let mut status = running();
    status.as_object_mut().unwrap().remove("reports");
    let row = |at: usize| match at {
        7 => json!({"node": "shop-07", "state": "Failed", "reason": "CrashLoopBackOff",
            "message": "the worker ended 5 times"}),
        _ => json!({"node": format!("shop-{at:02}"), "state": "Running"}),
    };
    status["edgeWorkers"] = (0..40).map(row).collect();
    status["slices"] = json!({"count": 1, "nodes": 40});
    status["nodeCounts"] = json!({"summary": "38/40", "desired": 40, "ready": 38, "pending": 0,
        "failed": 1, "completed": 0, "offline": 1, "unknown": 0});
    status["rollout"] = json!({"revision": "5f0c", "state": "Paused", "summary": "Paused",
        "total": 40, "updated": 8, "ready": 7, "failed": 1, "reason": "NodesFailed",
        "message": "1 of 8 nodes failed; correct the spec, or resume: kubectl neptune rollout resume jis/digits"});
    let mut service = service(1, &status);
    let edge = &mut service["spec"]["edgeWorker"];
    edge.as_object_mut().unwrap().remove("nodeName");
    edge["nodeSelector"] = json!({"area": "north"});
    let nodes = read(json!([node("shop-07", "True"), node("cloud0", "True")]));
    of_service(&read(service), &RelatedObjects { nodes, ..RelatedObjects::default() })
}

#[test]
fn page_of_many_nodes_without_a_problem_has_no_row_of_them() {
    let counts = json!({"desired": 100, "updated": 100, "ready": 100, "pending": 0, "failed": 0,
        "offline": 0, "unknown": 0});
    let model = json!({
        "metadata": {"name": "mnist", "namespace": "default", "uid": "u", "generation": 1},
        "spec": {"modelName": "mnist", "deployToLayer": "edge", "frameworkType": "onnx",
            "nodeSelector": {"area": "north"}, "placement": "All"},
        "status": {"nodeCounts": counts},
    });
    let page = of_inference_model(&read(model), &RelatedObjects::default());
    assert!(page.workers.is_empty() && page.nodes.is_empty(), "{page:?}");
    let text = text(&page, now());
    assert!(text.contains("Nodes     100 of 100 ready, 100 updated\n"), "{text}");
    assert!(text.contains("those that need attention; the others are only counted"), "{text}");
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-08-01T09:00:00Z"})
}

fn replicated() -> Page {
    let dataset = json!({
        "apiVersion": "edgeai.io/v1alpha1", "kind": "Dataset",
        "metadata": {"name": "log", "namespace": "default", "generation": 2},
        "spec": {"dataUrl": "/data/log.jsonl", "format": "jsonl", "nodeName": "edge0",
            "replicas": {"nodeNames": ["edge1", "edge2", "edge3"]}},
        "status": {
            "numberOfSamples": 1797, "bytes": 17_970, "generation": 7, "root": SMALL,
            "replicasInSync": "1/3", "lag": "95s", "observedGeneration": 2,
            "replicas": [
                {"node": "edge1", "state": "InSync", "generation": 7, "bytesBehind": 0,
                    "samples": 1797, "seconds": 0},
                {"node": "edge2", "state": "Syncing", "generation": 6, "bytesBehind": 4096,
                    "samples": 1400, "seconds": 95, "message": "the link is slow"},
                {"node": "edge3", "state": "Failed", "message": "the disk is full; free some space"},
            ],
            "conditions": [condition("Ready", "True", "Counted", "counts match the current data"),
                condition("Replicated", "False", "ReplicaFailed",
                    "1 of 3 replicas are in sync; edge3: the disk is full; free some space")],
        },
    });
    let nodes = ["edge0", "edge1", "edge2", "edge3"].map(|name| node(name, "True"));
    of_dataset(&read(dataset), &RelatedObjects { nodes: read(json!(nodes)), ..Default::default() })
}

fn placed() -> Page {
    let file = |node: &str, source: Value| {
        json!({"node": node, "state": "Present", "sha256sum": SMALL, "bytes": 54_321,
            "source": source})
    };
    let model = json!({
        "apiVersion": "edgeai.io/v1alpha1", "kind": "Model",
        "metadata": {"name": "digits-small", "namespace": "default", "generation": 1},
        "spec": {"modelUrl": "http://user:secret@models/small.npz?token=secret",
            "sha256sum": SMALL, "placement": {"nodeNames": ["edge0", "edge1", "edge2"]}},
        "status": {
            "presentOn": "2/3", "placed": "2/3", "wantedOn": 3, "observedGeneration": 1,
            "resolved": {"sha256sum": SMALL, "files": 1, "bytes": 54_321},
            "metrics": [{"key": "accuracy", "value": "0.951"}],
            "reportedBy": {"node": "edge0", "object": "trainingmodels/digits",
                "time": "2026-08-01T09:00:00Z", "dataset": {"name": "digits-test", "sha256": BIG}},
            "nodes": [
                {"node": "edge2", "state": "Downloading", "reason": "ModelDownloading",
                    "message": "50 %"},
                file("edge0", json!("Origin")), file("edge1", json!("Peer:edge0")),
            ],
            "conditions": [condition("Ready", "False", "ModelDownloading",
                "2 of 3 nodes have the model; edge2: 50 %")],
        },
    });
    let nodes = ["edge0", "edge1", "edge2"].map(|name| node(name, "True"));
    let events = read(json!([event(1, "Normal", "ModelPresent", "1 of 3 nodes have the model")]));
    let related = RelatedObjects { nodes: read(json!(nodes)), events, ..Default::default() };
    of_model(&read(model), &related)
}

/// Compares `output` with the committed golden file; with `BLESS` set, writes the file instead.
fn golden(name: &str, output: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/commands/status/golden").join(name);
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, output).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        output, expected,
        "{name} differs; to accept the new output, run the test with BLESS=1"
    );
}

type MakePage = fn() -> Page;

#[test]
fn pages_match_the_golden_files() {
    let pages: [(&str, MakePage); 11] = [
        ("healthy", healthy),
        ("healthy_on_all", healthy_on_all),
        ("many", many),
        ("cascade", cascade),
        ("chain", chain),
        ("failing", failing),
        ("not_reconciled", not_reconciled),
        ("serving", serving),
        ("serving_on_all", serving_on_all),
        ("replicated", replicated),
        ("placed", placed),
    ];
    for (name, page) in pages {
        let page = page();
        golden(&format!("{name}.txt"), &text(&page, now()));
        golden(&format!("{name}.json"), &(serde_json::to_string_pretty(&page).unwrap() + "\n"));
    }
}

#[test]
fn advice_is_given_exactly_when_something_is_wrong() {
    assert_eq!(healthy().advice, Vec::<String>::new());
    let pages: [(&str, MakePage); 12] = [
        ("not ready", failing),
        ("node cloud0 not found", failing),
        ("has not reconciled the last change", failing),
        ("another sha256sum", failing),
        ("no controller has reconciled", not_reconciled),
        ("bad graph", serving),
        ("node edge0: https://llm.example is left alone", cascade),
        ("404 Not Found: no model digits-3", chain),
        ("JointInferenceService box, which answers hard samples, is Pending: Model", chain),
        ("edge3: the disk is full", replicated),
        ("replica on node edge2: the link is slow", replicated),
        ("2 of 3 nodes have the model; edge2", placed),
    ];
    for (what, page) in pages {
        let page = page();
        assert!(page.advice.iter().any(|advice| advice.contains(what)), "{what}: {page:?}");
    }
}
