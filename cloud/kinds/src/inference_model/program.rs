//! The program and the health check of a model server. A part of `validate`.

use neptune_api::{InferenceModel, ServerOverrides, ServingHealth};
use neptune_wire::{ContainerProgram, HealthCheck, ServerUpdateMode, Transformer};

use crate::{
    finding::Finding,
    inference_model::target::{InferenceModelFacts, ModelOrigin, container_inputs, model_origin},
    reason::Reason,
    worker::{
        config::references::variables_of_objects,
        environment::set,
        node_values::common_variables,
        ports::transformer_ports,
        program::{self, ProgramFields},
        server_inputs,
        serving_runtimes::{ANY_HOST, FILE, GRPC_PORT, HOST, Server, ServerPorts, fill},
        transformers::{self, Endpoint},
    },
};

/// Default seconds between two health checks.
const DEFAULT_PERIOD: i32 = 1;
/// Default timeout of a health check in seconds: loading a model can delay answers on a small
/// machine.
const DEFAULT_TIMEOUT: i32 = 2;
/// Default seconds for a start, after the image is pulled: large models take long to load.
const DEFAULT_START_WITHIN: i32 = 120;
/// Default seconds of probation: enough to observe a crash at the first requests.
const DEFAULT_PROBATION: i32 = 30;
/// The maximum of these times in seconds, a day.
const MAX_SECONDS: i32 = 86_400;

/// The program of a model server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerProgram {
    /// What its container runs. In arguments, `{version}` and `{file}` are placeholders of the version,
    /// `{host}` of the address behind a transformer.
    pub container: ContainerProgram,
    /// How the server loads another version.
    pub reload: ServerUpdateMode,
    /// Where and how often the server's health is checked.
    pub health: HealthCheck,
    /// The directory of the versions; `None` if the image contains its model.
    pub directory: Option<VersionDirectory>,
    /// The program before the server.
    pub transformer: Option<Box<Transformer>>,
}

/// The ports at which the programs of an endpoint listen.
#[derive(Debug, Clone, Copy)]
pub struct Listen {
    /// The port of the endpoint.
    pub endpoint: u16,
    /// The port of the server behind a transformer, if there is one.
    pub behind: Option<u16>,
    /// The port for gRPC, if the spec has one.
    pub grpc: Option<u16>,
    /// Whether they run in a Pod.
    pub in_pod: bool,
}

impl Listen {
    /// The ports of the server.
    fn server(self) -> ServerPorts {
        ServerPorts { rest: self.behind.unwrap_or(self.endpoint), grpc: self.grpc }
    }
}

/// The directory of a server's versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionDirectory {
    /// The path in the container.
    pub path: String,
    /// Whether versions must be whole numbers.
    pub numeric_versions: bool,
    /// Whether the server loads one file: its arguments have `{file}`.
    pub one_file: bool,
}

