//! The rights of a container, and references to Secrets: the fields that several kinds share, in
//! the form of a Pod.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// SecurityContext changes the rights of a container. Without it a Pod runs as user 65532 with a
/// read-only root file system and no capabilities, and a container of neptune-edge with the
/// defaults of that agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecurityContext {
    /// runAsUser is the user ID of the processes. In Pods it is also the group ID. Defaults to
    /// 65532 in Pods, and to the agent's --worker-user in its containers. 0 in a Pod also requires
    /// runAsNonRoot: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4_294_967_294_i64), extend("format" = "int64"))]
    pub run_as_user: Option<i64>,
    /// runAsNonRoot: false allows a Pod to run as root. Without runAsUser the Pod then runs as the
    /// user of the image. Pods only. Defaults to true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_non_root: Option<bool>,
    /// readOnlyRootFilesystem: false makes the root file system of the container writable. /tmp is
    /// always writable. Defaults to true in Pods, and to the agent's --worker-read-only-root in its
    /// containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only_root_filesystem: Option<bool>,
    /// allowPrivilegeEscalation: true allows a process to gain more rights than its parent. Pods
    /// only. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_privilege_escalation: Option<bool>,
    /// capabilities are Linux capabilities that the container keeps. All others are dropped. Pods
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    /// seccompProfile restricts the system calls. Pods only. Defaults to RuntimeDefault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seccomp_profile: Option<SeccompProfile>,
}

/// Capabilities are Linux capabilities of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Capabilities {
    /// add lists the capabilities that the container keeps, such as NET_BIND_SERVICE.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 64), regex(pattern = "^[A-Z][A-Z0-9_]*$")))]
    pub add: Vec<String>,
}

/// SeccompProfile restricts the system calls of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SeccompProfile {
    /// type is RuntimeDefault for the profile of the container runtime, or Unconfined for none.
    #[serde(rename = "type")]
    pub type_: SeccompType,
}

/// SeccompType is a seccomp profile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SeccompType {
    /// The profile of the container runtime.
    #[default]
    RuntimeDefault,
    /// The container has no seccomp profile.
    Unconfined,
}

/// SecretReference refers to a Secret in the namespace of the object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretReference {
    /// name is the name of the Secret.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub name: String,
}
