//! The framework table that is shipped is the built-in one, written out.

use std::collections::BTreeSet;

use deploy_tests::{object, objects, text};
use serde_json::Value;

/// The first text of each tuple in a function of the controller: the names of its table.
fn names(source: &str, from: &str, to: &str) -> BTreeSet<String> {
    let (_, rest) = source.split_once(from).unwrap();
    let (table, _) = rest.split_once(to).unwrap();
    let name = |line: &str| Some(line.trim().strip_prefix("(\"")?.split_once('"')?.0.to_owned());
    table.lines().filter_map(name).collect()
}

/// Every text in a value, keys left out.
fn texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::Object(fields) => fields.values().for_each(|field| texts(field, found)),
        _ => {}
    }
}

#[test]
fn the_config_map_says_what_is_built_in() {
    let (workers, servers) =
        (text("cloud/src/worker/frameworks.rs"), text("cloud/src/worker/serving_runtimes.rs"));
    let base = objects("base");
    let map = object(&base, "ConfigMap", "neptune-frameworks");
    let yaml = map["data"]["frameworks.yaml"].as_str().expect("the key that the controller reads");
    let table: Value = serde_saphyr::from_str(yaml).unwrap();
    let table = table.as_object().unwrap();
    let shipped = |what: fn(&Value) -> bool| -> BTreeSet<String> {
        table.iter().filter(|(_, entry)| what(entry)).map(|(name, _)| name.clone()).collect()
    };

    let built_in = names(&workers, "let table = [", "];");
    // As the controller reads it: an entry that has only a server leaves the worker alone.
    let for_workers =
        shipped(|entry| entry.get("serving").is_none() || entry.get("image").is_some());
    assert_eq!(
        for_workers, built_in,
        "build/deploy/base/frameworks.yaml, cloud/src/worker/frameworks.rs"
    );

    let built_in = names(&servers, "pub fn built_in()", "\n}\n");
    let with_server = shipped(|entry| entry.get("serving").is_some());
    assert_eq!(
        with_server, built_in,
        "build/deploy/base/frameworks.yaml, cloud/src/worker/serving_runtimes.rs"
    );

    let mut found = Vec::new();
    table.values().for_each(|entry| texts(entry, &mut found));
    assert!(found.len() > 30, "{found:?}");
    let source = workers + &servers;
    for text in found {
        // Of a reload only the name of a variant stands in the source.
        let there = source.contains(&format!("\"{text}\"")) || text == "watch";
        assert!(there, "{text:?} of build/deploy/base/frameworks.yaml is not built in");
    }
}
