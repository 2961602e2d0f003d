//! `EdgeNode` of `neptune.io/v1alpha1`: a node with an agent, and the key by which others know it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// EdgeNodeSpec is what a person decides about a node. The controller changes it only when the node
/// joins with a token that a person made.
#[derive(
    CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema,
)]
#[kube(
    group = "neptune.io",
    version = "v1alpha1",
    kind = "EdgeNode",
    plural = "edgenodes",
    shortname = "en",
    status = "EdgeNodeStatus",
    derive = "PartialEq",
    doc = "EdgeNode is a node on which an agent of Neptune runs. Its name is the name of the node; its labels select the node, together with those of the Node of the same name.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        description = "Whether the agent is connected and reports no problem of the node",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Version",
        type_ = "string",
        description = "Version of the agent",
        json_path = ".status.agentVersion"
    ),
    printcolumn(
        name = "Engine",
        type_ = "string",
        description = "Container engine and its version",
        json_path = ".status.engine"
    ),
    printcolumn(
        name = "Devices",
        type_ = "string",
        description = "Free and offered devices of each resource",
        json_path = ".status.deviceSummary"
    ),
    printcolumn(
        name = "Key",
        type_ = "string",
        description = "Reason of the KeyTrusted condition: KeyInUse, or why no reported key is used",
        json_path = r#".status.conditions[?(@.type=="KeyTrusted")].reason"#
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::never_null)]
pub struct EdgeNodeSpec {
    /// trustedKey is the only key of the node that is used: sha256: and the SHA-256 of its public
    /// key, as neptune-edge doctor prints it on the node. Without it, the first key that the
    /// controller sees is used, unless the controller runs with --require-known-keys. kubectl
    /// neptune trust NODE sets it, and the controller when the node joins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::KEY_PIN_LENGTH), regex(pattern = schema::KEY_PIN))]
    pub trusted_key: Option<String>,
    /// certificateSerials are the serial numbers of the certificates with which the node joined,
    /// each as 16 hex digits, the newest last. The broker refuses all but the last one, and that one
    /// while revoked is true. The controller adds them; keep them in backups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        inner(length(max = 16), regex(pattern = "^[0-7][0-9a-f]{15}$")),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub certificate_serials: Vec<String>,
    /// revoked is whether the node is excluded: its messages are dropped, nothing is published to
    /// it, and it has no part in any placement. kubectl neptune revoke NODE sets it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoked: bool,
    /// requiresNode is whether the node exists only while a Node of the same name exists. It is
    /// true on EdgeNodes that the controller made for a Node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub requires_node: bool,
}

/// EdgeNodeStatus is what the controller knows of a node. It is at least 10 seconds old, and
/// changes at most once a minute, except for the keys.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EdgeNodeStatus {
    /// online is whether the agent was connected at the last write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub online: Option<bool>,
    /// transitionTime is when online changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transition_time: Option<Time>,
    /// agentVersion is the version of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// engine is the container engine and its version, as of the last report that had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// address is the address at which the workers of the node can be reached, as the agent reports
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// capacity is the size of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<EdgeNodeCapacity>,
    /// devices are the devices that the agent offers to workers, by resource.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["resource"])
    )]
    pub devices: Vec<EdgeNodeDevice>,
    /// deviceSummary is devices in one line, for kubectl get: the free and the offered ones of each
    /// resource, such as nvidia.com/gpu 0/1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_summary: Option<String>,
    /// supports are the parts of tasks that the agent understands, such as devices, volumes, logs and
    /// restart. Earlier agents ignore parts that they do not know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub supports: Vec<String>,
    /// remoteLogs are the kinds of containers whose logs may leave the node, as its operator decides
    /// with --remote-logs of the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub remote_logs: Vec<String>,
    /// trustedKey is the first key that the controller saw. It is used unless spec.trustedKey is
    /// set. A controller with --require-known-keys neither writes nor uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::KEY_PIN_LENGTH), regex(pattern = schema::KEY_PIN))]
    pub trusted_key: Option<String>,
    /// reportedKey is another key, which the node reports and which is not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::KEY_PIN_LENGTH), regex(pattern = schema::KEY_PIN))]
    pub reported_key: Option<String>,
    /// secretsKey is the key whose owner gets Secrets, unless spec.trustedKey is set: the first one
    /// that the controller saw. Another one waits for kubectl neptune trust NODE.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::KEY_PIN_LENGTH), regex(pattern = schema::KEY_PIN))]
    pub secrets_key: Option<String>,
    /// problems are problems of the node that concern all of its objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub problems: Vec<EdgeNodeProblem>,
    /// conditions of the node. Ready is True while its agent is connected and reports no problem.
    /// KeyTrusted is True while the key that the node reports is used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// EdgeNodeCapacity is the size of the machine of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EdgeNodeCapacity {
    /// cpus is the number of CPUs.
    pub cpus: i32,
    /// memoryBytes is the size of the memory in bytes.
    pub memory_bytes: i64,
}

/// EdgeNodeDevice is what a node offers of one resource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EdgeNodeDevice {
    /// resource is the name under which workers request the devices, such as nvidia.com/gpu.
    pub resource: String,
    /// total is how many devices the operator of the node allows.
    pub total: i32,
    /// free is how many devices are present and in no container.
    pub free: i32,
    /// missing is how many devices are not present.
    pub missing: i32,
}

/// EdgeNodeProblem is a problem of a node that concerns all of its objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EdgeNodeProblem {
    /// reason is the problem, as conditions name it.
    pub reason: String,
    /// message is what is wrong, what the agent does meanwhile, and the remedy.
    pub message: String,
}
