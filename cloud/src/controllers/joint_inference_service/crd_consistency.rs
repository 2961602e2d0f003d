//! Tests that the CRD rejects no service that the controller accepts.

use neptune_wire::ObjectName;
use serde_json::{Value, json};

use crate::{
    controllers::{
        crd_consistency::compare,
        joint_inference_service::{
            fixtures,
            validate::{ServiceFacts, validate},
        },
    },
    kubernetes::node_selector::SelectedNodes,
};

/// Valid and invalid changes of the sample, at the limits of each field.
fn changes() -> Vec<Value> {
    let edge = |change: Value| json!({ "edgeWorker": change });
    let program = |change: Value| json!({"edgeWorker": {"workerSpec": change}});
    let mut changes = vec![
        json!({}),
        edge(json!({"nodeName": null})),
        edge(json!({"nodeSelector": {}})),
        edge(json!({"nodeSelector": {"area": "north"}})),
        edge(json!({"nodeName": null, "nodeSelector": {}})),
        edge(json!({"nodeName": null, "nodeSelector": {"area": "north"}})),
        edge(json!({"nodeName": null, "nodeSelector": {"area": "north"}, "placement": "All"})),
        edge(json!({"placement": "One"})),
        program(
            json!({"frameworkType": "container", "image": "a:1", "scriptDir": "", "scriptBootFile": ""}),
        ),
    ];
    let names =
        ["", "a", "A", "a_b", "a-b.c", "-a", "a-", "a..b", "9", "workers", "a b", "ä", "A.B-9"];
    let long = [63, 253].map(|length| "a".repeat(length));
    for name in names.into_iter().chain(long.iter().map(String::as_str)) {
        changes.push(edge(json!({ "name": name })));
        changes.push(edge(json!({ "nodeName": name })));
        changes.push(edge(json!({"model": { "name": name }})));
        changes.push(edge(json!({"hardExampleAlgorithm": { "name": name }})));
        changes.push(program(json!({ "frameworkType": name })));
        changes.push(program(json!({ "frameworkVersion": name })));
        changes.push(program(json!({"parameters": [{"key": name, "value": name}]})));
        changes.push(program(json!({"env": [{"name": name, "value": name}]})));
        changes.push(edge(
            json!({"hardExampleAlgorithm": {"parameters": [{"key": name, "value": "1"}]}}),
        ));
    }
    for pair in [["a", "a"], ["a", "b"], ["a-b", "a_b"], ["a", "A"]] {
        changes.push(program(
            json!({"parameters": pair.map(|key| json!({"key": key, "value": "1"}))}),
        ));
        changes.push(program(json!({"env": pair.map(|name| json!({ "name": name }))})));
    }
    for path in
        ["", "/", "/code", "code", "/code/../etc", "/co:de", "main.py", "sub/main.py", "../main.py"]
    {
        changes.push(program(json!({ "scriptDir": path })));
        changes.push(program(json!({ "scriptBootFile": path })));
    }
    for quantity in [
        "", "0", "0m", "1", "500m", "0.5", ".5", "2.", ".", "1.5Gi", "256Mi", "129M", "12E-1",
        "1E", "2e1", "1e", "1 GB", "1gi", "-1", "+1", "00.0", "0.0k", "1..2", "100n", "1e99999",
    ] {
        changes.push(program(json!({"resources": {"limits": {"memory": quantity}}})));
        changes.push(program(json!({"resources": {"limits": {"cpu": quantity}}})));
    }
    changes
}

#[tokio::test]
async fn crd_accepts_every_valid_service() {
    let counts = compare(&fixtures::service(), &changes(), |service| {
        let edge = &service.spec.edge_worker;
        let edge_node = |name| fixtures::node(name, &[("node-role.kubernetes.io/edge", "")]);
        // A Model has a name of RFC 1123.
        let name = edge.model.as_ref().map(|model| model.name.as_str()).unwrap_or_default();
        let is_name = name.parse::<ObjectName>().is_ok();
        let facts = ServiceFacts {
            edge_node: edge.node_name.as_deref().map(edge_node),
            edge_selected: SelectedNodes {
                nodes: vec![edge_node("edge0")],
                ..SelectedNodes::default()
            },
            edge_model: is_name.then(|| fixtures::model(name, "/model/small.pb")),
            ..fixtures::facts()
        };
        validate(service, &facts).is_ok()
    })
    .await;
    // Only the controller checks scripts, which depend on the framework, and keys that become one
    // variable.
    assert!(
        counts.accepted > 100 && counts.rejected > 50 && counts.rejected_later < 40,
        "{counts:?}"
    );
}
