//! What the schemas of several kinds say alike: the forms of names, and lengths. They refuse nothing that
//! `neptune-cloud` takes; what needs the cluster is decided there.
//!
//! A length is a bound that no working value reaches. Without one an API server has to take the longest
//! request for it, and finds the rules that read it too expensive.

use schemars::{Schema, transform::transform_subschemas};
use serde_json::Value;

/// A name of RFC 1123 with dots, as objects and nodes have it.
pub(crate) const SUBDOMAIN: &str =
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

/// The same, or nothing: of an optional field the empty text says that it is not given.
pub(crate) const SUBDOMAIN_OR_EMPTY: &str =
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$";

/// A directory's name, a part of an argument and a label's value.
pub(crate) const PLAIN: &str = "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$";

/// A SHA-256 as sha256sum prints it.
pub(crate) const SHA256: &str = "^[0-9a-fA-F]{64}$";

/// The longest name of an object, in characters.
pub(crate) const NAME: usize = 253;

/// The longest word, such as a framework or a version, in characters: an image's tag may have 128.
pub(crate) const WORD: usize = 253;

/// The longest address, image or path, in characters: PATH_MAX of Linux.
pub(crate) const PLACE: usize = 4096;

/// Takes null out of the types of optional fields: an API server then drops a null that is written, so
/// that no rule ever reads one. (It would find a nullable field that is null to be there.)
pub(crate) fn never_null(schema: &mut Schema) {
    if let Some(types) = schema.get_mut("type")
        && let Value::Array(list) = types
    {
        list.retain(|name| name != "null");
        if let [one] = list.as_slice() {
            *types = one.clone();
        }
    }
    // A set of words, of which the derive makes "one of them, or null".
    if let Some(Value::Array(branches)) = schema.get_mut("anyOf") {
        branches.retain(|branch| branch["type"] != "null");
        if let [Value::Object(one)] = branches.as_mut_slice() {
            let one = std::mem::take(one);
            schema.remove("anyOf");
            // The field's own explanation stays.
            for (keyword, value) in one {
                schema.ensure_object().entry(keyword).or_insert(value);
            }
        }
    }
    transform_subschemas(&mut never_null, schema);
}

/// Of a list of KeyValue: no key twice, and none empty.
pub(crate) fn unique_keys(schema: &mut Schema) {
    unique(schema, "key");
    if let Some(items) = schema.pointer_mut("/items/properties") {
        items["key"]["minLength"] = 1.into();
        items["key"]["maxLength"] = WORD.into();
    }
}

/// Of a list of EnvironmentVariable: no name twice.
pub(crate) fn unique_names(schema: &mut Schema) {
    unique(schema, "name");
}

fn unique(schema: &mut Schema, key: &str) {
    schema.insert("maxItems".to_owned(), 1024.into());
    schema.insert("x-kubernetes-list-type".to_owned(), "map".into());
    schema.insert("x-kubernetes-list-map-keys".to_owned(), vec![key].into());
}
