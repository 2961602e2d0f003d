//! Defaults and rules of `ValidatingWebhookConfiguration`s. Pure; what the webhooks are asked is in `webhook`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::validate::{check_choice, check_port};
use crate::field::{FieldError, index, join};
use crate::names::is_subdomain;
use crate::object::strings;

const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];

/// Fills in what a webhook does not say.
pub fn defaults(configuration: &mut Value) {
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

/// What is wrong with a configuration.
pub fn check(configuration: &Value, errors: &mut Vec<FieldError>) {
    let mut names = BTreeSet::new();
    for (position, webhook) in list(&configuration["webhooks"]).iter().enumerate() {
        let path = index("webhooks", position);
        let name = text(&webhook["name"]);
        check_name(name, &join(&path, "name"), errors);
        if !names.insert(name) {
            errors.push(FieldError::duplicate(&join(&path, "name"), name));
        }
        check_webhook(webhook, &path, errors);
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn check_name(name: &str, path: &str, errors: &mut Vec<FieldError>) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if !is_subdomain(name) {
        errors.push(FieldError::invalid(path, name, "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character"));
    } else if name.split('.').count() < 3 {
        errors.push(FieldError::invalid(
            path,
            name,
            "should be a domain with at least three segments separated by dots",
        ));
    }
}

fn check_webhook(webhook: &Value, path: &str, errors: &mut Vec<FieldError>) {
    check_choice(webhook, "failurePolicy", path, &["Fail", "Ignore"], errors);
    check_choice(webhook, "matchPolicy", path, &["Equivalent", "Exact"], errors);
    check_choice(webhook, "sideEffects", path, &["None", "NoneOnDryRun"], errors);
    if webhook["sideEffects"].is_null() {
        let detail = "must specify one of None, NoneOnDryRun";
        errors.push(FieldError::required(&join(path, "sideEffects"), detail));
    }
    if let Some(seconds) = webhook["timeoutSeconds"].as_i64().filter(|s| !(1..=30).contains(s)) {
        errors.push(FieldError::invalid(
            &join(path, "timeoutSeconds"),
            seconds,
            "the timeout value must be between 1 and 30 seconds",
        ));
    }
    let versions = strings(&webhook["admissionReviewVersions"]);
    let path_of_versions = join(path, "admissionReviewVersions");
    if versions.is_empty() {
        let detail = "must specify one of v1, v1beta1";
        errors.push(FieldError::required(&path_of_versions, detail));
    } else if !versions.iter().any(|version| matches!(*version, "v1" | "v1beta1")) {
        errors.push(FieldError::invalid(
            &path_of_versions,
            webhook["admissionReviewVersions"].clone(),
            "must include at least one of v1, v1beta1",
        ));
    }
    if !list(&webhook["matchConditions"]).is_empty() {
        let detail = "this devcluster does not evaluate match conditions";
        errors.push(FieldError::forbidden(&join(path, "matchConditions"), detail));
    }
    for (position, rule) in list(&webhook["rules"]).iter().enumerate() {
        check_rule(rule, &index(&join(path, "rules"), position), errors);
    }
    check_client(&webhook["clientConfig"], &join(path, "clientConfig"), errors);
}

fn check_rule(rule: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for field in ["operations", "apiGroups", "apiVersions", "resources"] {
        let path = join(path, field);
        let given = strings(&rule[field]);
        if given.is_empty() {
            errors.push(FieldError::required(&path, ""));
        }
        if field != "resources" && given.len() > 1 && given.contains(&"*") {
            let detail = "if '*' is present, must not specify other values";
            errors.push(FieldError::invalid(&path, rule[field].clone(), detail));
        }
        for (position, entry) in given.iter().enumerate() {
            let path = index(&path, position);
            if entry.is_empty() && field != "apiGroups" {
                errors.push(FieldError::required(&path, ""));
            }
            if field == "operations" && !OPERATIONS.contains(entry) {
                errors.push(FieldError::unsupported(&path, *entry, &OPERATIONS));
            }
        }
    }
    check_choice(rule, "scope", path, &["*", "Cluster", "Namespaced"], errors);
}

fn check_client(config: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let service = &config["service"];
    match (config["url"].as_str(), service.is_null()) {
        (Some(url), true) => check_url(url, &join(path, "url"), errors),
        (None, false) => {
            let path = join(path, "service");
            for field in ["name", "namespace"] {
                if text(&service[field]).is_empty() {
                    errors.push(FieldError::required(&join(&path, field), ""));
                }
            }
            if let Some(below) = service["path"].as_str().filter(|path| !path.starts_with('/')) {
                let detail = "must start with a '/'";
                errors.push(FieldError::invalid(&join(&path, "path"), below, detail));
            }
            check_port(&service["port"], &join(&path, "port"), errors);
        }
        _ => {
            let detail = "exactly one of url or service is required";
            errors.push(FieldError::required(path, detail));
        }
    }
}

fn check_url(url: &str, path: &str, errors: &mut Vec<FieldError>) {
    const FORM: &str = "; desired format: https://host[/path]";
    let mut refuse =
        |why: &str| errors.push(FieldError::invalid(path, url, format!("{why}{FORM}")));
    let Some(rest) = url.strip_prefix("https://") else {
        return refuse("'https' is the only allowed URL scheme");
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.is_empty() {
        refuse("host must be specified");
    }
    for (sign, what) in [("@", "user information"), ("#", "fragments"), ("?", "query parameters")] {
        let place = if sign == "@" { authority } else { rest };
        if place.contains(sign) {
            refuse(&format!("{what} are not permitted in the URL"));
        }
    }
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
        defaults(&mut configuration);
        configuration
    }

    #[test]
    fn what_is_left_out_is_what_the_api_server_fills_in() {
        let configuration = configuration();
        let webhook = &configuration["webhooks"][0];
        assert_eq!(webhook["failurePolicy"], "Fail");
        assert_eq!(webhook["matchPolicy"], "Equivalent");
        assert_eq!(webhook["timeoutSeconds"], 10);
        assert_eq!(webhook["rules"][0]["scope"], "*");
    }

    #[test]
    fn what_an_api_server_refuses_is_refused() {
        let service = json!({"service": {"name": "s", "namespace": "n", "port": 443}});
        let table: &[(&str, Value, &str)] = &[
            ("/name", json!("webhook"), "at least three segments"),
            ("/name", json!("A.b.c"), "RFC 1123"),
            ("/sideEffects", Value::Null, "webhooks[0].sideEffects: Required value"),
            ("/sideEffects", json!("Some"), "Unsupported value: \"Some\""),
            ("/timeoutSeconds", json!(31), "between 1 and 30"),
            ("/failurePolicy", json!("Open"), "failurePolicy"),
            ("/admissionReviewVersions", json!([]), "must specify one of v1"),
            ("/admissionReviewVersions", json!(["v2"]), "must include at least one"),
            ("/rules/0/operations", json!(["PATCH"]), "rules[0].operations[0]"),
            ("/rules/0/operations", json!(["*", "CREATE"]), "if '*' is present"),
            ("/rules/0/resources", json!([]), "rules[0].resources: Required value"),
            ("/rules/0/scope", json!("Node"), "rules[0].scope"),
            ("/clientConfig", json!({}), "exactly one of url or service"),
            ("/clientConfig/service", service["service"].clone(), "exactly one of url or service"),
            ("/clientConfig/url", json!("http://h/"), "only allowed URL scheme"),
            ("/clientConfig/url", json!("https:///x"), "host must be specified"),
            ("/clientConfig/url", json!("https://h/?a=b"), "query parameters"),
            ("/clientConfig/url", json!("https://u:p@h/"), "user information"),
            ("/matchConditions", json!([{"name": "x", "expression": "true"}]), "match conditions"),
        ];
        for (place, value, said) in table {
            let mut configuration = configuration();
            let (parent, field) = place.rsplit_once('/').unwrap_or_default();
            let parent = configuration.pointer_mut(&format!("/webhooks/0{parent}"));
            crate::object::fields(parent.expect("is there"))
                .insert(field.to_string(), value.clone());
            let mut errors = Vec::new();
            check(&configuration, &mut errors);
            let shown: Vec<_> = errors.iter().map(FieldError::message).collect();
            assert!(shown.iter().any(|error| error.contains(said)), "{place}: {shown:?}");
        }
        let mut errors = Vec::new();
        check(&configuration(), &mut errors);
        let mut by_service = configuration();
        by_service["webhooks"][0]["clientConfig"] = service;
        check(&by_service, &mut errors);
        assert_eq!(errors, []);
    }
}
