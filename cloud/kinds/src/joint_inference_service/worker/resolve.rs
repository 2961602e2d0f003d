//! Validates a program of the user on one side and resolves its references. A part of `validate`.

use std::sync::Arc;

use neptune_api::{JointInferenceService, Model, WorkerSpec};
use neptune_wire::{ArtifactAddress, ContainerProgram, Resource, Role, Scripts, WorkerName};

use crate::{
    finding::Finding,
    joint_inference_service::{
        facts::ServiceFacts, resolved::ResolvedWorker, spec::names::worker_field,
    },
    kubernetes::{pod_security, secrets::check_name},
    reason::Reason,
    worker::{
        config::references::{self, variables_of_objects},
        container_config::ContainerConfig,
        frameworks::CONTAINER,
        names::worker_name,
        node_values::{NodeValues, common_parameters, common_variables},
        probes,
        program::{self, ProgramFields},
        settings::parameters,
        volumes,
    },
};

/// Maximum of `terminationGracePeriodSeconds`: ten minutes.
const MAX_GRACE_SECONDS: u32 = 600;

/// The inputs of [`resolve_worker`].
pub struct WorkerInput<'a> {
    /// Whether it is the edge worker or the cloud worker.
    pub role: Role,
    /// The worker's name in the spec.
    pub name: &'a str,
    /// The model name in the spec.
    pub model_name: &'a str,
    /// The `workerSpec` of this worker.
    pub worker: &'a WorkerSpec,
    /// The Model, if it exists.
    pub model: Option<&'a Arc<Model>>,
}

impl WorkerInput<'_> {
    fn field(&self, field: &str) -> String {
        format!("{}.{field}", worker_field(self.role))
    }
}

/// Validates a worker and adds all findings. Returns `None` if there is one.
pub fn resolve_worker(
    spec: &WorkerInput,
    service: &JointInferenceService,
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) -> Option<ResolvedWorker> {
    let before = findings.len();
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let service = service.metadata.name.as_deref().unwrap_or_default();
    let name =
        resolve_name(&spec.field("name"), spec.name, spec.role, namespace, service, findings);
    let model =
        resolve_model(&spec.field("model.name"), spec.model_name, spec.model, namespace, findings);
    let image_and_command = image_and_command(spec, facts, findings);
    let (given, env) =
        (common_parameters(&spec.worker.parameters), common_variables(&spec.worker.env));
    parameters(&spec.field("workerSpec.parameters"), &given, findings);
    let context = spec.worker.security_context.as_ref();
    let fields = ProgramFields {
        field: &spec.field("workerSpec"),
        parameters: Some(&given),
        env: &env,
        resources: spec.worker.resources.as_ref(),
        rights: context,
        ..ProgramFields::default()
    };
    let mut common = program::resolve(&fields, findings);
    // Their values come from their objects.
    for name in variables_of_objects(spec.worker.into()) {
        common.env.remove(name);
    }
    let (given, env) = (&spec.worker.parameters, &spec.worker.env);
    let node_values = NodeValues::new(&spec.field("workerSpec"), given, env, findings);
    findings.extend(pod_security::check(&spec.field("workerSpec.securityContext"), context));
    secrets(spec, findings);
    references::check(&spec.field("workerSpec"), spec.worker.into(), findings);
    let mounts_scripts = image_and_command.as_ref().is_some_and(|(_, it)| !it.is_empty());
    let scripts = mounts_scripts.then_some(&*spec.worker.script_dir);
    volumes::check(&spec.field("workerSpec"), spec.worker.into(), scripts, findings);
    probes::check(&spec.field("workerSpec"), spec.worker, findings);
    let stop_grace_seconds = program_of_image(spec, findings);
    if findings.len() > before {
        return None;
    }
    let ((model, source), (image, command)) = (model?, image_and_command?);
    let (args, scripts) = args_and_scripts(spec.worker, &command);
    let command = if command.is_empty() { spec.worker.command.clone() } else { command };
    let working_dir = spec.worker.working_dir.clone();
    let mut program =
        ContainerProgram { image, command, args, working_dir, stop_grace_seconds, ..common };
    if node_values.is_some() {
        // Each node has its own.
        program.env.clear();
    }
    let config = ContainerConfig::None;
    Some(ResolvedWorker { name: name?, model, source, program, node_values, scripts, config })
}

/// The container name of the worker that `field` names.
pub fn resolve_name(
    field: &str,
    worker: &str,
    role: Role,
    namespace: &str,
    service: &str,
    findings: &mut Vec<Finding>,
) -> Option<WorkerName> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    if worker.is_empty() || !worker.chars().all(fits) {
        findings.push(Finding::new(
            Reason::NameInvalid,
            format!("{field} {worker:?} must be letters, digits, '-' or '.'"),
        ));
        return None;
    }
    Some(worker_name(namespace, service, role, worker))
}

