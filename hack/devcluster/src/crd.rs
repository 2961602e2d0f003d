//! `CustomResourceDefinition`s: the resources that they serve, their conditions, defaults and
//! validation. Pure.
//!
//! A definition has one version here. Whether its schema is structural is not checked: a test of
//! `common/api` and `hack/test-apiextensions.sh` do that for the definitions of Neptune. Rules
//! whose cost has no bound are refused. An API server multiplies the bounds, too.

use serde_json::{Value, json};

use crate::cel;
use crate::definitions::OBJECT_META;
use crate::field::{FieldError, index, join};
use crate::object::{self, strings};
use crate::resource::{NameRule, Resource, ScalePaths, api_version};
use crate::schema::Schema;
use crate::table::{self, jsonpath::JsonPath};

pub const STORAGE: &str = "apiextensions.k8s.io/customresourcedefinitions";
pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// The progress of the deletion of a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// The request was accepted.
    Pending,
    /// The controller deletes the objects.
    InProgress,
}

/// The key under which the store keeps the objects of a definition.
pub fn storage(definition: &Value) -> String {
    let text =
        |path: &str| object::at_path(definition, path).and_then(Value::as_str).unwrap_or_default();
    format!("{}/{}", text("spec.group"), text("spec.names.plural"))
}

pub fn has_condition(definition: &Value, kind: &str) -> bool {
    let conditions =
        definition["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == kind && condition["status"] == "True")
}

/// The resource that a definition serves; none before the definition is established.
pub fn resource(definition: &Value) -> Option<Resource> {
    if !has_condition(definition, "Established") {
        return None;
    }
    let spec = &definition["spec"];
    let version = &spec["versions"][0];
    let names = &definition["status"]["acceptedNames"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let owned = |value: &Value| strings(value).into_iter().map(str::to_owned).collect();
    let group = text(&spec["group"]);
    Some(Resource {
        version: text(&version["name"]),
        plural: text(&names["plural"]),
        singular: text(&names["singular"]),
        kind: text(&names["kind"]),
        list_kind: text(&names["listKind"]),
        namespaced: spec["scope"] == "Namespaced",
        short_names: owned(&names["shortNames"]),
        categories: owned(&names["categories"]),
        has_status: version["subresources"]["status"].is_object(),
        scale: scale_paths(&version["subresources"]["scale"]),
        status_on_create: false,
        counts_generation: true,
        name_rule: NameRule::Subdomain,
        selectable: Vec::new(),
        schema: whole_schema(&version["schema"]["openAPIV3Schema"]),
        custom: true,
        columns: table::custom_columns(&version["additionalPrinterColumns"]),
        storage: storage(definition).into(),
        storage_version: api_version(&group, &text(&version["name"])),
        group,
    })
}

fn scale_paths(scale: &Value) -> Option<ScalePaths> {
    let path = |field: &str| Some(scale[field].as_str()?.strip_prefix('.')?.to_owned());
    Some(ScalePaths {
        spec_replicas: path("specReplicasPath")?,
        status_replicas: path("statusReplicasPath")?,
        label_selector: path("labelSelectorPath"),
    })
}

fn check_scale(path: &str, scale: &Value, errors: &mut Vec<FieldError>) {
    if scale.is_null() {
        return;
    }
    for (field, is_required, prefixes) in [
        ("specReplicasPath", true, &[".spec."][..]),
        ("statusReplicasPath", true, &[".status."]),
        ("labelSelectorPath", false, &[".spec.", ".status."]),
    ] {
        let at = join(path, field);
        match scale[field].as_str().unwrap_or_default() {
            "" if is_required => errors.push(FieldError::required(&at, "")),
            "" => {}
            given if prefixes.iter().any(|prefix| given.starts_with(prefix)) => {}
            given => {
                let detail = format!("should be a json path under {}", prefixes.join(" or "));
                errors.push(FieldError::invalid(&at, given, detail));
            }
        }
    }
}

/// The declared schema with the fields that every object has.
fn whole_schema(declared: &Value) -> Value {
    let mut schema = declared.clone();
    if !schema["properties"].is_object() {
        schema["properties"] = json!({});
    }
    let properties = object::fields(&mut schema["properties"]);
    properties.insert("apiVersion".into(), json!({"type": "string"}));
    properties.insert("kind".into(), json!({"type": "string"}));
    properties.insert("metadata".into(), json!({"$ref": format!("#/$defs/{OBJECT_META}")}));
    schema
}

/// Sets the defaults of a definition: singular, listKind and conversion.
pub fn apply_defaults(definition: &mut Value) {
    if !definition["spec"]["names"].is_object() {
        return;
    }
    let names = &mut definition["spec"]["names"];
    let kind = names["kind"].as_str().unwrap_or_default().to_owned();
    if !kind.is_empty() {
        if names["singular"].as_str().unwrap_or_default().is_empty() {
            names["singular"] = kind.to_lowercase().into();
        }
        if names["listKind"].as_str().unwrap_or_default().is_empty() {
            names["listKind"] = format!("{kind}List").into();
        }
    }
    if definition["spec"]["conversion"].is_null() {
        definition["spec"]["conversion"] = json!({"strategy": "None"});
    }
}

/// The status of a new definition.
pub fn initial_status(definition: &Value) -> Value {
    let stored = [&definition["spec"]["versions"][0]["name"]];
    json!({"conditions": null, "acceptedNames": {"kind": "", "plural": ""}, "storedVersions": stored})
}

/// The status after the naming and establishing controllers have processed the definition.
pub fn established(definition: &Value, now: &str) -> Value {
    let mut status = definition["status"].clone();
    status["acceptedNames"] = definition["spec"]["names"].clone();
    if !has_condition(definition, "Established") {
        status["conditions"] = json!([
            condition("NamesAccepted", "NoConflicts", "no conflicts found", now),
            condition(
                "Established",
                "InitialNamesAccepted",
                "the initial names have been accepted",
                now
            ),
        ]);
    }
    status
}

/// The status of a definition that is being deleted.
pub fn terminating(definition: &Value, deletion: Deletion, now: &str) -> Value {
    const KIND: &str = "Terminating";
    let (reason, message) = match deletion {
        Deletion::Pending => (
            "InstanceDeletionPending",
            "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
        ),
        Deletion::InProgress => {
            ("InstanceDeletionInProgress", "CustomResource deletion is in progress")
        }
    };
    let mut status = definition["status"].clone();
    let mut conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let before = conditions.iter().position(|condition| condition["type"] == KIND);
    let mut new = condition(KIND, reason, message, now);
    if let Some(position) = before {
        new["lastTransitionTime"] = conditions.remove(position)["lastTransitionTime"].take();
    }
    conditions.push(new);
    status["conditions"] = conditions.into();
    status
}

fn condition(kind: &str, reason: &str, message: &str, now: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now})
}

