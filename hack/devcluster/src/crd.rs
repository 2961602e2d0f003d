//! What a `CustomResourceDefinition` means: the resources it serves, its conditions, and its own defaults. Pure.

use serde_json::{Value, json};

use crate::builtin::definitions::OBJECT_META;
use crate::object::{self, strings};
use crate::resource::{NameRule, Resource, Scale, api_version};
use crate::table;

/// Where the objects of a definition are kept.
pub fn storage(definition: &Value) -> String {
    let text =
        |path: &str| object::at_path(definition, path).and_then(Value::as_str).unwrap_or_default();
    format!("{}/{}", text("spec.group"), text("spec.names.plural"))
}

pub const STORAGE: &str = "apiextensions.k8s.io/customresourcedefinitions";
pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

pub fn has_condition(definition: &Value, kind: &str) -> bool {
    let conditions =
        definition["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == kind && condition["status"] == "True")
}

/// The served versions; none before the definition is established.
pub fn resources(definition: &Value) -> Vec<Resource> {
    if !has_condition(definition, "Established") {
        return Vec::new();
    }
    let versions = definition["spec"]["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let storage_version = versions.iter().find(|version| version["storage"] == true);
    let Some(storage_version) = storage_version.and_then(|version| version["name"].as_str()) else {
        return Vec::new();
    };
    versions
        .iter()
        .filter(|version| version["served"] == true)
        .map(|version| resource(definition, version, storage_version))
        .collect()
}

fn resource(definition: &Value, version: &Value, storage_version: &str) -> Resource {
    let spec = &definition["spec"];
    let names = &definition["status"]["acceptedNames"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let owned = |value: &Value| strings(value).into_iter().map(str::to_owned).collect();
    let group = text(&spec["group"]);
    let subresources = &version["subresources"];
    let scale = &subresources["scale"];
    let deprecated = (version["deprecated"] == true).then(|| {
        let given = text(&version["deprecationWarning"]);
        if given.is_empty() {
            format!("{group}/{} {} is deprecated", text(&version["name"]), text(&names["kind"]))
        } else {
            given
        }
    });
    Resource {
        version: text(&version["name"]),
        plural: text(&names["plural"]),
        singular: text(&names["singular"]),
        kind: text(&names["kind"]),
        list_kind: text(&names["listKind"]),
        namespaced: spec["scope"] == "Namespaced",
        short_names: owned(&names["shortNames"]),
        categories: owned(&names["categories"]),
        has_status: subresources["status"].is_object(),
        status_on_create: false,
        scale: scale.is_object().then(|| Scale {
            spec_replicas: text(&scale["specReplicasPath"]),
            status_replicas: text(&scale["statusReplicasPath"]),
            label_selector: scale["labelSelectorPath"].as_str().map(str::to_owned),
        }),
        counts_generation: true,
        name_rule: NameRule::Subdomain,
        selectable: selectable(&version["selectableFields"]),
        schema: whole_schema(&version["schema"]["openAPIV3Schema"]),
        custom: true,
        columns: table::custom_columns(&version["additionalPrinterColumns"]),
        storage: storage(definition).into(),
        storage_version: api_version(&group, storage_version),
        group,
        deprecated,
    }
}

fn selectable(declared: &Value) -> Vec<String> {
    let paths =
        declared.as_array().into_iter().flatten().filter_map(|field| field["jsonPath"].as_str());
    paths.map(|path| path.trim_start_matches('.').to_owned()).collect()
}

/// The declared schema with the fields that every object has.
fn whole_schema(declared: &Value) -> Value {
    let mut schema = declared.clone();
    if !schema.is_object() {
        schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    }
    if !schema["properties"].is_object() {
        schema["properties"] = json!({});
    }
    let properties = object::fields(&mut schema["properties"]);
    properties.insert("apiVersion".into(), json!({"type": "string"}));
    properties.insert("kind".into(), json!({"type": "string"}));
    properties.insert("metadata".into(), json!({"$ref": format!("#/$defs/{OBJECT_META}")}));
    schema
}

/// Defaults of a definition itself: singular, listKind, conversion.
pub fn default_definition(definition: &mut Value) {
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

/// The status of a definition that no controller has seen.
pub fn initial_status(definition: &Value) -> Value {
    let versions = definition["spec"]["versions"].as_array().into_iter().flatten();
    let stored: Vec<&Value> = versions
        .filter(|version| version["storage"] == true)
        .map(|version| &version["name"])
        .collect();
    json!({"conditions": null, "acceptedNames": {"kind": "", "plural": ""}, "storedVersions": stored})
}

/// The status that the naming and establishing controllers give a definition; `taken` are the other definitions of its group.
pub fn established(definition: &Value, taken: &[&Value], now: &str) -> Value {
    let spec = &definition["spec"];
    let conflict = naming_conflict(&spec["names"], taken);
    let condition = |kind: &str, fine: bool, reason: &str, message: &str| {
        let status = if fine { "True" } else { "False" };
        let known =
            definition["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        match known.iter().find(|condition| {
            condition["type"] == kind
                && condition["status"] == status
                && condition["reason"] == reason
        }) {
            Some(known) => known.clone(),
            None => {
                json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now})
            }
        }
    };
    let mut status = definition["status"].clone();
    let names_accepted = match &conflict {
        None => condition("NamesAccepted", true, "NoConflicts", "no conflicts found"),
        Some((reason, message)) => condition("NamesAccepted", false, reason, message),
    };
    let established = if conflict.is_none() || has_condition(definition, "Established") {
        condition(
            "Established",
            true,
            "InitialNamesAccepted",
            "the initial names have been accepted",
        )
    } else {
        condition("Established", false, "NotAccepted", "not all names are accepted")
    };
    if conflict.is_none() {
        status["acceptedNames"] = spec["names"].clone();
    } else if !status["acceptedNames"].is_object() {
        status["acceptedNames"] = json!({"kind": "", "plural": ""});
    }
    let mut conditions = vec![names_accepted, established];
    let old = definition["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.extend(old.into_iter().filter(|condition| {
        !matches!(condition["type"].as_str(), Some("NamesAccepted" | "Established"))
    }));
    status["conditions"] = conditions.into();
    let mut stored: Vec<Value> = status["storedVersions"].as_array().cloned().unwrap_or_default();
    for version in spec["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|version| version["storage"] == true)
    {
        if !stored.contains(&version["name"]) {
            stored.push(version["name"].clone());
        }
    }
    status["storedVersions"] = stored.into();
    status
}

fn naming_conflict(names: &Value, taken: &[&Value]) -> Option<(String, String)> {
    let accepted = |other: &&Value| other["status"]["acceptedNames"].clone();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for other in taken.iter().map(accepted) {
        let mut words = vec![text(&other["plural"]), text(&other["singular"])];
        words.extend(strings(&other["shortNames"]).into_iter().map(str::to_owned));
        for (field, reason) in [("plural", "PluralConflict"), ("singular", "SingularConflict")] {
            let name = text(&names[field]);
            if words.contains(&name) {
                return Some((reason.to_owned(), format!("{name:?} is already in use")));
            }
        }
        if let Some(short) = strings(&names["shortNames"])
            .into_iter()
            .find(|short| words.iter().any(|word| word == short))
        {
            return Some(("ShortNamesConflict".to_owned(), format!("{short:?} is already in use")));
        }
        for field in ["kind", "listKind"] {
            let name = text(&names[field]);
            if [text(&other["kind"]), text(&other["listKind"])].contains(&name) {
                let reason = if field == "kind" { "KindConflict" } else { "ListKindConflict" };
                return Some((reason.to_owned(), format!("{name:?} is already in use")));
            }
        }
    }
    None
}
