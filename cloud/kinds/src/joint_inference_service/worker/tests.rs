//! Tests of the findings on programs of the user.
#![allow(clippy::unwrap_used)]

use neptune_api::{
    EmptyDirSource, HostPathSource, JointInferenceService, Limits, PersistentVolumeClaimSource,
    ResourceRequirements, SecretReference, SecurityContext, VariableSource, Volume, VolumeMount,
    WorkerParameter, WorkerSpec, WorkerVariable,
};

use crate::{
    joint_inference_service::cases::{
        Case, assert_findings, change_model, cloud_program, edge_program,
    },
    reason::Reason,
};

pub fn limit(service: &mut JointInferenceService, memory: &str) {
    limit_of(service, "memory", memory);
}

fn limit_of(service: &mut JointInferenceService, name: &str, limit: &str) {
    let limits = [("cpu", "500m"), (name, limit)];
    let limits: Limits = limits.map(|(name, limit)| (name.to_owned(), limit.into())).into();
    edge_program(service).resources = Some(ResourceRequirements { limits: Some(limits) });
}

/// Mounts a volume with the name `data`; an emptyDir if it has no source.
fn volume(worker: &mut WorkerSpec, mut volume: Volume, mount_path: &str) {
    volume.name = "data".to_owned();
    if volume.host_path.is_none() && volume.persistent_volume_claim.is_none() {
        volume.empty_dir = Some(EmptyDirSource::default());
    }
    worker.volumes.push(volume);
    let mount_path = mount_path.to_owned();
    let mount = VolumeMount { name: "data".to_owned(), mount_path, read_only: false };
    worker.volume_mounts.push(mount);
}

fn path(path: &str) -> Volume {
    let source = HostPathSource { path: path.to_owned(), type_: None };
    Volume { host_path: Some(source), ..Volume::default() }
}

pub fn env(service: &mut JointInferenceService, name: &str) {
    let variable = WorkerVariable { name: name.to_owned(), ..WorkerVariable::default() };
    cloud_program(service).env.push(variable);
}

