//! Whether the CRD refuses a dataset that a node could be told of.

use serde_json::{Value, json};

use crate::controllers::{
    crd_consistency::compare,
    dataset::{fixtures, validate::validate},
};

fn changes() -> Vec<Value> {
    let urls = [
        "",
        "/",
        "/d",
        "/d/../e",
        "d",
        "//",
        "file:///d",
        "file://d",
        "file:///",
        "FILE:///d",
        "http://h/d",
        "http:///d",
        "http://",
        "https://h",
        "HTTPS://h",
        "s3://b/k",
        "s3://b",
        "s3://",
        "nfs://h/d",
        "a b",
    ];
    let names = ["", "a", "A", "a_b", "a-b.c", "-a", "a..b", "workers", "ä"];
    let words = ["", "csv", "parquet", "no such format"];
    let urls = urls.map(|url| json!({ "dataUrl": url }));
    let names = names.map(|name| json!({ "nodeName": name }));
    let words = words.map(|word| json!({ "format": word, "labelColumn": word, "member": word }));
    let characters = ["", ",", "ä"].map(|character| json!({ "delimiter": character }));
    urls.into_iter().chain(names).chain(words).chain(characters).collect()
}

#[tokio::test]
async fn the_crd_refuses_no_dataset_that_a_node_could_be_told_of() {
    let facts = fixtures::facts();
    let tally =
        compare(&fixtures::dataset(), &changes(), |dataset| validate(dataset, &facts).is_ok())
            .await;
    assert!(tally.accepted > 15 && tally.rejected > 10 && tally.rejected_later < 10, "{tally:?}");
}
