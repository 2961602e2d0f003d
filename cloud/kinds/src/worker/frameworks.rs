//! The framework table: the image and command of a worker, and the server of an `InferenceModel`.
//! Entries of the `ConfigMap` `neptune-frameworks` override the built-in ones.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use crate::worker::{
    program_text,
    serving_runtimes::{self, Server},
};

/// The framework of a program that its image contains.
pub const CONTAINER: &str = "container";

/// The key of the `ConfigMap`'s data that holds the table. (A key cannot have the ':' of a
/// version.)
pub const TABLE_KEY: &str = "frameworks.yaml";

/// The name of the `ConfigMap`.
pub const CONFIG_MAP: &str = "neptune-frameworks";

/// What a framework's workers run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Framework {
    /// The image; `{version}` is replaced by `frameworkVersion`. Without one, a worker must set its
    /// image.
    pub image: Option<String>,
    /// The command that starts the script. Empty if the program is in the image; then no script is
    /// mounted.
    pub command: Vec<String>,
}

/// Frameworks by `<type>:<version>` or `<type>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frameworks {
    workers: BTreeMap<String, Framework>,
    servers: BTreeMap<String, Server>,
    engines: BTreeMap<String, Engine>,
}

/// An engine that trains by a protocol of its own: its server in the cloud, and its workers on nodes.
/// In `args` of the workers the agent replaces `{aggregator}`, `{caFile}`, `{index}`, `{workers}`,
/// `{dataset}` and `{weights}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Engine {
    /// The port of the server.
    #[serde(default)]
    pub port: Option<u16>,
    /// The program of the server.
    #[serde(default)]
    pub server: EngineProgram,
    /// The workers. Without it they run the script, as in other trainings.
    #[serde(default)]
    pub worker: Option<EngineProgram>,
}

/// A program of an engine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineProgram {
    /// The image; `{version}` is replaced by `frameworkVersion`. Without one, the spec must set it.
    #[serde(default)]
    pub image: Option<String>,
    /// The command of the container, without its arguments.
    #[serde(default)]
    pub command: Vec<String>,
    /// Arguments of the command.
    #[serde(default)]
    pub args: Vec<String>,
}

/// An entry of the `ConfigMap`. An entry with only `serving` or `training` keeps the built-in worker
/// entry; one without `serving` keeps the built-in server.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(default)]
    image: Option<String>,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    serving: Option<Server>,
    #[serde(default)]
    training: Option<Engine>,
}

impl Default for Frameworks {
    fn default() -> Self {
        let python = |image: &str| Framework {
            image: Some(image.to_owned()),
            command: vec!["python3".to_owned()],
        };
        let table = [
            ("container", Framework::default()),
            ("python", python("python:{version}-slim")),
            ("pytorch", python("pytorch/pytorch:{version}")),
            ("tensorflow", python("tensorflow/tensorflow:{version}")),
            // Named by the samples of the documents. The last release of TensorFlow 1 is 1.15.5.
            ("tensorflow:1.18", python("tensorflow/tensorflow:1.15.5-py3")),
        ];
        Self {
            workers: table.map(|(name, framework)| (name.to_owned(), framework)).into(),
            servers: serving_runtimes::built_in()
                .map(|(name, server)| (name.to_owned(), server))
                .into(),
            engines: BTreeMap::new(),
        }
    }
}

impl Frameworks {
    /// The built-in tables with these entries added or replaced.
    ///
    /// # Errors
    /// The YAML is invalid; the message names the position, or the field with a NUL.
    pub fn with(yaml: &str) -> Result<Self, String> {
        let entries: Option<BTreeMap<String, Entry>> =
            serde_saphyr::from_str(yaml).map_err(|error| error.to_string())?;
        let table: Value = serde_saphyr::from_str(yaml).map_err(|error| error.to_string())?;
        if let Some(error) = program_text::errors("", &table).into_iter().next() {
            return Err(error);
        }
        let Self { mut workers, mut servers, mut engines } = Self::default();
        for (name, Entry { image, command, serving, training }) in entries.unwrap_or_default() {
            let has_other = serving.is_some() || training.is_some();
            if !has_other || image.is_some() || !command.is_empty() {
                workers.insert(name.clone(), Framework { image, command });
            }
            engines.extend(training.map(|engine| (name.clone(), engine)));
            servers.extend(serving.map(|server| (name, server)));
        }
        Ok(Self { workers, servers, engines })
    }

    /// The engine of `<framework>:<version>`, else of `<framework>`, with the version inserted. A
    /// framework without the entry `training` is an engine whose server is started as its workers are.
    pub fn engine(&self, framework: &str, version: &str) -> Option<Engine> {
        let exact = self.engines.get(&format!("{framework}:{version}"));
        let Some(mut engine) = exact.or_else(|| self.engines.get(framework)).cloned() else {
            let Framework { image, command } = self.find(framework, version)?;
            let server = EngineProgram { image, command, args: Vec::new() };
            return Some(Engine { port: None, server, worker: None });
        };
        for program in [Some(&mut engine.server), engine.worker.as_mut()].into_iter().flatten() {
            let image = program.image.take();
            program.image = image.map(|image| image.replace("{version}", version));
        }
        Some(engine)
    }

    /// The entry of `<framework>:<version>`, else of `<framework>`, with the version inserted.
    pub fn find(&self, framework: &str, version: &str) -> Option<Framework> {
        let exact = self.workers.get(&format!("{framework}:{version}"));
        let Framework { image, command } = exact.or_else(|| self.workers.get(framework))?.clone();
        Some(Framework { image: image.map(|image| image.replace("{version}", version)), command })
    }

