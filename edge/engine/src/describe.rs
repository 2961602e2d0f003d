//! Describes containers for people who look for a fault, without what may be secret: environment,
//! arguments, and labels of images.

use std::collections::BTreeMap;

use neptune_agent_core::domain::{broker_login::PASSWORD_DIGEST, problem::Problem};
use neptune_wire::NodeName;
use serde::{Deserialize, Serialize};

use crate::docker::{Docker, labels_of};

/// The beginning of the labels that an agent sets.
const OWN_LABELS: &str = "io.neptune.";

/// What is shown of a container. Other fields of the engine's description are dropped.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ContainerDescription {
    /// The ID of the container.
    pub id: String,
    /// The name of the container, which begins with `/`.
    #[serde(default)]
    pub name: String,
    /// When it was created.
    #[serde(default)]
    created: String,
    /// The ID of its image.
    #[serde(default)]
    image: String,
    #[serde(default)]
    state: StateDescription,
    #[serde(default)]
    mounts: Option<Vec<MountDescription>>,
    #[serde(default)]
    host_config: HostDescription,
    #[serde(default)]
    config: ConfigDescription,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct StateDescription {
    status: String,
    exit_code: i64,
    #[serde(rename = "OOMKilled")]
    oom_killed: bool,
    error: String,
    started_at: String,
    finished_at: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct MountDescription {
    r#type: String,
    source: Option<String>,
    destination: String,
    #[serde(rename = "RW")]
    writable: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct HostDescription {
    network_mode: String,
    memory: i64,
    nano_cpus: i64,
    pids_limit: Option<i64>,
    readonly_rootfs: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ConfigDescription {
    image: String,
    user: String,
    working_dir: String,
    labels: Option<BTreeMap<String, String>>,
}

impl Docker {
    /// The containers of a node. One that vanishes meanwhile is left out.
    ///
    /// # Errors
    /// The engine does not answer.
    pub async fn describe(&self, node: &NodeName) -> Result<Vec<ContainerDescription>, Problem> {
        let listed = self.socket().list(&labels_of(node)).await;
        let listed = listed.map_err(|error| self.problem(&error))?;
        let mut described = Vec::new();
        for container in listed {
            let description = self.socket().inspect_as(&container.id).await;
            let description: Option<ContainerDescription> =
                description.map_err(|error| self.problem(&error))?;
            described.extend(description.map(ContainerDescription::without_secrets));
        }
        Ok(described)
    }
}

impl ContainerDescription {
    /// Drops the labels of the image, and the digest of the worker's password.
    fn without_secrets(mut self) -> Self {
        if let Some(labels) = &mut self.config.labels {
            labels.retain(|name, _| name.starts_with(OWN_LABELS) && name != PASSWORD_DIGEST);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn environment_arguments_and_foreign_labels_are_dropped() {
        let inspected = json!({
            "Id": "1", "Name": "/neptune-edge0-w", "Created": "2026-11-24T06:00:00Z", "Image": "sha256:ab",
            "Path": "secret1", "Args": ["--token=secret2"],
            "State": {"Status": "exited", "ExitCode": 3, "Health": {"Log": [{"Output": "secret3"}]}},
            "Mounts": [{"Type": "bind", "Source": "/srv", "Destination": "/data", "RW": true}],
            "HostConfig": {"NetworkMode": "host", "Memory": 1, "Binds": ["secret4"]},
            "Config": {
                "Env": ["PASSWORD=secret5"], "Cmd": ["secret6"], "Entrypoint": ["secret7"], "Image": "i:1",
                "Labels": {"io.neptune.worker": "w", "token": "secret8", (PASSWORD_DIGEST): "secret9"},
            },
        });
        let described: ContainerDescription = serde_json::from_value(inspected).unwrap();
        let text = serde_json::to_string(&described.without_secrets()).unwrap();
        assert!(!text.contains("secret"), "{text}");
        for kept in ["exited", "/srv", "host", "i:1", "io.neptune.worker"] {
            assert!(text.contains(kept), "{kept} in {text}");
        }
    }
}
