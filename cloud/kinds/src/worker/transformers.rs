//! The transformer of a model server: its program, its arguments and environment, and its health
//! check.

use std::collections::BTreeMap;

use neptune_api::{ServerProtocol, Transformer, TransformerStyle};
use neptune_wire::{ContainerProgram, Scripts, TransformerProxy};

use crate::{
    finding::Finding,
    kubernetes::quantities,
    reason::Reason,
    worker::{
        environment::{set, variable},
        frameworks::Frameworks,
        program::{self, ProgramFields},
    },
};

/// The framework whose transformers get the arguments of `KServe`.
const KSERVE: &str = "kserve";

/// Placeholder for the port on which a transformer listens, in its arguments.
const PORT: &str = "{port}";

/// Seconds that a transformer of `KServe` waits for an answer of the model server, unless `args` has
/// another value. Its own default of 600 s would occupy it for ten minutes.
const PREDICTOR_TIMEOUT: u32 = 60;

/// Variables of a transformer that a spec cannot override, beside those of all workers.
const OWN: [&str; 6] =
    ["MODEL_NAME", "PORT", "PREDICTOR_HOST", "PREDICTOR_PROTOCOL", "PREDICTOR_URL", "SERVING_PORT"];

/// The model server behind a transformer, and the endpoint before it.
#[derive(Debug, Clone, Copy)]
pub struct Endpoint<'a> {
    /// Namespace and name of the `InferenceModel`.
    pub object: (&'a str, &'a str),
    /// The name under which the model is served.
    pub model_name: &'a str,
    /// The port of the endpoint.
    pub port: u16,
    /// The image of the proxy that listens there, and the ports of the transformers behind it;
    /// `None` if the transformer listens there itself.
    pub proxy: Option<(&'a str, [u16; 2])>,
    /// The port of the model server.
    pub server_port: u16,
    /// The protocol of the model server, if it is known.
    pub protocol: Option<ServerProtocol>,
    /// Whether a TCP connection is the health check.
    pub is_tcp: bool,
    /// Whether the transformer runs in a Pod.
    pub in_pod: bool,
}

/// Checks a transformer and resolves its program. `field` is its place in the spec. `None` with
/// findings if it is invalid.
pub fn resolve(
    field: &str,
    transformer: &Transformer,
    endpoint: Endpoint<'_>,
    frameworks: &Result<impl AsRef<Frameworks>, String>,
    findings: &mut Vec<Finding>,
) -> Option<neptune_wire::Transformer> {
    let before = findings.len();
    let start = start(field, transformer, endpoint, frameworks, findings);
    parameters(field, transformer, findings);
    let fields = ProgramFields {
        field,
        parameters: Some(&transformer.parameters),
        env: &transformer.env,
        reserved: &OWN,
        resources: transformer.resources.as_ref(),
        // They are those of the server.
        rights: None,
    };
    let of_env = findings.len();
    let common = program::resolve(&fields, findings);
    if !endpoint.in_pod {
        let why = "a new version of the transformer starts while the old one has its devices";
        let limits = format!("{field}.resources.limits");
        quantities::no_devices(&limits, &common.devices, why, findings);
    }
    for finding in &mut findings[of_env..] {
        if finding.reason == Reason::EnvInvalid {
            finding.reason = Reason::TransformerInvalid;
        }
    }
    let start = start.filter(|_| findings.len() == before)?;
    Some(resolved(transformer, endpoint, start, common))
}

/// The image, the command, and the scripts of a transformer.
struct Start {
    image: String,
    command: Vec<String>,
    scripts: Option<Scripts>,
}

