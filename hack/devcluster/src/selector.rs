//! Parses and matches label and field selectors. Pure.

use serde_json::Value;

use crate::object;
use crate::status::ApiError;

#[derive(Debug, Clone, PartialEq)]
enum Requirement {
    Equals(String, String),
    Differs(String, String),
    Exists(String),
    Missing(String),
}

/// The label and field selectors of a list or watch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Selector {
    labels: Vec<Requirement>,
    /// Dotted path, whether it must equal, value.
    fields: Vec<(String, bool, String)>,
}

impl Selector {
    /// Parses selectors; `selectable` are the kind's paths for field selectors.
    pub fn parse(labels: &str, fields: &str, selectable: &[String]) -> Result<Self, ApiError> {
        Ok(Self { labels: parse_labels(labels)?, fields: parse_fields(fields, selectable)? })
    }

    pub fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.labels.iter().all(|requirement| requirement.matches(labels))
            && self
                .fields
                .iter()
                .all(|(path, equal, wanted)| (field_text(object, path) == *wanted) == *equal)
    }
}

fn field_text(object: &Value, path: &str) -> String {
    match object::at_path(object, path) {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => String::new(),
        Some(other) => other.to_string(),
    }
}

impl Requirement {
    fn matches(&self, labels: &Value) -> bool {
        let label = |key: &str| labels[key].as_str();
        match self {
            Self::Equals(key, wanted) => label(key) == Some(wanted),
            Self::Differs(key, other) => label(key) != Some(other),
            Self::Exists(key) => label(key).is_some(),
            Self::Missing(key) => label(key).is_none(),
        }
    }
}

fn parse_labels(text: &str) -> Result<Vec<Requirement>, ApiError> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    text.split(',').map(str::trim).map(parse_label_term).collect()
}

fn parse_label_term(term: &str) -> Result<Requirement, ApiError> {
    let key = |text: &str| {
        let text = text.trim();
        match crate::names::qualified_fault(text) {
            None => Ok(text.to_owned()),
            Some(fault) => Err(ApiError::bad_request(format!(
                "unable to parse requirement: <nil>: Invalid value: {text:?}: {fault}"
            ))),
        }
    };
    let value = |text: &str| {
        let text = text.trim();
        match crate::names::label_value_fault(text) {
            None => Ok(text.to_owned()),
            Some(fault) => Err(ApiError::bad_request(format!(
                "unable to parse requirement: values[0][{text}]: Invalid value: {text:?}: {fault}"
            ))),
        }
    };
    if let Some(rest) = term.strip_prefix('!') {
        return Ok(Requirement::Missing(key(rest)?));
    }
    if let Some((left, right)) = term.split_once("!=") {
        return Ok(Requirement::Differs(key(left)?, value(right)?));
    }
    if let Some((left, right)) = term.split_once("==").or_else(|| term.split_once('=')) {
        return Ok(Requirement::Equals(key(left)?, value(right)?));
    }
    if term.contains('(') {
        return Err(ApiError::bad_request(format!(
            "devcluster does not support set-based selectors such as '{term}'"
        )));
    }
    if term.is_empty() {
        return Err(ApiError::bad_request(
            "unable to parse requirement: found ',', expected: identifier",
        ));
    }
    Ok(Requirement::Exists(key(term)?))
}

fn parse_fields(
    text: &str,
    selectable: &[String],
) -> Result<Vec<(String, bool, String)>, ApiError> {
    let mut fields = Vec::new();
    for term in text.split(',').map(str::trim).filter(|term| !term.is_empty()) {
        let (path, equal, value) = if let Some((path, value)) = term.split_once("!=") {
            (path, false, value)
        } else if let Some((path, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
            (path, true, value)
        } else {
            return Err(ApiError::bad_request(format!(
                "invalid selector: '{text}'; can't understand '{term}'"
            )));
        };
        if !matches!(path, "metadata.name" | "metadata.namespace")
            && !selectable.iter().any(|known| known == path)
        {
            return Err(ApiError::bad_request(format!("field label not supported: {path}")));
        }
        fields.push((path.to_owned(), equal, value.to_owned()));
    }
    Ok(fields)
}

/// The paths for field selectors of a built-in kind, in addition to name and namespace.
pub fn fields_of(plural: &str) -> Vec<String> {
    let fields: &[&str] = match plural {
        "pods" => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
            "spec.hostNetwork",
        ],
        "events" => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "reportingController",
        ],
        "nodes" => &["spec.unschedulable"],
        "secrets" => &["type"],
        "namespaces" => &["status.phase"],
        "services" => &["spec.clusterIP", "spec.type"],
        _ => &[],
    };
    fields.iter().map(|field| (*field).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn label_selectors_match_as_documented() {
        let object = json!({"metadata": {"labels": {"app": "a", "tier": "edge"}}});
        let table = [
            ("", true),
            ("app=a", true),
            ("app==a,tier!=edge", false),
            ("app", true),
            ("none!=a,tier", true),
            ("!app", false),
            ("!none", true),
        ];
        for (text, expected) in table {
            let selector = Selector::parse(text, "", &[]).unwrap();
            assert_eq!(selector.matches(&object), expected, "{text}");
        }
        for text in ["app in (a)", "a b", ","] {
            assert_eq!(Selector::parse(text, "", &[]).unwrap_err().code, 400, "{text}");
        }
    }

    #[test]
    fn field_selectors_refuse_unknown_fields() {
        let fields = fields_of("pods");
        let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "edge0"}});
        assert!(
            Selector::parse("", "spec.nodeName=edge0,metadata.name!=q", &fields)
                .unwrap()
                .matches(&pod)
        );
        assert!(!Selector::parse("", "spec.nodeName==x", &fields).unwrap().matches(&pod));
        let error = Selector::parse("", "spec.foo=x", &fields).unwrap_err();
        assert_eq!(error.message, "field label not supported: spec.foo");
    }
}
