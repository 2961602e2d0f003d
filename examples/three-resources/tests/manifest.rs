//! The digests in the manifest are those of the model files of the digits example.
#![allow(clippy::unwrap_used)]

use sha2::{Digest as _, Sha256};

#[test]
fn manifest_contains_the_digests_of_the_model_files() {
    let manifest = include_str!("../models.yaml");
    for (name, times, file) in [
        ("small", 1, include_str!("../../digits/models/small.json")),
        ("big", 2, include_str!("../../digits/models/big.json")),
    ] {
        let sum =
            Sha256::digest(file).iter().fold(String::new(), |sum, byte| format!("{sum}{byte:02x}"));
        let lines = format!("{name}.json\n      sha256sum: {sum}\n");
        assert_eq!(
            manifest.matches(&lines).count(),
            times,
            "models.yaml lacks the digest of {name}.json: {sum}"
        );
    }
}
