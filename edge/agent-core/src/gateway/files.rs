//! Decides the files of a gateway: the content of its configuration file, and the secrets that it
//! reads. The agent writes them.

use std::path::PathBuf;

use neptune_gateway_config::{
    CaptureMembers, CloudMembers, Document, EdgeMembers, MetricsAddress, NodeMembers, TlsMembers,
};
use neptune_wire::{ContentHash, GatewaySpec};

use crate::{
    desired::WantedWorker,
    domain::gateway_files::{GatewayFiles, SOCKET, TlsNames, secret_name},
    gateway::directories::{CAPTURE_DIR, SECRETS_DIR, STATE_DIR},
};

/// The files of a gateway. `model_version`: the one that its model server serves, if it is known.
pub fn gateway_files(
    wanted: &WantedWorker,
    spec: &GatewaySpec,
    model_version: Option<&str>,
) -> GatewayFiles {
    GatewayFiles {
        service: wanted.owner.clone(),
        worker: wanted.worker.name.clone(),
        config: spec.config.clone(),
        model_version: model_version.map(str::to_owned),
        token: spec.token_file.as_deref().map(secret_name),
        ca: spec.ca_file.as_deref().map(secret_name),
        tls: spec.tls.as_ref().map(|files| TlsNames {
            cert: secret_name(&files.cert_file),
            key: secret_name(&files.key_file),
        }),
        capture: spec.capture_dir.as_ref().map(PathBuf::from),
    }
}

/// The copies of secrets whose names follow their content.
#[derive(Debug, Clone, Copy, Default)]
pub struct CopyNames<'a> {
    /// The copy of the certificate authorities, if there is one.
    pub ca: Option<&'a str>,
    /// The copies of the certificate and of its key, if there are both.
    pub tls: Option<&'a (String, String)>,
}

/// The content of the configuration file. `captures`: whether the container has the directory for
/// captured samples. `before`: the present content.
///
/// A version that is not known now is that of the present content: an agent that restarts does not
/// make the gateway forget what it learnt.
pub fn config_content(
    files: &GatewayFiles,
    copies: CopyNames<'_>,
    captures: bool,
    before: &[u8],
) -> Vec<u8> {
    let secret = |name: &str| PathBuf::from(format!("{SECRETS_DIR}/{name}"));
    let version = || Document::of_file(before).model_version().map(str::to_owned);
    let members = NodeMembers {
        metrics_listen: MetricsAddress::Unix(format!("{STATE_DIR}/{SOCKET}").into()),
        state: format!("{STATE_DIR}/state.json").into(),
        edge: EdgeMembers { model_version: files.model_version.clone().or_else(version) },
        cloud: CloudMembers {
            token_file: files.token.as_ref().and_then(|it| it.as_deref().ok()).map(secret),
            ca_file: copies.ca.map(secret),
        },
        tls: copies.tls.map(|(certificate, key)| TlsMembers {
            cert_file: secret(certificate),
            key_file: secret(key),
        }),
        capture: captures.then(|| CaptureMembers { directory: CAPTURE_DIR.into() }),
    };
    files.config.with(&members).file_content()
}

/// The name of the copy of certificate authorities. Other content has another name, so that the
/// configuration changes with it and the gateway reads it again.
pub fn ca_copy_name(content: &[u8]) -> String {
    format!(".ca-{}.pem", content_name(content))
}

/// The names of the copies of a certificate and its key. A pair with other content has other names,
/// so that the gateway never reads one file of each pair.
pub fn tls_copy_names(certificate: &[u8], key: &[u8]) -> (String, String) {
    let name = content_name(&[certificate, b"\n", key].concat());
    (format!(".tls-{name}.crt"), format!(".tls-{name}.key"))
}

/// The file of a service of which this is a copy with a name by its content.
pub fn source_of_copy<'a>(copy: &str, spec: &'a GatewaySpec) -> Option<&'a str> {
    if copy.starts_with(".ca-") {
        return spec.ca_file.as_deref();
    }
    let tls = spec.tls.as_ref().filter(|_| copy.starts_with(".tls-"))?;
    let is_key = copy.rsplit_once('.').is_some_and(|(_, end)| end == "key");
    Some(if is_key { &tls.key_file } else { &tls.cert_file })
}

