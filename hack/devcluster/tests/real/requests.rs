//! Requests on widgets: every verb, and what goes wrong with each.

use serde_json::{Value, json};

use crate::DEFINITIONS;
use crate::both::{Ask, Both};

const WIDGETS: &str = "/apis/devcluster.example/v1/namespaces/default/widgets";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

fn widget(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "devcluster.example/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

pub async fn all(both: &mut Both) {
    definitions(both).await;
    strictness(both).await;
    writes(both).await;
    server_side_apply(both).await;
    lists(both).await;
    watches(both).await;
    deletes(both).await;
}

fn definition(schema: &Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "things.g.io"},
        "spec": {"group": "g.io", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}})
}

/// Definitions that are refused.
async fn definitions(both: &mut Both) {
    let spec = |spec: Value| json!({"type": "object", "properties": {"spec": spec}});
    let rule = |rule: &str| json!([{"rule": rule}]);
    for (what, schema) in [
        ("no type at the root", json!({"properties": {}})),
        ("a field without a type", spec(json!({}))),
        ("an array without items", spec(json!({"type": "array"}))),
        ("an unknown type", spec(json!({"type": "text"}))),
        ("a reference", spec(json!({"type": "string", "$ref": "x"}))),
        (
            "unique items",
            spec(json!({"type": "array", "uniqueItems": true, "items": {"type": "string"}})),
        ),
        ("a default of another type", spec(json!({"type": "integer", "default": "x"}))),
        (
            "a default that breaks the schema",
            spec(json!({"type": "integer", "minimum": 1, "default": 0})),
        ),
        ("a pattern that is none", spec(json!({"type": "string", "pattern": "("}))),
        (
            "a map list without keys",
            spec(
                json!({"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object"}}),
            ),
        ),
        (
            "a map list whose key may be left out",
            spec(
                json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"],
            "items": {"type": "object", "properties": {"a": {"type": "string"}}}}),
            ),
        ),
        (
            "a rule that does not compile",
            spec(json!({"type": "string", "x-kubernetes-validations": rule("self ==")})),
        ),
        (
            "a rule of another type",
            spec(json!({"type": "string", "x-kubernetes-validations": rule("1")})),
        ),
        (
            "a rule on a field that is not there",
            spec(json!({"type": "object", "x-kubernetes-validations": rule("self.a == 1")})),
        ),
        (
            "a rule that compares types",
            spec(json!({"type": "string", "x-kubernetes-validations": rule("self == 1")})),
        ),
        (
            "a rule that costs too much",
            spec(json!({"type": "array", "items": {"type": "string"},
            "x-kubernetes-validations": rule("self.all(a, self.all(b, self.all(c, a == b + c)))")})),
        ),
        ("an empty rule", spec(json!({"type": "string", "x-kubernetes-validations": rule("")}))),
        (
            "a message with a line break",
            spec(
                json!({"type": "string", "x-kubernetes-validations": [{"rule": "self == 'a'", "message": "a\nb"}]}),
            ),
        ),
        (
            "a field path to nowhere",
            spec(
                json!({"type": "object", "x-kubernetes-validations": [{"rule": "true", "fieldPath": ".a"}]}),
            ),
        ),
        (
            "an unknown reason",
            spec(
                json!({"type": "string", "x-kubernetes-validations": [{"rule": "self == 'a'", "reason": "Why"}]}),
            ),
        ),
        (
            "a rule that compares in an atomic list",
            spec(
                json!({"type": "array", "items": {"type": "string", "x-kubernetes-validations": rule("self == oldSelf")}}),
            ),
        ),
        (
            "a rule on metadata",
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
        ),
        (
            "properties and additional ones",
            spec(
                json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
            ),
        ),
        (
            "nullable with a default of null",
            spec(
                json!({"type": "object", "properties": {"a": {"type": "string", "nullable": true, "default": null}}}),
            ),
        ),
    ] {
        both.ask(
            what,
            &Ask::new("POST", format!("{DEFINITIONS}?dryRun=All")).body(&definition(&schema)),
        )
        .await;
    }
    let plain = definition(&json!({"type": "object"}));
    for (what, pointer, value) in [
        ("a name that does not fit", "/metadata/name", json!("x")),
        ("no group", "/spec/group", json!("")),
        ("a group without a dot", "/spec/group", json!("g")),
        ("no scope", "/spec/scope", json!("")),
        ("an unknown scope", "/spec/scope", json!("World")),
        ("a plural with capitals", "/spec/names/plural", json!("Things")),
        ("a kind with a dot", "/spec/names/kind", json!("Th.ing")),
        ("a version with capitals", "/spec/versions/0/name", json!("V1")),
        ("no storage version", "/spec/versions/0/storage", json!(false)),
        ("no schema", "/spec/versions/0/schema", Value::Null),
        ("no versions", "/spec/versions", json!([])),
    ] {
        let mut definition = plain.clone();
        *definition.pointer_mut(pointer).unwrap() = value;
        both.ask(what, &Ask::new("POST", format!("{DEFINITIONS}?dryRun=All")).body(&definition))
            .await;
    }
    for (what, field, value) in [
        (
            "a column without a path",
            "additionalPrinterColumns",
            json!([{"name": "a", "type": "string"}]),
        ),
        (
            "a column of an unknown type",
            "additionalPrinterColumns",
            json!([{"name": "a", "type": "text", "jsonPath": ".spec"}]),
        ),
        (
            "a column with a bad path",
            "additionalPrinterColumns",
            json!([{"name": "a", "type": "string", "jsonPath": "spec["}]),
        ),
        (
            "a scale without a path",
            "subresources",
            json!({"scale": {"specReplicasPath": ".a", "statusReplicasPath": ".status.n"}}),
        ),
        (
            "a selectable field that is not there",
            "selectableFields",
            json!([{"jsonPath": ".spec.a"}]),
        ),
        ("an unknown field", "unknown", json!(1)),
    ] {
        let mut definition = plain.clone();
        definition["spec"]["versions"][0][field] = value;
        both.ask(
            what,
            &Ask::new("POST", format!("{DEFINITIONS}?dryRun=All&fieldValidation=Strict"))
                .body(&definition),
        )
        .await;
    }
}

