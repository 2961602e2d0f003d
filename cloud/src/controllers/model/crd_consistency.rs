//! Tests that the CRD rejects no Model that the controller accepts.

use neptune_api::{Model, ModelSpec};
use serde_json::{Value, json};

use crate::controllers::{crd_consistency::compare, model::validate};

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
    urls.into_iter().chain(digests).chain(formats).collect()
}

#[tokio::test]
async fn crd_accepts_every_valid_model() {
    let url = "/model/frozen.pb".to_owned();
    let sample = Model::new("frozen", ModelSpec { model_url: url, ..ModelSpec::default() });
    let counts = compare(&sample, &changes(), |model| validate(model).is_ok()).await;
    assert!(counts.accepted > 8 && counts.rejected > 8 && counts.rejected_later < 8, "{counts:?}");
}