/// All violations in a definition.
pub fn check(definition: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = text(&definition["metadata"]["name"]);
    if name != format!("{}.{}", text(&spec["names"]["plural"]), text(&spec["group"])) {
        errors.push(FieldError::invalid(
            "metadata.name",
            name,
            "must be spec.names.plural+\".\"+spec.group",
        ));
    }
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let [version] = versions else {
        let detail = "devcluster serves definitions with exactly one version";
        errors.push(FieldError::forbidden("spec.versions", detail));
        return errors;
    };
    let path = index("spec.versions", 0);
    if version["served"] != true || version["storage"] != true {
        let detail = "devcluster needs a version that is served and stored";
        errors.push(FieldError::forbidden(&path, detail));
    }
    check_scale(&join(&path, "subresources.scale"), &version["subresources"]["scale"], &mut errors);
    // The API server reports the schema of the only version under its former name.
    let schema_path = "spec.validation.openAPIV3Schema";
    match &version["schema"]["openAPIV3Schema"] {
        schema @ Value::Object(_) => {
            if let Some(schema) = Schema::new(schema) {
                cel::check_definition(schema, schema_path, &mut errors);
            }
            errors.extend(unbounded_rules(definition, &path, schema_path));
        }
        _ => errors.push(FieldError::required(&join(&path, "schema.openAPIV3Schema"), "")),
    }
    for (position, column) in
        version["additionalPrinterColumns"].as_array().into_iter().flatten().enumerate()
    {
        let text = text(&column["jsonPath"]);
        if let Err(fault) = JsonPath::parse(&text) {
            let path = join(&index("spec.additionalPrinterColumns", position), "JSONPath");
            errors.push(FieldError::invalid(&path, text, fault));
        }
    }
    errors
}