fn content_name(content: &[u8]) -> String {
    let hash = ContentHash::compute(&String::from_utf8_lossy(content));
    hash.as_str()[..16].to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::wanted_gateway;

    fn spec() -> GatewaySpec {
        *wanted_gateway().worker.gateway.unwrap()
    }

    fn content(files: &GatewayFiles, ca: Option<&str>, before: &str) -> Value {
        let copies = CopyNames { ca, ..CopyNames::default() };
        serde_json::from_slice(&config_content(files, copies, false, before.as_bytes())).unwrap()
    }

    #[test]
    fn agent_sets_what_only_the_node_knows() {
        let files = gateway_files(&wanted_gateway(), &spec(), Some("3"));
        assert_eq!(files.token, Some(Ok("llm".to_owned())));
        let config = content(&files, Some("ca.pem"), "");
        assert_eq!(config["metricsListen"], "unix:/var/lib/neptune-gateway/gateway.sock");
        assert_eq!(config["state"], "/var/lib/neptune-gateway/state.json");
        assert_eq!(config["edge"], json!({"address": "127.0.0.1:9001", "modelVersion": "3"}));
        let secrets = "/etc/neptune-gateway-secrets";
        assert_eq!(config["cloud"]["tokenFile"], format!("{secrets}/llm"));
        assert_eq!(config["cloud"]["caFile"], format!("{secrets}/ca.pem"));
        assert_eq!(config["service"], "s", "the rest is the controller's");

        let without = GatewaySpec { token_file: None, ..spec() };
        let config = content(&gateway_files(&wanted_gateway(), &without, None), None, "");
        assert_eq!(config["cloud"], json!({"url": "https://llm.example"}));
        assert_eq!(config["edge"], json!({"address": "127.0.0.1:9001"}));
    }

    #[test]
    fn capture_needs_its_directory() {
        let mut spec = spec();
        let mut config = serde_json::to_value(&spec.config).unwrap();
        config["capture"] = json!({"maxBytes": 5});
        spec.config = serde_json::from_value(config).unwrap();
        spec.capture_dir = Some("/data/hard".into());
        let files = gateway_files(&wanted_gateway(), &spec, None);
        assert_eq!(files.capture, Some("/data/hard".into()));
        let config = |captures| -> Value {
            serde_json::from_slice(&config_content(&files, CopyNames::default(), captures, b""))
                .unwrap()
        };
        let directory = "/var/lib/neptune-capture";
        assert_eq!(config(true)["capture"], json!({"maxBytes": 5, "directory": directory}));
        assert_eq!(config(false).get("capture"), None);
    }

    #[test]
    fn unknown_version_is_the_one_before() {
        let before = r#"{"edge": {"modelVersion": "2"}}"#;
        let version = |known, before| {
            content(&gateway_files(&wanted_gateway(), &spec(), known), None, before)["edge"]["modelVersion"].clone()
        };
        assert_eq!(version(None, before), "2");
        assert_eq!(version(Some("3"), before), "3");
        for damaged in ["", "{", "[]", r#"{"edge": 1}"#] {
            assert_eq!(version(None, damaged), Value::Null, "{damaged}");
        }
    }

    #[test]
    fn invalid_name_of_a_secret_is_not_in_the_configuration() {
        let escape = GatewaySpec { token_file: Some("../../shadow".into()), ..spec() };
        let files = gateway_files(&wanted_gateway(), &escape, None);
        assert!(files.token.clone().unwrap().is_err());
        assert!(!content(&files, None, "").to_string().contains("shadow"));
    }

    #[test]
    fn certificate_is_named_only_with_both_files() {
        let mut spec = spec();
        let mut config = serde_json::to_value(&spec.config).unwrap();
        config["tls"] = json!({"certFile": "web.crt", "keyFile": "web.key"});
        spec.config = serde_json::from_value(config.clone()).unwrap();
        spec.tls = serde_json::from_value(config["tls"].clone()).unwrap();
        let files = gateway_files(&wanted_gateway(), &spec, None);
        let tls = |copies| -> Value {
            let content = config_content(&files, copies, false, b"");
            serde_json::from_slice::<Value>(&content).unwrap()["tls"].clone()
        };
        // The names of the service are no paths in the container: the gateway reports them.
        assert_eq!(tls(CopyNames::default()), config["tls"]);
        let names = tls_copy_names(b"certificate", b"key");
        let secrets = "/etc/neptune-gateway-secrets";
        let paths = json!({
            "certFile": format!("{secrets}/{}", names.0), "keyFile": format!("{secrets}/{}", names.1),
        });
        assert_eq!(tls(CopyNames { tls: Some(&names), ..CopyNames::default() }), paths);
        let other = tls_copy_names(b"certificate", b"key2");
        assert!(names.0 != other.0 && names.1 != other.1, "both names change");
        assert_eq!(source_of_copy(&names.0, &spec), Some("web.crt"));
        assert_eq!(source_of_copy(&names.1, &spec), Some("web.key"));
        assert_eq!(source_of_copy("llm", &spec), None);
    }

    #[test]
    fn copy_of_authorities_is_named_by_content() {
        assert_eq!(ca_copy_name(b"a"), ca_copy_name(b"a"));
        assert_ne!(ca_copy_name(b"a"), ca_copy_name(b"b"));
        // No secret of a service has such a name.
        assert!(secret_name(&ca_copy_name(b"a")).is_err());
    }
}
