//! Renders answers in the form that the client requested: objects or tables. Pure.

use serde_json::{Value, json};

use crate::request::Options;
use crate::resource::Resource;
use crate::table::{row, table};

/// Cells are computed from the stored form, which events of both groups share.
fn one_row(resource: &Resource, object: &Value, options: &Options) -> Value {
    let stored = resource.to_storage(object.clone());
    let mut row = row(&resource.columns, &stored, options.now);
    if options.get("includeObject") == "Object" {
        row["object"] = object.clone();
    }
    row
}

/// An object or a list; a Status and other kinds are returned unchanged.
pub fn answer(resource: &Resource, mut body: Value, options: &Options) -> Value {
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
    if is_list && resource.custom && body["metadata"]["continue"].is_null() {
        // Lists of custom resources always have this field.
        body["metadata"]["continue"] = "".into();
    }
    body
}

/// The object of a watch event. Only the first table has column headers.
pub fn event_object(resource: &Resource, object: &Value, options: &Options, first: bool) -> Value {
    if !options.wants_table() {
        return object.clone();
    }
    let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
    let mut table = table(&resource.columns, metadata, first);
    table["rows"] = vec![one_row(resource, object, options)].into();
    table
}

/// The object of a bookmark: its kind and the version.
pub fn bookmark_object(resource: &Resource, version: u64, options: &Options) -> Value {
    let metadata = json!({"resourceVersion": version.to_string()});
    if options.wants_table() {
        let mut table = table(&resource.columns, metadata.clone(), false);
        table["rows"] = json!([{"cells": [], "object": {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}}]);
        return table;
    }
    json!({"kind": resource.kind, "apiVersion": resource.api_version(), "metadata": metadata})
}
