//! Checks `docs/asyncapi.yaml` against the wire types: every topic and message is documented, every
//! example is a message, and every documented field exists.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;

use neptune_wire::{
    Batch, DatasetReason, Delete, Index, Insert, ModelReload, NodeAnswer, NodeReport, NodeRequest,
    Resource, StatusReport, Sync, Topic, WorkerInfo, WorkerReason, decode,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

fn document() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/asyncapi.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

/// The object at a JSON pointer.
fn object<'a>(document: &'a Value, pointer: &str) -> &'a serde_json::Map<String, Value> {
    let value = document.pointer(pointer).unwrap_or_else(|| panic!("no {pointer}"));
    value.as_object().unwrap_or_else(|| panic!("{pointer} is not an object"))
}

/// Returns the value that `$ref` refers to; `value` itself without a `$ref`.
fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let Some(target) = value.get("$ref").and_then(Value::as_str) else { return value };
    let pointer = target.strip_prefix('#').unwrap();
    document.pointer(pointer).unwrap_or_else(|| panic!("no {target}"))
}

/// The channel that documents a topic, and the message on it. A new topic does not compile here
/// until it has both.
fn documented(topic: &Topic) -> (&'static str, &'static str) {
    match topic {
        Topic::Insert(..) => ("insert", "insert"),
        Topic::Delete(..) => ("delete", "delete"),
        Topic::Index(_) => ("index", "index"),
        Topic::Status(..) => ("status", "statusReport"),
        Topic::Node(_) => ("node", "nodeReport"),
        Topic::Sync(_) => ("sync", "sync"),
        Topic::Request(_) => ("request", "nodeRequest"),
        Topic::Answer(_) => ("answer", "nodeAnswer"),
        Topic::WorkerInfo(_) => ("workerInfo", "workerInfo"),
        Topic::WorkerReload(_) => ("workerReload", "modelReload"),
    }
}

/// Channels that carry batches and HTTP posts: no [`Topic`] of their own.
const EVENTBUS: [&str; 3] = ["batch", "receiverPost", "routerPost"];

/// An address with its parameters replaced by names.
fn filled(address: &str) -> String {
    [
        ("{node}", "edge0"),
        ("{namespace}", "default"),
        ("{resource}", "models"),
        ("{name}", "m"),
        ("{worker}", "w-1"),
    ]
    .iter()
    .fold(address.to_owned(), |address, (parameter, name)| address.replace(parameter, name))
}

#[test]
fn every_topic_has_its_channel() {
    let document = document();
    let mut channels = BTreeSet::new();
    for (name, channel) in object(&document, "/channels") {
        if EVENTBUS.contains(&name.as_str()) {
            continue;
        }
        let address = channel["address"].as_str().unwrap();
        let topic = Topic::parse(&"neptune".parse().unwrap(), &filled(address)).unwrap();
        let (expected, message) = documented(&topic);
        assert_eq!(name, expected, "{address}");
        assert!(channel["messages"].get(message).is_some(), "channel {name} has no {message}");
        for parameter in address.split('{').skip(1).map(|rest| rest.split('}').next().unwrap()) {
            let described = &channel["parameters"][parameter];
            assert!(resolve(&document, described).is_object(), "{name}: parameter {parameter}");
        }
        channels.insert(name.clone());
    }
    // As many as `documented` has arms.
    assert_eq!(channels.len(), 10, "{channels:?}");
}

#[test]
fn every_channel_has_an_operation_and_existing_messages() {
    let document = document();
    let messages = object(&document, "/components/messages");
    let mut used = BTreeSet::new();
    for (name, channel) in object(&document, "/channels") {
        for (message, reference) in channel["messages"].as_object().unwrap() {
            assert!(messages.contains_key(message), "channel {name}: {message}");
            assert_eq!(resolve(&document, reference), &messages[message], "channel {name}");
            used.insert(message.as_str());
        }
        let is_http = matches!(name.as_str(), "receiverPost" | "routerPost");
        let reference = format!("#/channels/{name}");
        let operations = object(&document, "/operations").values();
        let count =
            operations.filter(|operation| operation["channel"]["$ref"] == reference).count();
        assert_eq!(count, usize::from(!is_http), "operations of channel {name}");
    }
    assert_eq!(used, messages.keys().map(String::as_str).collect());
}