fn resolved(
    transformer: &Transformer,
    endpoint: Endpoint<'_>,
    Start { image, command, scripts }: Start,
    common: ContainerProgram,
) -> neptune_wire::Transformer {
    let port = endpoint.listen_port();
    let fill = |arg: &String| {
        arg.replace(PORT, &port)
            .replace("{serverPort}", &endpoint.server_port.to_string())
            .replace("{modelName}", endpoint.model_name)
    };
    let mut args: Vec<String> = transformer.args.iter().map(fill).collect();
    if is_kserve(transformer) {
        add_kserve_args(&mut args, endpoint);
    }
    let address = format!("127.0.0.1:{}", endpoint.server_port);
    let (namespace, name) = endpoint.object;
    let mut program = ContainerProgram { image, command, args, ..common };
    let always = [
        ("NAMESPACE", namespace.to_owned()),
        ("SERVICE_NAME", name.to_owned()),
        ("MODEL_NAME", endpoint.model_name.to_owned()),
        ("PREDICTOR_URL", format!("http://{address}")),
        ("PREDICTOR_HOST", address),
    ];
    set(&mut program.env, always);
    if endpoint.proxy.is_none() {
        set(&mut program.env, ["PORT", "SERVING_PORT"].map(|name| (name, port.clone())));
    }
    if let Some(protocol) = endpoint.protocol {
        set(&mut program.env, [("PREDICTOR_PROTOCOL", protocol_name(protocol).to_owned())]);
    }
    neptune_wire::Transformer {
        program,
        scripts,
        server_port: endpoint.server_port,
        health_path: health_path(endpoint),
        proxy: endpoint
            .proxy
            .map(|(image, ports)| TransformerProxy { image: image.to_owned(), ports }),
    }
}

impl Endpoint<'_> {
    /// The port on which the transformer listens. Behind a proxy, the agent chooses it.
    fn listen_port(&self) -> String {
        if self.proxy.is_some() { PORT.to_owned() } else { self.port.to_string() }
    }
}

/// The name of a protocol for transformers: that of `KServe`, where it has one.
fn protocol_name(protocol: ServerProtocol) -> &'static str {
    match protocol {
        ServerProtocol::Tfserving => "v1",
        ServerProtocol::Oip => "v2",
        ServerProtocol::Openai => "openai",
    }
}

/// The path that a ready transformer answers, by the protocol of the model server; `None` for a TCP
/// connection.
fn health_path(endpoint: Endpoint<'_>) -> Option<String> {
    let model = endpoint.model_name;
    let path = match endpoint.protocol? {
        ServerProtocol::Tfserving => format!("/v1/models/{model}"),
        ServerProtocol::Oip => format!("/v2/models/{model}/ready"),
        ServerProtocol::Openai => "/v1/models".to_owned(),
    };
    (!endpoint.is_tcp).then_some(path)
}

fn is_kserve(transformer: &Transformer) -> bool {
    let framework = transformer.framework_type.as_deref().unwrap_or_default();
    match transformer.style.unwrap_or_default() {
        TransformerStyle::KServe => true,
        TransformerStyle::Env => false,
        TransformerStyle::Auto => framework.split(':').next() == Some(KSERVE),
    }
}

/// Adds the arguments that `KServe` gives a transformer, without those that are there.
fn add_kserve_args(args: &mut Vec<String>, endpoint: Endpoint<'_>) {
    let protocol = endpoint.protocol.filter(|protocol| *protocol != ServerProtocol::Openai);
    let all = [
        ("--model_name", Some(endpoint.model_name.to_owned())),
        ("--predictor_host", Some(format!("127.0.0.1:{}", endpoint.server_port))),
        ("--predictor_protocol", protocol.map(|it| protocol_name(it).to_owned())),
        ("--http_port", Some(endpoint.listen_port())),
        ("--predictor_request_timeout_seconds", Some(PREDICTOR_TIMEOUT.to_string())),
    ];
    for (flag, value) in all {
        let is_given =
            args.iter().any(|arg| arg.split_once('=').map_or(arg.as_str(), |it| it.0) == flag);
        if let Some(value) = value.filter(|_| !is_given) {
            args.extend([flag.to_owned(), value]);
        }
    }
}