pub const WORKER_CASES: &[Case] = &[
    (
        "model missing",
        |_, f| f.edge_model = None,
        Reason::ModelNotFound,
        "Model \"small-model\" not found in namespace \"default\"; create it or correct spec.edgeWorker.model.name",
    ),
    (
        "big model missing",
        |_, f| f.cloud_model = None,
        Reason::ModelNotFound,
        "spec.cloudWorker.model.name",
    ),
    (
        "broken table",
        |_, f| f.frameworks = Err("line 3".into()),
        Reason::FrameworksInvalid,
        "line 3",
    ),
    (
        "scheme",
        |_, f| change_model(&mut f.edge_model, |m| m.spec.model_url = "ftp://h/m".into()),
        Reason::ModelUrlInvalid,
        "spec.modelUrl \"ftp://h/m\" of Model small-model",
    ),
    (
        "no url",
        |_, f| change_model(&mut f.cloud_model, |m| m.spec.model_url.clear()),
        Reason::ModelUrlInvalid,
        "the address is empty",
    ),
    (
        "digest",
        |_, f| change_model(&mut f.edge_model, |m| m.spec.sha256sum = Some("abc".into())),
        Reason::ModelDigestInvalid,
        "64 hex digits",
    ),
    (
        "framework",
        |s, _| edge_program(s).framework_type = "tensorfow".into(),
        Reason::FrameworkUnknown,
        "is not one of container, python, pytorch, tensorflow",
    ),
    (
        "image",
        |s, _| cloud_program(s).framework_type = "container".into(),
        Reason::ImageRequired,
        "spec.cloudWorker.workerSpec.image is missing",
    ),
    (
        "relative scriptDir",
        |s, _| edge_program(s).script_dir = "code".into(),
        Reason::ScriptDirInvalid,
        "spec.edgeWorker.workerSpec.scriptDir \"code\"",
    ),
    (
        "scriptDir up",
        |s, _| edge_program(s).script_dir = "/code/../etc".into(),
        Reason::ScriptDirInvalid,
        "..",
    ),
    (
        "scriptDir root",
        |s, _| edge_program(s).script_dir = "//".into(),
        Reason::ScriptDirInvalid,
        "not \"/\"",
    ),
    (
        "no script",
        |s, _| edge_program(s).script_boot_file.clear(),
        Reason::ScriptBootFileInvalid,
        "spec.edgeWorker.workerSpec.scriptBootFile",
    ),
    (
        "script up",
        |s, _| edge_program(s).script_boot_file = "../x".into(),
        Reason::ScriptBootFileInvalid,
        "relative to it",
    ),
    (
        "arguments of a script",
        |s, _| edge_program(s).args = vec!["--device".into()],
        Reason::WorkerInvalid,
        "spec.edgeWorker.workerSpec.args is supported only with frameworkType container; remove it",
    ),
    (
        "grace period",
        |s, _| edge_program(s).termination_grace_period_seconds = Some(601),
        Reason::WorkerInvalid,
        "terminationGracePeriodSeconds is 601; it must be 0 to 600 seconds",
    ),
    (
        "probe without an action",
        |s, _| edge_program(s).readiness_probe = Some(Box::default()),
        Reason::WorkerInvalid,
        "spec.edgeWorker.workerSpec.readinessProbe must have exactly one of exec, httpGet and",
    ),
    (
        "mount in the scripts",
        |s, _| volume(edge_program(s), Volume::default(), "/code/cache"),
        Reason::VolumeInvalid,
        "spec.edgeWorker.workerSpec.volumeMounts: mountPath \"/code/cache\" overlaps scriptDir",
    ),
    (
        "claim at an agent",
        |s, _| {
            let claim = PersistentVolumeClaimSource { claim_name: "c".into(), read_only: false };
            let claim = Volume { persistent_volume_claim: Some(claim), ..Volume::default() };
            volume(edge_program(s), claim, "/data");
        },
        Reason::VolumeInvalid,
        "spec.edgeWorker.workerSpec.volumes: volume \"data\" is a persistentVolumeClaim",
    ),
    (
        "path of a Pod's node, writable",
        |s, _| volume(cloud_program(s), path("/code/data"), "/data"),
        Reason::VolumeInvalid,
        "is a hostPath, which a Pod mounts read-only; set readOnly: true",
    ),
    (
        "path of a Pod's node that is not allowed",
        |s, _| {
            volume(cloud_program(s), path("/etc"), "/data");
            cloud_program(s).volume_mounts[0].read_only = true;
        },
        Reason::HostPathNotAllowed,
        "spec.cloudWorker.workerSpec.volumes: volume \"data\": a Pod may not mount \"/etc\"",
    ),
    (
        "duplicate parameter",
        |s, _| {
            let parameters = &mut edge_program(s).parameters;
            parameters.push(WorkerParameter::new("nms_threshold", "0.7"));
        },
        Reason::ParameterDuplicate,
        "duplicate key \"nms_threshold\"",
    ),
    (
        "parameters of one variable",
        |s, _| {
            let parameters = &mut edge_program(s).parameters;
            parameters.push(WorkerParameter::new("nms-threshold", "0.7"));
        },
        Reason::ParameterDuplicate,
        "both become the environment variable NMS_THRESHOLD",
    ),
    (
        "NUL in a parameter, which becomes a variable",
        |s, _| edge_program(s).parameters.push(WorkerParameter::new("a", "b\0")),
        Reason::TextInvalid,
        "spec.edgeWorker.workerSpec.parameters[1].value contains a NUL character",
    ),
    (
        "NUL in a variable",
        |s, _| {
            env(s, "A");
            cloud_program(s).env[0].value = "\0".into();
        },
        Reason::TextInvalid,
        "spec.cloudWorker.workerSpec.env[0].value contains a NUL character, with which no program can be started; remove it",
    ),
    (
        "reserved variable",
        |s, _| env(s, "MODEL_URL"),
        Reason::EnvInvalid,
        "spec.cloudWorker.workerSpec.env: \"MODEL_URL\" is set by Neptune",
    ),
    ("no variable", |s, _| env(s, "1A"), Reason::EnvInvalid, "must be letters"),
    (
        "duplicate variable",
        |s, _| {
            env(s, "A");
            env(s, "A");
        },
        Reason::EnvInvalid,
        "\"A\" is a duplicate; remove one",
    ),
    (
        "value and source of a value",
        |s, _| {
            let label = VariableSource::node_label("line", false);
            let variable = WorkerVariable {
                name: "A".to_owned(),
                value: "b".to_owned(),
                value_from: Some(label),
            };
            edge_program(s).env.push(variable);
        },
        Reason::NodeValueInvalid,
        "spec.edgeWorker.workerSpec.env: \"A\" has both value and valueFrom; remove one",
    ),
    (
        "value per node of the cloud worker",
        |s, _| {
            env(s, "A");
            cloud_program(s).env[0].value = "$(NODE_NAME)".into();
        },
        Reason::ValueNotPerNode,
        "spec.cloudWorker.workerSpec has values that differ per node",
    ),
    (
        "worker name",
        |s, _| s.spec.edge_worker.name = "edge worker".into(),
        Reason::NameInvalid,
        "spec.edgeWorker.name \"edge worker\"",
    ),
    (
        "no worker name",
        |s, _| s.spec.cloud_worker.name.clear(),
        Reason::NameInvalid,
        "spec.cloudWorker.name",
    ),
    (
        "memory",
        |s, _| limit(s, "1 GB"),
        Reason::ResourceInvalid,
        "spec.edgeWorker.workerSpec.resources.limits.memory \"1 GB\"",
    ),
    ("no memory", |s, _| limit(s, "0"), Reason::ResourceInvalid, "above 0"),
    (
        "device without domain",
        |s, _| limit_of(s, "gpu", "1"),
        Reason::ResourceInvalid,
        "spec.edgeWorker.workerSpec.resources.limits.gpu \"1\" is not supported",
    ),
    (
        "root without permission",
        |s, _| {
            edge_program(s).security_context =
                Some(SecurityContext { run_as_user: Some(0), ..SecurityContext::default() });
        },
        Reason::SecurityContextInvalid,
        "spec.edgeWorker.workerSpec.securityContext.runAsUser 0",
    ),
    (
        "pull secret without a name",
        |s, _| {
            let secret = SecretReference { name: "Reg Cred".into() };
            cloud_program(s).image_pull_secrets.push(secret);
        },
        Reason::SecretNameInvalid,
        "spec.cloudWorker.workerSpec.imagePullSecrets: \"Reg Cred\"",
    ),
    (
        "credentials without a name",
        |_, f| {
            change_model(&mut f.cloud_model, |m| {
                m.spec.credentials_secret = Some(SecretReference::default());
            });
        },
        Reason::SecretNameInvalid,
        "spec.credentialsSecret of Model big-model",
    ),
];

#[test]
fn every_finding_has_its_reason_and_names_its_field() {
    assert_findings(WORKER_CASES);
}
