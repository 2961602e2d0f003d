//! A model server that Neptune runs for a model of the service.

use neptune_gateway_config::Protocol;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ResourceRequirements, SecurityContext, Transformer, schema};

/// ModelServer is the server of a framework for a model. It runs as an InferenceModel that the
/// service owns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
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
