//! The settings in `build/` are those of the programs.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use deploy_tests::{OVERLAYS, objects, repository, text};

/// Every `NEPTUNE_...` variable in a text.
fn variables(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    text.split(|c| !is_part(c)).filter(|word| word.starts_with("NEPTUNE_")).collect()
}

/// The sources of options, without their tests. Those of logs and brokers are the same in all
/// programs.
fn options(program: &str, files: &[&str]) -> String {
    let files = files.iter().map(|file| format!("{program}/src/cli/{file}.rs"));
    let shared = ["logs/mod", "broker"].map(|file| format!("common/program/src/{file}.rs"));
    let sources = files.chain(shared).map(|file| text(&file));
    sources.map(|source| source.split("#[cfg(test)]").next().unwrap().to_owned()).collect()
}

#[test]
fn agents_settings_file_lists_every_option_of_run() {
    let file = text("build/systemd/edge.env");
    assert!(file.lines().all(|line| line.is_empty() || line.starts_with('#')), "all is commented");
    let run =
        options("edge", &["mod", "run", "containers", "devices", "downloads", "models", "peers"]);
    assert_eq!(
        variables(&file),
        variables(&run),
        "build/systemd/edge.env and edge/src/cli differ: name each option in the file, with what it means"
    );
}

#[test]
fn manifests_set_only_variables_that_the_programs_read() {
    let cloud = options("cloud", &["mod", "run", "join_server", "broker_files"]);
    let edge = options(
        "edge",
        &["mod", "run", "containers", "devices", "downloads", "models", "peers", "fetch", "doctor"],
    );
    let known = &variables(&cloud) | &variables(&edge);
    for overlay in OVERLAYS {
        let shown = serde_json::to_string(&objects(overlay)).unwrap();
        let set = variables(&shown);
        assert!(set.is_subset(&known), "{overlay}: unknown: {:?}", &set - &known);
    }
}

/// The files below a folder, without those that links lead to.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let files = entries.map(|entry| match entry.file_type().unwrap() {
        kind if kind.is_dir() => files_below(&entry.path()),
        kind if kind.is_file() => vec![entry.path()],
        _ => Vec::new(),
    });
    files.flatten().collect()
}

#[test]
fn configurations_of_mosquitto_send_without_delay() {
    let files = ["build", "docs", "examples"].map(|folder| files_below(&repository(folder)));
    let mut names = Vec::new();
    for file in files.concat() {
        let text = fs::read(&file).unwrap();
        let text = String::from_utf8_lossy(&text);
        let has = |begin: &str| text.lines().any(|line| line.trim_start().starts_with(begin));
        if has("listener ") || has("remote_clientid ") {
            assert!(has("set_tcp_nodelay true"), "{}: set set_tcp_nodelay true", file.display());
            names.push(file.file_name().unwrap().to_owned());
        }
    }
    names.sort();
    assert_eq!(
        names,
        ["bridge.conf", "mosquitto-passwords.conf", "mosquitto.conf"],
        "add new ones here"
    );
}

#[test]
fn docs_list_every_reason() {
    let pages = ["operations", "joint-inference-service", "models", "datasets", "training"];
    let page = pages.map(|page| text(&format!("docs/{page}.md"))).concat();
    let files = files_below(&repository("cloud/kinds/src/reason/table"));
    let tables: String = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let rows = tables.lines().filter_map(|line| line.trim().strip_suffix(',')?.split_once(" => "));
    let rows: Vec<_> = rows.collect();
    assert!(rows.len() > 100, "only {} reasons were read", rows.len());
    for (name, condition) in rows {
        let (name, _phase) = name.split_once(": ").unwrap();
        let (condition, _remedy) = condition.split_once(": ").unwrap();
        let row = format!("| `{name}` | {condition} |");
        assert!(page.contains(&row), "no row in docs/ begins with {row}");
    }
}