async fn strictness(both: &mut Both) {
    let mut odd = widget("odd", &json!({"size": 1, "sise": 2, "ports": [{"port": 1, "prot": 2}]}));
    odd["metadata"]["lables"] = json!({});
    odd["more"] = json!(1);
    for mode in ["Strict", "Warn", "Ignore", "Odd"] {
        let path = format!("{WIDGETS}?dryRun=All&fieldValidation={mode}");
        both.ask(&format!("unknown fields, {mode}"), &Ask::new("POST", &path).body(&odd)).await;
        let twice = r#"{"apiVersion":"devcluster.example/v1","kind":"Widget","metadata":{"name":"twice"},"spec":{"size":1,"size":2,"note":"a","note":"a"}}"#;
        both.ask(&format!("a field twice, {mode}"), &Ask::new("POST", &path).text(twice)).await;
    }
    let path = format!("{WIDGETS}?fieldValidation=Strict");
    both.ask("an unknown field, yaml", &Ask::new("POST", &path).content_type("application/yaml")
        .text("apiVersion: devcluster.example/v1\nkind: Widget\nmetadata: {name: y}\nspec: {size: 1, size: 2, sise: 3}\n")).await;
    for (what, text) in [
        ("no JSON", "{"),
        ("nothing", ""),
        ("no object", "[]"),
        ("no kind", r#"{"apiVersion":"devcluster.example/v1","metadata":{"name":"a"}}"#),
        ("no version", r#"{"kind":"Widget","metadata":{"name":"a"}}"#),
        (
            "another kind",
            r#"{"apiVersion":"devcluster.example/v1","kind":"Wodget","metadata":{"name":"a"}}"#,
        ),
        (
            "another group",
            r#"{"apiVersion":"other.example/v1","kind":"Widget","metadata":{"name":"a"}}"#,
        ),
        (
            "labels that are no texts",
            r#"{"apiVersion":"devcluster.example/v1","kind":"Widget","metadata":{"name":"a","labels":{"a":1}},"spec":{"size":1}}"#,
        ),
        (
            "another namespace",
            r#"{"apiVersion":"devcluster.example/v1","kind":"Widget","metadata":{"name":"a","namespace":"b"},"spec":{"size":1}}"#,
        ),
        (
            "no name",
            r#"{"apiVersion":"devcluster.example/v1","kind":"Widget","metadata":{},"spec":{"size":1}}"#,
        ),
        (
            "a name with capitals",
            r#"{"apiVersion":"devcluster.example/v1","kind":"Widget","metadata":{"name":"A_b"},"spec":{"size":1}}"#,
        ),
        (
            "a label that is none",
            r#"{"apiVersion":"devcluster.example/v1","kind":"Widget","metadata":{"name":"a","labels":{"a b":"c d"}},"spec":{"size":1}}"#,
        ),
        (
            "an annotation that is none",
            r#"{"apiVersion":"devcluster.example/v1","kind":"Widget","metadata":{"name":"a","annotations":{"a b":"c d"}},"spec":{"size":1}}"#,
        ),
        (
            "a finalizer that is none",
            r#"{"apiVersion":"devcluster.example/v1","kind":"Widget","metadata":{"name":"a","finalizers":["a b"]},"spec":{"size":1}}"#,
        ),
        (
            "an owner without a uid",
            r#"{"apiVersion":"devcluster.example/v1","kind":"Widget","metadata":{"name":"a","ownerReferences":[{"apiVersion":"v1","kind":"A","name":"b"}]},"spec":{"size":1}}"#,
        ),
        (
            "a version on create",
            r#"{"apiVersion":"devcluster.example/v1","kind":"Widget","metadata":{"name":"a","resourceVersion":"1"},"spec":{"size":1}}"#,
        ),
        (
            "no spec",
            r#"{"apiVersion":"devcluster.example/v1","kind":"Widget","metadata":{"name":"a"}}"#,
        ),
        (
            "a spec of null",
            r#"{"apiVersion":"devcluster.example/v1","kind":"Widget","metadata":{"name":"a"},"spec":null}"#,
        ),
        (
            "a spec that is a list",
            r#"{"apiVersion":"devcluster.example/v1","kind":"Widget","metadata":{"name":"a"},"spec":[]}"#,
        ),
        (
            "many faults",
            r#"{"apiVersion":"devcluster.example/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"size":0,"mode":"x","replicas":3000000000,"note":1,"ports":[{},{"port":1},{"port":1}]}}"#,
        ),
        (
            "a fraction",
            r#"{"apiVersion":"devcluster.example/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"size":1.5}}"#,
        ),
        (
            "a whole fraction",
            r#"{"apiVersion":"devcluster.example/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"size":2.0}}"#,
        ),
        (
            "a mode of null",
            r#"{"apiVersion":"devcluster.example/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"size":2,"mode":null,"note":null}}"#,
        ),
    ] {
        both.ask(what, &Ask::new("POST", format!("{WIDGETS}?dryRun=All")).text(text)).await;
    }
    both.ask(
        "an unknown content type",
        &Ask::new("POST", WIDGETS).content_type("text/plain").text("x"),
    )
    .await;
    both.ask("an unknown accept", &Ask::new("GET", WIDGETS).accept("text/plain")).await;
    both.ask(
        "an unknown resource",
        &Ask::new("GET", "/apis/devcluster.example/v1/namespaces/default/gadgets"),
    )
    .await;
    both.ask(
        "an unknown version",
        &Ask::new("GET", "/apis/devcluster.example/v2/namespaces/default/widgets"),
    )
    .await;
    both.ask("an unknown subresource", &Ask::new("GET", format!("{WIDGETS}/a/log"))).await;
    both.ask(
        "a verb that is none",
        &Ask::new("PUT", WIDGETS).body(&widget("a", &json!({"size": 1}))),
    )
    .await;
    both.ask(
        "an unknown dryRun",
        &Ask::new("POST", format!("{WIDGETS}?dryRun=Some")).body(&widget("a", &json!({"size": 1}))),
    )
    .await;
}

async fn writes(both: &mut Both) {
    let a = format!("{WIDGETS}/a");
    let versioned = |mut object: Value| {
        object["metadata"]["resourceVersion"] = "*".into();
        object
    };
    both.ask("nothing there", &Ask::new("GET", &a)).await;
    both.ask(
        "a patch of nothing",
        &Ask::new("PATCH", &a).content_type(MERGE).body(&json!({"spec": {"size": 2}})),
    )
    .await;
    both.ask("a delete of nothing", &Ask::new("DELETE", &a)).await;
    both.ask("a replace of nothing", &Ask::new("PUT", &a).body(&widget("a", &json!({"size": 1}))))
        .await;
    both.ask(
        "a create",
        &Ask::new("POST", format!("{WIDGETS}?fieldManager=m"))
            .body(&widget("a", &json!({"size": 3, "ports": [{"port": 80}]}))),
    )
    .await;
    both.ask(
        "a create of what is there",
        &Ask::new("POST", WIDGETS).body(&widget("a", &json!({"size": 3}))),
    )
    .await;
    both.ask(
        "a replace without a version",
        &Ask::new("PUT", &a).body(&widget("a", &json!({"size": 4}))),
    )
    .await;
    let mut stale = widget("a", &json!({"size": 4}));
    stale["metadata"]["resourceVersion"] = "1".into();
    both.ask("a replace of an old version", &Ask::new("PUT", &a).body(&stale)).await;
    stale["metadata"]["resourceVersion"] = "x".into();
    both.ask("a replace of no version", &Ask::new("PUT", &a).body(&stale)).await;
    both.ask(
        "a replace",
        &Ask::new("PUT", &a).body(&versioned(widget("a", &json!({"size": 4, "mode": "fast"})))),
    )
    .await;
    both.ask(
        "a replace by another name",
        &Ask::new("PUT", &a).body(&versioned(widget("b", &json!({"size": 4})))),
    )
    .await;
    let mut other = widget("a", &json!({"size": 4}));
    other["metadata"]["uid"] = "11111111-1111-1111-1111-111111111111".into();
    both.ask("a replace of another uid", &Ask::new("PUT", &a).body(&versioned(other))).await;
    for (what, change) in [
        ("a patch", json!({"spec": {"size": 5}})),
        ("a patch that changes nothing", json!({"spec": {"size": 5}})),
        ("a patch that the schema refuses", json!({"spec": {"size": 0}})),
        ("a patch with unknown fields", json!({"spec": {"sise": 0}})),
        ("a patch of a status", json!({"status": {"replicas": 3}})),
        ("a patch of labels", json!({"metadata": {"labels": {"a": "b"}}})),
        ("a patch of the name", json!({"metadata": {"name": "b"}})),
        ("a patch of the namespace", json!({"metadata": {"namespace": "b"}})),
        ("a patch of the uid", json!({"metadata": {"uid": "x"}})),
        (
            "a patch of an old version",
            json!({"metadata": {"resourceVersion": "1"}, "spec": {"size": 7}}),
        ),
        ("a patch of the kind", json!({"kind": "Other"})),
        (
            "a patch of the creation",
            json!({"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}}),
        ),
        ("a patch of the generation", json!({"metadata": {"generation": 77}})),
    ] {
        both.ask(what, &Ask::new("PATCH", &a).content_type(MERGE).body(&change)).await;
    }
    both.ask(
        "a strict patch with unknown fields",
        &Ask::new("PATCH", format!("{a}?fieldValidation=Strict"))
            .content_type(MERGE)
            .body(&json!({"spec": {"sise": 0}})),
    )
    .await;
    both.ask("a patch that is no JSON", &Ask::new("PATCH", &a).content_type(MERGE).text("{")).await;
    both.ask(
        "a strategic patch",
        &Ask::new("PATCH", &a)
            .content_type("application/strategic-merge-patch+json")
            .body(&json!({"spec": {"size": 5}})),
    )
    .await;
    both.ask("a patch of no type", &Ask::new("PATCH", &a).body(&json!({"spec": {"size": 5}})))
        .await;
    let list = "application/json-patch+json";
    both.ask(
        "a JSON patch",
        &Ask::new("PATCH", &a)
            .content_type(list)
            .body(&json!([{"op": "replace", "path": "/spec/size", "value": 6}])),
    )
    .await;
    both.ask(
        "a JSON patch of nothing",
        &Ask::new("PATCH", &a)
            .content_type(list)
            .body(&json!([{"op": "remove", "path": "/spec/none"}])),
    )
    .await;
    both.ask(
        "a JSON patch whose test fails",
        &Ask::new("PATCH", &a)
            .content_type(list)
            .body(&json!([{"op": "test", "path": "/spec/size", "value": 1}])),
    )
    .await;
    let status = format!("{a}/status");
    both.ask(
        "a status",
        &Ask::new("PATCH", &status)
            .content_type(MERGE)
            .body(&json!({"status": {"replicas": 3, "conditions": [{"type": "A"}]}})),
    )
    .await;
    both.ask("a status replaced", &Ask::new("PUT", &status).body(&versioned(json!({"apiVersion": "devcluster.example/v1", "kind": "Widget", "metadata": {"name": "a", "labels": {"x": "y"}}, "status": {"replicas": 4}})))).await;
    both.ask("the status read", &Ask::new("GET", &status)).await;
    both.ask("a scale", &Ask::new("GET", format!("{a}/scale"))).await;
    both.ask("a generated name", &Ask::new("POST", format!("{WIDGETS}?dryRun=All")).body(&json!({"apiVersion": "devcluster.example/v1", "kind": "Widget", "metadata": {"generateName": "A_"}, "spec": {"size": 1}}))).await;
}

async fn server_side_apply(both: &mut Both) {
    let path = |manager: &str, more: &str| format!("{WIDGETS}/ssa?fieldManager={manager}{more}");
    let apply = |manager: &str, more: &str, spec: Value| {
        Ask::new("PATCH", path(manager, more)).content_type(APPLY).body(&widget("ssa", &spec))
    };
    both.ask(
        "an apply",
        &apply("one", "", json!({"size": 1, "ports": [{"port": 80, "name": "a"}]})),
    )
    .await;
    both.ask(
        "the same apply",
        &apply("one", "", json!({"size": 1, "ports": [{"port": 80, "name": "a"}]})),
    )
    .await;
    both.ask("another's apply", &apply("two", "", json!({"size": 1, "ports": [{"port": 81}]})))
        .await;
    both.ask(
        "a conflict",
        &apply("two", "", json!({"size": 2, "note": "x", "ports": [{"port": 80, "name": "b"}]})),
    )
    .await;
    both.ask("a forced apply", &apply("two", "&force=true", json!({"size": 2, "note": "x"}))).await;
    both.ask("what is left out goes", &apply("one", "", json!({"mode": "fast"}))).await;
    both.ask("an apply that the schema refuses", &apply("one", "&force=true", json!({"size": 0})))
        .await;
    both.ask(
        "an apply of unknown fields",
        &apply("one", "&force=true", json!({"size": 3, "sise": 1})),
    )
    .await;
    both.ask(
        "a strict apply of unknown fields",
        &apply("one", "&force=true&fieldValidation=Strict", json!({"size": 3, "sise": 1})),
    )
    .await;
    both.ask(
        "an apply of one port twice",
        &apply("one", "&force=true", json!({"size": 3, "ports": [{"port": 1}, {"port": 1}]})),
    )
    .await;
    both.ask(
        "an apply of a port without its key",
        &apply("one", "&force=true", json!({"size": 3, "ports": [{"name": "x"}]})),
    )
    .await;
    both.ask("an apply of another type", &apply("one", "&force=true", json!({"size": "x"}))).await;
    both.ask(
        "no manager",
        &Ask::new("PATCH", format!("{WIDGETS}/ssa"))
            .content_type(APPLY)
            .body(&widget("ssa", &json!({"size": 1}))),
    )
    .await;
    both.ask(
        "another name",
        &Ask::new("PATCH", path("one", ""))
            .content_type(APPLY)
            .body(&widget("other", &json!({"size": 1}))),
    )
    .await;
    both.ask("managed fields", &Ask::new("PATCH", path("one", "")).content_type(APPLY).body(&json!({"apiVersion": "devcluster.example/v1", "kind": "Widget", "metadata": {"name": "ssa", "managedFields": [{}]}}))).await;
    both.ask("a status by apply", &Ask::new("PATCH", format!("{WIDGETS}/ssa/status?fieldManager=s")).content_type(APPLY)
        .body(&json!({"apiVersion": "devcluster.example/v1", "kind": "Widget", "metadata": {"name": "ssa"}, "status": {"replicas": 1}}))).await;
    both.ask("the object", &Ask::new("GET", format!("{WIDGETS}/ssa"))).await;
}

async fn lists(both: &mut Both) {
    for name in ["l1", "l2", "l3"] {
        let mut object = widget(name, &json!({"size": 1}));
        object["metadata"]["labels"] = json!({"set": "l", "name": name});
        both.ask(name, &Ask::new("POST", WIDGETS).body(&object)).await;
    }
    for query in [
        "",
        "?limit=2",
        "?limit=2&labelSelector=set%3Dl",
        "?labelSelector=name%20in%20(l1,l3)",
        "?labelSelector=name!%3Dl1",
        "?labelSelector=,",
        "?labelSelector=a%3D%3D%3Db",
        "?fieldSelector=metadata.name%3Dl2",
        "?fieldSelector=spec.size%3D1",
        "?fieldSelector=metadata.name",
        "?resourceVersion=0",
        "?resourceVersion=1",
        "?resourceVersion=x",
        "?resourceVersionMatch=Exact",
        "?resourceVersionMatch=Odd&resourceVersion=1",
        "?resourceVersion=0&limit=1",
        "?limit=x",
        "?limit=-1",
        "?continue=x",
        "?sendInitialEvents=true",
        "?limit=1&resourceVersion=1&resourceVersionMatch=NotOlderThan",
    ] {
        both.ask(&format!("a list {query}"), &Ask::new("GET", format!("{WIDGETS}{query}"))).await;
    }
    // Pages, by the token that each gave.
    let first = Ask::new("GET", format!("{WIDGETS}?limit=2"));
    let (ours, real) = both.ask("the first page", &first).await;
    let token =
        |answer: &Value| answer["body"]["metadata"]["continue"].as_str().unwrap().to_owned();
    for more in ["", "&resourceVersion=1"] {
        let next = |answer: &Value| {
            Ask::new("GET", format!("{WIDGETS}?limit=2&continue={}{more}", token(answer)))
        };
        both.ask_each("the second page", &next(&ours), &next(&real)).await;
    }
}

async fn watches(both: &mut Both) {
    let (ours, real) = both.ask("where a watch begins", &Ask::new("GET", WIDGETS)).await;
    let version =
        |answer: &Value| answer["body"]["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let w = format!("{WIDGETS}/w");
    both.ask("made", &Ask::new("POST", WIDGETS).body(&widget("w", &json!({"size": 1})))).await;
    both.ask(
        "labelled",
        &Ask::new("PATCH", &w)
            .content_type(MERGE)
            .body(&json!({"metadata": {"labels": {"seen": "yes"}}})),
    )
    .await;
    both.ask(
        "changed",
        &Ask::new("PATCH", &w).content_type(MERGE).body(&json!({"spec": {"size": 2}})),
    )
    .await;
    both.ask(
        "unlabelled",
        &Ask::new("PATCH", &w)
            .content_type(MERGE)
            .body(&json!({"metadata": {"labels": {"seen": "no"}}})),
    )
    .await;
    both.ask("deleted", &Ask::new("DELETE", &w)).await;
    for query in [
        "",
        "&labelSelector=seen%3Dyes",
        "&fieldSelector=metadata.name%3Dw",
        "&fieldSelector=metadata.name%3Dl1",
    ] {
        let watch = |answer: &Value| {
            let version = version(answer);
            Ask::new(
                "GET",
                format!("{WIDGETS}?watch=true&timeoutSeconds=1&resourceVersion={version}{query}"),
            )
        };
        both.ask_each("a watch", &watch(&ours), &watch(&real)).await;
    }
    for query in [
        "&resourceVersion=0&labelSelector=set%3Dl",
        "&labelSelector=set%3Dl",
        "&resourceVersion=x",
        "&sendInitialEvents=true",
        "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&labelSelector=set%3Dl&allowWatchBookmarks=true",
        "&resourceVersionMatch=NotOlderThan",
        "&labelSelector=,",
    ] {
        both.ask(
            &format!("a watch {query}"),
            &Ask::new("GET", format!("{WIDGETS}?watch=true&timeoutSeconds=1{query}")),
        )
        .await;
    }
}

async fn deletes(both: &mut Both) {
    let l1 = format!("{WIDGETS}/l1");
    both.ask(
        "a finalizer",
        &Ask::new("PATCH", &l1)
            .content_type(MERGE)
            .body(&json!({"metadata": {"finalizers": ["g.io/f"]}})),
    )
    .await;
    let options = |more: Value| {
        let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
        json_patch::merge(&mut options, &more);
        options
    };
    both.ask(
        "a delete of another uid",
        &Ask::new("DELETE", &l1).body(&options(json!({"preconditions": {"uid": "x"}}))),
    )
    .await;
    both.ask(
        "a delete of an old version",
        &Ask::new("DELETE", &l1).body(&options(json!({"preconditions": {"resourceVersion": "1"}}))),
    )
    .await;
    both.ask(
        "a delete by an odd policy",
        &Ask::new("DELETE", &l1).body(&options(json!({"propagationPolicy": "Odd"}))),
    )
    .await;
    both.ask("a delete for a try", &Ask::new("DELETE", format!("{l1}?dryRun=All"))).await;
    both.ask("a delete that waits", &Ask::new("DELETE", &l1)).await;
    both.ask(
        "another finalizer",
        &Ask::new("PATCH", &l1)
            .content_type(MERGE)
            .body(&json!({"metadata": {"finalizers": ["g.io/f", "g.io/g"]}})),
    )
    .await;
    both.ask(
        "the last finalizer",
        &Ask::new("PATCH", &l1).content_type(MERGE).body(&json!({"metadata": {"finalizers": []}})),
    )
    .await;
    both.ask("it is gone", &Ask::new("GET", &l1)).await;
    both.ask("a delete", &Ask::new("DELETE", format!("{WIDGETS}/l2"))).await;
    both.ask("a delete of all", &Ask::new("DELETE", format!("{WIDGETS}?labelSelector=set%3Dl")))
        .await;
    both.ask("what is left", &Ask::new("GET", WIDGETS)).await;
}
