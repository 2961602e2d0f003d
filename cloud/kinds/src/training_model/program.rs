//! The containers of a training: image, command, script, environment and limits. A part of
//! `validate`.

use neptune_api::{
    TrainingModel, TrainingNetwork, TrainingScript as ScriptSpec, TrainingVolume,
    TrainingWorkerSpec, Volume,
};
use neptune_wire::{
    ArtifactAddress, ContainerMount, ContainerProgram, ContentHash, Scripts, TrainingContainer,
    TrainingNetwork as WireNetwork, TrainingScript,
};

use super::{numbers::is_digest, resolved::TrainingFacts, session, settings::Limits};
use crate::{
    finding::Finding,
    kubernetes::{container_inputs::ContainerInputs, pod_security},
    reason::Reason,
    worker::{
        environment::set,
        frameworks::{CONTAINER, EngineProgram},
        program::{self, ProgramFields},
        settings::parameters,
        volumes::{self, agent_mounts, is_in},
    },
};

/// Variables that the agent sets for a task, beside those of all workers.
const RESERVED: [&str; 9] = [
    "OUTPUT_DIR",
    "PRETRAINED_MODEL_URL",
    "ROUND",
    "ROUNDS",
    "RUN",
    "SEED",
    "TASK",
    "TRAIN_DATASET_URL",
    "WEIGHTS_URL",
];

/// Directories of a container that the agent provides for a task.
const DIRECTORIES: [&str; 4] = ["/output", "/script", "/session", "/weights"];

/// The container of all tasks. Adds all findings, and returns `None` if there is one.
pub fn container(
    model: &TrainingModel,
    facts: &TrainingFacts,
    limits: &Limits,
    findings: &mut Vec<Finding>,
) -> Option<TrainingContainer> {
    let before = findings.len();
    let worker = &model.spec.worker_spec;
    let script = script(model.spec.script.as_ref(), findings);
    let start = start(model, facts, findings);
    parameters("spec.workerSpec.parameters", &worker.parameters, findings);
    let is_session = session::is_session(model);
    let of_session: &[&str] = if is_session { &session::RESERVED } else { &[] };
    let reserved = [&RESERVED[..], of_session].concat();
    let context = worker.security_context.as_ref();
    let fields = ProgramFields {
        field: "spec.workerSpec",
        parameters: Some(&worker.parameters),
        env: &worker.env,
        reserved: &reserved,
        resources: worker.resources.as_ref(),
        rights: context,
    };
    let mut common = program::resolve(&fields, findings);
    let script_dir = model.spec.script.as_ref().and_then(|script| script.script_dir.as_deref());
    common.mounts = mounts(worker, script_dir, findings);
    findings.extend(pod_security::check("spec.workerSpec.securityContext", context));
    if findings.len() > before {
        return None;
    }
    let (image, command, engine_args) = start?;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let variables = [
        ("NAMESPACE", text(&model.metadata.namespace)),
        ("SERVICE_NAME", text(&model.metadata.name)),
    ];
    set(&mut common.env, variables);
    let mut container = TrainingContainer {
        program: ContainerProgram { image, command, ..common },
        script,
        network: match worker.network.unwrap_or_default() {
            TrainingNetwork::None => WireNetwork::None,
            TrainingNetwork::Bridge => WireNetwork::Bridge,
        },
        timeout_seconds: limits.round_timeout_seconds,
        max_update_bytes: limits.max_update_bytes,
        backoff_limit: limits.backoff_limit,
    };
    if is_session {
        session::of_session(&mut container, engine_args);
    }
    Some(container)
}

/// What the containers mount. Adds a finding for each invalid volume and mount.
fn mounts(
    worker: &TrainingWorkerSpec,
    script_dir: Option<&str>,
    findings: &mut Vec<Finding>,
) -> Vec<ContainerMount> {
    let field = "spec.workerSpec";
    let volumes = worker.volumes.iter().map(|TrainingVolume { name, empty_dir }| Volume {
        name: name.clone(),
        empty_dir: Some(empty_dir.clone()),
        ..Volume::default()
    });
    let volumes: Vec<_> = volumes.collect();
    for mount in &worker.volume_mounts {
        let path = &mount.mount_path;
        let reserved = DIRECTORIES.iter().find(|reserved| is_in(path, reserved));
        findings.extend(reserved.map(|reserved| {
            let message = format!(
                "{field}.volumeMounts: mountPath {path:?} is in {reserved}, which is reserved; mount it elsewhere"
            );
            Finding::new(Reason::VolumeInvalid, message)
        }));
    }
    let inputs = ContainerInputs {
        volumes: &volumes,
        volume_mounts: &worker.volume_mounts,
        ..ContainerInputs::default()
    };
    volumes::check(field, inputs, script_dir, findings);
    agent_mounts(field, inputs, findings)
}