    /// The frameworks that [`Frameworks::find`] knows, without versions.
    pub fn known(&self) -> String {
        let name = |entry: &String| entry.split(':').next().unwrap_or(entry).to_owned();
        let names: BTreeSet<_> = self.workers.keys().chain(self.engines.keys()).map(name).collect();
        names.into_iter().collect::<Vec<_>>().join(", ")
    }

    /// The server of a framework's models. A `frameworkType` may name a version as
    /// `<type>:<version>`.
    pub fn server(&self, framework: &str) -> Option<&Server> {
        let type_ = framework.split_once(':').map_or(framework, |(type_, _)| type_);
        self.servers.get(framework).or_else(|| self.servers.get(type_))
    }

    /// The names that [`Frameworks::server`] knows.
    pub fn known_servers(&self) -> String {
        self.servers.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::ServerProtocol;
    use neptune_wire::ServerUpdateMode;

    use super::*;

    fn image(table: &Frameworks, framework: &str, version: &str) -> Option<String> {
        table.find(framework, version).and_then(|entry| entry.image)
    }

    #[test]
    fn built_in_table_inserts_the_version() {
        let table = Frameworks::default();
        assert_eq!(image(&table, "tensorflow", "2.9").unwrap(), "tensorflow/tensorflow:2.9");
        let of_samples = "tensorflow/tensorflow:1.15.5-py3";
        assert_eq!(image(&table, "tensorflow", "1.18").unwrap(), of_samples);
        assert_eq!(image(&table, "pytorch", "2").unwrap(), "pytorch/pytorch:2");
        assert_eq!(image(&table, "python", "3.12").unwrap(), "python:3.12-slim");
        assert_eq!(table.find("container", "1"), Some(Framework::default()));
        assert_eq!(table.find("Tensorflow", "1"), None);
        assert_eq!(table.known(), "container, python, pytorch, tensorflow");
    }

    #[test]
    fn version_overrides_framework_and_config_map_overrides_built_in() {
        let table = Frameworks::with(
            "tensorflow: {image: 'mirror/tf:{version}', command: [python]}\n\
             'tensorflow:1.18': {image: local/helmet}\n\
             rust: {image: local/rust}",
        )
        .unwrap();
        assert_eq!(image(&table, "tensorflow", "2.0").unwrap(), "mirror/tf:2.0");
        assert_eq!(image(&table, "tensorflow", "1.18").unwrap(), "local/helmet");
        assert_eq!(image(&table, "rust", "").unwrap(), "local/rust");
        assert_eq!(image(&table, "python", "3").unwrap(), "python:3-slim");
    }

    #[test]
    fn entries_of_servers_and_workers_are_independent() {
        let table = Frameworks::with(
            "tensorflow: {image: mirror/tf, command: [python]}\n\
             pytorch: {serving: {image: local/torch, args: ['--dir={directory}'], healthPath: /ping}}\n\
             onnx: {serving: {image: local/onnx, directory: /m, reload: watch, protocol: oip}}",
        )
        .unwrap();
        assert_eq!(table.known(), "container, python, pytorch, tensorflow");
        assert_eq!(
            table.known_servers(),
            "llamacpp, ollama, onnx, openvino, pytorch, tensorflow, triton, vllm"
        );
        assert_eq!(image(&table, "pytorch", "2").unwrap(), "pytorch/pytorch:2");
        assert_eq!(table.server("tensorflow:2"), Frameworks::default().server("tensorflow"));
        let torch = table.server("pytorch").unwrap();
        assert_eq!(
            (&*torch.directory, torch.reload),
            ("/models/{modelName}", ServerUpdateMode::Replace)
        );
        assert_eq!(table.server("onnx").unwrap().reload, ServerUpdateMode::Watch);
        let protocol = |name| table.server(name).unwrap().protocol;
        assert_eq!(protocol("onnx"), Some(ServerProtocol::Oip));
        assert_eq!(protocol("llamacpp"), Some(ServerProtocol::Openai));
        assert_eq!(protocol("pytorch"), None);
        assert_eq!(table.server("container"), None);
    }

    #[test]
    fn engine_is_that_of_the_entry_or_the_framework_itself() {
        let table = Frameworks::with(
            "flower: {training: {port: 8000, server: {image: 'f:{version}', command: [sh]}, \
             worker: {image: 'f:{version}', args: ['{aggregator}']}}}",
        )
        .unwrap();
        let flower = table.engine("flower", "1").unwrap();
        assert_eq!((flower.port, flower.server.image.as_deref()), (Some(8000), Some("f:1")));
        assert_eq!(flower.worker.unwrap().args, ["{aggregator}"]);
        let python = table.engine("python", "3").unwrap();
        assert_eq!((python.server.command, python.worker), (vec!["python3".to_owned()], None));
        assert_eq!((table.find("flower", "1"), table.engine("other", "")), (None, None));
        assert_eq!(table.known(), "container, flower, python, pytorch, tensorflow");
    }

    #[test]
    fn table_with_a_typing_error_is_rejected_as_a_whole() {
        for bad in [
            "tensorflow: local/tf",
            "a: {imag: b}",
            "- a",
            ": :",
            "a: {command: x: y}",
            "a: {serving: {args: [b]}}",
            "a: {serving: {image: b, protocol: grpc}}",
        ] {
            assert!(Frameworks::with(bad).is_err(), "{bad:?} was accepted");
        }
        let error = Frameworks::with("a: {command: [b, \"c\\0\"]}").unwrap_err();
        assert!(error.starts_with("a.command[1] contains a NUL character"), "{error}");
        assert_eq!(Frameworks::with("").unwrap(), Frameworks::default());
    }
}
