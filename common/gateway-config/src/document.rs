//! A configuration on its way from the controller through the agent to the gateway, whose versions
//! may differ.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Config, MetricsAddress};

/// A configuration as the controller sends it.
///
/// An agent of another version passes on the members and values that it does not know: only the
/// gateway decides whether it can run with them, and reports what it cannot use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Document(Value);

impl From<&Config> for Document {
    fn from(config: &Config) -> Self {
        Self(serde_json::to_value(config).expect("a configuration has only texts as keys"))
    }
}

/// The members that only the node of the gateway knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeMembers {
    /// Address of the metrics page, see [`Config::metrics_listen`].
    pub metrics_listen: MetricsAddress,
    /// Path of the state file, see [`Config::state`].
    pub state: PathBuf,
    /// The members of [`Config::edge`].
    pub edge: EdgeMembers,
    /// The members of [`Config::cloud`].
    pub cloud: CloudMembers,
    /// The members of [`Config::tls`], if their files are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsMembers>,
    /// The member of [`Config::capture`]; `None` removes `capture`.
    pub capture: Option<CaptureMembers>,
}

/// What only the node knows of [`crate::Edge`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EdgeMembers {
    /// The version that the model server serves, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_version: Option<String>,
}

/// What only the node knows of [`crate::Cloud`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CloudMembers {
    /// The file with the token, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// The file with certificate authorities, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
}

/// What only the node knows of [`crate::Tls`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsMembers {
    /// The file with the certificate.
    pub cert_file: PathBuf,
    /// The file with its key.
    pub key_file: PathBuf,
}

/// What only the node knows of [`crate::CaptureConfig`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CaptureMembers {
    /// The directory of the records.
    pub directory: PathBuf,
}

impl Document {
    /// The configuration with the members of the node. A section that it does not have gets none:
    /// the gateway names what is missing.
    #[must_use]
    pub fn with(&self, members: &NodeMembers) -> Self {
        let members = serde_json::to_value(members).expect("members have only texts as keys");
        let mut config = self.0.clone();
        set(&mut config, members);
        Self(config)
    }

    /// The content of the configuration file.
    pub fn file_content(&self) -> Vec<u8> {
        format!("{:#}\n", self.0).into_bytes()
    }

    /// The configuration of a file; an empty one if the file is damaged.
    pub fn of_file(content: &[u8]) -> Self {
        serde_json::from_slice(content).unwrap_or_default()
    }

    /// Version of the edge's model, see [`crate::Edge::model_version`].
    pub fn model_version(&self) -> Option<&str> {
        self.0.pointer("/edge/modelVersion")?.as_str()
    }

    /// Maximum size of a body, see [`crate::Limits::max_body_bytes`].
    pub fn max_body_bytes(&self) -> Option<u64> {
        self.0.pointer("/limits/maxBodyBytes")?.as_u64()
    }

    /// Address of the cloud's model server, see [`crate::Cloud::url`].
    pub fn cloud_url(&self) -> Option<&str> {
        self.0.pointer("/cloud/url")?.as_str()
    }

    /// Address of the cloud's gRPC, see [`crate::Cloud::grpc_url`].
    pub fn cloud_grpc_url(&self) -> Option<&str> {
        self.0.pointer("/cloud/grpcUrl")?.as_str()
    }

    /// Addresses of host names, see [`crate::Cloud::addresses`].
    pub fn cloud_addresses(&self) -> BTreeMap<String, IpAddr> {
        let members = self.0.pointer("/cloud/addresses").and_then(Value::as_object);
        let address = |(host, address): (&String, &Value)| {
            Some((host.clone(), address.as_str()?.parse().ok()?))
        };
        members.into_iter().flatten().filter_map(address).collect()
    }
}