/// The Model that `field` names, and its address.
pub fn resolve_model(
    field: &str,
    name: &str,
    model: Option<&Arc<Model>>,
    namespace: &str,
    findings: &mut Vec<Finding>,
) -> Option<(Arc<Model>, ArtifactAddress)> {
    let Some(model) = model else {
        findings.push(Finding::missing_object(
            Reason::ModelNotFound,
            Resource::Models,
            namespace,
            name,
            field,
        ));
        return None;
    };
    match crate::model::validate(model) {
        Ok(source) => Some((Arc::clone(model), source)),
        Err(finding) => {
            findings.push(finding);
            None
        }
    }
}

fn image_and_command(
    spec: &WorkerInput,
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) -> Option<(String, Vec<String>)> {
    let worker = spec.worker;
    let frameworks = facts.frameworks(findings)?;
    let framework = &worker.framework_type;
    let Some(program) = frameworks.find(framework, &worker.framework_version) else {
        findings.push(Finding::new(
            Reason::FrameworkUnknown,
            format!(
                "{} {framework:?} is not one of {}; correct it or add it to ConfigMap neptune-frameworks",
                spec.field("workerSpec.frameworkType"),
                frameworks.known()
            ),
        ));
        return None;
    };
    if worker.framework_version.is_empty() && framework != CONTAINER {
        findings.push(Finding::new(
            Reason::FrameworkUnknown,
            format!(
                "{} is missing; set it to the version of framework {framework:?}",
                spec.field("workerSpec.frameworkVersion")
            ),
        ));
    }
    if !program.command.is_empty() {
        scripts(spec, findings);
    }
    let image = worker.image.clone().filter(|image| !image.is_empty());
    let Some(image) = image.or(program.image) else {
        findings.push(Finding::new(
            Reason::ImageRequired,
            format!(
                "{} is missing; set it because framework {framework:?} has no default image",
                spec.field("workerSpec.image")
            ),
        ));
        return None;
    };
    Some((image, program.command))
}

/// What a framework's command starts, and where it is. An image with its program gets the boot file
/// as its argument, if there is one.
fn args_and_scripts(spec: &WorkerSpec, command: &[String]) -> (Vec<String>, Option<Scripts>) {
    let dir = spec.script_dir.trim_end_matches('/').to_owned();
    let file = spec.script_boot_file.clone();
    if command.is_empty() {
        let file = Some(file).filter(|file| !file.is_empty());
        return (file.into_iter().chain(spec.args.iter().cloned()).collect(), None);
    }
    (vec![format!("{dir}/{file}")], Some(Scripts { dir, boot_file: file }))
}

/// Checks the fields that only the program of an image has, and the grace period. Returns the latter
/// in seconds.
fn program_of_image(spec: &WorkerInput, findings: &mut Vec<Finding>) -> Option<u32> {
    let worker = spec.worker;
    let mut refuse = |field: &str, problem: &str| {
        let field = spec.field(&format!("workerSpec.{field}"));
        findings.push(Finding::new(Reason::WorkerInvalid, format!("{field} {problem}")));
    };
    if worker.framework_type != CONTAINER {
        let given = [
            ("command", !worker.command.is_empty()),
            ("args", !worker.args.is_empty()),
            ("workingDir", worker.working_dir.is_some()),
        ];
        for (field, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
            refuse(field, "is supported only with frameworkType container; remove it");
        }
    }
    if worker.working_dir.as_ref().is_some_and(|dir| !dir.starts_with('/')) {
        refuse("workingDir", "must be an absolute path in the container");
    }
    let seconds = worker.termination_grace_period_seconds?;
    let valid = u32::try_from(seconds).ok().filter(|seconds| *seconds <= MAX_GRACE_SECONDS);
    if valid.is_none() {
        let problem = format!("is {seconds}; it must be 0 to {MAX_GRACE_SECONDS} seconds");
        refuse("terminationGracePeriodSeconds", &problem);
    }
    valid
}

fn scripts(spec: &WorkerInput, findings: &mut Vec<Finding>) {
    let goes_up = |path: &str| path.split('/').any(|part| part == "..");
    let (dir, file) = (&spec.worker.script_dir, &spec.worker.script_boot_file);
    if !dir.starts_with('/')
        || dir.trim_end_matches('/').is_empty()
        || goes_up(dir)
        || dir.contains(':')
    {
        findings.push(Finding::new(
            Reason::ScriptDirInvalid,
            format!(
                "{} {dir:?} must be an absolute path on the node, not \"/\", without \"..\" and ':'",
                spec.field("workerSpec.scriptDir")
            ),
        ));
    }
    if file.is_empty() || file.starts_with('/') || goes_up(file) {
        findings.push(Finding::new(
            Reason::ScriptBootFileInvalid,
            format!(
                "{} {file:?} must be a file in scriptDir, relative to it, without \"..\"",
                spec.field("workerSpec.scriptBootFile")
            ),
        ));
    }
}

fn secrets(spec: &WorkerInput, findings: &mut Vec<Finding>) {
    let field = spec.field("workerSpec.imagePullSecrets");
    let secrets = &spec.worker.image_pull_secrets;
    findings.extend(secrets.iter().filter_map(|secret| check_name(&field, &secret.name)));
}
