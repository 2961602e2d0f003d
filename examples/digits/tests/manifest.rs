//! The digests in the manifest are those of the model files, and the service without code is short.
#![allow(clippy::unwrap_used)]

use sha2::{Digest as _, Sha256};

#[test]
fn manifest_contains_the_digests_of_the_model_files() {
    let manifest = include_str!("../models.yaml");
    for (name, file) in [
        ("small", include_str!("../models/small.json")),
        ("big", include_str!("../models/big.json")),
    ] {
        let sum =
            Sha256::digest(file).iter().fold(String::new(), |sum, byte| format!("{sum}{byte:02x}"));
        let line = format!("{name}.json\"\n  format: json\n  sha256sum: {sum}\n");
        assert!(manifest.contains(&line), "models.yaml lacks the digest of {name}.json: {sum}");
    }
}

#[test]
fn service_without_code_has_at_most_25_lines() {
    let lines = include_str!("../gateway.yaml").lines().count();
    assert!(lines <= 25, "gateway.yaml has {lines} lines");
}
