#![allow(clippy::unwrap_used)]

use super::*;
use serde_json::json;

fn schema() -> Value {
    json!({"type": "object", "properties": {
        "apiVersion": {"type": "string"}, "kind": {"type": "string"},
        "metadata": {"$ref": "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"},
        "spec": {"type": "object", "properties": {
            "a": {"type": "string"}, "b": {"type": "string"},
            "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port"],
                "items": {"type": "object", "properties": {"port": {"type": "integer"}, "name": {"type": "string"}}}},
        }},
        "status": {"type": "object", "properties": {"n": {"type": "integer"}}},
    }})
}

fn writer<'a>(manager: &'a str, now: &'a str) -> Writer<'a> {
    Writer { manager, api_version: "g/v1", subresource: "", now, ignored: &["status"] }
}

fn config(spec: Value) -> Value {
    let mut config = json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "x"}});
    config["spec"] = spec;
    config
}

fn applied(
    live: Option<&Value>,
    manager: &str,
    spec: Value,
    force: bool,
) -> Result<Value, ApiError> {
    let schema = schema();
    apply(
        live,
        &config(spec),
        Schema::new(&schema).unwrap(),
        &writer(manager, "2020-01-01T00:00:00Z"),
        force,
    )
}

#[test]
fn apply_owns_its_fields() {
    let object =
        applied(None, "m", json!({"a": "1", "ports": [{"port": 1, "name": "p"}]}), false).unwrap();
    assert_eq!(
        object["metadata"]["managedFields"],
        json!([{"manager": "m", "operation": "Apply", "apiVersion": "g/v1", "time": "2020-01-01T00:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:a": {}, "f:ports": {"k:{\"port\":1}": {".": {}, "f:name": {}, "f:port": {}}}}}}])
    );
}

#[test]
fn field_dropped_by_its_only_manager_is_removed() {
    let first =
        applied(None, "m", json!({"a": "1", "b": "2", "ports": [{"port": 1}, {"port": 2}]}), false)
            .unwrap();
    let second =
        applied(Some(&first), "m", json!({"a": "1", "ports": [{"port": 2}]}), false).unwrap();
    assert_eq!(second["spec"], json!({"a": "1", "ports": [{"port": 2}]}));
}

#[test]
fn field_applied_by_another_manager_remains() {
    let first = applied(None, "m", json!({"a": "1", "b": "2"}), false).unwrap();
    let second = applied(Some(&first), "n", json!({"b": "2"}), false).unwrap();
    let third = applied(Some(&second), "m", json!({"a": "1"}), false).unwrap();
    assert_eq!(third["spec"], json!({"a": "1", "b": "2"}));
}

#[test]
fn field_of_another_manager_conflicts_unless_forced() {
    let first = applied(None, "m", json!({"a": "1"}), false).unwrap();
    let error = applied(Some(&first), "n", json!({"a": "2"}), false).unwrap_err();
    assert_eq!(error.code, 409);
    assert_eq!(error.message, r#"Apply failed with 1 conflict: conflict with "m": .spec.a"#);
    assert_eq!(
        error.details["causes"],
        json!([{"reason": "FieldManagerConflict", "message": "conflict with \"m\"", "field": ".spec.a"}])
    );
    let forced = applied(Some(&first), "n", json!({"a": "2"}), true).unwrap();
    assert_eq!(forced["spec"]["a"], "2");
    let managers: Vec<&str> = forced["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["manager"].as_str().unwrap())
        .collect();
    assert_eq!(managers, ["n"]);
}

#[test]
fn update_owns_the_fields_that_it_changes() {
    let schema = schema();
    let schema = Schema::new(&schema).unwrap();
    let first = applied(None, "m", json!({"a": "1", "b": "2"}), false).unwrap();
    let mut second = first.clone();
    second["spec"]["a"] = "9".into();
    record_update(Some(&first), &mut second, schema, &writer("editor", "2020-01-02T00:00:00Z"))
        .unwrap();
    let error = applied(Some(&second), "m", json!({"a": "1", "b": "2"}), false).unwrap_err();
    assert_eq!(
        error.message,
        r#"Apply failed with 1 conflict: conflict with "editor" using g/v1: .spec.a"#
    );
}

#[test]
fn repeated_apply_changes_nothing() {
    let first = applied(None, "m", json!({"a": "1", "ports": [{"port": 1}]}), false).unwrap();
    let schema = schema();
    let later = writer("m", "2021-01-01T00:00:00Z");
    let again = apply(
        Some(&first),
        &config(json!({"a": "1", "ports": [{"port": 1}]})),
        Schema::new(&schema).unwrap(),
        &later,
        false,
    )
    .unwrap();
    assert_eq!(again, first);
}

#[test]
fn undeclared_field_is_refused() {
    let error = applied(None, "m", json!({"typo": 1}), false).unwrap_err();
    assert_eq!(
        error.message,
        "failed to create typed patch object (/x; g/v1, Kind=K): .spec.typo: field not declared in schema"
    );
}

#[test]
fn status_is_not_owned_through_the_main_resource() {
    let schema = schema();
    let mut object = config(json!({"a": "1"}));
    object["status"] = json!({"n": 1});
    record_update(
        None,
        &mut object,
        Schema::new(&schema).unwrap(),
        &writer("m", "2020-01-01T00:00:00Z"),
    )
    .unwrap();
    assert_eq!(
        object["metadata"]["managedFields"][0]["fieldsV1"],
        json!({"f:spec": {".": {}, "f:a": {}}})
    );
}

#[test]
fn removal_of_the_last_label_keeps_other_metadata() {
    let schema = schema();
    let labelled = |labels: Value, live: Option<&Value>| {
        let mut config = config(json!({"a": "1"}));
        config["metadata"]["labels"] = labels;
        let writer = writer("m", "2020-01-01T00:00:00Z");
        apply(live, &config, Schema::new(&schema).unwrap(), &writer, true).unwrap()
    };
    let with = labelled(json!({"role": "edge"}), None);
    assert_eq!(with["metadata"]["labels"]["role"], "edge");
    let without = labelled(json!({}), Some(&with));
    assert_eq!(without["metadata"]["name"], "x");
    assert!(without["metadata"]["labels"]["role"].is_null(), "{without}");
    assert_eq!(without["spec"]["a"], "1");
}

#[test]
fn equal_numbers_in_different_form_are_unchanged() {
    let schema = schema();
    let changes = |new| compare(&json!({"n": [0.0]}), &new, Schema::new(&schema).unwrap());
    assert!(changes(json!({"n": [0]})).is_empty());
    assert!(!changes(json!({"n": [1]})).is_empty());
    assert!(!changes(json!({"n": ["0"]})).is_empty());
}
