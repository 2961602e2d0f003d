#![allow(clippy::unwrap_used)]
use std::collections::HashMap;

use neptune_api::{
    EdgeWorkerStatus, InferenceModel, JointInferenceService, Model, NodeReportSlice,
};
use serde_json::{Value, json};

use super::{
    ObjectId, Wanted,
    layout::{Columns, Lines, details, missing},
    row::NodeRow,
    sources::{listed_only, of_model, of_servers, of_slice, of_status, refused},
};
use crate::cli::{NodeFilter, ObjectArgument, Output};

fn slice() -> NodeReportSlice {
    let row = |node: &str, instance: &str, inference: u64, state: Value| {
        json!({"node": node, "instance": instance, "epoch": 2, "seq": 9,
            "inferenceNumber": inference, "hardExampleNumber": 3, "fallbackNumber": 1,
            "state": state})
    };
    let mut failed = row("shop-2", "a", 5, json!("Failed"));
    failed["reason"] = "CrashLoopBackOff".into();
    serde_json::from_value(json!({
        "metadata": {"name": "digits-7d1c3f6a-000"},
        "rows": [row("shop-1", "old", 40, Value::Null), row("shop-1", "new", 2, json!("Running")),
            failed, {"node": "shop-3", "state": "Pending"}, row("shop-4", "a", 7, Value::Null)],
    }))
    .unwrap()
}

fn id(nodes: Option<usize>) -> ObjectId<'static> {
    ObjectId { kind: "JointInferenceService", namespace: "default", name: "digits", nodes }
}

#[test]
fn agents_of_a_node_are_one_row_with_their_sum() {
    let rows = of_slice(&slice(), &HashMap::new());
    let brief = |row: &NodeRow| {
        let inferences = row.counters.as_ref().map(|counters| counters.inference_number);
        format!("{} {} {:?} {}", row.node, row.state_text(), inferences, row.agents.len())
    };
    assert_eq!(
        rows.iter().map(brief).collect::<Vec<_>>(),
        [
            "shop-1 Running Some(42) 2",
            "shop-2 Failed (CrashLoopBackOff) Some(5) 1",
            "shop-3 Pending None 0",
            "shop-4 - Some(7) 1",
        ]
    );
    let in_state = |state| rows.iter().filter(|row| row.is_in(state)).count();
    assert_eq!([NodeFilter::All, NodeFilter::Failed].map(in_state), [3, 1], "one left");
}

#[test]
fn row_of_the_status_is_newer_than_that_of_a_slice() {
    for (state, reason, expected) in [
        ("Failed", Some("OutOfMemory"), "Failed (OutOfMemory)"),
        ("Failed", None, "Failed (CrashLoopBackOff)"),
        ("Running", None, "Running"),
    ] {
        let worker = EdgeWorkerStatus {
            node: "shop-2".to_owned(),
            state: state.to_owned(),
            reason: reason.map(str::to_owned),
            message: Some("why".to_owned()),
            gateway: None,
        };
        let rows = of_slice(&slice(), &[("shop-2", &worker)].into());
        assert_eq!(rows[1].state_text(), expected);
        assert_eq!(rows[1].message.as_deref(), Some("why"));
    }
}

#[test]
fn columns_keep_their_width_over_pages_and_json_is_one_document() {
    let rows = of_slice(&slice(), &HashMap::new());
    let mut lines = Lines::new(id(None), Columns::Counters, Output::Text);
    let text = lines.page(&rows[..2]) + &lines.page(&rows[2..3]) + &lines.end();
    assert_eq!(
        text,
        "\
NODE     STATE                       INFERENCES   HARD EXAMPLES   MESSAGE
shop-1   Running                     42           6               -
shop-2   Failed (CrashLoopBackOff)   5            3               -
shop-3   Pending                     -            -               -
"
    );
    for pages in [&[][..], &[&rows[..2], &rows[2..2], &rows[2..]]] {
        let mut lines = Lines::new(id(None), Columns::Counters, Output::Json);
        let mut text: String = pages.iter().map(|page| lines.page(page)).collect();
        text += &lines.end();
        let json: Value = serde_json::from_str(&text).unwrap();
        let nodes = pages.iter().map(|page| page.len()).sum::<usize>();
        assert_eq!(json["nodes"].as_array().unwrap().len(), nodes);
        assert_eq!(json["kind"], "JointInferenceService");
    }
}

#[test]
fn one_node_has_its_agents_its_slice_and_all_values() {
    let rows = of_slice(&slice(), &HashMap::new());
    assert_eq!(
        details(id(None), &rows[0], Output::Text),
        "\
Object    JointInferenceService default/digits
Node      shop-1
State     Running
Counters  42 inferences, 6 hard examples, 2 not answered by the cloud
          agent old: 40 inferences, 3 hard examples, 1 not answered by the cloud (epoch 2, message 9)
          agent new: 2 inferences, 3 hard examples, 1 not answered by the cloud (epoch 2, message 9)
Slice     digits-7d1c3f6a-000
"
    );
    assert!(details(id(None), &rows[3], Output::Text).contains("no longer has it"));
    let json: Value = serde_json::from_str(&details(id(None), &rows[0], Output::Json)).unwrap();
    assert_eq!(
        (&json["counters"]["inferenceNumber"], &json["node"]),
        (&json!(42), &json!("shop-1"))
    );
}

