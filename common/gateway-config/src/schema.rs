//! The JSON schema of the configuration file is generated, and committed for editors.

#![allow(clippy::unwrap_used)]

use std::{fs, path::PathBuf};

use crate::Config;

#[test]
fn committed_schema_is_the_generated_one() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/gateway.schema.json");
    let generated = schemars::schema_for!(Config);
    let generated = format!("{}\n", serde_json::to_string_pretty(&generated).unwrap());
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, &generated).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "docs/gateway.schema.json differs from the types; run this test with BLESS=1 to write it"
    );
}
