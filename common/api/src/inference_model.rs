//! `InferenceModel` of `sedna.io/v1alpha1`: a model behind a serving endpoint.

mod status;

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::status::{
    InferenceModelStatus, NodeServer, ServerCounts, ServingFailure, ServingProgress,
    TransitionStatus,
};
use crate::{
    EnvFromSource, ModelReference, Placement, ResourceRequirements, Rollout, SecretReference,
    SecurityContext, Transformer, Volume, VolumeMount, WorkerVariable, rules, schema,
};

/// InferenceModelSpec describes which model is served, on which node, and by which server.
///
/// A model is deployed as a container image that contains server and model, as a manifest of model
/// files of which the server of the framework serves targetVersion, or as the file of a Model. If
/// image is set, manifest, targetVersion and model are ignored.
#[derive(
    CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema,
)]
#[kube(
    group = "sedna.io",
    version = "v1alpha1",
    kind = "InferenceModel",
    plural = "inferencemodels",
    shortname = "im",
    category = "neptune",
    namespaced,
    status = "InferenceModelStatus",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    derive = "PartialEq",
    doc = "InferenceModel is a serving endpoint for one model, in the cloud (replicas behind a Service) or on an edge node.",
    printcolumn(
        name = "Layer",
        type_ = "string",
        description = "Layer that serves the model: cloud or edge",
        json_path = ".spec.deployToLayer"
    ),
    printcolumn(
        name = "Node",
        type_ = "string",
        description = "Node that serves the model",
        json_path = ".status.node"
    ),
    printcolumn(
        name = "Target",
        type_ = "string",
        description = "Desired version",
        json_path = ".status.targetVersion"
    ),
    printcolumn(
        name = "Serving",
        type_ = "string",
        description = "Version that serves requests",
        json_path = ".status.servingVersion"
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        description = "State of the update from the serving to the target version",
        json_path = ".status.transitionStatus"
    ),
    printcolumn(
        name = "Progress",
        type_ = "string",
        description = "Progress and rate of the download of the target version",
        json_path = ".status.progress.summary"
    ),
    printcolumn(
        name = "Rollout",
        type_ = "string",
        description = "Nodes that are ready with the last change, of all nodes, or Paused",
        json_path = ".status.rollout.summary"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        description = "Whether requests are served",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        priority = 1
    ),
    printcolumn(
        name = "URL",
        type_ = "string",
        description = "URL of the endpoint",
        json_path = ".status.url",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::never_null)]
#[x_kube(
    validation = rules::manifest_given(),
    validation = rules::versions_named(),
    validation = rules::versions_unique(),
    validation = rules::files_addressed(),
    validation = rules::digests_formed(),
    validation = rules::manifest_mirrors_verified(),
    validation = rules::model_or_manifest(),
    validation = rules::target_given(),
    validation = rules::target_listed(),
    validation = rules::no_target_with_model(),
    validation = rules::edge_placed(),
    validation = rules::image_has_no_version(),
    validation = rules::serving_ports_differ(),
    validation = rules::transformer_port_differs(),
    validation = rules::transformer_has_no_grpc()
)]
pub struct InferenceModelSpec {
    /// modelName is the name under which the model is served.
    #[schemars(length(max = 63), regex(pattern = schema::FILE_NAME))]
    pub model_name: String,
    /// deployToLayer is where the model is served: cloud or edge.
    #[schemars(extend("enum" = ["cloud", "edge"]))]
    pub deploy_to_layer: String,
    /// frameworkType is the framework whose server serves the model, such as tensorflow.
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub framework_type: String,
    /// nodeSelector selects the node that serves the model by its labels. At the edge, one of the
    /// edge nodes that match is chosen and kept. Ignored if nodeName is set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// placement is on how many of the edge nodes that match nodeSelector the model is served. One:
    /// on one of them. All: on each of them, at most 10000; status.servers lists them. Nodes may join
    /// and leave. It has no effect with nodeName, and on a Deployment in the cloud. Defaults to One.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// nodeName is the name of the node that serves the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN_OR_EMPTY))]
    #[x_kube(validation = rules::node_name_not_reserved())]
    pub node_name: Option<String>,
    /// image is a container image that contains server and model. Leave it empty to serve the
    /// manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    pub image: Option<String>,
    /// manifest lists the versions that can be served.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub manifest: Vec<InferenceModelFile>,
    /// model refers to a Model that is served instead of a manifest. The version is the first 12
    /// hex digits of its sha256sum, as a decimal number if the server accepts only numbers. A
    /// changed Model is another version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelReference>,
    /// targetVersion is the version in manifest to serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub target_version: Option<String>,
    /// servingPort is the port of the endpoint, 1 to 65535. If it is not set, the model is not
    /// served. At the edge it is a port of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub serving_port: Option<i32>,
    /// grpcPort is the port of the gRPC of the server, if it has one. The server of the framework
    /// gets it as {grpcPort}. A gateway with gRPC needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub grpc_port: Option<i32>,
    /// replicas is the number of server Pods in the cloud. At the edge one server runs per node, or
    /// none if it is 0. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    // The scale subresource needs a value.
    #[schemars(range(min = 0), extend("default" = 1))]
    pub replicas: Option<i32>,
    /// health is the health check of the server, and the probation of a new version. Defaults to
    /// the check of the framework, or to a TCP connection to servingPort.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<ServingHealth>,
    /// serviceType is the type of the Service in the cloud: NodePort, ClusterIP or LoadBalancer.
    /// Defaults to NodePort.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["", "NodePort", "ClusterIP", "LoadBalancer"]))]
    pub service_type: Option<String>,
    /// server changes the server of the framework.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerOverrides>,
    /// transformer is a program before the server, which changes requests and answers. It listens on
    /// servingPort, and the server on another port that is not published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transformer: Option<Box<Transformer>>,
    /// securityContext changes the rights of the containers of the server and the transformer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<SecurityContext>,
    /// imagePullSecrets are Secrets with the credentials for the registry of the server's image, of
    /// the type kubernetes.io/dockerconfigjson. An agent uses those that have the label
    /// neptune.io/edge: allowed before the credentials of its node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::unique_names)]
    pub image_pull_secrets: Vec<SecretReference>,
    /// credentialsSecret is the Secret with the credentials for an s3, hf or oci URL in Pods: the keys
    /// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and optionally AWS_SESSION_TOKEN, AWS_REGION
    /// and AWS_ENDPOINT_URL; or HF_TOKEN and optionally HF_ENDPOINT; or .dockerconfigjson, as in a Secret
    /// of the type kubernetes.io/dockerconfigjson. An agent uses the credentials of its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret: Option<SecretReference>,
    /// rollout makes a change reach the servers of placement All in waves. Without it, all nodes get
    /// a change at the same time. It has no effect on a Deployment in the cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Box<Rollout>>,
}

