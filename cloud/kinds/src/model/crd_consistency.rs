//! Tests that the CRD rejects no Model that the controller accepts.

use neptune_api::{Model, ModelSpec};
use serde_json::{Value, json};

use crate::{
    crd_consistency::compare,
    model::{fixtures, place::ModelFacts, validate},
    steps::Steps,
};

fn changes() -> Vec<Value> {
    let urls = [
        "",
        "/",
        "/m",
        "/m/../n",
        "m",
        "//",
        "//m",
        "file:///m",
        "file://m",
        "file:///",
        "FILE:///m",
        "http://h/m",
        "http:///m",
        "http://",
        "https://h",
        "HTTPS://h?x#y",
        "http://?",
        "s3://b/k",
        "s3://bucket/k",
        "S3://bucket/k",
        "file://localhost/m",
        "s3://b",
        "nfs://h/m",
    ];
    let digests = [String::new(), "aB".repeat(32), "a".repeat(63), "g".repeat(64)];
    let urls = urls.map(|url| json!({ "modelUrl": url }));
    let digests = digests.map(|digest| json!({ "sha256sum": digest }));
    let formats = ["", "pb", "free text"].map(|format| json!({ "format": format }));
    let placements = [
        json!({}),
        json!({"nodeNames": []}),
        json!({"nodeNames": ["edge0"]}),
        json!({"nodeNames": ["edge0", "edge1"]}),
        json!({"nodeNames": ["workers"]}),
        json!({"nodeNames": ["Edge_0"]}),
        json!({"nodeNames": ["edge0"], "nodeSelector": {}}),
        json!({"nodeNames": ["edge0"], "nodeSelector": {"site": "west"}}),
        json!({"nodeNames": [], "nodeSelector": {"site": "west"}}),
        json!({"nodeSelector": {"site": "west"}}),
    ];
    let placements = placements.map(|placement| json!({ "placement": placement }));
    urls.into_iter().chain(digests).chain(formats).chain(placements).collect()
}

#[tokio::test]
async fn crd_accepts_every_valid_model() {
    let url = "/model/frozen.pb".to_owned();
    let sample = Model::new("frozen", ModelSpec { model_url: url, ..ModelSpec::default() });
    let node = |name: &String| (name.clone(), Some(fixtures::node(name, true)));
    let is_valid = |model: &Model| {
        let names = model.spec.placement.iter().flat_map(|placement| &placement.node_names);
        let facts = ModelFacts { named: names.map(node).collect(), selected: Vec::new() };
        let placed = Steps::validate(model, &facts);
        // The status lists an unusable node; the model is placed on the others.
        validate(model).is_ok() && placed.is_ok_and(|placed| placed.unusable.is_empty())
    };
    let counts = compare(&sample, &changes(), is_valid).await;
    assert!(counts.accepted > 8 && counts.rejected > 8 && counts.rejected_later < 8, "{counts:?}");
}
