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
        "hf://o/r",
        "HF://o/r@v1/m.bin",
        "hf://o",
        "hf://o/r/../m",
        "hf://o/r?files=*",
        "oci://registry.example/r:v1",
        "OCI://registry.example/r",
        "oci://registry.example",
    ];
    let digests = [String::new(), "aB".repeat(32), "a".repeat(63), "g".repeat(64)];
    let urls = urls.map(|url| json!({ "modelUrl": url }));
    let digests = digests.map(|digest| json!({ "sha256sum": digest }));
    let files = [json!([]), json!(["*.json"]), json!([""]), json!(["a b"])];
    let files = files.into_iter().flat_map(|files| {
        ["hf://o/r", "hf://o/r/m", "oci://h/r", "/m"]
            .map(|url| json!({"modelUrl": url, "files": files.clone()}))
    });
    let mirrors = [
        json!([]),
        json!(["HTTP://a/m"]),
        json!(["s3://bucket/k", "hf://o/r/m"]),
        json!(["/m"]),
        json!([""]),
        json!(["ftp://a/m"]),
        json!(vec!["http://a/m"; 9]),
    ];
    let mirrors = mirrors.map(|mirrors| ("http://h/m", mirrors));
    // A mirror of a set is a set.
    let mirrors = mirrors.into_iter().chain([("oci://h/r", json!(["oci://registry.example/r"]))]);
    let mirrors = mirrors.flat_map(|(url, mirrors)| {
        [Some("ab".repeat(32)), None]
            .map(|digest| json!({"modelUrl": url, "mirrors": mirrors.clone(), "sha256sum": digest}))
    });
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
    urls.into_iter()
        .chain(files)
        .chain(mirrors)
        .chain(digests)
        .chain(formats)
        .chain(placements)
        .collect()
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
    // Later: patterns beside an address without a repository, and their characters.
    assert!(counts.accepted > 8 && counts.rejected > 8 && counts.rejected_later < 8, "{counts:?}");
}
