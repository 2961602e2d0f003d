//! Warns of a gateway that every program that reaches its node can use. Pure.

use neptune_api::JointInferenceService;

use crate::joint_inference_service::spec::forms::{gateway_settings, has_gateway};

/// The warning about an exposed gateway without keys or without TLS.
pub fn open_gateway(service: &JointInferenceService) -> Option<String> {
    let gateway = gateway_settings(service);
    if !has_gateway(service) || gateway.expose != Some(true) {
        return None;
    }
    let lacks = match (gateway.clients.is_empty(), gateway.tls.is_none()) {
        (false, false) => return None,
        (true, true) => {
            "clients and tls: every program that reaches a node can spend the budget of uploads, and others can read requests"
        }
        (true, false) => {
            "clients: every program that reaches a node can spend the budget of uploads"
        }
        (false, true) => "tls: others can read requests and their keys on the way",
    };
    Some(format!("GatewayOpen: spec.gateway has expose: true without {lacks}; set what is missing"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::joint_inference_service::fixtures;

    fn warning(gateway: &Value) -> Option<String> {
        let mut service = fixtures::assistant();
        service.spec.gateway = serde_json::from_value(gateway.clone()).unwrap();
        open_gateway(&service)
    }

    #[test]
    fn exposed_gateway_without_keys_or_tls_is_open() {
        let clients = json!([{"name": "a", "keySha256": ["0a".repeat(32)]}]);
        let tls = json!({"certFile": "c", "keyFile": "k"});
        for (gateway, text) in [
            (json!({"expose": true}), Some("without clients and tls: ")),
            (json!({"expose": true, "tls": tls}), Some("without clients: ")),
            (json!({"expose": true, "clients": clients}), Some("without tls: ")),
            (json!({"expose": true, "clients": clients, "tls": tls}), None),
            (json!({"expose": false}), None),
            (json!({}), None),
        ] {
            let warning = warning(&gateway);
            assert_eq!(warning.is_some(), text.is_some(), "{gateway}");
            let shown = warning.unwrap_or_default();
            assert!(shown.contains(text.unwrap_or_default()), "{shown}");
            // Longer ones are truncated.
            assert!(shown.len() <= 256, "{}", shown.len());
        }
        let mut service = fixtures::service();
        service.spec.gateway = serde_json::from_value(json!({"expose": true})).unwrap();
        assert_eq!(open_gateway(&service), None, "it has no gateway");
    }
}
