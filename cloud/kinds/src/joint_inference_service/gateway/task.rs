//! Describes a gateway for the agent of a node. A part of `plan`.

use std::collections::BTreeMap;

use neptune_gateway_config::Document;
use neptune_wire::{
    ContainerProgram, GatewaySpec, ObjectMetadata, RestartPolicy, Role, Worker, WorkerUpdateMode,
};

use crate::joint_inference_service::resolved::ValidGateway;

/// The configuration file of a gateway in its container.
const CONFIG_FILE: &str = "/etc/neptune-gateway/gateway.json";

/// The gateway as a worker: its model server is the task of an `InferenceModel`.
pub fn planned_gateway(gateway: &ValidGateway, service: &ObjectMetadata) -> Worker {
    let addresses = [Some(gateway.config.listen), gateway.config.grpc_listen];
    let addresses: Vec<_> = addresses.iter().flatten().map(ToString::to_string).collect();
    let env = [
        ("NAMESPACE", service.namespace.to_string()),
        ("SERVICE_NAME", service.name.to_string()),
        ("WORKER_NAME", gateway.name.to_string()),
        // A gateway opens its ports when it starts: other addresses replace the container.
        ("GATEWAY_ADDRESSES", addresses.join(",")),
    ];
    Worker {
        name: gateway.name.clone(),
        role: Role::Edge,
        program: ContainerProgram {
            image: gateway.image.clone(),
            command: vec!["neptune-gateway".to_owned()],
            args: ["run", "--config", CONFIG_FILE].map(str::to_owned).into(),
            env: env.map(|(name, value)| (name.to_owned(), value)).into(),
            ..ContainerProgram::default()
        },
        scripts: None,
        model: None,
        // It serves as long as it exists.
        restart_policy: Some(RestartPolicy::Always),
        restarted_at: None,
        model_update: WorkerUpdateMode::Restart,
        dataset: None,
        port: None,
        // The addresses of its cloud are in its configuration, which it reads again.
        hosts: BTreeMap::new(),
        gateway: Some(Box::new(GatewaySpec {
            config: Document::from(&gateway.config),
            server: gateway.server.clone(),
            token_file: gateway.token_file.clone(),
            ca_file: gateway.ca_file.clone(),
            tls: gateway.tls.clone(),
            capture_dir: gateway.capture_dir.clone(),
        })),
    }
}
