//! The model servers of the frameworks: the built-in ones, and the placeholders in a table entry.

use neptune_api::ServerProtocol;
use neptune_wire::ServerUpdateMode;
use serde::Deserialize;

/// Placeholder for the path of the version's one file.
pub const FILE: &str = "{file}";

/// Placeholder for the port of gRPC.
pub const GRPC_PORT: &str = "{grpcPort}";

/// Placeholder for the address on which the server listens: that of all interfaces, or behind a
/// transformer the loopback address.
pub const HOST: &str = "{host}";

/// The address of all interfaces.
pub const ANY_HOST: &str = "0.0.0.0";

/// A server of models that are stored as files, one directory per version.
///
/// In `command`, `args`, `directory` and `healthPath`, the placeholders `{modelName}`, `{port}` and
/// `{directory}` are replaced by the values of the `InferenceModel`, `{version}` by the version to
/// serve, and in `args` `{file}` by the path of the version's one file, and `{host}` by the address
/// on which the server listens. `{grpcPort}` is for `grpcArgs`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Server {
    /// The image of the server.
    pub image: String,
    /// Overrides the image's entry point; empty keeps it.
    #[serde(default)]
    pub command: Vec<String>,
    /// The arguments of the server, with placeholders.
    #[serde(default)]
    pub args: Vec<String>,
    /// Arguments that are added if the model has a port for gRPC. Without them, the server has no
    /// gRPC.
    #[serde(default)]
    pub grpc_args: Vec<String>,
    /// Arguments that are added behind a transformer, so that the server listens on `{host}` only.
    #[serde(default)]
    pub host_args: Vec<String>,
    /// The directory of the versions in the container.
    #[serde(default = "default_directory")]
    pub directory: String,
    /// How the server switches to another version.
    #[serde(default)]
    pub reload: ServerUpdateMode,
    /// The path of the readiness probe (HTTP GET); without it, a TCP connection is the probe.
    #[serde(default)]
    pub health_path: Option<String>,
    /// Whether the server accepts only integers as versions.
    #[serde(default)]
    pub numeric_versions: bool,
    /// The protocol of inference. Without it, a service cannot put a gateway in front of it.
    #[serde(default)]
    pub protocol: Option<ServerProtocol>,
}

fn default_directory() -> String {
    "/models/{modelName}".to_owned()
}

/// The built-in servers.
///
/// `PyTorch` has none: `TorchServe` is no longer maintained, and Triton does not serve its files
/// without a configuration of each.
pub fn built_in() -> [(&'static str, Server); 7] {
    let args = |args: &[&str]| args.iter().map(|arg| (*arg).to_owned()).collect();
    let watching =
        |image: &str, command: &[&str], arguments: &[&str], health: &str, protocol| Server {
            image: image.to_owned(),
            command: args(command),
            args: args(arguments),
            grpc_args: Vec::new(),
            host_args: Vec::new(),
            directory: default_directory(),
            reload: ServerUpdateMode::Watch,
            health_path: Some(health.to_owned()),
            numeric_versions: true,
            protocol: Some(protocol),
        };
    // The path of the Open Inference Protocol.
    let ready = "/v2/models/{modelName}/versions/{version}/ready";
    let openvino = Server {
        grpc_args: args(&["--port={grpcPort}"]),
        host_args: args(&["--rest_bind_address={host}"]),
        ..watching(
            "openvino/model_server:2025.2",
            &[],
            &["--rest_port={port}", "--model_name={modelName}", "--model_path={directory}"],
            ready,
            ServerProtocol::Oip,
        )
    };
    let tensorflow = watching(
        "tensorflow/serving:2.18.0",
        // The image's own entry point is a script that sets these flags itself.
        &["tensorflow_model_server"],
        &[
            // No gRPC port, which is not that of the Open Inference Protocol. The server requires
            // a gRPC endpoint, so it gets a socket in the container.
            "--port=0",
            "--grpc_socket_path=/tmp/grpc.sock",
            "--rest_api_port={port}",
            "--model_name={modelName}",
            "--model_base_path={directory}",
        ],
        // The status of a version responds 200 while it loads; its metadata does not.
        "/v1/models/{modelName}/versions/{version}/metadata",
        ServerProtocol::Tfserving,
    );
    let triton = Server {
        // The last value of an option counts.
        grpc_args: args(&["--allow-grpc=true", "--grpc-port={grpcPort}"]),
        host_args: args(&["--http-address={host}"]),
        ..watching(
            "nvcr.io/nvidia/tritonserver:24.12-py3",
            &["tritonserver"],
            &[
                "--model-repository=/models",
                "--model-control-mode=poll",
                "--repository-poll-secs=1",
                // A version that cannot be loaded is detected by the health check.
                "--exit-on-error=false",
                "--http-port={port}",
                "--allow-grpc=false",
                "--allow-metrics=false",
            ],
            ready,
            ServerProtocol::Oip,
        )
    };
    [
        ("llamacpp", llamacpp()),
        ("ollama", ollama()),
        ("onnx", openvino.clone()),
        ("openvino", openvino),
        ("tensorflow", tensorflow),
        ("triton", triton),
        ("vllm", vllm()),
    ]
}

/// A server of language models, which is replaced by one of another version.
fn language_server(image: &str, command: &[&str], args: &[&str], health: &str) -> Server {
    let all = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    Server {
        image: image.to_owned(),
        command: all(command),
        args: all(args),
        grpc_args: Vec::new(),
        host_args: Vec::new(),
        directory: default_directory(),
        reload: ServerUpdateMode::Replace,
        health_path: Some(health.to_owned()),
        numeric_versions: false,
        protocol: Some(ServerProtocol::Openai),
    }
}

/// Serves one GGUF file.
fn llamacpp() -> Server {
    language_server(
        "ghcr.io/ggml-org/llama.cpp:server-b10108",
        &[],
        &[
            "--model",
            "{file}",
            "--alias",
            "{modelName}",
            "--host",
            "{host}",
            "--port",
            "{port}",
            "--metrics",
        ],
        "/health",
    )
}

/// Serves one GGUF file, which it imports at its start. `OLLAMA_MODELS` is below `/tmp`, which is
/// always writable.
fn ollama() -> Server {
    language_server(
        "ollama/ollama:0.18.2",
        &["sh", "-c"],
        &[
            "export HOME=/tmp OLLAMA_MODELS=/tmp/models OLLAMA_HOST={host}:{port}; echo FROM {file} > /tmp/Modelfile; (until ollama create {modelName} -f /tmp/Modelfile; do sleep 1; done) & exec ollama serve",
        ],
        "/api/version",
    )
}

/// Serves the directory of a model of Hugging Face, from an archive.
fn vllm() -> Server {
    language_server(
        "vllm/vllm-openai:v0.11.0",
        &[],
        &[
            "--model",
            "{directory}/{version}",
            "--served-model-name",
            "{modelName}",
            "--host",
            "{host}",
            "--port",
            "{port}",
        ],
        "/health",
    )
}

/// The ports of a model server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerPorts {
    /// The port for REST.
    pub rest: u16,
    /// The port for gRPC; `None` if the model has none.
    pub grpc: Option<u16>,
}

