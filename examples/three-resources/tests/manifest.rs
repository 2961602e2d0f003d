//! The manifest names the models as they are in the folder of the digits example.
#![allow(clippy::unwrap_used)]

use sha2::{Digest as _, Sha256};

#[test]
fn the_manifest_holds_the_sums_of_the_model_files() {
    let manifest = include_str!("../models.yaml");
    for (name, times, file) in [
        ("small", 1, include_str!("../../digits/models/small.json")),
        ("big", 2, include_str!("../../digits/models/big.json")),
    ] {
        let sum =
            Sha256::digest(file).iter().fold(String::new(), |sum, byte| format!("{sum}{byte:02x}"));
        let lines = format!("{name}.json\n      sha256sum: {sum}\n");
        assert_eq!(manifest.matches(&lines).count(), times, "{name}.json has the sum {sum}");
    }
}