/// The program of a model server on its ports.
pub fn program(
    model: &InferenceModel,
    facts: &InferenceModelFacts,
    listen: Listen,
    findings: &mut Vec<Finding>,
) -> Option<ServerProgram> {
    let (spec, ports) = (&model.spec, listen.server());
    let health_spec = spec.health.clone().unwrap_or_default();
    let overrides = spec.server.clone().unwrap_or_default();
    let (server, image) = match model_origin(model) {
        ModelOrigin::Image(image) => (None, image.to_owned()),
        ModelOrigin::Manifest | ModelOrigin::Model => {
            let server = server(&spec.framework_type, facts, findings);
            // Adds the other findings too.
            let Some(server) = server else {
                let _ = health(&health_spec, None, &|text| text.to_owned(), findings);
                return None;
            };
            let image = overrides.image.as_ref().filter(|image| !image.is_empty());
            (Some(server), image.unwrap_or(&server.image).clone())
        }
    };
    let fill_in = |directory: &str| {
        let directory = directory.to_owned();
        let is_behind = spec.transformer.is_some();
        move |text: &str| {
            let text = fill(text, &spec.model_name, ports, &directory);
            // Behind a transformer, the address depends on the network of the node.
            if is_behind { text } else { text.replace(HOST, ANY_HOST) }
        }
    };
    let path = server.map(|server| fill_in("")(&server.directory));
    let filled = fill_in(path.as_deref().unwrap_or_default());
    let default = server.and_then(|server| server.health_path.as_deref());
    let health = health(&health_spec, default, &filled, findings)?;
    if server.is_none() && health.http_path.as_ref().is_some_and(|path| path.contains("{version}"))
    {
        let message = "spec.health.httpPath: {version} is not available with spec.image; remove it";
        findings.push(Finding::new(Reason::HealthInvalid, message));
        return None;
    }
    let all = |list: &[String]| list.iter().map(|text| filled(text)).collect::<Vec<_>>();
    let mut args = server.map(|server| all(&server.args)).unwrap_or_default();
    if ports.grpc.is_some() {
        args.extend(server.map(|server| all(&server.grpc_args)).unwrap_or_default());
    }
    if spec.transformer.is_some() {
        args.extend(server.map(|server| all(&server.host_args)).unwrap_or_default());
    }
    args.extend(all(&overrides.args));
    grpc(&spec.framework_type, server, &overrides.args, &args, ports, findings);
    let one_file = args.iter().any(|arg| arg.contains(FILE));
    let mut common = common(model, &overrides, facts, listen.in_pod, findings);
    variables(&mut common, model, ports);
    let transformer = transformer(model, facts, listen, server, findings);
    Some(ServerProgram {
        container: ContainerProgram {
            image,
            command: server.map(|server| all(&server.command)).unwrap_or_default(),
            args,
            ..common
        },
        reload: server.map_or(ServerUpdateMode::Replace, |server| server.reload),
        health,
        directory: path.zip(server).map(|(path, server)| VersionDirectory {
            path,
            numeric_versions: server.numeric_versions,
            one_file,
        }),
        transformer,
    })
}

/// The fields that the programs of all kinds have, and what an agent mounts in the container.
fn common(
    model: &InferenceModel,
    overrides: &ServerOverrides,
    facts: &InferenceModelFacts,
    in_pod: bool,
    findings: &mut Vec<Finding>,
) -> ContainerProgram {
    let (field, inputs) = ("spec.server", container_inputs(model));
    let env = common_variables(inputs.env);
    let fields = ProgramFields {
        field,
        env: &env,
        reserved: &server_inputs::RESERVED,
        resources: overrides.resources.as_ref(),
        rights: model.spec.security_context.as_ref(),
        ..ProgramFields::default()
    };
    let mut common = program::resolve(&fields, findings);
    for name in variables_of_objects(inputs) {
        common.env.remove(name);
    }
    let policy = in_pod.then_some(&facts.pod_policy);
    common.mounts = server_inputs::mounts(field, inputs, policy, findings);
    common
}

/// Sets the server's variables, without those that its host sets.
fn variables(program: &mut ContainerProgram, model: &InferenceModel, ports: ServerPorts) {
    let metadata = &model.metadata;
    let always = [
        ("NAMESPACE", metadata.namespace.clone().unwrap_or_default()),
        ("SERVICE_NAME", metadata.name.clone().unwrap_or_default()),
        ("MODEL_NAME", model.spec.model_name.clone()),
        ("SERVING_PORT", ports.rest.to_string()),
    ];
    set(&mut program.env, always);
    if let Some(port) = ports.grpc {
        set(&mut program.env, [("SERVING_GRPC_PORT", port.to_string())]);
    }
}

/// The program before the server, if the spec has one and it is valid.
fn transformer(
    model: &InferenceModel,
    facts: &InferenceModelFacts,
    listen: Listen,
    server: Option<&Server>,
    findings: &mut Vec<Finding>,
) -> Option<Box<Transformer>> {
    let transformer = model.spec.transformer.as_deref()?;
    let metadata = &model.metadata;
    let endpoint = Endpoint {
        object: (
            metadata.namespace.as_deref().unwrap_or_default(),
            metadata.name.as_deref().unwrap_or_default(),
        ),
        model_name: &model.spec.model_name,
        port: listen.endpoint,
        // Kubernetes replaces Pods one after the other.
        proxy: transformer_ports(model)
            .filter(|_| !listen.in_pod)
            .map(|ports| (facts.gateway_image.as_str(), ports)),
        server_port: listen.behind.unwrap_or(1),
        protocol: server.and_then(|server| server.protocol),
        is_tcp: model.spec.health.as_ref().is_some_and(|health| health.tcp == Some(true)),
        in_pod: listen.in_pod,
    };
    let field = "spec.transformer";
    transformers::resolve(field, transformer, endpoint, &facts.frameworks, findings).map(Box::new)
}

