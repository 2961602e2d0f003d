//! The settings that `build/` names are the programs' own.

use std::collections::BTreeSet;

use deploy_tests::{OVERLAYS, objects, text};

/// Every `NEPTUNE_...` in a text.
fn variables(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    text.split(|c| !is_part(c)).filter(|word| word.starts_with("NEPTUNE_")).collect()
}

#[test]
fn the_agents_settings_file_has_every_option_of_run_commented_out() {
    let file = text("build/systemd/edge.env");
    assert!(file.lines().all(|line| line.is_empty() || line.starts_with('#')), "all is commented");
    let cli = text("edge/src/cli.rs");
    let (run, _fetch) = cli.split_once("pub struct FetchArgs").unwrap();
    assert_eq!(
        variables(&file),
        variables(run),
        "build/systemd/edge.env and edge/src/cli.rs differ: name each option in the file, with what it means"
    );
}

#[test]
fn the_manifests_set_only_variables_that_the_programs_read() {
    let (cloud, edge) = (text("cloud/src/cli.rs"), text("edge/src/cli.rs"));
    let known = &variables(&cloud) | &variables(&edge);
    for overlay in OVERLAYS {
        let shown = serde_json::to_string(&objects(overlay)).unwrap();
        let set = variables(&shown);
        assert!(set.is_subset(&known), "{overlay}: unknown: {:?}", &set - &known);
    }
}
