//! Validates names, labels, annotations and owner references. Pure.

use serde_json::Value;

use crate::field::{FieldError, join};
use crate::resource::{NameRule, Resource};

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL_1123: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
/// Limit for all annotations of an object, in bytes.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

fn is_label(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    edge(text.chars().next())
        && edge(text.chars().last())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

pub fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

/// The violation of a name, if any.
pub fn name_fault(rule: NameRule, name: &str) -> Option<String> {
    let (fits, message, limit) = match rule {
        NameRule::Subdomain => (name.split('.').all(is_label), SUBDOMAIN, 253),
        NameRule::Label => (is_label(name), LABEL_1123, 63),
        NameRule::ServiceLabel => {
            (is_label(name) && name.starts_with(|c: char| c.is_ascii_lowercase()), LABEL_1035, 63)
        }
        NameRule::PathSegment => {
            if matches!(name, "." | "..") {
                return Some(format!("may not be '{name}'"));
            }
            (!name.contains(['/', '%']), "may not contain '/'", usize::MAX)
        }
    };
    if name.len() > limit {
        return Some(format!("must be no more than {limit} characters"));
    }
    (!fits).then(|| message.to_owned())
}

fn is_name_part(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && edge(text.chars().next())
        && edge(text.chars().last())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// The violation of a label key, annotation key or finalizer, if any.
pub fn qualified_fault(key: &str) -> Option<String> {
    let name = match key.split_once('/') {
        None => key,
        Some(("", _)) => return Some("prefix part must be non-empty".to_owned()),
        Some((prefix, name)) => {
            if !is_subdomain(prefix) {
                return Some(format!("prefix part {SUBDOMAIN}"));
            }
            name
        }
    };
    if name.is_empty() {
        return Some("name part must be non-empty".to_owned());
    }
    (!is_name_part(name)).then(|| QUALIFIED.to_owned())
}

pub fn label_value_fault(value: &str) -> Option<String> {
    if value.len() > 63 {
        return Some("must be no more than 63 characters".to_owned());
    }
    (!value.is_empty() && !is_name_part(value)).then(|| LABEL_VALUE.to_owned())
}

/// Checks the labels of an object, a pod template or a selector.
pub fn check_labels(labels: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        if let Some(fault) = qualified_fault(key) {
            errors.push(FieldError::invalid(path, key.as_str(), fault));
        }
        let value = value.as_str().unwrap_or_default();
        if let Some(fault) = label_value_fault(value) {
            errors.push(FieldError::invalid(path, value, fault));
        }
    }
}

/// Checks the metadata of an object of any kind.
pub fn check_metadata(object: &Value, resource: &Resource) -> Vec<FieldError> {
    let metadata = &object["metadata"];
    let mut errors = Vec::new();
    match metadata["name"].as_str().unwrap_or_default() {
        "" => {
            errors.push(FieldError::required("metadata.name", "name or generateName is required"));
        }
        name => {
            if let Some(fault) = name_fault(resource.name_rule, name) {
                errors.push(FieldError::invalid("metadata.name", name, fault));
            }
        }
    }
    check_labels(&metadata["labels"], "metadata.labels", &mut errors);
    let mut size = 0;
    for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
        size += key.len() + value.as_str().map_or(0, str::len);
        if let Some(fault) = qualified_fault(&key.to_lowercase()) {
            errors.push(FieldError::invalid("metadata.annotations", key.as_str(), fault));
        }
    }
    if size > ANNOTATIONS_LIMIT {
        let detail = format!("may not be more than {ANNOTATIONS_LIMIT} bytes");
        errors.push(FieldError::new(
            crate::field::Fault::TooLong,
            "metadata.annotations",
            None,
            detail,
        ));
    }
    for finalizer in crate::object::strings(&metadata["finalizers"]) {
        if let Some(fault) = qualified_fault(finalizer) {
            errors.push(FieldError::invalid("metadata.finalizers", finalizer, fault));
        }
    }
    check_owners(&metadata["ownerReferences"], &mut errors);
    errors
}

fn check_owners(owners: &Value, errors: &mut Vec<FieldError>) {
    let mut controllers = 0;
    for owner in owners.as_array().into_iter().flatten() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().unwrap_or_default().is_empty() {
                // The API server does not report the position.
                let path = join("metadata.ownerReferences", field);
                errors.push(FieldError::invalid(&path, "", "must not be empty"));
            }
        }
        if owner["controller"] == true {
            controllers += 1;
        }
    }
    if controllers > 1 {
        let detail = "Only one reference can have Controller set to true";
        errors.push(FieldError::invalid("metadata.ownerReferences", owners.clone(), detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_by_rule() {
        let table = [
            (NameRule::Subdomain, "a.b-c", true),
            (NameRule::Subdomain, "A", false),
            (NameRule::Subdomain, "-a", false),
            (NameRule::Subdomain, "a..b", false),
            (NameRule::Subdomain, "a_b", false),
            (NameRule::Label, "a.b", false),
            (NameRule::ServiceLabel, "1a", false),
            (NameRule::ServiceLabel, "a1", true),
            (NameRule::PathSegment, "system:node", true),
            (NameRule::PathSegment, "..", false),
        ];
        for (rule, name, fits) in table {
            assert_eq!(name_fault(rule, name).is_none(), fits, "{rule:?} {name}");
        }
    }

    #[test]
    fn label_keys_and_values_are_checked() {
        assert!(qualified_fault("neptune.io/runtime").is_none());
        assert!(qualified_fault("a b").is_some());
        assert!(qualified_fault("/x").is_some());
        assert!(label_value_fault("").is_none());
        assert!(label_value_fault("a/b").is_some());
    }
}
