//! The shipped framework table equals the built-in one.

use std::collections::BTreeSet;

use deploy_tests::{object, objects, text};
use serde_json::Value;

/// The first string of each tuple in a function of the controller: the names in its table.
fn names(source: &str, from: &str, to: &str) -> BTreeSet<String> {
    let (_, rest) = source.split_once(from).unwrap();
    let (table, _) = rest.split_once(to).unwrap();
    let name = |line: &str| Some(line.trim().strip_prefix("(\"")?.split_once('"')?.0.to_owned());
    table.lines().filter_map(name).collect()
}

/// Every string in a value, without keys.
fn texts(value: &Value, strings: &mut Vec<String>) {
    match value {
        Value::String(text) => strings.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| texts(item, strings)),
        Value::Object(fields) => fields.values().for_each(|field| texts(field, strings)),
        _ => {}
    }
}

#[test]
fn config_map_contains_the_built_in_frameworks() {
    let (workers, servers) = (
        text("cloud/kinds/src/worker/frameworks.rs"),
        text("cloud/kinds/src/worker/serving_runtimes.rs"),
    );
    let base = objects("base");
    let map = object(&base, "ConfigMap", "neptune-frameworks");
    let yaml = map["data"]["frameworks.yaml"].as_str().expect("the key that the controller reads");
    let table: Value = serde_saphyr::from_str(yaml).unwrap();
    let table = table.as_object().unwrap();
    let shipped = |what: fn(&Value) -> bool| -> BTreeSet<String> {
        table.iter().filter(|(_, entry)| what(entry)).map(|(name, _)| name.clone()).collect()
    };

    let built_in = names(&workers, "let table = [", "];");
    // An entry with only a serving runtime does not change the worker's entry.
    let for_workers =
        shipped(|entry| entry.get("serving").is_none() || entry.get("image").is_some());
    assert_eq!(
        for_workers, built_in,
        "build/deploy/base/frameworks.yaml, cloud/kinds/src/worker/frameworks.rs"
    );

    let built_in = names(&servers, "pub fn built_in()", "\n}\n");
    let with_server = shipped(|entry| entry.get("serving").is_some());
    assert_eq!(
        with_server, built_in,
        "build/deploy/base/frameworks.yaml, cloud/kinds/src/worker/serving_runtimes.rs"
    );

    let mut strings = Vec::new();
    table.values().for_each(|entry| texts(entry, &mut strings));
    assert!(strings.len() > 30, "{strings:?}");
    let source = workers + &servers;
    for text in strings {
        // The source names the variants of a reload mode and a protocol.
        let variants = ["watch", "openai", "oip", "tfserving"];
        let there = source.contains(&format!("\"{text}\"")) || variants.contains(&text.as_str());
        assert!(there, "{text:?} of build/deploy/base/frameworks.yaml is not built in");
    }
}
