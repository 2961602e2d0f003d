//! Example values for the unit tests.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, path::Path};

use neptune_wire::{
    AgentInstance, AggregatorContent, ModelServer, ObjectKey, TopicPrefix, TransformerProxy,
};
use serde_json::json;

use crate::{
    desired::WantedWorker,
    domain::{
        aggregator::WantedAggregator,
        allowed_dirs::AllowedDirs,
        artifact::LocalArtifact,
        container::ContainerDefaults,
        node_context::{NONROOT, NodeContext, WorkerBroker},
        observed_container::{ContainerIdentity, ContainerState, ObservedContainer},
        served_version::ServedVersion,
    },
};

pub fn node_context() -> NodeContext {
    NodeContext {
        node: "edge0".parse().unwrap(),
        prefix: TopicPrefix::default(),
        broker: WorkerBroker::External("mqtt://127.0.0.1:1884".into()),
        data_dir: "/var/lib/neptune".into(),
        runtime_dir: "/run/neptune".into(),
        agent_user: 0,
        gateway_user: NONROOT,
        docker_socket: "/var/run/docker.sock".into(),
        dns: Vec::new(),
        network: None,
        allowed: AllowedDirs::default(),
        defaults: ContainerDefaults::default(),
    }
}

/// A model in one file on the node.
pub fn local_file(path: &str) -> LocalArtifact {
    let file = Path::new(path).file_name().unwrap().to_str().unwrap().to_owned();
    LocalArtifact { path: path.into(), file: Some(file) }
}

/// Returns the key of the model that [`wanted_worker`] uses.
pub fn model_key() -> ObjectKey {
    "default/models/m".parse().unwrap()
}

pub fn wanted_worker() -> WantedWorker {
    WantedWorker {
        owner: "default/jointinferenceservices/s".parse().unwrap(),
        uid: "uid".into(),
        worker: serde_json::from_value(json!({
            "name": "s-w-1", "role": "edge", "image": "i", "model": "m", "args": ["/code/a.py"],
            "scripts": {"dir": "/code", "bootFile": "a.py"},
            "env": {"HEM_NAME": "IBT", "MODEL_URL": "mine"}, "resources": {"memoryBytes": 0, "cpuMillis": 5},
        }))
        .unwrap(),
        model: Some(model_key()),
        dataset: None,
    }
}

/// A gateway in front of the model server of [`serving`].
pub fn wanted_gateway() -> WantedWorker {
    WantedWorker {
        worker: serde_json::from_value(json!({
            "name": "s-w-1", "role": "edge", "image": "neptune-edge",
            "command": ["neptune-gateway"],
            "args": ["run", "--config", "/etc/neptune-gateway/gateway.json"],
            "gateway": {
                "server": "m", "tokenFile": "llm",
                "config": {
                    "service": "s", "protocol": "oip", "edge": {"address": "127.0.0.1:9001"},
                    "cloud": {"url": "https://llm.example"},
                    "hardExample": {"goal": {"uploadRatio": 0.2}},
                },
            },
        }))
        .unwrap(),
        model: None,
        ..wanted_worker()
    }
}

pub fn container_identity() -> ContainerIdentity {
    ContainerIdentity {
        node: "edge0".parse().unwrap(),
        instance: AgentInstance("abc".into()),
        owner: "default/jointinferenceservices/s".parse().unwrap(),
        uid: "uid".into(),
        worker: "s-w-1".parse().unwrap(),
        spec_hash: "00ff".into(),
        restarts: 3,
        restarted_at: None,
    }
}

pub fn observed_container(id: &str) -> ObservedContainer {
    ObservedContainer {
        id: id.into(),
        identity: container_identity(),
        state: ContainerState::Running,
        started_at: "then".into(),
        sources: Vec::new(),
        version: None,
        password: None,
        address: None,
        devices: BTreeMap::new(),
    }
}

/// A model server with this version and update mode.
pub fn serving(version: &str, reload: &str) -> ModelServer {
    serde_json::from_value(json!({
        "name": "m-server-1", "modelName": "m", "image": "i", "port": 8501, "reload": reload,
        "env": {"A": "b"},
        "model": {"version": version, "url": format!("http://h/{version}.tar"), "directory": "/models/m"},
        "health": {"httpPath": "/v/{version}", "periodMs": 1000, "timeoutMs": 500, "startWithinMs": 60_000, "probationMs": 30_000},
    }))
    .unwrap()
}

/// Returns the server of [`serving`] with a transformer.
pub fn transformed(version: &str, reload: &str) -> ModelServer {
    let transformer = serde_json::from_value(json!({
        "image": "t", "serverPort": 13_501, "healthPath": "/ready", "env": {"PORT": "8501"},
    }));
    ModelServer { transformer: Some(transformer.unwrap()), ..serving(version, reload) }
}

/// Returns the server of [`transformed`] with this image and a proxy.
pub fn proxied(image: &str, version: &str, reload: &str) -> ModelServer {
    let mut serving = transformed(version, reload);
    let transformer = serving.transformer.as_mut().unwrap();
    image.clone_into(&mut transformer.program.image);
    transformer.proxy =
        Some(TransformerProxy { image: "neptune-edge".into(), ports: [13_502, 13_503] });
    serving
}

pub fn served_version(version: &str, reload: &str) -> ServedVersion {
    ServedVersion::new(&serving(version, reload), 1)
}

/// An aggregator that may start.
pub fn wanted_aggregator() -> WantedAggregator {
    WantedAggregator {
        owner: "n/trainingmodels/digits".parse().unwrap(),
        uid: "uid-1".to_owned(),
        content: AggregatorContent {
            container: "digits-aggregator".parse().unwrap(),
            image: "i".to_owned(),
            port: 8418,
            may_start: true,
            request: None,
        },
    }
}
