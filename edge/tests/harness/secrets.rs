//! Secrets of containers as the controller seals them, and what can be seen of their values.

use neptune_harness::docker::try_docker;
use neptune_seal::{SecretBytes, SecretValues, seal, verify};
use neptune_wire::{
    AgentFeature, ContainerProgram, LogSource, NodeAnswer, NodeReport, NodeRequest, RequestKind,
    SealPublicKey, SealScope, Topic, WorkerName, decode, encode,
};
use serde_json::{Value, json};

use super::{Agent, Cloud};

/// The keys and values of a Secret.
pub type Keys<'a> = &'a [(&'a str, &'a str)];

/// Runs a shell command in the one container of the node, if it runs.
pub fn exec(agent: &Agent, command: &str) -> Result<String, String> {
    let containers = agent.containers();
    let container = containers.first().ok_or("no container")?;
    let output = try_docker(&["exec", container, "busybox", "sh", "-c", command]);
    output.map_err(|error| error.to_string())
}

/// The seal key of the node, verified as the controller does.
pub async fn seal_key(cloud: &Cloud) -> SealPublicKey {
    let report = cloud.node("the seal key", |report| report.seal_key.is_some()).await;
    assert!(report.supports.contains(&AgentFeature::Sealed));
    key_of(cloud, &report)
}

/// The seal key of this report, verified as the controller does.
pub fn key_of(cloud: &Cloud, report: &NodeReport) -> SealPublicKey {
    let (pin, key) = (report.key_pin.as_ref().unwrap(), report.seal_key.as_ref().unwrap());
    verify(&cloud.node, pin, key).unwrap()
}

/// Adds a Secret to a worker or a model server of the object with this UID, sealed as the controller
/// does.
pub fn add_secret(
    cloud: &Cloud,
    (uid, program): (&str, &mut Value),
    key: &SealPublicKey,
    (name, version): (&str, u32),
    keys: Keys<'_>,
) {
    let names: Vec<&str> = keys.iter().map(|(key, _)| *key).collect();
    let secrets = json!({
        "name": name, "version": format!("uid/{version}"), "keys": names, "sealKey": key.id(),
    });
    program["secrets"] = json!([secrets]);
    let owner: WorkerName = program["name"].as_str().unwrap().parse().unwrap();
    let typed: ContainerProgram = serde_json::from_value(program.clone()).unwrap();
    let scope = SealScope::new(&cloud.node, uid, &owner, &typed, &typed.secrets[0]);
    let value = |(key, value): &(&str, &str)| {
        ((*key).to_owned(), SecretBytes::new(value.as_bytes().to_vec()))
    };
    let values: SecretValues = keys.iter().map(value).collect();
    program["secrets"][0]["sealed"] = seal(key, &scope, &values).unwrap().into();
}

/// Requests the log of a container of the object with this UID, and returns its last lines.
pub async fn requested_log(
    cloud: &Cloud,
    (object, uid): (&str, &str),
    worker: LogSource,
) -> String {
    let request = NodeRequest {
        id: "log-1".parse().unwrap(),
        kind: RequestKind::Log,
        object: object.parse().unwrap(),
        uid: uid.to_owned(),
        worker,
        tail_lines: 100,
        since: None,
    };
    cloud.publish(&Topic::Request(cloud.node.clone()), encode(&request), false);
    let topic = Topic::Answer(cloud.node.clone());
    let answer: NodeAnswer = cloud.message(&topic, "the log", |payload| decode(payload).ok()).await;
    answer.text
}
