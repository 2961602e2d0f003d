//! Brings answers into the form that the client asked for: whole objects, metadata alone, or tables. Pure.

use serde_json::{Value, json};

use crate::request::Options;
use crate::resource::Resource;
use crate::table::{IncludeObject, partial, row, table};

fn include(options: &Options) -> IncludeObject {
    match options.get("includeObject") {
        "None" => IncludeObject::None,
        "Object" => IncludeObject::Object,
        _ => IncludeObject::Metadata,
    }
}

/// Cells are computed from the stored form, which events of both groups share.
fn one_row(resource: &Resource, object: &Value, options: &Options) -> Value {
    let stored = resource.to_storage(object.clone());
    let mut row = row(&resource.columns, &stored, include(options), options.now);
    if include(options) == IncludeObject::Object {
        row["object"] = object.clone();
    }
    row
}

/// An object or a list; a Status and other kinds stay as they are.
pub fn answer(resource: &Resource, body: Value, options: &Options) -> Value {
    let is_list = body["kind"] == resource.list_kind;
    if !is_list && body["kind"] != resource.kind {
        return body;
    }
    if options.wants_table() {
        let metadata = if is_list {
            body["metadata"].clone()
        } else {
            json!({"resourceVersion": body["metadata"]["resourceVersion"]})
        };
        let mut table = table(&resource.columns, metadata, true);
        let rows: Vec<Value> = if is_list {
            body["items"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|item| one_row(resource, item, options))
                .collect()
        } else {
            vec![one_row(resource, &body, options)]
        };
        table["rows"] = rows.into();
        return table;
    }
    if options.wants_partial() {
        if is_list {
            let items: Vec<Value> =
                body["items"].as_array().into_iter().flatten().map(partial).collect();
            return json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": body["metadata"], "items": items});
        }
        return partial(&body);
    }
    let mut body = body;
    if is_list && resource.custom && body["metadata"]["continue"].is_null() {
        // Lists of custom resources have it always, other lists only before another page.
        body["metadata"]["continue"] = "".into();
    }
    body
}

/// The object of a watch event; column headers stand in the first table only.
pub fn event_object(resource: &Resource, object: &Value, options: &Options, first: bool) -> Value {
    if options.wants_table() {
        let mut table = table(
            &resource.columns,
            json!({"resourceVersion": object["metadata"]["resourceVersion"]}),
            first,
        );
        table["rows"] = vec![one_row(resource, object, options)].into();
        return table;
    }
    if options.wants_partial() { partial(object) } else { object.clone() }
}

/// The object of a bookmark: a kind and a version, nothing else.
pub fn bookmark_object(
    resource: &Resource,
    version: u64,
    initial_end: bool,
    options: &Options,
) -> Value {
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if initial_end {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    if options.wants_table() {
        let mut table =
            table(&resource.columns, json!({"resourceVersion": version.to_string()}), false);
        table["rows"] = json!([{"cells": [], "object": {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}}]);
        return table;
    }
    if options.wants_partial() {
        return json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
    }
    json!({"kind": resource.kind, "apiVersion": resource.api_version(), "metadata": metadata})
}