#[test]
fn resources_and_reasons_are_those_of_the_wire() {
    let document = document();
    let texts = |pointer: &str| -> Vec<String> {
        serde_json::from_value(document.pointer(pointer).unwrap().clone()).unwrap()
    };
    let resources = Resource::ALL.map(|resource| resource.to_string());
    assert_eq!(texts("/components/parameters/resource/enum"), resources);
    for reason in texts("/components/schemas/workerReason/enum") {
        let known: WorkerReason = serde_json::from_value(reason.clone().into()).unwrap();
        assert_ne!(known, WorkerReason::Unknown, "{reason}");
    }
    for reason in texts("/components/schemas/datasetReason/enum") {
        let known: DatasetReason = serde_json::from_value(reason.clone().into()).unwrap();
        assert_ne!(known, DatasetReason::Unknown, "{reason}");
    }
}

/// Decodes a payload as the message of that name and encodes it again. A new message does not pass
/// until it is listed.
fn encoded_again(message: &str, payload: &Value) -> Value {
    fn again<T: Serialize + DeserializeOwned>(payload: &Value) -> Value {
        let bytes = serde_json::to_vec(payload).unwrap();
        let message: T = decode(&bytes).unwrap_or_else(|error| panic!("{error} in {payload}"));
        serde_json::to_value(message).unwrap()
    }
    match message {
        "insert" => again::<Insert>(payload),
        "delete" => again::<Delete>(payload),
        "index" => again::<Index>(payload),
        "statusReport" => again::<StatusReport>(payload),
        "nodeReport" => again::<NodeReport>(payload),
        "sync" => again::<Sync>(payload),
        "nodeRequest" => again::<NodeRequest>(payload),
        "nodeAnswer" => again::<NodeAnswer>(payload),
        "workerInfo" => again::<WorkerInfo>(payload),
        "modelReload" => again::<ModelReload>(payload),
        "batch" => again::<Batch>(payload),
        other => panic!("no Rust type for message {other}"),
    }
}

#[test]
fn every_example_decodes_and_encodes_to_the_same_json() {
    let document = document();
    for (name, message) in object(&document, "/components/messages") {
        let examples = message["examples"].as_array().unwrap();
        assert!(!examples.is_empty(), "{name} has no example");
        for example in examples {
            let payload = &example["payload"];
            let mut again = encoded_again(name, payload);
            // `encode` adds it; a worker's message has none.
            if let Some(version) = payload.get("schemaVersion") {
                assert_eq!(*version, neptune_wire::SCHEMA_VERSION, "{name}");
                again["schemaVersion"] = version.clone();
            }
            assert_eq!(again, *payload, "{name}");
        }
    }
}

/// The examples of version 0.2, which are never changed: agents and controllers of that version
/// send them.
#[test]
fn messages_of_0_2_keep_their_meaning() {
    let messages: Value =
        serde_json::from_slice(include_bytes!("golden/messages-0.2.json")).unwrap();
    let messages = messages.as_object().unwrap();
    assert_eq!(messages.len(), 11);
    for (name, payloads) in messages {
        for payload in payloads.as_array().unwrap() {
            let again = encoded_again(name, payload);
            let lost = lost(payload, &again, name);
            let lost: Vec<_> =
                lost.into_iter().filter(|place| !place.ends_with(".schemaVersion")).collect();
            assert!(lost.is_empty(), "fields that version 0.2 sends are not read: {lost:?}");
        }
    }
}

