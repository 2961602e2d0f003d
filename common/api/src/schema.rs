//! Schema constraints that several kinds share: patterns of names, and maximum lengths. They refuse
//! nothing that `neptune-cloud` accepts.
//!
//! A maximum length is above every valid value. Without one, an API server estimates the cost of a
//! rule with the largest possible request and refuses the rule as too expensive.

use schemars::{Schema, transform::transform_subschemas};
use serde_json::Value;

/// Pattern of an RFC 1123 subdomain, the name of an object or a node.
pub(crate) const SUBDOMAIN: &str =
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

/// Pattern of an RFC 1123 subdomain or the empty string, which means "not set" in optional fields.
pub(crate) const SUBDOMAIN_OR_EMPTY: &str =
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$";

/// Pattern of an RFC 1123 label, the name of a volume.
pub(crate) const LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// Pattern of a key of a Secret or ConfigMap, which is the name of a file: not "." and not beginning
/// with "..".
pub(crate) const DATA_KEY: &str = "^([-_a-zA-Z0-9]|[.][-_a-zA-Z0-9])[-._a-zA-Z0-9]*$";

/// Pattern of a name that is valid as a directory, in an argument and as a label value.
pub(crate) const FILE_NAME: &str = "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$";

/// Pattern of the name of a client of a gateway.
pub(crate) const CLIENT_NAME: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// Pattern of files of a repository: visible characters without those that addresses reserve.
pub const FILE_PATTERN: &str = "^[!$()*+,./0-9:;<=>@A-Z^_`a-z|~-]+$";

/// Pattern of a SHA-256 digest, as printed by sha256sum.
pub(crate) const SHA256: &str = "^[0-9a-fA-F]{64}$";

/// Pattern of the SHA-256 of the key of a client: lower case, so that equal ones are equal texts.
pub(crate) const KEY_SHA256: &str = "^[0-9a-f]{64}$";

/// Pattern of the pin of a key: `sha256:` and 64 lower-case hex digits.
pub(crate) const KEY_PIN: &str = "^sha256:[0-9a-f]{64}$";

/// Length of the pin of a key, in characters.
pub(crate) const KEY_PIN_LENGTH: usize = 71;

/// Pattern of a share: a decimal from 0 to 1.
pub(crate) const SHARE: &str = r"^(0(\.[0-9]+)?|1(\.0+)?)$";

/// Pattern of a decimal that is not negative.
pub(crate) const DECIMAL: &str = r"^[0-9]+(\.[0-9]+)?$";

/// Pattern of a decimal number with an optional sign.
pub(crate) const SIGNED_DECIMAL: &str = r"^-?[0-9]+(\.[0-9]+)?$";

/// Pattern of a duration above zero, or "none".
pub(crate) const DURATION_OR_NONE: &str = "^(none|[1-9][0-9]{0,5}(ms|s|m|h))$";

/// Pattern of an http(s) address.
pub(crate) const WEB_ADDRESS: &str = "^https?://[^/?#]+(/.*)?$";

/// Pattern of an http(s), s3 or hf address.
pub(crate) const REMOTE_ADDRESS: &str = "^(https?://[^/?#]|(s3|hf)://[^/]+/.)";

/// Pattern of a host and a port: a name, an IPv4 address, or an IPv6 address in brackets.
pub(crate) const HOST_AND_PORT: &str =
    r"^([0-9A-Za-z]([-0-9A-Za-z.]*[0-9A-Za-z])?|\[[0-9A-Fa-f:.]+\]):[1-9][0-9]{0,4}$";

/// Pattern of a duration above zero.
pub(crate) const DURATION: &str = "^[1-9][0-9]{0,5}(ms|s|m|h)$";

/// Pattern of an HTTP header with its value.
pub(crate) const HEADER: &str = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+: *[!-~]([ -~]*[!-~])?$";

/// Maximum length of an object name in characters.
pub(crate) const MAX_NAME_LENGTH: usize = 253;

