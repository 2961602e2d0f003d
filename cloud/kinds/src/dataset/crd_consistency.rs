//! Tests that the CRD rejects no Dataset that the controller accepts.

use serde_json::{Value, json};

use crate::{
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
        "s3://bucket/k",
        "S3://bucket/k",
        "file://localhost/m",
        "s3://b",
        "s3://",
        "nfs://h/d",
        "a b",
    ];
    let names = ["", "a", "A", "a_b", "a-b.c", "-a", "a..b", "workers", "ä"];
    let texts = ["", "csv", "parquet", "no such format"];
    let urls = urls.map(|url| json!({ "dataUrl": url }));
    let names = names.map(|name| json!({ "nodeName": name }));
    let texts = texts.map(|text| json!({ "format": text, "labelColumn": text, "member": text }));
    let characters = ["", ",", "ä"].map(|character| json!({ "delimiter": character }));
    urls.into_iter().chain(names).chain(texts).chain(characters).collect()
}

#[tokio::test]
async fn crd_accepts_every_valid_dataset() {
    let facts = fixtures::facts();
    let counts =
        compare(&fixtures::dataset(), &changes(), |dataset| validate(dataset, &facts).is_ok())
            .await;
    assert!(
        counts.accepted > 15 && counts.rejected > 10 && counts.rejected_later < 10,
        "{counts:?}"
    );
}