fn start(
    field: &str,
    transformer: &Transformer,
    endpoint: Endpoint<'_>,
    frameworks: &Result<impl AsRef<Frameworks>, String>,
    findings: &mut Vec<Finding>,
) -> Option<Start> {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let image = given(&transformer.image);
    let (dir, file) = (given(&transformer.script_dir), given(&transformer.script_boot_file));
    let message = match (image, dir, file) {
        (Some(image), None, None) => {
            return Some(Start { image, command: Vec::new(), scripts: None });
        }
        (None, None, None) => format!("{field}: give image or scriptDir"),
        (_, Some(_), Some(_)) if endpoint.in_pod => format!(
            "{field}.scriptDir: Pods in the cloud have no scripts of a node; build them into {field}.image"
        ),
        (image, Some(dir), Some(boot_file)) => match script_problem(&dir, &boot_file) {
            Some(problem) => format!("{field}.{problem}"),
            None => match framework(field, transformer, frameworks, image) {
                Ok((image, mut command)) => {
                    command.push(format!("{}/{boot_file}", dir.trim_end_matches('/')));
                    let scripts = Some(Scripts { dir, boot_file });
                    return Some(Start { image, command, scripts });
                }
                Err(finding) => {
                    findings.push(finding);
                    return None;
                }
            },
        },
        _ => format!(
            "{field}.scriptBootFile: give scriptDir and scriptBootFile together, or neither of them"
        ),
    };
    findings.push(Finding::new(Reason::TransformerInvalid, message));
    None
}

/// The image, and the command that starts a script.
fn framework(
    field: &str,
    transformer: &Transformer,
    frameworks: &Result<impl AsRef<Frameworks>, String>,
    image: Option<String>,
) -> Result<(String, Vec<String>), Finding> {
    let frameworks = frameworks
        .as_ref()
        .map_err(|error| Finding::new(Reason::FrameworksInvalid, error.clone()))?;
    let frameworks = frameworks.as_ref();
    let name = transformer.framework_type.as_deref().unwrap_or_default();
    let version = transformer.framework_version.as_deref().unwrap_or_default();
    let invalid = |message: String| Err(Finding::new(Reason::TransformerInvalid, message));
    let Some(framework) =
        frameworks.find(name, version).filter(|framework| !framework.command.is_empty())
    else {
        return invalid(format!(
            "{field}.frameworkType {name:?} has no command for the script; use one of {} that has one, or add it to the ConfigMap neptune-frameworks",
            frameworks.known()
        ));
    };
    let is_versioned = |image: &String| !image.ends_with(':') && !image.ends_with(":-slim");
    match image.or(framework.image).filter(is_versioned) {
        Some(image) => Ok((image, framework.command)),
        None => invalid(format!(
            "{field}.image is missing; set it, or set frameworkVersion of a framework that has an image"
        )),
    }
}

/// What is wrong with a script's path, after the field.
fn script_problem(dir: &str, file: &str) -> Option<String> {
    let goes_up = |path: &str| path.split('/').any(|part| part == "..");
    let is_root = dir.trim_end_matches('/').is_empty();
    if !dir.starts_with('/') || is_root || goes_up(dir) || dir.contains(':') {
        return Some(format!(
            "scriptDir {dir:?} must be an absolute path on the node, not \"/\", without \"..\" and ':'"
        ));
    }
    (file.starts_with('/') || goes_up(file)).then(|| {
        format!(
            "scriptBootFile {file:?} must be a file in scriptDir, relative to it, without \"..\""
        )
    })
}