/// Rules and messages whose cost has no bound, with the text of an API server and the reason.
fn unbounded_rules<'a>(
    definition: &'a Value,
    version_path: &'a str,
    schema_path: &'a str,
) -> impl Iterator<Item = FieldError> + use<'a> {
    let own_path = join(version_path, "schema.openAPIV3Schema");
    neptune_cel_cost::unbounded(definition).into_iter().map(move |problem| {
        let field = problem.field.replacen(&own_path, schema_path, 1);
        let what = field.rsplit('.').next().unwrap_or_default();
        let detail = format!(
            "estimated {what} cost exceeds budget by factor of more than 100x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared): {}",
            problem.reason
        );
        FieldError::forbidden(&field, &detail)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(version: &Value) -> Value {
        json!({"metadata": {"name": "things.g.io"}, "spec": {"group": "g.io", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"}, "versions": [version]}})
    }

    fn version() -> Value {
        json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}})
    }

    fn messages(definition: &Value) -> Vec<String> {
        check(definition).iter().map(FieldError::message).collect()
    }

    #[test]
    fn definition_that_cannot_be_served_is_refused() {
        assert_eq!(messages(&definition(&version())), [""; 0]);
        let mut wrong = definition(&version());
        wrong["metadata"]["name"] = "x".into();
        assert_eq!(
            messages(&wrong),
            [r#"metadata.name: Invalid value: "x": must be spec.names.plural+"."+spec.group"#]
        );
        for (field, value, expected) in [
            ("schema", Value::Null, "spec.versions[0].schema.openAPIV3Schema: Required value"),
            ("storage", json!(false), "needs a version that is served and stored"),
            (
                "subresources",
                json!({"scale": {"specReplicasPath": ".spec.a"}}),
                "spec.versions[0].subresources.scale.statusReplicasPath: Required value",
            ),
            (
                "subresources",
                json!({"scale": {"specReplicasPath": ".status.a", "statusReplicasPath": ".status.a"}}),
                "subresources.scale.specReplicasPath: Invalid value: \".status.a\": should be a json path under .spec.",
            ),
            (
                "additionalPrinterColumns",
                json!([{"jsonPath": "spec"}]),
                "spec.additionalPrinterColumns[0].JSONPath: Invalid value: \"spec\"",
            ),
        ] {
            let mut version = version();
            version[field] = value;
            let faults = messages(&definition(&version));
            assert!(faults.len() == 1 && faults[0].contains(expected), "{faults:?}");
        }
        let mut unbounded = version();
        unbounded["schema"]["openAPIV3Schema"]["x-kubernetes-validations"] =
            json!([{"rule": "true", "messageExpression": "'at ' + string(1)"}]);
        let faults = messages(&definition(&unbounded));
        let expected = "spec.validation.openAPIV3Schema.x-kubernetes-validations[0].messageExpression: Forbidden: estimated messageExpression cost exceeds budget";
        assert!(faults.len() == 1 && faults[0].starts_with(expected), "{faults:?}");
        let mut wrong = definition(&version());
        wrong["spec"]["versions"] = json!([version(), version()]);
        assert!(messages(&wrong)[0].contains("exactly one version"));
    }
}
