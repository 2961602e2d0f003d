//! The fields of all resources as a page, from the schemas of the CRDs.

use std::{fmt::Write as _, fs, path::PathBuf};

use deploy_tests::repository;
use serde_json::Value;

/// The page: a section per kind, with a table of its fields.
pub fn page() -> String {
    let mut page = String::from(
        "# Fields of the resources\n\n\
         All fields of each kind, from its CRD; `kubectl explain jis.spec` shows the same. A field in **bold** is \
         required\nwhere the object around it is given. `[]` is a list, and `{}` a map.\n",
    );
    for crd in crds() {
        let spec = &crd["spec"];
        let (kind, group) = (text(&spec["names"]["kind"]), text(&spec["group"]));
        for version in spec["versions"].as_array().unwrap() {
            let schema = &version["schema"]["openAPIV3Schema"];
            let scope = text(&spec["scope"]);
            write!(
                page,
                "\n## {kind}\n\n`{group}/{}`, {}.\n\n{}\n\n| Field | Type | Meaning |\n|---|---|---|\n",
                text(&version["name"]),
                if scope == "Cluster" { "in no namespace" } else { "in a namespace" },
                wrapped(&meaning(schema)),
            )
            .unwrap();
            for part in ["spec", "status"] {
                let fields = &schema["properties"][part];
                if !fields.is_null() {
                    row(&mut page, part, fields, is_required(schema, part));
                    properties(&mut page, part, fields);
                }
            }
        }
    }
    page
}

/// The CRDs by the names of their files.
fn crds() -> Vec<Value> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(repository("crds")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |file: &PathBuf| serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    files.iter().map(read).collect()
}

/// Appends the rows of the fields below a path.
fn properties(page: &mut String, path: &str, schema: &Value) {
    let (schema, path) = inner(schema, path);
    // Their fields are those of all Kubernetes conditions.
    if path.ends_with(".conditions[]") {
        return;
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        row(page, &path, field, is_required(schema, name));
        properties(page, &path, field);
    }
}

/// The schema of the elements of lists and maps, and its path.
fn inner<'a>(schema: &'a Value, path: &str) -> (&'a Value, String) {
    let values = &schema["additionalProperties"];
    match (schema["items"].is_object(), values.is_object()) {
        (true, _) => inner(&schema["items"], &format!("{path}[]")),
        (_, true) => inner(values, &format!("{path}{{}}")),
        _ => (schema, path.to_owned()),
    }
}

fn row(page: &mut String, path: &str, field: &Value, is_required: bool) {
    let name = if is_required { format!("**`{path}`**") } else { format!("`{path}`") };
    writeln!(page, "| {name} | {} | {} |", type_(field), meaning(field)).unwrap();
}

fn is_required(schema: &Value, name: &str) -> bool {
    schema["required"].as_array().into_iter().flatten().any(|required| required == name)
}

/// The type of a field, with the values of an enumeration, its limits and its default.
fn type_(field: &Value) -> String {
    let mut name = match (&field["type"], &field["enum"]) {
        (_, Value::Array(values)) => {
            let values = values.iter().filter(|value| !value.is_null());
            values.map(|value| format!("`{}`", text(value))).collect::<Vec<_>>().join(", ")
        }
        (Value::String(name), _) if name == "array" => {
            format!("list of {}", type_(&field["items"]))
        }
        (Value::String(name), _) if field["additionalProperties"].is_object() => {
            let _ = name;
            format!("map to {}", type_(&field["additionalProperties"]))
        }
        (Value::String(name), _) => name.clone(),
        _ if field["x-kubernetes-int-or-string"] == true => "integer or string".to_owned(),
        _ => "any".to_owned(),
    };
    let limit = |key: &str| field.get(key).map(ToString::to_string);
    match (limit("minimum"), limit("maximum")) {
        (Some(least), Some(most)) => write!(name, ", {least} to {most}").unwrap(),
        (Some(least), None) => write!(name, ", at least {least}").unwrap(),
        (None, Some(most)) => write!(name, ", at most {most}").unwrap(),
        (None, None) => {}
    }
    if let Some(default) = field.get("default") {
        write!(name, ", default `{}`", text(default)).unwrap();
    }
    name
}

/// The description on one line of a table.
fn meaning(schema: &Value) -> String {
    let description = schema["description"].as_str().unwrap_or_default();
    let line = description.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace('|', "\\|").replace('<', "&lt;")
}

/// A paragraph in lines of at most 120 columns.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().unwrap();
        if line.chars().count() + 1 + word.chars().count() > 120 {
            lines.push(word.to_owned());
        } else {
            line.push_str(if line.is_empty() { "" } else { " " });
            line.push_str(word);
        }
    }
    lines.join("\n")
}

/// A value as text, without quotation marks.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