#[test]
fn missing_node_is_an_error_with_the_object_the_node_and_the_remedy() {
    let text = missing(id(Some(40)), "x", None);
    let start = "JointInferenceService default/digits: node x is not one of its 40 nodes; correct";
    assert!(text.starts_with(start), "{text}");
    assert!(text.contains("kubectl neptune status jis/digits -n default --nodes"), "{text}");
    assert_eq!(listed_only(id(Some(32)), 32), None);
    let partial = listed_only(id(Some(40)), 32);
    assert!(missing(id(Some(40)), "x", partial.as_deref()).contains("32 of 40 nodes"));
}

#[test]
fn each_kind_has_its_states() {
    let object = |text: &str| text.parse::<ObjectArgument>().unwrap();
    let state = |text, state| refused(&object(text), &Wanted::InState(state));
    for (text, filter) in [
        ("a", NodeFilter::Completed),
        ("im/a", NodeFilter::Running),
        ("model/a", NodeFilter::Present),
        ("model/a", NodeFilter::All),
    ] {
        assert_eq!(state(text, filter), None, "{text}");
    }
    let expected =
        "im/a has no nodes in state Completed; use one of Pending, Running, Failed, Unknown";
    assert_eq!(state("im/a", NodeFilter::Completed).as_deref(), Some(expected));
    let node = Wanted::Named("e".to_owned());
    assert!(refused(&object("tm/a"), &node).unwrap().contains("kubectl neptune status tm/a"));
    assert_eq!(refused(&object("jis/a"), &node), None);
}

#[test]
fn rows_of_a_status_are_those_of_its_kind() {
    let service = |edge: Value, status: Value| -> JointInferenceService {
        let mut worker = json!({"name": "edge", "hardExampleAlgorithm": {"name": "IBT"}});
        worker.as_object_mut().unwrap().extend(edge.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": {"name": "digits"},
            "spec": {"edgeWorker": worker, "cloudWorker": {"name": "cloud"}}, "status": status}))
        .unwrap()
    };
    let report = json!({"node": "left", "instance": "a", "epoch": 1, "seq": 1,
        "inferenceNumber": 4, "hardExampleNumber": 0});
    let condition = json!({"type": "Running", "status": "True", "reason": "WorkersRunning"});
    let named = service(
        json!({"nodeName": "edge0"}),
        json!({"conditions": [condition],
        "reports": [report]}),
    );
    let texts = |rows: Vec<NodeRow>| -> Vec<String> {
        rows.iter().map(|row| format!("{} {}", row.node, row.state_text())).collect()
    };
    assert_eq!(texts(of_status(&named)), ["edge0 Running (WorkersRunning)", "left -"]);
    let gateway = json!({"signal": "Top2", "cloud": "Reachable", "threshold": "0.7"});
    let selected = service(
        json!({}),
        json!({"edgeWorkers": [
        {"node": "edge0", "state": "Running", "gateway": gateway}]}),
    );
    let row = of_status(&selected).remove(0);
    assert_eq!(row.values["threshold"], "0.7");

    let server = |node: &str, ready: &str, transition: &str, reason: &str| {
        json!({"node": node, "servingVersion": "3", "transitionStatus": transition, "ready": ready,
            "reason": reason, "message": ""})
    };
    let model: InferenceModel = serde_json::from_value(json!({"metadata": {"name": "m"},
        "spec": {"modelName": "m", "deployToLayer": "edge", "frameworkType": "onnx"},
        "status": {"servers": [server("a", "True", "UpToDate", "Serving"),
            server("b", "True", "BlockedByFailedLoad", "LoadFailed"),
            server("c", "Unknown", "UpToDate", "NodeOffline"),
            server("d", "False", "InProgress", "ModelDownloading")]}}))
    .unwrap();
    assert_eq!(
        texts(of_servers(&model)),
        [
            "a Running (Serving)",
            "b Failed (LoadFailed)",
            "c Unknown (NodeOffline)",
            "d Pending (ModelDownloading)"
        ]
    );
    let model: Model = serde_json::from_value(json!({"metadata": {"name": "m"},
        "spec": {"modelUrl": "/m"}, "status": {"nodes": [
            {"node": "a", "state": "Present", "source": "Origin", "bytes": 5}]}}))
    .unwrap();
    let row = of_model(&model).remove(0);
    assert_eq!((row.state_text(), &*row.values["bytes"]), ("Present".to_owned(), "5"));
}