/// Replaces the placeholders of the model. `{version}` and `{file}` stay, and `{grpcPort}` without
/// such a port.
pub fn fill(text: &str, model_name: &str, ports: ServerPorts, directory: &str) -> String {
    let text = text.replace("{directory}", directory).replace("{port}", &ports.rest.to_string());
    let text = match ports.grpc {
        Some(port) => text.replace(GRPC_PORT, &port.to_string()),
        None => text,
    };
    text.replace("{modelName}", model_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: ServerPorts = ServerPorts { rest: 8501, grpc: Some(8502) };

    #[test]
    fn built_in_server_uses_the_port_and_the_directory_of_the_model() {
        for (name, server) in built_in() {
            let fill_all = |args: &[String]| -> Vec<_> {
                args.iter().map(|arg| fill(arg, "digits", PORTS, "/models/digits")).collect()
            };
            let filled = fill_all(&server.args);
            assert!(filled.iter().any(|arg| arg.contains("8501")), "{name}: {filled:?}");
            let has_grpc = fill_all(&server.grpc_args).iter().any(|arg| arg.contains("8502"));
            assert_eq!(has_grpc, server.protocol == Some(ServerProtocol::Oip), "{name}");
            assert!(!server.args.iter().any(|arg| arg.contains(GRPC_PORT)), "{name}");
            let without =
                |arg: &String| arg.replace(FILE, "").replace(HOST, "").replace("{version}", "");
            assert!(filled.iter().all(|arg| !without(arg).contains('{')), "{name}: {filled:?}");
            let has_model = |arg: &String| {
                arg.contains("/models/") || arg.contains(FILE) || arg.ends_with("=/models")
            };
            assert!(filled.iter().any(has_model), "{name}: {filled:?}");
            let watches = server.reload == ServerUpdateMode::Watch;
            let path = server.health_path.expect("each has one");
            assert_eq!(path.contains("{version}"), watches, "{name}: {path}");
            assert!(server.protocol.is_some(), "{name}");
            assert!(server.image.contains(':'), "{name}: an image without a tag may change");
        }
    }

    #[test]
    fn directory_may_contain_placeholders() {
        let directory = fill("/models/{modelName}", "digits", PORTS, "");
        assert_eq!(
            fill("--path={directory}/{version}", "digits", PORTS, &directory),
            "--path=/models/digits/{version}"
        );
    }

    #[test]
    fn port_of_grpc_stays_a_placeholder_without_one() {
        let none = ServerPorts { grpc: None, ..PORTS };
        assert_eq!(fill("{port} {grpcPort}", "m", none, ""), "8501 {grpcPort}");
        assert_eq!(fill("{port} {grpcPort}", "m", PORTS, ""), "8501 8502");
    }
}
