//! Whether the CRD refuses a model that workers could use.

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
        "s3://b",
        "nfs://h/m",
    ];
    let digests = [String::new(), "aB".repeat(32), "a".repeat(63), "g".repeat(64)];
    let urls = urls.map(|url| json!({ "modelUrl": url }));
    let digests = digests.map(|digest| json!({ "sha256sum": digest }));
    let words = ["", "pb", "what its users call it"].map(|word| json!({ "format": word }));
    urls.into_iter().chain(digests).chain(words).collect()
}

#[tokio::test]
async fn the_crd_refuses_no_model_that_workers_could_use() {
    let url = "/model/frozen.pb".to_owned();
    let sample = Model::new("frozen", ModelSpec { model_url: url, ..ModelSpec::default() });
    let tally = compare(&sample, &changes(), |model| validate(model).is_ok()).await;
    assert!(tally.accepted > 8 && tally.rejected > 8 && tally.rejected_later < 8, "{tally:?}");
}