/// ServerOverrides changes the server of the framework.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::mounts_have_volumes(), validation = rules::no_node_labels())]
pub struct ServerOverrides {
    /// image is the image of the server, instead of that of the framework. It has no effect if
    /// spec.image is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    pub image: Option<String>,
    /// args are additional arguments of the server. The placeholders of the framework table, such
    /// as {port}, are replaced in them.
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
}

/// ServingHealth is the health check of a model server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::one_health_check())]
pub struct ServingHealth {
    /// httpPath is the path of an HTTP check: GET returns 200 to 399 when the model is served.
    /// {version} is replaced by the version, {modelName} by modelName.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH), regex(pattern = r"^(/\S*)?$"))]
    pub http_path: Option<String>,
    /// tcp is whether to check only that servingPort accepts TCP connections, instead of the check
    /// of the framework.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<bool>,
    /// periodSeconds is the time between two checks in seconds. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub period_seconds: Option<i32>,
    /// timeoutSeconds is the timeout of one check in seconds. Defaults to 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout_seconds: Option<i32>,
    /// startWithinSeconds is the maximum time from the start of a version to its first successful
    /// check, in seconds. A version that takes longer has failed. Defaults to 120.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub start_within_seconds: Option<i32>,
    /// probationSeconds is how long a new version must be healthy before it becomes the version to
    /// which a failed update is rolled back, in seconds. Defaults to 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400))]
    pub probation_seconds: Option<i32>,
}

/// InferenceModelFile is the file or archive of one version of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InferenceModelFile {
    /// version is the name of the version for targetVersion: letters, digits, '.', '-' and '_'. It
    /// is used as the name of a directory; most servers require a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub version: Option<String>,
    /// downloadURL is the location of the file or archive: http(s)://, s3://bucket/key,
    /// hf://organization/repository@revision/path, oci://registry/repository:tag, or file:// on an edge
    /// node. Files of a repository without a path, and those of an artifact, are a directory; files
    /// selects them. Archives (.tar, .tar.gz, .tgz, .tar.zst, .zip) are extracted.
    #[serde(default, rename = "downloadURL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    pub download_url: Option<String>,
    /// files select the files of a repository or an artifact by patterns such as *.json or weights/**.
    /// An asterisk matches within a name, two match across directories. Without patterns, all files of
    /// an artifact are downloaded, and of a repository all but Markdown, images and .gitattributes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 256)))]
    pub files: Vec<String>,
    /// sha256sum is the SHA-256 of the file or archive, 64 hex digits. A file with another digest
    /// is not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub sha256sum: Option<String>,
    /// mirrors are further addresses of the same content, http(s), s3, hf or oci URLs. They are tried in
    /// order after downloadURL fails, and need sha256sum. Of a repository they are repositories. A change
    /// of mirrors restarts no worker of an agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    // With an image the manifest is ignored, so the CRD must not judge what the controller does not.
    #[schemars(length(max = 8), inner(length(max = schema::MAX_ADDRESS_LENGTH)))]
    pub mirrors: Vec<String>,
}