/// The hash of all that a result depends on beside its inputs.
pub fn workload(container: &TrainingContainer) -> ContentHash {
    let ContainerProgram { image, command, args, env, .. } = &container.program;
    ContentHash::compute(&(image, command, args, env, &container.script))
}

/// Image and command; and the arguments, if an engine brings the program.
fn start(
    model: &TrainingModel,
    facts: &TrainingFacts,
    findings: &mut Vec<Finding>,
) -> Option<(String, Vec<String>, Option<Vec<String>>)> {
    let worker = &model.spec.worker_spec;
    let given = worker.image.clone().filter(|image| !image.is_empty());
    if given.is_none() && model.spec.script.is_none() {
        let message = "give script (url and sha256sum, or scriptDir) or workerSpec.image: there is nothing to run";
        findings.push(Finding::new(Reason::TrainingInvalid, message));
        return None;
    }
    let frameworks = match &facts.frameworks {
        Ok(frameworks) => frameworks,
        Err(error) => {
            findings.push(Finding::new(Reason::FrameworksInvalid, error.clone()));
            return None;
        }
    };
    let engine = session::is_session(model).then(|| session::worker_program(model, frameworks));
    if let Some(EngineProgram { image, command, args }) = engine.flatten() {
        let Some(image) = given.or(image) else {
            let message = "spec.workerSpec.image is missing; set it because the engine has no default image for workers";
            findings.push(Finding::new(Reason::ImageRequired, message));
            return None;
        };
        return Some((image, command, Some(args)));
    }
    let type_ = worker.framework_type.as_deref().filter(|type_| !type_.is_empty());
    let type_ = type_.unwrap_or(CONTAINER);
    let version = worker.framework_version.as_deref().unwrap_or_default();
    let Some(framework) = frameworks.find(type_, version) else {
        let message = format!(
            "spec.workerSpec.frameworkType {type_:?} is not one of {}; correct it or add it to ConfigMap neptune-frameworks",
            frameworks.known()
        );
        findings.push(Finding::new(Reason::FrameworkUnknown, message));
        return None;
    };
    let Some(image) = given.or(framework.image) else {
        let message = format!(
            "spec.workerSpec.image is missing; set it because framework {type_:?} has no default image"
        );
        findings.push(Finding::new(Reason::ImageRequired, message));
        return None;
    };
    Some((image, framework.command, None))
}

fn script(script: Option<&ScriptSpec>, findings: &mut Vec<Finding>) -> Option<TrainingScript> {
    let script = script?;
    let mut invalid = |reason, message: String| {
        findings.push(Finding::new(reason, message));
        None
    };
    let goes_up = |path: &str| path.split('/').any(|part| part == "..");
    let file = &script.boot_file;
    if file.is_empty() || file.starts_with('/') || goes_up(file) {
        return invalid(
            Reason::ScriptBootFileInvalid,
            format!(
                "spec.script.bootFile {file:?} must be a file in the script, relative to it, without \"..\""
            ),
        );
    }
    match (&script.url, &script.script_dir) {
        (Some(_), Some(_)) => invalid(
            Reason::TrainingInvalid,
            "give script.url or script.scriptDir, not both".to_owned(),
        ),
        (None, None) => invalid(
            Reason::TrainingInvalid,
            "give script.url with script.sha256sum, or script.scriptDir".to_owned(),
        ),
        (None, Some(dir)) => {
            if !dir.starts_with('/')
                || dir.trim_end_matches('/').is_empty()
                || goes_up(dir)
                || dir.contains(':')
            {
                return invalid(
                    Reason::ScriptDirInvalid,
                    format!(
                        "spec.script.scriptDir {dir:?} must be an absolute path on the nodes, not \"/\", without \"..\" and ':'"
                    ),
                );
            }
            let dir = dir.trim_end_matches('/').to_owned();
            Some(TrainingScript::Directory(Scripts { dir, boot_file: file.clone() }))
        }
        (Some(url), None) => {
            let is_remote =
                ["http://", "https://", "s3://", "hf://"].iter().any(|it| url.starts_with(it));
            if !is_remote || url.parse::<ArtifactAddress>().is_err() {
                return invalid(
                    Reason::DownloadUrlInvalid,
                    format!(
                        "spec.script.url {:?} must be an address such as https://models.example/train.tar.gz",
                        neptune_wire::redact(url)
                    ),
                );
            }
            let Some(sha256) = script.sha256sum.as_ref() else {
                return invalid(
                    Reason::TrainingInvalid,
                    "script.url needs script.sha256sum: code from a network is run only with a digest"
                        .to_owned(),
                );
            };
            if !is_digest(sha256) {
                return invalid(
                    Reason::ModelDigestInvalid,
                    format!("spec.script.sha256sum {sha256:?} must be 64 hex digits"),
                );
            }
            Some(TrainingScript::Download {
                url: url.clone(),
                sha256: sha256.to_ascii_lowercase(),
                boot_file: file.clone(),
            })
        }
    }
}
