//! Definitions: those of the repository are accepted, and those whose rules have no bounded cost
//! are refused. What happens to the objects, watches and requests of a definition that is deleted.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::DEFINITIONS;
use crate::comparison::{Comparison, TestRequest};
use crate::manifests::{documents, root};

/// The definitions of `crds` and the one of this crate's tests.
pub fn all() -> Vec<Value> {
    let folder = std::fs::read_dir(root().join("crds")).unwrap();
    let mut files: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    files.push(root().join("hack/devcluster/tests/fixtures/widget-crd.yaml"));
    files.sort();
    files.iter().flat_map(|file| documents(file)).collect()
}

fn get(path: impl Into<String>) -> TestRequest<'static> {
    TestRequest::new("GET", path)
}

fn name(definition: &Value) -> &str {
    definition["metadata"]["name"].as_str().unwrap()
}

/// The path of all objects of a definition.
fn list_path(definition: &Value) -> String {
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    format!("/apis/{group}/{}/{plural}", text(&spec["versions"][0]["name"]))
}

fn has_condition(answer: &Value, kind: &str, reason: Option<&str>) -> bool {
    let conditions = answer["body"]["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| {
        let is_reason = reason.is_none_or(|reason| one["reason"] == reason);
        one["type"] == kind && one["status"] == "True" && is_reason
    })
}

/// Creates a definition, and waits until it is served.
async fn create(comparison: &mut Comparison, definition: &Value) {
    let name = name(definition);
    let request = TestRequest::new("POST", format!("{DEFINITIONS}?fieldValidation=Strict"));
    let created = format!("{name} is created");
    let (ours, real) = comparison.compare(&created, &request.body(definition)).await;
    let is_accepted = real["code"] == 201;
    comparison.expect(is_accepted, || format!("{name} is refused: {}", real["body"]["message"]));
    if !is_accepted || ours["code"] != 201 {
        return;
    }
    let established = |answer: &Value| has_condition(answer, "Established", None);
    let request = get(format!("{DEFINITIONS}/{name}"));
    comparison.wait_until(&format!("{name} is established"), &request, established).await;
    let request = get(list_path(definition));
    let is_served = |answer: &Value| answer["code"] == 200;
    comparison.wait_until(&format!("{name} is served"), &request, is_served).await;
}

pub async fn accepted(comparison: &mut Comparison) {
    for definition in all() {
        let request = get(list_path(&definition));
        comparison.compare("list without definition", &request).await;
        create(comparison, &definition).await;
    }
}

/// The servers that refuse an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    Both,
    Nobody,
    /// The real server bounds the value by the longest possible request.
    DevclusterOnly,
    /// Every size is bounded, and the product is too large. devcluster does not multiply.
    RealOnly,
}

/// Rules and messages at `spec`, with what refuses them.
fn expressions() -> Vec<(&'static str, Value, Refused)> {
    let rule = |rule: &str| json!({"rule": rule});
    let message =
        |message: &str| json!({"rule": "self.workers != []", "messageExpression": message});
    vec![
        (
            "number in a message",
            message(
                "'minWorkers ' + string(self.aggregation.minWorkers) + ' is above the number of \
                 training workers (' + string(size(self.workers)) + ')'",
            ),
            Refused::Both,
        ),
        ("bounded string in a message", message("'version ' + self.name"), Refused::Nobody),
        ("unbounded string in a message", message("'text ' + self.text"), Refused::DevclusterOnly),
        ("fixed message", message("'give more workers'"), Refused::Nobody),
        ("number that becomes a string", rule("string(self.number) + 'a' == 'b'"), Refused::Both),
        (
            "pattern of an unbounded string",
            rule("self.text.matches('^a')"),
            Refused::DevclusterOnly,
        ),
        ("pattern of a bounded string", rule("self.name.matches('^a')"), Refused::Nobody),
        ("size of an unbounded list", rule("size(self.texts) > 0"), Refused::Nobody),
        (
            "each with each of an unbounded list",
            rule("self.texts.all(a, self.texts.exists_one(b, a == b))"),
            Refused::Both,
        ),
        (
            "each with each of a bounded list",
            rule("self.workers.all(a, self.workers.exists_one(b, a == b))"),
            Refused::Nobody,
        ),
        (
            "each with each of a long bounded list",
            rule("self.many.all(a, self.many.exists_one(b, a == b))"),
            Refused::RealOnly,
        ),
        (
            "pattern of the keys of a map",
            rule("self.labels.all(key, key.matches('^a'))"),
            Refused::Nobody,
        ),
        ("values of a map", rule("self.labels.all(key, self.labels[key] != '')"), Refused::Nobody),
    ]
}

fn definition_with(rule: &Value) -> Value {
    let name = json!({"type": "string", "maxLength": 64});
    json!({
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.cost.example"},
    "spec": {"group": "cost.example", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
            "type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-validations": [rule], "properties": {
                "number": {"type": "integer"},
                "name": name,
                "text": {"type": "string"},
                "texts": {"type": "array", "items": {"type": "string"}},
                "workers": {"type": "array", "maxItems": 64, "items": name},
                "many": {"type": "array", "maxItems": 100_000, "items": name},
                "labels": {"type": "object", "maxProperties": 16, "additionalProperties": name},
                "aggregation": {"type": "object", "properties": {"minWorkers": {"type": "integer"}}},
            }}}}}}]}})
}