/// Checks that the server gets its port for gRPC if there is one. That of an image is the user's.
fn grpc(
    framework: &str,
    server: Option<&Server>,
    overrides: &[String],
    args: &[String],
    ports: ServerPorts,
    findings: &mut Vec<Finding>,
) {
    let has_grpc = server.is_none_or(|server| {
        let mut all = server.grpc_args.iter().chain(overrides);
        all.any(|arg| arg.contains(GRPC_PORT))
    });
    let message = if ports.grpc.is_some() && !has_grpc {
        format!(
            "spec.grpcPort: the model server of framework {framework:?} has no gRPC; remove it, or add `grpcArgs` to its `serving` in the ConfigMap neptune-frameworks"
        )
    } else if args.iter().any(|arg| arg.contains(GRPC_PORT)) {
        "spec.grpcPort is missing: the arguments of the server have {grpcPort}; set it to 1 to 65535"
            .to_owned()
    } else {
        return;
    };
    findings.push(Finding::new(Reason::ServingPortInvalid, message));
}

fn server<'a>(
    framework: &str,
    facts: &'a InferenceModelFacts,
    findings: &mut Vec<Finding>,
) -> Option<&'a Server> {
    let frameworks = match &facts.frameworks {
        Ok(frameworks) => frameworks,
        Err(error) => {
            findings.push(Finding::new(Reason::FrameworksInvalid, error.clone()));
            return None;
        }
    };
    let server = frameworks.server(framework);
    if server.is_none() {
        findings.push(Finding::new(
            Reason::FrameworkUnknown,
            format!(
                "spec.frameworkType {framework:?} has no model server; use one of {}, add `serving` to it in the ConfigMap neptune-frameworks, or set spec.image",
                frameworks.known_servers()
            ),
        ));
    }
    server
}

fn health(
    spec: &ServingHealth,
    default: Option<&str>,
    fill: &dyn Fn(&str) -> String,
    findings: &mut Vec<Finding>,
) -> Option<HealthCheck> {
    let before = findings.len();
    let path = spec.http_path.as_deref().filter(|path| !path.is_empty());
    let tcp = spec.tcp.unwrap_or_default();
    if tcp && path.is_some() {
        let message = "spec.health: httpPath and tcp are mutually exclusive; set one";
        findings.push(Finding::new(Reason::HealthInvalid, message));
    }
    if let Some(path) = path
        && (!path.starts_with('/') || path.contains(|c: char| c.is_whitespace() || c.is_control()))
    {
        let message =
            format!("spec.health.httpPath {path:?} must begin with '/' and have no white space");
        findings.push(Finding::new(Reason::HealthInvalid, message));
    }
    let mut millis = |name: &str, seconds: Option<i32>, default: i32, min: i32| {
        let seconds = seconds.unwrap_or(default);
        if !(min..=MAX_SECONDS).contains(&seconds) {
            let message =
                format!("spec.health.{name} {seconds} must be {min} to {MAX_SECONDS} seconds");
            findings.push(Finding::new(Reason::HealthInvalid, message));
        }
        u64::try_from(seconds).unwrap_or_default() * 1000
    };
    let check = HealthCheck {
        http_path: path.or(default).filter(|_| !tcp).map(fill),
        period_ms: millis("periodSeconds", spec.period_seconds, DEFAULT_PERIOD, 1),
        timeout_ms: millis("timeoutSeconds", spec.timeout_seconds, DEFAULT_TIMEOUT, 1),
        start_within_ms: millis(
            "startWithinSeconds",
            spec.start_within_seconds,
            DEFAULT_START_WITHIN,
            1,
        ),
        probation_ms: millis("probationSeconds", spec.probation_seconds, DEFAULT_PROBATION, 0),
    };
    (findings.len() == before).then_some(check)
}
