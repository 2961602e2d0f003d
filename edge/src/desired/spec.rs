//! Reads the JSON specs of `Model` and `Dataset` objects: the only file with their field names.

use neptune_wire::ObjectContent;
use serde_json::Value;

/// The fields of a Model's spec, trimmed; empty where absent.
pub struct ModelFields<'a> {
    pub url: &'a str,
    pub sha256: &'a str,
}

/// The fields of a Dataset's spec. `format` and `url` are trimmed, and empty where absent.
pub struct DatasetFields<'a> {
    pub format: &'a str,
    pub url: &'a str,
    pub member: Option<&'a str>,
    pub header: Option<bool>,
    pub delimiter: Option<&'a str>,
    pub label_column: Option<&'a str>,
}

/// Reads the spec of a Model.
pub fn model_fields(content: &ObjectContent) -> ModelFields<'_> {
    let text = |field| text(content, field).unwrap_or_default().trim();
    ModelFields { url: text("modelUrl"), sha256: text("sha256sum") }
}

/// `spec.format` of a Model; empty where absent.
pub fn model_format(content: &ObjectContent) -> &str {
    text(content, "format").unwrap_or_default()
}

/// Reads the spec of a Dataset.
pub fn dataset_fields(content: &ObjectContent) -> DatasetFields<'_> {
    let text = |field| text(content, field);
    DatasetFields {
        format: text("format").unwrap_or_default().trim(),
        url: text("dataUrl").unwrap_or_default().trim(),
        member: text("member"),
        header: content.spec.get("header").and_then(Value::as_bool),
        delimiter: text("delimiter"),
        label_column: text("labelColumn"),
    }
}

fn text<'a>(content: &'a ObjectContent, field: &str) -> Option<&'a str> {
    content.spec.get(field).and_then(Value::as_str)
}
