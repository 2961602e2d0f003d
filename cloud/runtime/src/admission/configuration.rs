//! The `ValidatingWebhookConfiguration`: the hosts and the CA bundle of an existing one, or a whole
//! one for a controller outside of the cluster. Pure.

use k8s_openapi::{
    ByteString,
    api::admissionregistration::v1::{
        RuleWithOperations, ValidatingWebhook, ValidatingWebhookConfiguration, WebhookClientConfig,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Resource;
use neptune_cloud_kinds::each_kind;
use serde_json::{Value, json};

/// The name of the webhook. `kubectl` prints it with a denial.
pub const WEBHOOK: &str = "validate.neptune.io";

/// Timeout of a call. Below the API server's timeout for a write.
const TIMEOUT_SECONDS: i32 = 5;

/// The host names that the API server connects to, from the Services in the configuration. Sorted.
pub fn hosts(configuration: &ValidatingWebhookConfiguration) -> Vec<String> {
    let services = clients(configuration).filter_map(|client| client.service.as_ref());
    let mut hosts: Vec<_> =
        services.map(|service| format!("{}.{}.svc", service.name, service.namespace)).collect();
    hosts.sort();
    hosts.dedup();
    hosts
}

/// Whether the CA bundle of each webhook contains this authority.
pub fn trusts(configuration: &ValidatingWebhookConfiguration, authority: &str) -> bool {
    clients(configuration).all(|client| {
        let bundle = client.ca_bundle.as_ref().map(|bundle| String::from_utf8_lossy(&bundle.0));
        bundle.is_some_and(|bundle| bundle.contains(authority))
    })
}

fn clients(
    configuration: &ValidatingWebhookConfiguration,
) -> impl Iterator<Item = &WebhookClientConfig> {
    configuration.webhooks.iter().flatten().map(|webhook| &webhook.client_config)
}

/// The strategic merge patch that sets each webhook's CA bundle; `None` if all are equal to it.
pub fn trust_patch(configuration: &ValidatingWebhookConfiguration, bundle: &str) -> Option<Value> {
    let bundle = ByteString(bundle.as_bytes().to_vec());
    let webhooks = configuration.webhooks.iter().flatten();
    let outdated: Vec<_> = webhooks
        .filter(|webhook| webhook.client_config.ca_bundle.as_ref() != Some(&bundle))
        .map(|webhook| json!({"name": webhook.name, "clientConfig": {"caBundle": bundle}}))
        .collect();
    (!outdated.is_empty()).then(|| json!({ "webhooks": outdated }))
}

/// A complete configuration, for a controller outside of the cluster.
pub fn full_configuration(name: &str, url: &str, bundle: &str) -> ValidatingWebhookConfiguration {
    ValidatingWebhookConfiguration {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        webhooks: Some(vec![ValidatingWebhook {
            name: WEBHOOK.to_owned(),
            client_config: WebhookClientConfig {
                url: Some(url.to_owned()),
                ca_bundle: Some(ByteString(bundle.as_bytes().to_vec())),
                service: None,
            },
            rules: Some(rules()),
            // Without an answer, writes pass; the conditions report the same findings.
            failure_policy: Some("Ignore".to_owned()),
            match_policy: Some("Equivalent".to_owned()),
            side_effects: "None".to_owned(),
            timeout_seconds: Some(TIMEOUT_SECONDS),
            admission_review_versions: vec!["v1".to_owned()],
            ..ValidatingWebhook::default()
        }]),
    }
}

/// Whether a configuration equals [`full_configuration`], except for the selectors, which others
/// may set.
pub fn is_up_to_date(
    configuration: &ValidatingWebhookConfiguration,
    desired: &ValidatingWebhookConfiguration,
) -> bool {
    let bare = |configuration: &ValidatingWebhookConfiguration| {
        let mut webhooks = configuration.webhooks.clone().unwrap_or_default();
        for webhook in &mut webhooks {
            (webhook.namespace_selector, webhook.object_selector) = (None, None);
        }
        webhooks
    };
    bare(configuration) == bare(desired)
}

/// The rules that match all registered kinds.
fn rules() -> Vec<RuleWithOperations> {
    let mut rules: Vec<RuleWithOperations> = Vec::new();
    let some = |text: std::borrow::Cow<str>| Some(vec![text.into_owned()]);
    each_kind!(K => {
        let (groups, versions) = (some(K::group(&())), some(K::version(&())));
        let plural = K::plural(&()).into_owned();
        match rules.iter_mut().find(|rule| rule.api_groups == groups && rule.api_versions == versions) {
            Some(rule) => rule.resources.get_or_insert_default().push(plural),
            None => rules.push(RuleWithOperations {
                api_groups: groups,
                api_versions: versions,
                operations: Some(vec!["CREATE".to_owned(), "UPDATE".to_owned()]),
                resources: Some(vec![plural]),
                scope: Some("Namespaced".to_owned()),
            }),
        }
    });
    rules
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

    use super::*;

    fn manifest_configuration() -> ValidatingWebhookConfiguration {
        let manifest = include_str!("../../../../build/deploy/base/webhook.yaml");
        let document = manifest.split("\n---\n").find(|text| text.contains("kind: Validating"));
        serde_saphyr::from_str(document.unwrap()).unwrap()
    }

    #[test]
    fn manifest_has_the_same_rules_as_the_code() {
        let (manifest, code) =
            (manifest_configuration(), full_configuration("neptune", "https://h/validate", ""));
        let comparable = |configuration: ValidatingWebhookConfiguration| {
            let mut webhook = configuration.webhooks.unwrap().pop().unwrap();
            webhook.client_config = WebhookClientConfig::default();
            webhook
        };
        assert_eq!(manifest.metadata.name, code.metadata.name);
        assert_eq!(comparable(manifest), comparable(code));
    }

    #[test]
    fn hosts_are_the_services_of_the_configuration() {
        assert_eq!(hosts(&manifest_configuration()), ["neptune-webhook.neptune-system.svc"]);
        assert_eq!(hosts(&full_configuration("x", "https://h/", "")), Vec::<String>::new());
    }

    #[test]
    fn ca_bundle_is_patched_only_where_it_differs() {
        let mut configuration = manifest_configuration();
        assert!(!trusts(&configuration, "a;"));
        let patch = trust_patch(&configuration, "a;b;").unwrap();
        let entry = &patch["webhooks"][0];
        assert_eq!(entry["name"], WEBHOOK);
        let patched: ByteString =
            serde_json::from_value(entry["clientConfig"]["caBundle"].clone()).unwrap();
        configuration.webhooks.as_mut().unwrap()[0].client_config.ca_bundle = Some(patched);
        assert!(trusts(&configuration, "b;"));
        assert_eq!(trust_patch(&configuration, "a;b;"), None);
    }

    #[test]
    fn defaults_set_by_the_api_server_are_no_difference() {
        let desired = full_configuration("neptune", "https://h/validate", "a;");
        let mut existing = desired.clone();
        existing.webhooks.as_mut().unwrap()[0].namespace_selector = Some(LabelSelector::default());
        assert!(is_up_to_date(&existing, &desired));
        existing.webhooks.as_mut().unwrap()[0].client_config.url =
            Some("https://other/".to_owned());
        assert!(!is_up_to_date(&existing, &desired));
    }
}
