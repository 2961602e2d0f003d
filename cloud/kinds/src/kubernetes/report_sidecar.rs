//! The sidecar of a cloud worker in a Pod, with an MQTT broker that posts what the worker
//! publishes, and the variables with which the worker finds it.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        Container, EnvVar, EnvVarSource, ExecAction, ObjectFieldSelector, Probe,
        ResourceRequirements,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use neptune_wire::{ContainerProgram, Topic, WorkerName};

use crate::kubernetes::{
    container::{container as container_of, variable},
    expansion::referring,
    report_access::{POD_UID, ReportAccess},
};

/// The broker's address, on the loopback interface of the Pod, as of an agent.
const BROKER: &str = "127.0.0.1:1884";

/// The program in the agent's image.
const PROGRAM: &str = "neptune-edge";

/// The memory limit. The process uses 3 MiB, and the pages of the program that it runs count too.
const MEMORY_LIMIT: &str = "64Mi";

/// The variables of the worker: those of a worker of an agent, and the address of the receiver.
pub fn worker_variables(worker: &WorkerName, access: &ReportAccess) -> Vec<EnvVar> {
    let topic = Topic::WorkerInfo(worker.clone()).under(&access.prefix);
    let broker = format!("mqtt://{worker}:{}@{BROKER}", access.broker_password);
    vec![
        variable("MQTT_URL", &broker),
        variable("WORKER_INFO_TOPIC", &topic),
        pod_uid(),
        referring("WORKER_REPORT_URL", &access.url, POD_UID),
    ]
}

/// An init container that keeps running. The kubelet starts the worker when the broker listens, and
/// stops the sidecar after the worker.
pub fn container(worker: &WorkerName, access: &ReportAccess, image: &str) -> Container {
    let check = ["sidecar", "--check"].map(str::to_owned);
    let amounts = |amounts: &[(&str, &str)]| -> Option<BTreeMap<_, _>> {
        let amount =
            |(name, amount): &(&str, &str)| ((*name).to_owned(), Quantity((*amount).to_owned()));
        Some(amounts.iter().map(amount).collect())
    };
    let program = ContainerProgram {
        image: image.to_owned(),
        command: vec![PROGRAM.to_owned()],
        args: vec!["sidecar".to_owned()],
        ..ContainerProgram::default()
    };
    Container {
        restart_policy: Some("Always".to_owned()),
        env: Some(vec![
            variable("NEPTUNE_WORKER_NAME", worker.as_str()),
            variable("NEPTUNE_WORKER_PASSWORD", &access.broker_password),
            variable("NEPTUNE_LISTEN", BROKER),
            variable("NEPTUNE_TOPIC_PREFIX", &access.prefix.to_string()),
            pod_uid(),
            referring("NEPTUNE_REPORT_URL", &access.url, POD_UID),
        ]),
        // The kubelet cannot connect to the Pod's loopback address.
        startup_probe: Some(Probe {
            exec: Some(ExecAction {
                command: Some([PROGRAM.to_owned()].into_iter().chain(check).collect()),
            }),
            period_seconds: Some(1),
            timeout_seconds: Some(5),
            failure_threshold: Some(60),
            ..Probe::default()
        }),
        resources: Some(ResourceRequirements {
            requests: amounts(&[("cpu", "5m"), ("memory", "16Mi")]),
            limits: amounts(&[("memory", MEMORY_LIMIT)]),
            ..ResourceRequirements::default()
        }),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..container_of("report-sidecar", &program)
    }
}

fn pod_uid() -> EnvVar {
    let field = ObjectFieldSelector { field_path: "metadata.uid".to_owned(), api_version: None };
    let source = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    EnvVar { name: POD_UID.to_owned(), value: None, value_from: Some(source) }
}