fn parameters(field: &str, transformer: &Transformer, findings: &mut Vec<Finding>) {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for parameter in &transformer.parameters {
        let key = &parameter.key;
        let message = if key.is_empty() {
            format!("{field}.parameters: empty key; set a key or remove the parameter")
        } else if let Some(first) = seen.insert(variable(key), key) {
            format!(
                "{field}.parameters: {first:?} and {key:?} both become the environment variable {}; rename one",
                variable(key)
            )
        } else {
            continue;
        };
        findings.push(Finding::new(Reason::TransformerInvalid, message));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use neptune_api::{EnvironmentVariable, KeyValue};

    use super::*;

    fn endpoint(protocol: ServerProtocol) -> Endpoint<'static> {
        Endpoint {
            object: ("default", "signs"),
            model_name: "m",
            port: 8601,
            proxy: None,
            server_port: 13_601,
            protocol: Some(protocol),
            is_tcp: false,
            in_pod: false,
        }
    }

    fn by_image() -> Transformer {
        Transformer { image: Some("t:1".into()), ..Transformer::default() }
    }

    fn by_script() -> Transformer {
        Transformer {
            script_dir: Some("/srv/t/".into()),
            script_boot_file: Some("t.py".into()),
            framework_type: Some("python".into()),
            framework_version: Some("3.12".into()),
            ..Transformer::default()
        }
    }

    fn resolve_with(
        transformer: &Transformer,
        endpoint: Endpoint<'_>,
    ) -> Result<neptune_wire::Transformer, Vec<Finding>> {
        let mut findings = Vec::new();
        let frameworks = Ok(Arc::new(Frameworks::default()));
        let resolved =
            resolve("spec.transformer", transformer, endpoint, &frameworks, &mut findings);
        resolved.ok_or(findings)
    }

    #[test]
    fn plain_program_learns_of_its_server_by_environment_only() {
        let transformer = Transformer {
            args: vec!["--listen={port}".into(), "{serverPort}".into(), "{modelName}".into()],
            parameters: vec![KeyValue::new("size", "8"), KeyValue::new("port", "1")],
            ..by_image()
        };
        let resolved = resolve_with(&transformer, endpoint(ServerProtocol::Oip)).unwrap();
        assert_eq!(resolved.program.args, ["--listen=8601", "13601", "m"]);
        let expected = [
            ("MODEL_NAME", "m"),
            ("NAMESPACE", "default"),
            ("PARAMETERS", r#"[{"key":"size","value":"8"},{"key":"port","value":"1"}]"#),
            ("PORT", "8601"),
            ("PREDICTOR_HOST", "127.0.0.1:13601"),
            ("PREDICTOR_PROTOCOL", "v2"),
            ("PREDICTOR_URL", "http://127.0.0.1:13601"),
            ("SERVICE_NAME", "signs"),
            ("SERVING_PORT", "8601"),
            ("SIZE", "8"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(resolved.program.env, expected.into());
        assert_eq!(resolved.health_path.as_deref(), Some("/v2/models/m/ready"));
        assert_eq!((resolved.server_port, resolved.scripts), (13_601, None));
    }

    #[test]
    fn kserve_gets_its_arguments_unless_they_are_given() {
        let all = [
            "--model_name",
            "m",
            "--predictor_host",
            "127.0.0.1:13601",
            "--predictor_protocol",
            "v1",
            "--http_port",
            "8601",
            "--predictor_request_timeout_seconds",
            "60",
        ];
        let by_style = Transformer { style: Some(TransformerStyle::KServe), ..by_image() };
        let by_framework = Transformer { framework_type: Some("kserve".into()), ..by_image() };
        for transformer in [&by_style, &by_framework] {
            let resolved = resolve_with(transformer, endpoint(ServerProtocol::Tfserving)).unwrap();
            assert_eq!(resolved.program.args, all);
            assert_eq!(resolved.health_path.as_deref(), Some("/v1/models/m"));
        }
        let env = Transformer { style: Some(TransformerStyle::Env), ..by_framework };
        let resolved = resolve_with(&env, endpoint(ServerProtocol::Tfserving)).unwrap();
        assert_eq!(resolved.program.args.len(), 0);
        let args =
            ["--model_name=other", "--http_port", "9", "--predictor_host={modelName}:{port}"];
        let given = Transformer { args: args.map(str::to_owned).into(), ..by_style };
        let resolved = resolve_with(&given, endpoint(ServerProtocol::Openai)).unwrap();
        assert_eq!(
            resolved.program.args,
            [
                "--model_name=other",
                "--http_port",
                "9",
                "--predictor_host=m:8601",
                "--predictor_request_timeout_seconds",
                "60"
            ]
        );
    }

    #[test]
    fn agent_fills_in_the_port_of_a_transformer_behind_a_proxy() {
        let transformer = Transformer {
            args: vec!["--listen={port}".into()],
            style: Some(TransformerStyle::KServe),
            ..by_image()
        };
        let proxy = Some(("neptune-edge", [13_602, 13_603]));
        let endpoint = Endpoint { proxy, ..endpoint(ServerProtocol::Oip) };
        let resolved = resolve_with(&transformer, endpoint).unwrap();
        assert_eq!(resolved.program.args[0], "--listen={port}");
        let flag = resolved.program.args.iter().position(|arg| arg == "--http_port").unwrap();
        assert_eq!(resolved.program.args[flag + 1], "{port}");
        assert!(
            !resolved.program.env.contains_key("PORT")
                && !resolved.program.env.contains_key("SERVING_PORT")
        );
        let proxy = resolved.proxy.unwrap();
        assert_eq!((proxy.image.as_str(), proxy.ports), ("neptune-edge", [13_602, 13_603]));
    }

    #[test]
    fn script_is_started_by_its_framework() {
        let resolved = resolve_with(&by_script(), endpoint(ServerProtocol::Oip)).unwrap();
        assert_eq!(resolved.program.image, "python:3.12-slim");
        assert_eq!(resolved.program.command, ["python3", "/srv/t/t.py"]);
        assert_eq!(resolved.scripts.unwrap().boot_file, "t.py");
        let image = Transformer { image: Some("mine:1".into()), ..by_script() };
        assert_eq!(
            resolve_with(&image, endpoint(ServerProtocol::Oip)).unwrap().program.image,
            "mine:1"
        );
    }

    #[test]
    fn check_is_a_connection_without_a_known_protocol_or_if_wanted() {
        let tcp = Endpoint { is_tcp: true, ..endpoint(ServerProtocol::Oip) };
        let unknown = Endpoint { protocol: None, ..tcp };
        let resolved = [tcp, unknown].map(|endpoint| resolve_with(&by_image(), endpoint).unwrap());
        assert_eq!(resolved.each_ref().map(|it| it.health_path.clone()), [None, None]);
        assert_eq!(resolved[1].program.env.get("PREDICTOR_PROTOCOL"), None);
    }

    #[test]
    fn finding_names_the_field_and_the_remedy() {
        type Change = fn(&mut Transformer);
        let cases: [(Change, &str); 11] = [
            (|t| *t = Transformer::default(), "spec.transformer: give image or scriptDir"),
            (|t| t.script_boot_file = None, "spec.transformer.scriptBootFile: give scriptDir"),
            (|t| t.script_dir = Some("t".into()), "spec.transformer.scriptDir \"t\" must be"),
            (|t| t.script_dir = Some("//".into()), "must be an absolute path on the node"),
            (|t| t.script_boot_file = Some("../t".into()), "scriptBootFile \"../t\" must be"),
            (|t| t.framework_type = None, "frameworkType \"\" has no command for the script"),
            (|t| t.framework_type = Some("caffe".into()), "frameworkType \"caffe\" has no command"),
            (|t| t.framework_version = None, "spec.transformer.image is missing; set it"),
            (
                |t| t.parameters = vec![KeyValue::new("a-b", ""), KeyValue::new("a.b", "")],
                "spec.transformer.parameters: \"a-b\" and \"a.b\" both become",
            ),
            (
                |t| {
                    let port = EnvironmentVariable { name: "PORT".into(), value: "1".into() };
                    t.env = vec![port];
                },
                "spec.transformer.env: \"PORT\" is set by Neptune",
            ),
            (
                |t| t.env = vec![EnvironmentVariable::default()],
                "spec.transformer.env: \"\" must be",
            ),
        ];
        for (change, text) in cases {
            let mut transformer = by_script();
            change(&mut transformer);
            let findings = resolve_with(&transformer, endpoint(ServerProtocol::Oip)).unwrap_err();
            let [finding] = &findings[..] else { unreachable!("{text}: {findings:#?}") };
            assert_eq!(finding.reason, Reason::TransformerInvalid, "{text}");
            assert!(finding.message.contains(text), "{text}: {}", finding.message);
        }
        let pod = Endpoint { in_pod: true, ..endpoint(ServerProtocol::Oip) };
        let findings = resolve_with(&by_script(), pod).unwrap_err();
        assert!(findings[0].message.contains("Pods in the cloud have no scripts of a node"));
    }
}