/// Maximum length of a token such as a framework or a version, in characters. Image tags have at
/// most 128.
pub(crate) const MAX_TOKEN_LENGTH: usize = 253;

/// Pattern of the address of a mirror: as of a model, without paths of a node.
pub(crate) const MIRROR: &str =
    "^([hH][tT][tT][pP][sS]?://[^/?#]|([sS]3|[hH][fF]|[oO][cC][iI])://[^/]+/.)";

/// Maximum length of an address, image or path, in characters: PATH_MAX of Linux.
pub(crate) const MAX_ADDRESS_LENGTH: usize = 4096;

/// Maximum number of volumes, and of mounts, of a container.
const MAX_VOLUMES: u32 = 32;

/// Maximum number of Secrets and ConfigMaps in `envFrom` of a container.
const MAX_ENV_FROM: u32 = 32;

/// Maximum number of keys of a volume.
const MAX_ITEMS: u32 = 64;

/// Maximum length of the URL of an endpoint, in characters.
pub(crate) const MAX_URL_LENGTH: usize = 2048;

/// Makes optional fields not nullable: API servers then drop null values, so that no rule reads
/// one. (For a nullable field with the value null, `has()` is true.)
pub(crate) fn never_null(schema: &mut Schema) {
    if let Some(types) = schema.get_mut("type")
        && let Value::Array(list) = types
    {
        list.retain(|name| name != "null");
        if let [one] = list.as_slice() {
            *types = one.clone();
        }
    }
    // The derive generates "one of the values, or null" for an optional enum.
    if let Some(Value::Array(branches)) = schema.get_mut("anyOf") {
        branches.retain(|branch| branch["type"] != "null");
        if let [Value::Object(one)] = branches.as_mut_slice() {
            let one = std::mem::take(one);
            schema.remove("anyOf");
            // The description of the field takes precedence.
            for (keyword, value) in one {
                schema.ensure_object().entry(keyword).or_insert(value);
            }
        }
    }
    transform_subschemas(&mut never_null, schema);
}

/// Requires the keys of a list of KeyValue to be unique and not empty.
pub(crate) fn unique_keys(schema: &mut Schema) {
    unique(schema, "key");
    if let Some(items) = schema.pointer_mut("/items/properties") {
        items["key"]["minLength"] = 1.into();
        items["key"]["maxLength"] = MAX_TOKEN_LENGTH.into();
    }
}

/// Requires the names of a list of EnvironmentVariable to be unique.
pub(crate) fn unique_names(schema: &mut Schema) {
    unique(schema, "name");
}

/// Requires the names of a list of Volume to be unique.
pub(crate) fn volumes(schema: &mut Schema) {
    unique_up_to(schema, "name", MAX_VOLUMES);
}

/// Requires the names of a list of GatewayClient to be unique.
pub(crate) fn clients(schema: &mut Schema) {
    let most = neptune_gateway_config::MAX_CLIENTS;
    unique_up_to(schema, "name", most.try_into().expect("it is small"));
}

/// Requires the paths of a list of VolumeMount to be unique.
pub(crate) fn volume_mounts(schema: &mut Schema) {
    unique_up_to(schema, "mountPath", MAX_VOLUMES);
}

/// Requires the paths of a list of KeyToPath to be unique.
pub(crate) fn items(schema: &mut Schema) {
    unique_up_to(schema, "path", MAX_ITEMS);
}

/// Bounds a list of EnvFromSource.
pub(crate) fn env_from(schema: &mut Schema) {
    schema.insert("maxItems".to_owned(), MAX_ENV_FROM.into());
    schema.insert("x-kubernetes-list-type".to_owned(), "atomic".into());
}

fn unique(schema: &mut Schema, key: &str) {
    unique_up_to(schema, key, 1024);
}

fn unique_up_to(schema: &mut Schema, key: &str, most: u32) {
    schema.insert("maxItems".to_owned(), most.into());
    schema.insert("x-kubernetes-list-type".to_owned(), "map".into());
    schema.insert("x-kubernetes-list-map-keys".to_owned(), vec![key].into());
}
