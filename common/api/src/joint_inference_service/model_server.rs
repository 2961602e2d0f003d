//! A model server that Neptune runs for a model of the service.

use kube::KubeSchema;
use neptune_gateway_config::Protocol;
use serde::{Deserialize, Serialize};

use crate::{
    EnvFromSource, ResourceRequirements, SecurityContext, Transformer, Volume, VolumeMount,
    WorkerVariable, rules, schema,
};

/// ModelServer is the server of a framework for a model. It runs as an InferenceModel that the
/// service owns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::mounts_have_volumes(), validation = rules::no_node_labels())]
pub struct ModelServer {
    /// frameworkType is the name of a framework with a model server in the ConfigMap
    /// neptune-frameworks. Built in are llamacpp, ollama, onnx, openvino, tensorflow, triton and
    /// vllm.
    #[schemars(length(min = 1, max = schema::MAX_TOKEN_LENGTH))]
    pub framework_type: String,
    /// image is the image of the server, instead of that of the framework.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    pub image: Option<String>,
    /// args are additional arguments of the server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(max = schema::MAX_ADDRESS_LENGTH)))]
    pub args: Vec<String>,
    /// resources are the resource limits of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// env are additional environment variables of the server. The variables that Neptune sets (such
    /// as MODEL_URL and SERVING_PORT) cannot be set here. valueFrom has no nodeLabel here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::unique_names)]
    pub env: Vec<WorkerVariable>,
    /// envFrom are Secrets and ConfigMaps of which each key becomes an environment variable of the
    /// server. Of two variables with one name, the later entry has precedence, and env has precedence
    /// over both.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::env_from)]
    pub env_from: Vec<EnvFromSource>,
    /// volumes are the directories and files that volumeMounts mount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::volumes)]
    pub volumes: Vec<Volume>,
    /// volumeMounts are the places where the container of the server mounts volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::volume_mounts)]
    pub volume_mounts: Vec<VolumeMount>,
    /// protocol is the protocol of the server: openai, oip or tfserving. Defaults to that of the
    /// framework.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// transformer is a program between the gateway and the server, which changes requests and
    /// answers. The gateway reads the confidence from its answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transformer: Option<Box<Transformer>>,
    /// securityContext changes the rights of the containers of the server and the transformer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<SecurityContext>,
}
