//! Decides the files of a gateway: its directory, the content of its configuration file, and the
//! secrets that it reads. Pure; `writer.rs` writes them.

use std::path::PathBuf;

use neptune_wire::{ContentHash, GatewaySpec};
use serde_json::{Value, json};

use crate::{
    desired::WantedWorker,
    domain::{
        gateway_files::{GatewayDir, GatewayFiles, SOCKET, secret_name},
        node_context::{GATEWAYS_DIR, NodeContext},
    },
    gateway::container::{CAPTURE_DIR, SECRETS_DIR, STATE_DIR},
};

/// The directory of a gateway. A recreated object of the same name has another UID, and with it
/// another directory.
pub fn gateway_dir(wanted: &WantedWorker, context: &NodeContext) -> GatewayDir {
    let id = ContentHash::of(&(&wanted.uid, &wanted.worker.name));
    GatewayDir(context.data_dir.join(GATEWAYS_DIR).join(&id.as_str()[..16]))
}

/// The files of a gateway. `model_version`: the one that its model server serves, if it is known.
pub fn gateway_files(
    wanted: &WantedWorker,
    spec: &GatewaySpec,
    model_version: Option<&str>,
) -> GatewayFiles {
    let token = spec.token_file.as_deref().map(secret_name);
    let mut config = spec.config.clone();
    set(&mut config, "metricsListen", &format!("unix:{STATE_DIR}/{SOCKET}"));
    set(&mut config, "state", &format!("{STATE_DIR}/state.json"));
    if let (Some(edge), Some(version)) = (config.get_mut("edge"), model_version) {
        set(edge, "modelVersion", version);
    }
    if let (Some(cloud), Some(Ok(name))) = (config.get_mut("cloud"), &token) {
        set(cloud, "tokenFile", &format!("{SECRETS_DIR}/{name}"));
    }
    GatewayFiles {
        service: wanted.owner.clone(),
        worker: wanted.worker.name.clone(),
        config,
        token,
        ca: spec.ca_file.as_deref().map(secret_name),
        capture: spec.capture_dir.as_ref().map(PathBuf::from),
    }
}

/// The content of the configuration file. `ca`: the name of the copy of the certificate
/// authorities, if there is one. `captures`: whether the container has the directory for captured
/// samples. `before`: the present content.
///
/// A version that is not known now is that of the present content: an agent that restarts does not
/// make the gateway forget what it learnt.
pub fn config_content(
    files: &GatewayFiles,
    ca: Option<&str>,
    captures: bool,
    before: &[u8],
) -> Vec<u8> {
    let mut config = files.config.clone();
    match (config.get_mut("capture"), captures) {
        (Some(capture), true) => set(capture, "directory", CAPTURE_DIR),
        (Some(_), false) => {
            config.as_object_mut().map(|members| members.remove("capture"));
        }
        (None, _) => {}
    }
    if let (Some(cloud), Some(name)) = (config.get_mut("cloud"), ca) {
        set(cloud, "caFile", &format!("{SECRETS_DIR}/{name}"));
    }
    if let Some(edge) = config.get_mut("edge").filter(|edge| edge.get("modelVersion").is_none()) {
        let before: Value = serde_json::from_slice(before).unwrap_or_default();
        if let Some(version) = before["edge"]["modelVersion"].as_str() {
            set(edge, "modelVersion", version);
        }
    }
    let mut text = serde_json::to_vec_pretty(&config).expect("a JSON value can be written");
    text.push(b'\n');
    text
}

/// The name of the copy of certificate authorities. Other content has another name, so that the
/// configuration changes with it and the gateway reads it again.
pub fn ca_copy_name(content: &[u8]) -> String {
    let hash = ContentHash::of(&String::from_utf8_lossy(content));
    format!(".ca-{}.pem", &hash.as_str()[..16])
}

/// Whether a name is one of [`ca_copy_name`].
pub fn is_ca_copy_name(name: &str) -> bool {
    name.starts_with(".ca-")
}

/// Sets a member. What is not an object stays as it is: the gateway names the mistake.
fn set(object: &mut Value, name: &str, value: &str) {
    if let Value::Object(members) = object {
        members.insert(name.to_owned(), json!(value));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixtures::{node_context, wanted_gateway};

    fn spec() -> GatewaySpec {
        *wanted_gateway().worker.gateway.unwrap()
    }

    fn content(files: &GatewayFiles, ca: Option<&str>, before: &str) -> Value {
        serde_json::from_slice(&config_content(files, ca, false, before.as_bytes())).unwrap()
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
        spec.config["capture"] = json!({"maxBytes": 5});
        spec.capture_dir = Some("/data/hard".into());
        let files = gateway_files(&wanted_gateway(), &spec, None);
        assert_eq!(files.capture, Some("/data/hard".into()));
        let config = |captures| -> Value {
            serde_json::from_slice(&config_content(&files, None, captures, b"")).unwrap()
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
    fn malformed_configuration_is_left_to_the_gateway() {
        for config in [json!(null), json!([1]), json!({"edge": 1, "cloud": "x"})] {
            let files = gateway_files(
                &wanted_gateway(),
                &GatewaySpec { config: config.clone(), ..spec() },
                Some("1"),
            );
            let written = content(&files, Some("ca"), "");
            assert_eq!((&written["edge"], &written["cloud"]), (&config["edge"], &config["cloud"]));
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
    fn directory_is_one_of_the_object_and_worker() {
        let (wanted, context) = (wanted_gateway(), node_context());
        let dir = gateway_dir(&wanted, &context);
        assert_eq!(dir.0.parent().unwrap(), context.data_dir.join("gateways"));
        assert_eq!(dir.0.file_name().unwrap().len(), 16);
        let mut recreated = wanted.clone();
        recreated.uid = "another".into();
        assert_ne!(gateway_dir(&recreated, &context), dir);
        assert_eq!(gateway_dir(&wanted, &context), dir);
    }

    #[test]
    fn copy_of_authorities_is_named_by_content() {
        assert_eq!(ca_copy_name(b"a"), ca_copy_name(b"a"));
        assert_ne!(ca_copy_name(b"a"), ca_copy_name(b"b"));
        // No secret of a service has such a name.
        assert!(secret_name(&ca_copy_name(b"a")).is_err());
    }
}
