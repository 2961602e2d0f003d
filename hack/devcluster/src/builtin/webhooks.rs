//! Defaults and validation of `ValidatingWebhookConfiguration`s. Pure; `webhook` calls the
//! webhooks.

use serde_json::{Value, json};

use crate::field::{FieldError, check_choice, index, join};
use crate::object::strings;

const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];

/// Sets the defaults of a configuration.
pub fn apply_defaults(configuration: &mut Value) {
    let webhooks = configuration.get_mut("webhooks").and_then(Value::as_array_mut);
    for webhook in webhooks.into_iter().flatten().filter_map(Value::as_object_mut) {
        for (field, value) in [
            ("failurePolicy", json!("Fail")),
            ("matchPolicy", json!("Equivalent")),
            ("namespaceSelector", json!({})),
            ("objectSelector", json!({})),
            ("timeoutSeconds", json!(10)),
        ] {
            webhook.entry(field).or_insert(value);
        }
        let rules = webhook.get_mut("rules").and_then(Value::as_array_mut);
        for rule in rules.into_iter().flatten().filter_map(Value::as_object_mut) {
            rule.entry("scope").or_insert(json!("*"));
        }
        let service = webhook.get_mut("clientConfig").and_then(|config| config.get_mut("service"));
        if let Some(service) = service.and_then(Value::as_object_mut) {
            service.entry("port").or_insert(json!(443));
        }
    }
}

/// Adds the violations of a configuration.
pub fn check(configuration: &Value, errors: &mut Vec<FieldError>) {
    let webhooks = configuration["webhooks"].as_array().into_iter().flatten();
    for (position, webhook) in webhooks.enumerate() {
        check_webhook(webhook, &index("webhooks", position), errors);
    }
}

fn check_webhook(webhook: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if webhook["name"].as_str().unwrap_or_default().split('.').count() < 3 {
        errors.push(FieldError::invalid(
            &join(path, "name"),
            webhook["name"].clone(),
            "should be a domain with at least three segments separated by dots",
        ));
    }
    check_choice(webhook, "failurePolicy", path, &["Fail", "Ignore"], errors);
    check_choice(webhook, "sideEffects", path, &["None", "NoneOnDryRun"], errors);
    if webhook["sideEffects"].is_null() {
        let detail = "must specify one of None, NoneOnDryRun";
        errors.push(FieldError::required(&join(path, "sideEffects"), detail));
    }
    if !strings(&webhook["admissionReviewVersions"]).contains(&"v1") {
        errors.push(FieldError::invalid(
            &join(path, "admissionReviewVersions"),
            webhook["admissionReviewVersions"].clone(),
            "must include at least one of v1, v1beta1",
        ));
    }
    for field in ["matchConditions", "namespaceSelector", "objectSelector"] {
        let is_empty = match &webhook[field] {
            Value::Array(conditions) => conditions.is_empty(),
            Value::Object(selector) => selector.is_empty(),
            _ => true,
        };
        if !is_empty {
            let detail = format!("devcluster does not evaluate {field}");
            errors.push(FieldError::forbidden(&join(path, field), &detail));
        }
    }
    for (position, rule) in webhook["rules"].as_array().into_iter().flatten().enumerate() {
        check_rule(rule, &index(&join(path, "rules"), position), errors);
    }
    let client = &webhook["clientConfig"];
    let path = join(path, "clientConfig");
    match (client["url"].as_str(), client["service"].is_null()) {
        (Some(url), true) if !url.starts_with("https://") => {
            let detail =
                "'https' is the only allowed URL scheme; desired format: https://host[/path]";
            errors.push(FieldError::invalid(&join(&path, "url"), url, detail));
        }
        (Some(_), true) | (None, false) => {}
        _ => errors.push(FieldError::required(&path, "exactly one of url or service is required")),
    }
}

fn check_rule(rule: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for field in ["operations", "apiGroups", "apiVersions", "resources"] {
        if strings(&rule[field]).is_empty() {
            errors.push(FieldError::required(&join(path, field), ""));
        }
    }
    for (position, operation) in strings(&rule["operations"]).into_iter().enumerate() {
        if !OPERATIONS.contains(&operation) {
            let path = index(&join(path, "operations"), position);
            errors.push(FieldError::unsupported(&path, operation, &OPERATIONS));
        }
    }
    check_choice(rule, "scope", path, &["*", "Cluster", "Namespaced"], errors);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration() -> Value {
        let mut configuration = json!({"webhooks": [{
            "name": "a.b.c", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://127.0.0.1:9443/validate"},
            "rules": [{"operations": ["CREATE"], "apiGroups": ["g.io"], "apiVersions": ["v1"], "resources": ["things"]}],
        }]});
        apply_defaults(&mut configuration);
        configuration
    }

    fn messages(configuration: &Value) -> Vec<String> {
        let mut errors = Vec::new();
        check(configuration, &mut errors);
        errors.iter().map(FieldError::message).collect()
    }

    #[test]
    fn missing_fields_get_defaults() {
        let configuration = configuration();
        let webhook = &configuration["webhooks"][0];
        assert_eq!(webhook["failurePolicy"], "Fail");
        assert_eq!(webhook["timeoutSeconds"], 10);
        assert_eq!(webhook["rules"][0]["scope"], "*");
    }

    #[test]
    fn invalid_configuration_is_refused() {
        let table: &[(&str, Value, &str)] = &[
            ("/name", json!("webhook"), "at least three segments"),
            ("/sideEffects", Value::Null, "webhooks[0].sideEffects: Required value"),
            ("/failurePolicy", json!("Open"), "failurePolicy"),
            ("/admissionReviewVersions", json!([]), "must include at least one"),
            ("/rules/0/operations", json!(["PATCH"]), "rules[0].operations[0]"),
            ("/rules/0/resources", json!([]), "rules[0].resources: Required value"),
            ("/rules/0/scope", json!("Node"), "rules[0].scope"),
            ("/clientConfig", json!({}), "exactly one of url or service"),
            ("/clientConfig/service", json!({"name": "s"}), "exactly one of url or service"),
            ("/clientConfig/url", json!("http://h/"), "only allowed URL scheme"),
            ("/matchConditions", json!([{"name": "x"}]), "does not evaluate matchConditions"),
            ("/objectSelector", json!({"matchLabels": {"a": "b"}}), "evaluate objectSelector"),
        ];
        assert_eq!(messages(&configuration()), [""; 0]);
        for (place, value, expected) in table {
            let mut configuration = configuration();
            let (parent, field) = place.rsplit_once('/').unwrap_or_default();
            let parent = configuration.pointer_mut(&format!("/webhooks/0{parent}"));
            crate::object::fields(parent.expect("a field of the fixture"))
                .insert(field.to_owned(), value.clone());
            let faults = messages(&configuration);
            assert!(faults.iter().any(|message| message.contains(expected)), "{place}: {faults:?}");
        }
    }
}
