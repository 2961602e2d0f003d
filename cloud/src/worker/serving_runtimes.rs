//! Which server serves a framework's models, and how: the built-in ones, and the placeholders in what
//! a table says. Pure.

use neptune_wire::ServerUpdateMode;
use serde::Deserialize;

/// A server of models that come as files, one directory a version.
///
/// In `command`, `args`, `directory` and `healthPath`, `{modelName}`, `{port}` and `{directory}` stand
/// for what the `InferenceModel` says, and `{version}` for the version that is to be served.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Server {
    /// The image.
    pub image: String,
    /// Replaces the image's entry point; empty leaves it.
    #[serde(default)]
    pub command: Vec<String>,
    /// The arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// Where the versions are in the container.
    #[serde(default = "default_directory")]
    pub directory: String,
    /// How the server takes another version.
    #[serde(default)]
    pub reload: ServerUpdateMode,
    /// A path of which GET tells whether the version is served; without it a TCP connection is enough.
    #[serde(default)]
    pub health_path: Option<String>,
    /// Whether the server takes only whole numbers for versions.
    #[serde(default)]
    pub numeric_versions: bool,
}

fn default_directory() -> String {
    "/models/{modelName}".to_owned()
}

/// The servers that need no table.
///
/// `PyTorch` has none: `TorchServe` is no longer maintained, and Triton does not serve its files
/// without a configuration of each.
pub fn built_in() -> [(&'static str, Server); 4] {
    let args = |args: &[&str]| args.iter().map(|arg| (*arg).to_owned()).collect();
    let watching = |image: &str, command: &[&str], arguments: &[&str], health: &str| Server {
        image: image.to_owned(),
        command: args(command),
        args: args(arguments),
        directory: default_directory(),
        reload: ServerUpdateMode::Watch,
        health_path: Some(health.to_owned()),
        numeric_versions: true,
    };
    // The path of the Open Inference Protocol.
    let ready = "/v2/models/{modelName}/versions/{version}/ready";
    let openvino = watching(
        "openvino/model_server:2025.2",
        &[],
        &["--rest_port={port}", "--model_name={modelName}", "--model_path={directory}"],
        ready,
    );
    let tensorflow = watching(
        "tensorflow/serving:2.18.0",
        // The image's own entry point is a script that sets these flags itself.
        &["tensorflow_model_server"],
        &[
            // No port for gRPC, of which every server on a node would want the same one. The server
            // insists on some gRPC endpoint, so it gets a socket in the container.
            "--port=0",
            "--grpc_socket_path=/tmp/grpc.sock",
            "--rest_api_port={port}",
            "--model_name={modelName}",
            "--model_base_path={directory}",
        ],
        // The status of a version is answered with 200 also while it loads; its metadata is not.
        "/v1/models/{modelName}/versions/{version}/metadata",
    );
    let triton = watching(
        "nvcr.io/nvidia/tritonserver:24.12-py3",
        &["tritonserver"],
        &[
            "--model-repository=/models",
            "--model-control-mode=poll",
            "--repository-poll-secs=1",
            // A version that cannot be loaded is the health check's matter.
            "--exit-on-error=false",
            "--http-port={port}",
            "--allow-grpc=false",
            "--allow-metrics=false",
        ],
        ready,
    );
    [
        ("onnx", openvino.clone()),
        ("openvino", openvino),
        ("tensorflow", tensorflow),
        ("triton", triton),
    ]
}

/// The text with what is known of the model in the place of its placeholders. `{version}` stays.
pub fn fill(text: &str, model_name: &str, port: u16, directory: &str) -> String {
    text.replace("{directory}", directory)
        .replace("{port}", &port.to_string())
        .replace("{modelName}", model_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_server_uses_the_port_and_the_directory_of_the_model() {
        for (name, server) in built_in() {
            let filled: Vec<_> =
                server.args.iter().map(|arg| fill(arg, "digits", 8501, "/models/digits")).collect();
            assert!(filled.iter().any(|arg| arg.ends_with("=8501")), "{name}: {filled:?}");
            assert!(filled.iter().all(|arg| !arg.contains('{')), "{name}: {filled:?}");
            assert!(filled.iter().any(|arg| arg.contains("/models")), "{name}: {filled:?}");
            assert!(server.health_path.is_some_and(|path| path.contains("{version}")), "{name}");
            assert!(server.image.contains(':'), "{name}: a node may pull another one tomorrow");
        }
    }

    #[test]
    fn a_placeholder_may_stand_in_the_directory_too() {
        let directory = fill("/models/{modelName}", "digits", 1, "");
        assert_eq!(
            fill("--path={directory}/{version}", "digits", 1, &directory),
            "--path=/models/digits/{version}"
        );
    }
}