/// The places of a value that another one has not, or has differently. It may have more fields.
fn lost(value: &Value, other: &Value, place: &str) -> Vec<String> {
    match (value, other) {
        (Value::Object(fields), Value::Object(others)) => fields
            .iter()
            .flat_map(|(name, field)| {
                let other = others.get(name).unwrap_or(&Value::Null);
                lost(field, other, &format!("{place}.{name}"))
            })
            .collect(),
        (Value::Array(items), Value::Array(others)) if items.len() == others.len() => items
            .iter()
            .zip(others)
            .enumerate()
            .flat_map(|(at, (item, other))| lost(item, other, &format!("{place}[{at}]")))
            .collect(),
        _ if value == other => Vec::new(),
        _ => vec![place.to_owned()],
    }
}

#[test]
fn example_model_carries_its_content_hash() {
    let document = document();
    let examples = document.pointer("/components/messages/insert/examples").unwrap();
    let insert: Insert = serde_json::from_value(examples[0]["payload"].clone()).unwrap();
    assert_eq!(insert.hash, insert.content.hash());
}

/// Checks a value against a schema, and notes each property of the schema that the value has.
fn check<'a>(
    document: &'a Value,
    schema: &'a Value,
    value: &Value,
    place: &str,
    seen: &mut BTreeSet<String>,
) {
    let schema = resolve(document, schema);
    let types: Vec<&str> = match &schema["type"] {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => return,
    };
    let is = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) if types.contains(&"number") => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    assert!(types.contains(&is), "{place}: {is} where {types:?} is documented");
    if let Some(allowed) = schema["enum"].as_array() {
        assert!(allowed.contains(value), "{place}: {value} is not documented");
    }
    for required in schema["required"].as_array().into_iter().flatten() {
        let field = required.as_str().unwrap();
        assert!(value.is_null() || value.get(field).is_some(), "{place}: {field} is missing");
    }
    for (at, item) in value.as_array().into_iter().flatten().enumerate() {
        check(document, &schema["items"], item, &format!("{place}[{at}]"), seen);
    }
    for (field, item) in value.as_object().into_iter().flatten() {
        let place = format!("{place}.{field}");
        let properties = schema.get("properties").and_then(|properties| properties.get(field));
        match (properties, schema.get("additionalProperties")) {
            (Some(property), _) => {
                seen.insert(address(schema, field));
                check(document, property, item, &place, seen);
            }
            (None, Some(Value::Bool(true))) => {}
            (None, Some(additional)) => check(document, additional, item, &place, seen),
            (None, None) => panic!("{place} is not documented"),
        }
    }
}

/// Names a property by the schema's own place in memory, so that shared schemas count once.
fn address(schema: &Value, field: &str) -> String {
    format!("{schema:p} {field}")
}

/// Every property that a schema and those within it document.
fn properties<'a>(
    document: &'a Value,
    schema: &'a Value,
    place: &str,
    all: &mut Vec<(String, String)>,
) {
    let schema = resolve(document, schema);
    for (field, property) in schema["properties"].as_object().into_iter().flatten() {
        let place = format!("{place}.{field}");
        all.push((address(schema, field), place.clone()));
        properties(document, property, &place, all);
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(inner) {
            properties(document, inner, place, all);
        }
    }
}

/// With the test above, this shows that every documented field is one of the Rust type: an unknown
/// one would be lost on the way through it.
#[test]
fn examples_use_every_documented_field_and_no_other() {
    let document = document();
    let (mut seen, mut all) = (BTreeSet::new(), Vec::new());
    for (name, message) in object(&document, "/components/messages") {
        let schema = &message["payload"];
        properties(&document, schema, name, &mut all);
        for example in message["examples"].as_array().unwrap() {
            check(&document, schema, &example["payload"], name, &mut seen);
        }
    }
    let unused: Vec<_> = all.iter().filter(|(address, _)| !seen.contains(address)).collect();
    assert!(unused.is_empty(), "in no example: {unused:?}");
}
