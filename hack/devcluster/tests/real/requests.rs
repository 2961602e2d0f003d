//! Requests for widgets: every verb, with valid and invalid input.

use serde_json::{Value, json};

use crate::DEFINITIONS;
use crate::comparison::{Comparison, TestRequest};

const WIDGETS: &str = "/apis/devcluster.example/v1/namespaces/default/widgets";
const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

fn widget(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "devcluster.example/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

fn get(path: impl Into<String>) -> TestRequest<'static> {
    TestRequest::new("GET", path)
}

fn post(path: impl Into<String>, body: &Value) -> TestRequest<'static> {
    TestRequest::new("POST", path).body(body)
}

fn put(path: impl Into<String>, body: &Value) -> TestRequest<'static> {
    TestRequest::new("PUT", path).body(body)
}

fn patch(path: impl Into<String>, media: &'static str, body: &Value) -> TestRequest<'static> {
    TestRequest::new("PATCH", path).content_type(media).body(body)
}

pub async fn all(comparison: &mut Comparison) {
    invalid_objects(comparison).await;
    invalid_requests(comparison).await;
    writes(comparison).await;
    patches(comparison).await;
    server_side_apply(comparison).await;
    lists(comparison).await;
    watches(comparison).await;
    deletes(comparison).await;
}

/// Bodies of a create, most of them invalid.
async fn invalid_objects(comparison: &mut Comparison) {
    let mut unknown =
        widget("odd", &json!({"size": 1, "sise": 2, "ports": [{"port": 1, "prot": 2}]}));
    unknown["metadata"]["lables"] = json!({});
    unknown["more"] = json!(1);
    for mode in ["Strict", "Warn", "Ignore", "Odd"] {
        let path = format!("{WIDGETS}?dryRun=All&fieldValidation={mode}");
        comparison.compare(&format!("unknown fields, {mode}"), &post(path, &unknown)).await;
    }
    let create = || TestRequest::new("POST", format!("{WIDGETS}?dryRun=All"));
    for (case, text) in [
        ("truncated JSON", "{"),
        ("empty body", ""),
        ("list as body", "[]"),
        ("missing kind", r#"{"apiVersion":"devcluster.example/v1","metadata":{"name":"a"}}"#),
        (
            "missing spec",
            r#"{"apiVersion":"devcluster.example/v1","kind":"Widget","metadata":{"name":"a"}}"#,
        ),
        ("missing apiVersion", r#"{"kind":"Widget","metadata":{"name":"a"}}"#),
    ] {
        comparison.compare(case, &create().text(text)).await;
    }
    for (case, pointer, value) in [
        ("wrong kind", "/kind", json!("Wodget")),
        ("wrong group", "/apiVersion", json!("other.example/v1")),
        ("number as label", "/metadata/labels", json!({"a": 1})),
        ("wrong namespace", "/metadata/namespace", json!("b")),
        ("empty name", "/metadata/name", json!("")),
        ("name with capitals", "/metadata/name", json!("A_b")),
        ("invalid label", "/metadata/labels", json!({"a b": "c d"})),
        ("invalid annotation", "/metadata/annotations", json!({"a b": "c d"})),
        ("invalid finalizer", "/metadata/finalizers", json!(["a b"])),
        (
            "owner without uid",
            "/metadata/ownerReferences",
            json!([{"apiVersion": "v1", "kind": "A", "name": "b"}]),
        ),
        ("resourceVersion on create", "/metadata/resourceVersion", json!("1")),
        ("null as spec", "/spec", Value::Null),
        ("list as spec", "/spec", json!([])),
        (
            "several violations",
            "/spec",
            json!({"size": 0, "mode": "x", "replicas": 3_000_000_000_i64, "note": 1, "ports": [{}, {"port": 1}, {"port": 1}]}),
        ),
        ("fraction as integer", "/spec", json!({"size": 1.5})),
        ("whole fraction as integer", "/spec", json!({"size": 2.0})),
        ("null as optional field", "/spec", json!({"size": 2, "mode": null, "note": null})),
    ] {
        let mut object = widget("a", &json!({"size": 1}));
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[field] = value;
        comparison.compare(case, &create().body(&object)).await;
    }
}

async fn invalid_requests(comparison: &mut Comparison) {
    let valid = widget("a", &json!({"size": 1}));
    for (case, request) in [
        ("unknown content type", post(WIDGETS, &valid).content_type("text/plain")),
        ("unknown accept", get(WIDGETS).accept("text/plain")),
        ("unknown resource", get("/apis/devcluster.example/v1/namespaces/default/gadgets")),
        ("unknown version", get("/apis/devcluster.example/v2/namespaces/default/widgets")),
        ("unknown subresource", get(format!("{WIDGETS}/a/log"))),
        ("replace of a collection", put(WIDGETS, &valid)),
        ("unknown dryRun", post(format!("{WIDGETS}?dryRun=Some"), &valid)),
    ] {
        comparison.compare(case, &request).await;
    }
    let mut definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "x"},
        "spec": {"group": "g.io", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    let path = format!("{DEFINITIONS}?dryRun=All&fieldValidation=Strict");
    comparison.compare("definition with wrong name", &post(&path, &definition)).await;
    definition["metadata"]["name"] = "things.g.io".into();
    definition["spec"]["versions"][0]["unknown"] = 1.into();
    comparison.compare("definition with unknown field", &post(&path, &definition)).await;
}

fn with_current_version(mut object: Value) -> Value {
    object["metadata"]["resourceVersion"] = "*".into();
    object
}

async fn writes(comparison: &mut Comparison) {
    let a = format!("{WIDGETS}/a");
    let size = |size: u64| widget("a", &json!({"size": size}));
    let mut old_version = size(4);
    old_version["metadata"]["resourceVersion"] = "1".into();
    let mut invalid_version = size(4);
    invalid_version["metadata"]["resourceVersion"] = "x".into();
    let mut other_uid = with_current_version(size(4));
    other_uid["metadata"]["uid"] = "11111111-1111-1111-1111-111111111111".into();
    let with_port = widget("a", &json!({"size": 3, "ports": [{"port": 80}]}));
    let fast = widget("a", &json!({"size": 4, "mode": "fast"}));
    let renamed = widget("b", &json!({"size": 4}));
    let generated = json!({"apiVersion": "devcluster.example/v1", "kind": "Widget", "metadata": {"generateName": "A_"}, "spec": {"size": 1}});
    for (case, request) in [
        ("get of a missing object", get(&a)),
        ("patch of a missing object", patch(&a, MERGE, &json!({"spec": {"size": 2}}))),
        ("delete of a missing object", TestRequest::new("DELETE", &a)),
        ("replace of a missing object", put(&a, &size(1))),
        ("create", post(format!("{WIDGETS}?fieldManager=m"), &with_port)),
        ("create of an existing object", post(WIDGETS, &size(3))),
        ("replace without resourceVersion", put(&a, &size(4))),
        ("replace of an old resourceVersion", put(&a, &old_version)),
        ("replace of an invalid resourceVersion", put(&a, &invalid_version)),
        ("replace", put(&a, &with_current_version(fast))),
        ("replace with another name", put(&a, &with_current_version(renamed))),
        ("replace with another uid", put(&a, &other_uid)),
        ("generated name", post(format!("{WIDGETS}?dryRun=All"), &generated)),
    ] {
        comparison.compare(case, &request).await;
    }
}

async fn patches(comparison: &mut Comparison) {
    let a = format!("{WIDGETS}/a");
    for (case, change) in [
        ("merge patch", json!({"spec": {"size": 5}})),
        ("merge patch without change", json!({"spec": {"size": 5}})),
        ("merge patch with schema violation", json!({"spec": {"size": 0}})),
        ("merge patch with unknown field", json!({"spec": {"sise": 0}})),
        ("merge patch of the status", json!({"status": {"replicas": 3}})),
        ("merge patch of labels", json!({"metadata": {"labels": {"a": "b"}}})),
        ("merge patch of the name", json!({"metadata": {"name": "b"}})),
        ("merge patch of the namespace", json!({"metadata": {"namespace": "b"}})),
        ("merge patch of the uid", json!({"metadata": {"uid": "x"}})),
        (
            "merge patch of an old resourceVersion",
            json!({"metadata": {"resourceVersion": "1"}, "spec": {"size": 7}}),
        ),
        ("merge patch of the kind", json!({"kind": "Other"})),
        (
            "merge patch of the creation time",
            json!({"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}}),
        ),
        ("merge patch of the generation", json!({"metadata": {"generation": 77}})),
    ] {
        comparison.compare(case, &patch(&a, MERGE, &change)).await;
    }
    let strict = format!("{a}?fieldValidation=Strict");
    let size = json!({"spec": {"size": 5}});
    let status = format!("{a}/status");
    let replaced = json!({"apiVersion": "devcluster.example/v1", "kind": "Widget", "metadata": {"name": "a", "labels": {"x": "y"}}, "status": {"replicas": 4}});
    for (case, request) in [
        ("strict patch with unknown field", patch(strict, MERGE, &json!({"spec": {"sise": 0}}))),
        ("truncated patch", patch(&a, MERGE, &Value::Null).text("{")),
        ("strategic patch", patch(&a, "application/strategic-merge-patch+json", &size)),
        ("patch with the content type of an object", patch(&a, "application/json", &size)),
        (
            "JSON patch",
            patch(&a, JSON_PATCH, &json!([{"op": "replace", "path": "/spec/size", "value": 6}])),
        ),
        (
            "JSON patch of a missing field",
            patch(&a, JSON_PATCH, &json!([{"op": "remove", "path": "/spec/none"}])),
        ),
        (
            "JSON patch with failing test",
            patch(&a, JSON_PATCH, &json!([{"op": "test", "path": "/spec/size", "value": 1}])),
        ),
        (
            "patch of the status endpoint",
            patch(
                &status,
                MERGE,
                &json!({"status": {"replicas": 3, "conditions": [{"type": "A"}]}}),
            ),
        ),
        ("replace at the status endpoint", put(&status, &with_current_version(replaced))),
        ("get of the status", get(&status)),
    ] {
        comparison.compare(case, &request).await;
    }
}

async fn server_side_apply(comparison: &mut Comparison) {
    let path = |manager: &str, more: &str| format!("{WIDGETS}/ssa?fieldManager={manager}{more}");
    let apply = |manager: &str, more: &str, spec: Value| {
        patch(path(manager, more), APPLY, &widget("ssa", &spec))
    };
    let named_port = || json!({"size": 1, "ports": [{"port": 80, "name": "a"}]});
    let conflict = json!({"size": 2, "note": "x", "ports": [{"port": 80, "name": "b"}]});
    let twice = json!({"size": 3, "ports": [{"port": 1}, {"port": 1}]});
    let without_manager = format!("{WIDGETS}/ssa");
    let status = format!("{WIDGETS}/ssa/status?fieldManager=s");
    let head = json!({"apiVersion": "devcluster.example/v1", "kind": "Widget", "metadata": {"name": "ssa"}});
    let (mut owned, mut reported) = (head.clone(), head);
    owned["metadata"]["managedFields"] = json!([{}]);
    reported["status"] = json!({"replicas": 1});
    for (case, request) in [
        ("apply", apply("one", "", named_port())),
        ("repeated apply", apply("one", "", named_port())),
        (
            "apply of a second manager",
            apply("two", "", json!({"size": 1, "ports": [{"port": 81}]})),
        ),
        ("apply with conflict", apply("two", "", conflict)),
        ("forced apply", apply("two", "&force=true", json!({"size": 2, "note": "x"}))),
        ("apply without former fields", apply("one", "", json!({"mode": "fast"}))),
        ("apply with schema violation", apply("one", "&force=true", json!({"size": 0}))),
        ("apply with unknown field", apply("one", "&force=true", json!({"size": 3, "sise": 1}))),
        (
            "strict apply with unknown field",
            apply("one", "&force=true&fieldValidation=Strict", json!({"size": 3, "sise": 1})),
        ),
        ("apply with duplicate list key", apply("one", "&force=true", twice)),
        (
            "apply without list key",
            apply("one", "&force=true", json!({"size": 3, "ports": [{"name": "x"}]})),
        ),
        ("apply with wrong type", apply("one", "&force=true", json!({"size": "x"}))),
        (
            "apply without manager",
            patch(without_manager, APPLY, &widget("ssa", &json!({"size": 1}))),
        ),
        (
            "apply with another name",
            patch(path("one", ""), APPLY, &widget("other", &json!({"size": 1}))),
        ),
        ("apply with managedFields", patch(path("one", ""), APPLY, &owned)),
        ("apply at the status endpoint", patch(status, APPLY, &reported)),
        ("get after apply", get(format!("{WIDGETS}/ssa"))),
    ] {
        comparison.compare(case, &request).await;
    }
}

async fn lists(comparison: &mut Comparison) {
    for name in ["l1", "l2", "l3"] {
        let mut object = widget(name, &json!({"size": 1}));
        object["metadata"]["labels"] = json!({"set": "l", "name": name});
        comparison.compare(&format!("create of {name}"), &post(WIDGETS, &object)).await;
    }
    for query in [
        "",
        "?labelSelector=set%3Dl",
        "?labelSelector=name!%3Dl1",
        "?labelSelector=,",
        "?labelSelector=a%3D%3D%3Db",
        "?fieldSelector=metadata.name%3Dl2",
        "?fieldSelector=spec.size%3D1",
        "?fieldSelector=metadata.name",
        "?resourceVersion=0",
        "?resourceVersion=1",
        "?resourceVersion=x",
    ] {
        comparison.compare(&format!("list {query}"), &get(format!("{WIDGETS}{query}"))).await;
    }
}

async fn watches(comparison: &mut Comparison) {
    let (ours, real) = comparison.compare("list before a watch", &get(WIDGETS)).await;
    let version =
        |answer: &Value| answer["body"]["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let w = format!("{WIDGETS}/w");
    let label = |value: &str| json!({"metadata": {"labels": {"seen": value}}});
    for (case, request) in [
        ("watched create", post(WIDGETS, &widget("w", &json!({"size": 1})))),
        ("watched label", patch(&w, MERGE, &label("yes"))),
        ("watched change", patch(&w, MERGE, &json!({"spec": {"size": 2}}))),
        ("watched removal of the label", patch(&w, MERGE, &label("no"))),
        ("watched delete", TestRequest::new("DELETE", &w)),
    ] {
        comparison.compare(case, &request).await;
    }
    for query in [
        "",
        "&labelSelector=seen%3Dyes",
        "&fieldSelector=metadata.name%3Dw",
        "&fieldSelector=metadata.name%3Dl1",
    ] {
        let watch = |answer: &Value| {
            let version = version(answer);
            let start = format!("watch=true&timeoutSeconds=1&resourceVersion={version}");
            get(format!("{WIDGETS}?{start}{query}"))
        };
        let case = format!("watch from a version {query}");
        comparison.compare_each(&case, &watch(&ours), &watch(&real)).await;
    }
    for query in [
        "&resourceVersion=0&labelSelector=set%3Dl",
        "&labelSelector=set%3Dl",
        "&resourceVersion=x",
        "&labelSelector=,",
    ] {
        let request = get(format!("{WIDGETS}?watch=true&timeoutSeconds=1{query}"));
        comparison.compare(&format!("watch {query}"), &request).await;
    }
}

async fn deletes(comparison: &mut Comparison) {
    let l1 = format!("{WIDGETS}/l1");
    let delete = |path: String| TestRequest::new("DELETE", path);
    let precondition = |field: &str, value: &str| json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {field: value}});
    let finalizers = |list: Value| json!({"metadata": {"finalizers": list}});
    for (case, request) in [
        ("finalizer", patch(&l1, MERGE, &finalizers(json!(["g.io/f"])))),
        ("delete of another uid", delete(l1.clone()).body(&precondition("uid", "x"))),
        (
            "delete of an old resourceVersion",
            delete(l1.clone()).body(&precondition("resourceVersion", "1")),
        ),
        ("dry run of a delete", delete(format!("{l1}?dryRun=All"))),
        ("delete with finalizer", delete(l1.clone())),
        (
            "finalizer on a deleted object",
            patch(&l1, MERGE, &finalizers(json!(["g.io/f", "g.io/g"]))),
        ),
        ("removal of the last finalizer", patch(&l1, MERGE, &finalizers(json!([])))),
        ("get of the deleted object", get(&l1)),
        ("delete", delete(format!("{WIDGETS}/l2"))),
        ("list of the remaining objects", get(WIDGETS)),
    ] {
        comparison.compare(case, &request).await;
    }
}
