//! Tables for `kubectl get`: columns and cells. Pure.

pub mod age;
pub mod builtin;
pub mod jsonpath;

use jiff::Timestamp;
use serde_json::{Value, json};

use jsonpath::JsonPath;

/// The source of a cell.
#[derive(Debug, Clone)]
pub enum Cell {
    Path(JsonPath),
    Built(fn(&Value, Timestamp) -> Value),
}

#[derive(Debug, Clone)]
pub struct Column {
    pub name: String,
    /// integer, number, string, boolean or date.
    pub kind: String,
    pub format: String,
    pub description: String,
    /// Columns above 0 are shown by `-o wide` only.
    pub priority: i64,
    pub cell: Cell,
}

impl Column {
    fn definition(&self) -> Value {
        json!({"name": self.name, "type": self.kind, "format": self.format, "description": self.description, "priority": self.priority})
    }

    fn value(&self, object: &Value, now: Timestamp) -> Value {
        match &self.cell {
            Cell::Built(build) => build(object, now),
            Cell::Path(path) => {
                path.first(object).map_or(Value::Null, |value| cell_of(&self.kind, value, now))
            }
        }
    }
}

/// Converts a value into a cell of the column's type; null if it has another type.
fn cell_of(kind: &str, value: &Value, now: Timestamp) -> Value {
    match (kind, value) {
        (_, Value::Null) => Value::Null,
        ("string", Value::String(text)) => text.as_str().into(),
        ("string", other) => other.to_string().into(),
        ("integer", Value::Number(number)) => {
            // The API server truncates fractions.
            #[allow(clippy::cast_possible_truncation)]
            let whole =
                number.as_i64().unwrap_or_else(|| number.as_f64().unwrap_or_default() as i64);
            whole.into()
        }
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(text)) => age::since(text, now).into(),
        _ => Value::Null,
    }
}

/// A table without rows.
pub fn table(columns: &[Column], metadata: Value, headers: bool) -> Value {
    let definitions: Vec<Value> =
        if headers { columns.iter().map(Column::definition).collect() } else { Vec::new() };
    let mut table = json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "columnDefinitions": definitions, "rows": []});
    table["metadata"] = metadata;
    table
}

pub fn row(columns: &[Column], object: &Value, now: Timestamp) -> Value {
    let cells: Vec<Value> = columns.iter().map(|column| column.value(object, now)).collect();
    let metadata = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]});
    json!({"cells": cells, "object": metadata})
}

/// The columns of a custom resource, from the `additionalPrinterColumns` of its version.
pub fn custom_columns(declared: &Value) -> Vec<Column> {
    let mut columns = vec![builtin::name_column()];
    let declared = declared.as_array().map(Vec::as_slice).unwrap_or_default();
    if declared.is_empty() {
        columns.push(builtin::age_column());
        return columns;
    }
    let text = |column: &Value, field: &str| column[field].as_str().unwrap_or_default().to_owned();
    columns.extend(declared.iter().filter_map(|column| {
        let description = match text(column, "description") {
            empty if empty.is_empty() => format!(
                "Custom resource definition column (in JSONPath format): {}",
                text(column, "jsonPath")
            ),
            given => given,
        };
        Some(Column {
            name: text(column, "name"),
            kind: text(column, "type"),
            format: text(column, "format"),
            description,
            priority: column["priority"].as_i64().unwrap_or_default(),
            cell: Cell::Path(JsonPath::parse(column["jsonPath"].as_str()?).ok()?),
        })
    }));
    columns
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn custom_columns_convert_values_to_their_type() {
        let columns = custom_columns(&json!([
            {"name": "status", "type": "string", "jsonPath": ".status.conditions[-1].type"},
            {"name": "active", "type": "integer", "jsonPath": ".status.active"},
            {"name": "none", "type": "integer", "jsonPath": ".status.none"},
            {"name": "spec", "type": "string", "jsonPath": ".spec", "priority": 1},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ]));
        let now: Timestamp = "2020-01-01T00:05:00Z".parse().unwrap();
        let object = json!({"metadata": {"name": "x", "creationTimestamp": "2020-01-01T00:00:00Z"}, "spec": {"a": 1},
            "status": {"active": 2, "conditions": [{"type": "Pending"}, {"type": "Running"}]}});
        let row = row(&columns, &object, now);
        assert_eq!(row["cells"], json!(["x", "Running", 2, null, "{\"a\":1}", "5m"]));
        assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    }

    #[test]
    fn kind_without_columns_has_name_and_age() {
        let names: Vec<String> =
            custom_columns(&Value::Null).into_iter().map(|column| column.name).collect();
        assert_eq!(names, ["Name", "Age"]);
    }
}
