//! The program of a worker that the user provides.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;
use crate::{
    EnvFromSource, Probe, ResourceRequirements, SecretReference, SecurityContext, Volume,
    VolumeMount, WorkerParameter, WorkerVariable, schema,
};

/// WorkerSpec describes the program of a worker: a script that runs on a framework, or a program in
/// its own image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::of_script("scriptDir", "the absolute path of the scripts on the node"),
    validation = rules::of_script("scriptBootFile", "the script to start, relative to scriptDir"),
    validation = rules::of_script("frameworkVersion", "the version of the framework"),
    validation = rules::of_image("command"),
    validation = rules::of_image("args"),
    validation = rules::of_image("workingDir"),
    validation = crate::rules::mounts_have_volumes(),
    validation = rules::one_success("startupProbe"),
    validation = rules::one_success("livenessProbe")
)]
pub struct WorkerSpec {
    /// scriptDir is the directory with the scripts on the node of the worker: an absolute path,
    /// mounted read-only at the same path. An agent mounts it only below its --allow-script-dir, a
    /// Pod only below the controller's --allow-host-path. Not used with frameworkType container, and
    /// required otherwise.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    pub script_dir: String,
    /// scriptBootFile is the script to start, relative to scriptDir. With frameworkType container
    /// it is the first argument of the entry point of the image instead, and not required.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    pub script_boot_file: String,
    /// frameworkType is the name of a framework in the ConfigMap neptune-frameworks. Built in are
    /// tensorflow, pytorch, python, and container for a program in workerSpec.image.
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub framework_type: String,
    /// frameworkVersion is the version of the framework, as in the tag of its image. Not required
    /// with frameworkType container.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub framework_version: String,
    /// parameters are the parameters of the worker. The worker receives each one in an environment
    /// variable (the key in upper case, with '_' in place of characters other than letters and
    /// digits), and all of them in PARAMETERS, a JSON list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::unique_keys)]
    pub parameters: Vec<WorkerParameter>,
    /// image is the container image, instead of that of the framework.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    pub image: Option<String>,
    /// command replaces the entry point of the image. Only with frameworkType container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub command: Vec<String>,
    /// args are the arguments of the entry point, after scriptBootFile if that is set. Only with
    /// frameworkType container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub args: Vec<String>,
    /// workingDir is the working directory of the program, an absolute path. Only with frameworkType
    /// container. Defaults to that of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH), regex(pattern = "^/"))]
    pub working_dir: Option<String>,
    /// resources are the resource limits of the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// env are additional environment variables. They take precedence over parameters. The
    /// variables that Neptune sets (such as SERVICE_NAME and MODEL_URL) cannot be set here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::unique_names)]
    pub env: Vec<WorkerVariable>,
    /// envFrom are Secrets and ConfigMaps of which each key becomes an environment variable. Of two
    /// variables with one name, the later entry has precedence, and parameters and env have
    /// precedence over both.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::env_from)]
    pub env_from: Vec<EnvFromSource>,
    /// restartPolicy is when the worker is started again after it exits. Always: after every exit.
    /// OnFailure: after an exit with another exit code than 0; with 0 the worker is completed.
    /// Never: not at all. A finished worker runs again when its container changes, such as its
    /// workerSpec or its model. Workers in Pods are always restarted. Defaults to OnFailure for
    /// the edge worker and to Always for the cloud worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<RestartPolicy>,
    /// modelUpdate is how the worker is updated when its model changes. Restart: the container is
    /// replaced. Reload: the worker keeps running and receives the path of the new version on
    /// WORKER_RELOAD_TOPIC; it is restarted if it has not loaded that version within a minute.
    /// Workers in Pods, and workers whose model is a path on the node, are always restarted.
    /// Defaults to Restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_update: Option<ModelUpdate>,
    /// securityContext changes the rights of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<SecurityContext>,
    /// volumes are the directories and files that volumeMounts mount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::volumes)]
    pub volumes: Vec<Volume>,
    /// volumeMounts are the places where the container mounts volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::volume_mounts)]
    pub volume_mounts: Vec<VolumeMount>,
    /// startupProbe is run until it succeeds; before, the other probes are not run. If it fails, the
    /// worker is restarted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_probe: Option<Box<Probe>>,
    /// livenessProbe is run while the worker runs. If it fails, the worker is restarted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness_probe: Option<Box<Probe>>,
    /// readinessProbe decides when the worker is ready. At an agent the worker is Pending until it
    /// succeeds, and it is not run afterwards. In a Pod it replaces the check that the port of the
    /// cloud worker is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<Box<Probe>>,
    /// terminationGracePeriodSeconds is the time between SIGTERM and SIGKILL when the container is
    /// stopped, in seconds: 0 to 600. Defaults to 10 at an agent, and to 30 in a Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 600))]
    pub termination_grace_period_seconds: Option<i32>,
    /// imagePullSecrets are Secrets with the credentials for the registry of the image, of the type
    /// kubernetes.io/dockerconfigjson. An agent uses those that have the label neptune.io/edge:
    /// allowed before the credentials of its node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::unique_names)]
    pub image_pull_secrets: Vec<SecretReference>,
}

/// RestartPolicy is when a worker is started again after it exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RestartPolicy {
    /// The worker is started after every exit.
    Always,
    /// The worker is started after an exit with another exit code than 0.
    OnFailure,
    /// The worker is never started again.
    Never,
}

/// ModelUpdate is how a worker is updated when its model changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ModelUpdate {
    /// The container is replaced.
    #[default]
    Restart,
    /// The worker loads the model while it runs.
    Reload,
}
