//! Label and field selectors: parsing and matching. Pure.

use serde_json::Value;

use crate::object;
use crate::status::ApiError;

#[derive(Debug, Clone, PartialEq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
    Above(String, i64),
    Below(String, i64),
}

/// Which objects a list, watch or delete of a collection concerns.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Selector {
    labels: Vec<Requirement>,
    /// Dotted path, whether it must equal, value.
    fields: Vec<(String, bool, String)>,
}

impl Selector {
    /// `selectable` are the paths that the kind's field selectors may name.
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
            Self::In(key, values) => {
                label(key).is_some_and(|value| values.iter().any(|wanted| wanted == value))
            }
            Self::NotIn(key, values) => {
                label(key).is_none_or(|value| values.iter().all(|wanted| wanted != value))
            }
            Self::Exists(key) => label(key).is_some(),
            Self::Missing(key) => label(key).is_none(),
            Self::Above(key, bound) => label(key)
                .and_then(|value| value.parse().ok())
                .is_some_and(|value: i64| value > *bound),
            Self::Below(key, bound) => label(key)
                .and_then(|value| value.parse().ok())
                .is_some_and(|value: i64| value < *bound),
        }
    }
}

/// Splits at commas outside parentheses.
fn split_terms(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut terms) = (0_i32, 0, Vec::new());
    for (position, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                terms.push(text[start..position].trim());
                start = position + 1;
            }
            _ => {}
        }
    }
    terms.push(text[start..].trim());
    terms
}

fn parse_labels(text: &str) -> Result<Vec<Requirement>, ApiError> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    split_terms(text).into_iter().map(parse_label_term).collect()
}

fn parse_label_term(term: &str) -> Result<Requirement, ApiError> {
    let bad = || {
        ApiError::bad_request(format!(
            "unable to parse requirement: found '{term}', expected: identifier"
        ))
    };
    let key = |text: &str| {
        let text = text.trim();
        match crate::names::qualified_fault(text) {
            None => Ok(text.to_owned()),
            Some(fault) => Err(ApiError::bad_request(format!(
                "unable to parse requirement: <nil>: Invalid value: {text:?}: {fault}"
            ))),
        }
    };
    let one = |text: &str| {
        let text = text.trim();
        match crate::names::label_value_fault(text) {
            None => Ok(vec![text.to_owned()]),
            Some(fault) => Err(ApiError::bad_request(format!(
                "unable to parse requirement: values[0][{text}]: Invalid value: {text:?}: {fault}"
            ))),
        }
    };
    if let Some(rest) = term.strip_prefix('!') {
        return Ok(Requirement::Missing(key(rest)?));
    }
    if let Some((left, right)) = term.split_once("!=") {
        return Ok(Requirement::NotIn(key(left)?, one(right)?));
    }
    if let Some((left, right)) = term.split_once("==").or_else(|| term.split_once('=')) {
        return Ok(Requirement::In(key(left)?, one(right)?));
    }
    if let Some((left, right)) = term.split_once('>') {
        return Ok(Requirement::Above(key(left)?, right.trim().parse().map_err(|_| bad())?));
    }
    if let Some((left, right)) = term.split_once('<') {
        return Ok(Requirement::Below(key(left)?, right.trim().parse().map_err(|_| bad())?));
    }
    if let Some((head, values)) = term.split_once('(') {
        let values = values.strip_suffix(')').ok_or_else(bad)?;
        let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
        let mut words = head.split_whitespace();
        return match (words.next(), words.next(), words.next()) {
            (Some(name), Some("in"), None) => Ok(Requirement::In(key(name)?, values)),
            (Some(name), Some("notin"), None) => Ok(Requirement::NotIn(key(name)?, values)),
            _ => Err(bad()),
        };
    }
    if term.is_empty() {
        return Err(bad());
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

/// The paths that field selectors of a built-in kind may name, beside its name and namespace.
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
        let object = json!({"metadata": {"labels": {"app": "a", "tier": "edge", "n": "5"}}});
        let table = [
            ("", true),
            ("app=a", true),
            ("app==a,tier!=edge", false),
            ("app in (a, b)", true),
            ("app notin (a,b)", false),
            ("none notin (a)", true),
            ("app", true),
            ("!app", false),
            ("!none", true),
            ("n>4", true),
            ("n<5", false),
            ("app in (a),tier", true),
        ];
        for (text, expected) in table {
            let selector = Selector::parse(text, "", &[]).unwrap();
            assert_eq!(selector.matches(&object), expected, "{text}");
        }
        for text in ["app in a", "a b", ",", "app in (a"] {
            assert_eq!(Selector::parse(text, "", &[]).unwrap_err().code, 400, "{text}");
        }
    }

    #[test]
    fn field_selectors_know_their_fields() {
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