/// The fields that an answer refuses.
fn refused_fields(answer: &Value) -> Vec<&str> {
    let causes = answer["body"]["details"]["causes"].as_array();
    causes.into_iter().flatten().filter_map(|cause| cause["field"].as_str()).collect()
}

/// The texts of both servers differ: devcluster names what has no bound.
pub async fn refused(comparison: &mut Comparison) {
    let [dry_create, dry_patch] = ["POST", "PATCH"].map(|method| {
        let target = if method == "POST" { "" } else { "/widgets.devcluster.example" };
        TestRequest::new(method, format!("{DEFINITIONS}{target}?dryRun=All"))
    });
    for (case, rule, refused) in expressions() {
        let request = dry_create.clone().body(&definition_with(&rule));
        judge(comparison, case, &request, refused).await;
    }
    let rule = json!([{"rule": "string(self.size) == 'a' + string(self.size)"}]);
    let mut definition = documents(&root().join("hack/devcluster/tests/fixtures/widget-crd.yaml"));
    let versions = &mut definition[0]["spec"]["versions"];
    let schema = &mut versions[0]["schema"]["openAPIV3Schema"];
    schema["properties"]["spec"]["x-kubernetes-validations"] = rule;
    let change = json!({"spec": {"versions": versions}});
    let request = dry_patch.content_type("application/merge-patch+json").body(&change);
    judge(comparison, "unbounded rule in an update", &request, Refused::Both).await;
}

async fn judge(
    comparison: &mut Comparison,
    case: &str,
    request: &TestRequest<'_>,
    refused: Refused,
) {
    let (ours, real) = comparison.answers(request).await;
    let is_refused = |answer: &Value| answer["code"] == 422;
    let refused_by = match (is_refused(&ours), is_refused(&real)) {
        (true, true) => Refused::Both,
        (false, false) => Refused::Nobody,
        (true, false) => Refused::DevclusterOnly,
        (false, true) => Refused::RealOnly,
    };
    comparison.expect(refused_by == refused, || {
        format!("{case}: refused by {refused_by:?}, not {refused:?}: {ours} / {real}")
    });
    if refused_by == Refused::Both {
        let real_fields = refused_fields(&real);
        let fields = refused_fields(&ours);
        let is_same = !fields.is_empty() && fields.iter().all(|field| real_fields.contains(field));
        comparison.expect(is_same, || format!("{case}: {fields:?} / {real_fields:?}"));
    }
}

/// Deletes the definition of the widgets while a watch is open, and creates it again.
pub async fn deleted(comparison: &mut Comparison) {
    let definition = all().into_iter().find(|it| name(it) == "widgets.devcluster.example").unwrap();
    let path = format!("{DEFINITIONS}/{}", name(&definition));
    let list = list_path(&definition);
    let widgets = "/apis/devcluster.example/v1/namespaces/default/widgets";
    let widget = |name: &str| json!({"apiVersion": "devcluster.example/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": 1}});
    let mut finalized = widget("y-last");
    finalized["metadata"]["finalizers"] = json!(["devcluster.example/hold"]);
    let post = |widget: &Value| TestRequest::new("POST", widgets).body(widget);
    comparison.compare("object with finalizer", &post(&finalized)).await;
    let (ours, real) = comparison.compare("list before the deletion", &get(&list)).await;
    let watch = |answer: &Value| {
        let version = answer["body"]["metadata"]["resourceVersion"].as_str().unwrap();
        get(format!("{list}?watch=true&resourceVersion={version}"))
    };
    let watch = comparison.start_each("watch of deleted objects", watch(&ours), watch(&real));

    let delete = TestRequest::new("DELETE", &path);
    comparison.compare("delete of a definition", &delete).await;
    let is_running =
        |answer: &Value| has_condition(answer, "Terminating", Some("InstanceDeletionInProgress"));
    comparison.wait_until("definition that is deleted", &get(&path), is_running).await;
    let one = |answer: &Value| answer["body"]["items"].as_array().is_some_and(|it| it.len() == 1);
    comparison.wait_until("list of what has finalizers", &get(&list), one).await;
    let object = format!("{widgets}/y-last");
    let change = |kind: &'static str, path: String, body: &Value| {
        TestRequest::new("PATCH", path).content_type(kind).body(body)
    };
    let (merge, apply) = ("application/merge-patch+json", "application/apply-patch+yaml");
    let spec = json!({"spec": {"size": 2}});
    let free = json!({"metadata": {"finalizers": null}});
    let again = TestRequest::new("POST", DEFINITIONS).body(&definition);
    for (case, request) in [
        ("create while the definition is deleted", post(&widget("z"))),
        ("invalid create while the definition is deleted", post(&json!({}))),
        (
            "apply while the definition is deleted",
            change(apply, format!("{widgets}/z?fieldManager=m"), &widget("z")),
        ),
        ("change while the definition is deleted", change(merge, object.clone(), &spec)),
        ("create of a definition that is deleted", again),
        ("repeated delete of a definition", delete),
        ("removal of the last object", change(merge, object.clone(), &free)),
    ] {
        comparison.compare(case, &request).await;
    }
    let is_gone = |answer: &Value| answer["code"] == 404;
    comparison.wait_until("deleted definition", &get(&path), is_gone).await;
    comparison.wait_until("list of a deleted definition", &get(&list), is_gone).await;
    comparison.finish_started(watch).await;
    comparison.compare("watch of a deleted definition", &get(format!("{list}?watch=true"))).await;
    create(comparison, &definition).await;
}
