//! `OpenAPI` v2 in its protobuf form, the only form that kubectl requests. Pure.
//!
//! kubectl 1.20 of Debian 12 needs it for `apply`, `explain` and dry runs. The field numbers are
//! those of gnostic's `OpenAPIv2.proto`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::v3::{add_referenced, gvk, schema_name, whole_schema};
use crate::registry::Registry;
use crate::resource::Resource;

/// A protobuf message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut number: u64) {
        while number > 0x7f {
            self.0.push(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        self.0.push(number.to_le_bytes()[0]);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) -> &mut Self {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn text(&mut self, field: u64, text: &str) -> &mut Self {
        if !text.is_empty() {
            self.bytes(field, text.as_bytes());
        }
        self
    }

    fn flag(&mut self, field: u64) -> &mut Self {
        self.varint(field << 3);
        self.varint(1);
        self
    }

    fn message(&mut self, field: u64, message: &Message) -> &mut Self {
        self.bytes(field, &message.0)
    }
}

/// An entry of a map: a name with a value.
fn named(name: &str, value: &Message) -> Message {
    let mut entry = Message::default();
    entry.text(1, name).message(2, value);
    entry
}

/// An extension. Its value is YAML, which includes JSON.
fn extension(name: &str, value: &Value) -> Message {
    let mut any = Message::default();
    any.text(2, &value.to_string());
    named(name, &any)
}

/// The `OpenAPI` document of all resources, as protobuf.
pub fn document(registry: &Registry) -> Vec<u8> {
    let mut info = Message::default();
    info.text(1, "devcluster").text(2, "v1.32.0");
    let mut paths = Message::default();
    let mut schemas = serde_json::Map::new();
    let mut kinds: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let resources: BTreeSet<String> =
        registry.all().map(|resource| schema_name(resource)).collect();
    for resource in registry.all() {
        paths.message(2, &path(resource));
        let name = schema_name(resource);
        schemas.insert(name.clone(), whole_schema(resource));
        kinds.entry(name).or_default().push(gvk(resource));
    }
    add_referenced(&mut schemas);
    let mut definitions = Message::default();
    for (name, node) in &schemas {
        let mut message = schema(node, 0);
        if resources.contains(name) {
            message.message(
                31,
                &extension("x-kubernetes-group-version-kind", &kinds[name].clone().into()),
            );
        }
        definitions.message(1, &named(name, &message));
    }
    let mut document = Message::default();
    document.text(1, "2.0").message(2, &info).message(8, &paths).message(9, &definitions);
    document.0
}

/// The path of an object with its PATCH; kubectl detects features of the server by the parameters.
fn path(resource: &Resource) -> Message {
    let mut operation = Message::default();
    for name in ["dryRun", "fieldManager", "fieldValidation", "force"] {
        let mut query = Message::default();
        query
            .text(2, "query")
            .text(4, name)
            .text(6, if name == "force" { "boolean" } else { "string" });
        let mut wrapped = query;
        for field in [3, 2, 1] {
            let mut outer = Message::default();
            outer.message(field, &wrapped);
            wrapped = outer;
        }
        operation.message(8, &wrapped);
    }
    operation.message(13, &extension("x-kubernetes-action", &"patch".into()));
    operation.message(13, &extension("x-kubernetes-group-version-kind", &gvk(resource)));
    let mut item = Message::default();
    item.message(8, &operation);
    named(&super::v3::object_path(resource), &item)
}

/// Limit of the recursion, above the nesting of any real schema.
const DEPTH: usize = 64;

fn schema(node: &Value, depth: usize) -> Message {
    let mut message = Message::default();
    let text = |field: &str| node[field].as_str().unwrap_or_default();
    if let Some(reference) = node["$ref"].as_str() {
        message.text(
            1,
            &format!("#/definitions/{}", reference.rsplit('/').next().unwrap_or(reference)),
        );
        message.text(4, text("description"));
        return message;
    }
    message.text(2, text("format")).text(4, text("description"));
    for name in crate::object::strings(&node["required"]) {
        message.text(19, name);
    }
    if depth > DEPTH {
        return message;
    }
    if let Some(item) = additional(&node["additionalProperties"], depth) {
        message.message(21, &item);
    }
    if let Some(kind) = kind(node) {
        let mut item = Message::default();
        item.text(1, kind);
        message.message(22, &item);
    }
    if node["items"].is_object() {
        let mut item = Message::default();
        item.message(1, &schema(&node["items"], depth + 1));
        message.message(23, &item);
    }
    if let Some(properties) = node["properties"].as_object() {
        let mut all = Message::default();
        for (name, property) in properties {
            all.message(1, &named(name, &schema(property, depth + 1)));
        }
        message.message(25, &all);
    }
    for (name, value) in
        node.as_object().into_iter().flatten().filter(|(name, _)| name.starts_with("x-kubernetes-"))
    {
        message.message(31, &extension(name, value));
    }
    if node["x-kubernetes-int-or-string"] == true {
        // kubectl accepts a number or a text for this format.
        message.text(2, "int-or-string");
    }
    message
}

/// The type of a node; none for free-form values, for which kubectl accepts any value.
fn kind(node: &Value) -> Option<&str> {
    let is_free =
        node["x-kubernetes-preserve-unknown-fields"] == true && node["properties"].is_null();
    if is_free {
        return None;
    }
    // Quantities and other values with two types are described as texts.
    let is_text =
        node["x-devcluster-quantity"] == true || node["x-kubernetes-int-or-string"] == true;
    node["type"].as_str().or(is_text.then_some("string"))
}

fn additional(node: &Value, depth: usize) -> Option<Message> {
    let mut item = Message::default();
    match node {
        Value::Object(_) => item.message(1, &schema(node, depth + 1)),
        Value::Bool(true) => item.flag(2),
        _ => return None,
    };
    Some(item)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_and_lengths_are_varints() {
        let mut message = Message::default();
        message.text(1, &"a".repeat(300));
        assert_eq!(message.0[..3], [0x0a, 0xac, 0x02]);
    }

    #[test]
    fn schema_has_type_and_properties() {
        let node = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/x.Y"}}});
        let bytes = schema(&node, 0).0;
        let shown = String::from_utf8_lossy(&bytes);
        assert!(shown.contains("object") && shown.contains("#/definitions/x.Y"), "{shown}");
    }
}