/// Sets the members of an object and of the objects in it. `null` removes a member.
fn set(target: &mut Value, members: Value) {
    let (Value::Object(target), Value::Object(members)) = (target, members) else { return };
    for (name, value) in members {
        match value {
            Value::Null => drop(target.remove(&name)),
            Value::Object(_) => {
                if let Some(section) = target.get_mut(&name) {
                    set(section, value);
                }
            }
            value => drop(target.insert(name, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn document(value: Value) -> Document {
        serde_json::from_value(value).unwrap()
    }

    fn members() -> NodeMembers {
        NodeMembers {
            metrics_listen: "unix:/s/gateway.sock".parse().unwrap(),
            state: "/s/state.json".into(),
            edge: EdgeMembers { model_version: Some("3".to_owned()) },
            cloud: CloudMembers {
                token_file: Some("/secrets/llm".into()),
                ca_file: Some("/secrets/ca".into()),
            },
            tls: Some(TlsMembers { cert_file: "/secrets/c".into(), key_file: "/secrets/k".into() }),
            capture: Some(CaptureMembers { directory: "/hard".into() }),
        }
    }

    fn minimal() -> Value {
        json!({
            "service": "s", "protocol": "oip", "edge": {"address": "127.0.0.1:9001"},
            "cloud": {"url": "https://llm.example", "addresses": {"llm.example": "192.0.2.1"}},
            "capture": {}, "limits": {"maxBodyBytes": 5}, "tls": {"certFile": "c", "keyFile": "k"},
        })
    }

    #[test]
    fn members_of_the_node_are_those_of_the_configuration() {
        let file = document(minimal()).with(&members()).file_content();
        let config = Config::parse(&file).unwrap();
        let members = members();
        assert_eq!(config.metrics_listen.as_ref(), Some(&members.metrics_listen));
        assert_eq!(config.state, Some(members.state));
        assert_eq!(config.edge.model_version, members.edge.model_version);
        let cloud = config.cloud.unwrap();
        assert_eq!(cloud.token_file, members.cloud.token_file);
        assert_eq!(cloud.ca_file, members.cloud.ca_file);
        let (tls, files) = (config.tls.unwrap(), members.tls.unwrap());
        assert_eq!((tls.cert_file, tls.key_file), (files.cert_file, files.key_file));
        assert_eq!(config.capture.unwrap().directory, members.capture.unwrap().directory);

        let read = Document::of_file(&file);
        assert_eq!(read.model_version(), Some("3"));
        assert_eq!(read.max_body_bytes(), u64::try_from(config.limits.max_body_bytes).ok());
        assert_eq!(read.cloud_url(), Some(&*cloud.url));
        assert_eq!(read.cloud_grpc_url(), None);
        let grpc = document(json!({"cloud": {"grpcUrl": "https://llm.example:9000"}}));
        assert_eq!(grpc.cloud_grpc_url(), Some("https://llm.example:9000"));
        assert_eq!(read.cloud_addresses(), cloud.addresses);
    }

    #[test]
    fn capture_without_a_directory_is_removed() {
        let members = NodeMembers { capture: None, ..members() };
        let config = document(minimal()).with(&members);
        assert_eq!(Config::parse(&config.file_content()).unwrap().capture, None);
    }

    #[test]
    fn unknown_members_and_values_of_a_newer_controller_are_passed_on() {
        let newer = json!({
            "protocol": "smtp", "queue": {"length": 3},
            "edge": {"address": "127.0.0.1:9001", "weight": 2}, "cloud": {"url": ["a", "b"]},
        });
        let sent = document(newer.clone()).with(&members());
        let mut expected = newer;
        expected["metricsListen"] = "unix:/s/gateway.sock".into();
        expected["state"] = "/s/state.json".into();
        expected["edge"]["modelVersion"] = "3".into();
        expected["cloud"]["tokenFile"] = "/secrets/llm".into();
        expected["cloud"]["caFile"] = "/secrets/ca".into();
        assert_eq!(sent, document(expected));
        assert_eq!((sent.cloud_url(), sent.max_body_bytes()), (None, None));
    }

    #[test]
    fn malformed_configuration_is_left_to_the_gateway() {
        for config in [json!(null), json!([1]), json!("x")] {
            assert_eq!(document(config.clone()).with(&members()), document(config));
        }
        let sections = json!({"edge": 1, "cloud": "x"});
        let sent = serde_json::to_value(document(sections).with(&members())).unwrap();
        assert_eq!((&sent["edge"], &sent["cloud"]), (&json!(1), &json!("x")));
        assert_eq!(Document::of_file(b"{"), Document::default());
    }
}
