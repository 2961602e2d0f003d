//! Decodes and encodes `metadata.managedFields`, and reports conflicts. Pure.

use serde_json::{Value, json};

use super::path::{Element, FieldSet};
use crate::status::ApiError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Apply,
    Update,
}

/// The fields that one manager owns.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub manager: String,
    pub operation: Operation,
    pub api_version: String,
    pub subresource: String,
    pub time: String,
    pub set: FieldSet,
}

impl Entry {
    /// Whether two entries belong to the same manager. Only updates of different API versions are
    /// separate entries.
    pub fn same_writer(&self, other: &Entry) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    /// The manager as conflict messages show it.
    fn shown(&self) -> String {
        let mut text = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            text = format!("{text} with subresource {:?}", self.subresource);
        }
        if self.operation == Operation::Update {
            text = format!("{text} using {}", self.api_version);
        }
        text
    }
}

pub fn decode(fields: &Value) -> Result<Vec<Entry>, ApiError> {
    let mut entries = Vec::new();
    for entry in fields.as_array().into_iter().flatten() {
        // A client clears the list with `[{}]`.
        if entry.as_object().is_some_and(serde_json::Map::is_empty) {
            continue;
        }
        let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        let operation = match entry["operation"].as_str() {
            Some("Apply") => Operation::Apply,
            Some("Update") => Operation::Update,
            _ => {
                return Err(ApiError::bad_request(
                    "metadata.managedFields: operation must be Apply or Update",
                ));
            }
        };
        let set = FieldSet::from_fields_v1(&entry["fieldsV1"]).ok_or_else(|| {
            ApiError::bad_request("metadata.managedFields: fieldsV1 is not a set of fields")
        })?;
        entries.push(Entry {
            manager: text("manager"),
            operation,
            api_version: text("apiVersion"),
            subresource: text("subresource"),
            time: text("time"),
            set,
        });
    }
    Ok(entries)
}

/// Returns `None` when no entry has fields.
pub fn encode(mut entries: Vec<Entry>) -> Option<Value> {
    entries.retain(|entry| !entry.set.is_empty());
    entries.sort_by(|a, b| {
        (a.operation, &a.time, &a.manager, &a.api_version, &a.subresource).cmp(&(
            b.operation,
            &b.time,
            &b.manager,
            &b.api_version,
            &b.subresource,
        ))
    });
    let list: Vec<Value> = entries
        .iter()
        .map(|entry| {
            let mut value = json!({
                "manager": entry.manager, "operation": format!("{:?}", entry.operation), "apiVersion": entry.api_version,
                "time": entry.time, "fieldsType": "FieldsV1", "fieldsV1": entry.set.to_fields_v1(),
            });
            if !entry.subresource.is_empty() {
                value["subresource"] = entry.subresource.as_str().into();
            }
            value
        })
        .collect();
    (!list.is_empty()).then_some(Value::Array(list))
}

/// Removes fields that have no owner: those that the server sets and those that identify the
/// object.
pub fn strip(set: &mut FieldSet) {
    for field in ["apiVersion", "kind"] {
        set.remove_tree(&Element::field(field));
    }
    let metadata = Element::field("metadata");
    set.remove_path(std::slice::from_ref(&metadata));
    for field in [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ] {
        set.remove_path(&[metadata.clone(), Element::field(field)]);
    }
}

/// The conflict error, with one cause per field.
pub fn conflict_error<'a>(conflicts: impl Iterator<Item = (&'a Entry, &'a FieldSet)>) -> ApiError {
    let mut by_writer: Vec<(String, Vec<String>)> =
        conflicts.map(|(entry, set)| (entry.shown(), set.paths())).collect();
    by_writer.sort();
    let causes: Vec<Value> = by_writer
        .iter()
        .flat_map(|(writer, paths)| {
            paths.iter().map(move |path| json!({"reason": "FieldManagerConflict", "message": format!("conflict with {writer}"), "field": path}))
        })
        .collect();
    let message = match by_writer.as_slice() {
        [(writer, paths)] if paths.len() == 1 => {
            format!("Apply failed with 1 conflict: conflict with {writer}: {}", paths[0])
        }
        writers => {
            let lines: Vec<String> = writers
                .iter()
                .flat_map(|(writer, paths)| {
                    std::iter::once(format!("conflicts with {writer}:"))
                        .chain(paths.iter().map(|path| format!("- {path}")))
                })
                .collect();
            format!("Apply failed with {} conflicts: {}", causes.len(), lines.join("\n"))
        }
    };
    ApiError::apply_conflict(message, causes)
}
