//! A program before a model server, which changes requests and answers.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{EnvironmentVariable, KeyValue, ResourceRequirements, rules, schema};

/// Transformer is a program between the clients and a model server. It listens on the port of the
/// endpoint, and calls the model server on a port that only it and the agent use. Both are started,
/// checked, updated and rolled back together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::transformer_program(),
    validation = rules::transformer_script(),
    validation = rules::transformer_framework()
)]
pub struct Transformer {
    /// image is the container image. Without scriptDir, its entry point is the transformer. With
    /// scriptDir, it replaces the image of the framework.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    pub image: Option<String>,
    /// scriptDir is the directory with the scripts on the node: an absolute path, mounted read-only
    /// at the same path. An agent mounts it only below its --allow-script-dir. Not available in
    /// Pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    pub script_dir: Option<String>,
    /// scriptBootFile is the script to start, relative to scriptDir.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    pub script_boot_file: Option<String>,
    /// frameworkType is the name of a framework in the ConfigMap neptune-frameworks, which starts
    /// the script. kserve is a transformer that is built with the Python SDK of KServe: with style
    /// Auto it gets the arguments of KServe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub framework_type: Option<String>,
    /// frameworkVersion is the version of the framework, as in the tag of its image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub framework_version: Option<String>,
    /// parameters are the parameters of the transformer. It receives each one in an environment
    /// variable (the key in upper case, with '_' in place of characters other than letters and
    /// digits), and all of them in PARAMETERS, a JSON list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::unique_keys)]
    pub parameters: Vec<KeyValue>,
    /// args are the arguments of the transformer. {port} is replaced by the port on which it
    /// listens, {serverPort} by that of the model server, and {modelName} by the name of the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(max = schema::MAX_ADDRESS_LENGTH)))]
    pub args: Vec<String>,
    /// env are additional environment variables. They take precedence over parameters. The
    /// variables that Neptune sets (such as PREDICTOR_URL and PORT) cannot be set here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::unique_names)]
    pub env: Vec<EnvironmentVariable>,
    /// resources are the resource limits of the transformer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// style is how the transformer learns where the model server is. Env: from environment
    /// variables. KServe: also from the arguments that KServe adds, such as --predictor_host. Auto:
    /// as KServe if the framework is kserve, otherwise as Env. Defaults to Auto.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub style: Option<TransformerStyle>,
    /// port is the port of the model server behind the transformer. At the edge it is a port of the
    /// node, which must be free. Chosen if it is 0 or not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub port: Option<i32>,
}

/// TransformerStyle is the way in which a transformer learns the address of the model server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TransformerStyle {
    /// The framework decides between Env and KServe.
    #[default]
    Auto,
    /// The transformer reads environment variables, and the arguments that KServe adds.
    KServe,
    /// The transformer reads environment variables only.
    Env,
}
