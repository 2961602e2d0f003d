//! Reads what a worker says on the local broker, and drops what cannot be true or comes from nobody
//! that this node runs. Adding it up is left to counts.rs.

use neptune_link::Message;
use neptune_wire::{Counters, Prefix, Role, Topic, WorkerInfo, WorkerName, decode};

use crate::{
    desired::{Desired, Wanted},
    observed::Container,
};

/// A run's name or a status that is longer is no such thing.
const LONGEST_WORD: usize = 128;

/// What a worker says of itself.
#[derive(Debug, PartialEq)]
pub struct Said<'a> {
    pub worker: WorkerName,
    pub wanted: &'a Wanted,
    pub info: WorkerInfo,
    /// What an edge worker has counted in which run.
    pub counts: Option<(String, Counters)>,
}

/// Reads a message. `containers` is what Docker last showed.
///
/// # Errors
/// Why the message is dropped.
pub fn read<'a>(
    message: &Message,
    prefix: &Prefix,
    desired: &'a Desired,
    containers: &[Container],
) -> Result<Said<'a>, String> {
    let Ok(Topic::WorkerInfo(worker)) = Topic::parse(prefix, &message.topic) else {
        return Err("not a worker's topic".to_owned());
    };
    let wanted = desired.workers.get(&worker).ok_or("this node runs no worker of that name")?;
    let info: WorkerInfo = decode(&message.payload).map_err(|error| error.to_string())?;
    let mut words = vec![("status", &info.status)];
    words.extend(info.task_info.as_ref().map(|task| ("taskInfo.startTime", &task.start_time)));
    if let Some((field, _)) =
        words.iter().find(|(_, word)| word.len() > LONGEST_WORD || word.contains(char::is_control))
    {
        return Err(format!("{field} is not one word of at most {LONGEST_WORD} bytes"));
    }
    let counters = info.task_info.as_ref().map(neptune_wire::WorkerTaskInfo::counters).transpose();
    let counters = counters.map_err(|error| error.to_string())?;
    let start = info.task_info.as_ref().map(|task| task.start_time.clone()).unwrap_or_default();
    let run = if start.is_empty() { run_of(&worker, containers) } else { start };
    let counts =
        counters.filter(|_| wanted.worker.role == Role::Edge).map(|counters| (run, counters));
    Ok(Said { worker, wanted, info, counts })
}

/// A worker that does not name its runs has one for each start of its container.
fn run_of(worker: &WorkerName, containers: &[Container]) -> String {
    let container = containers
        .iter()
        .find(|container| container.identity.worker == *worker && container.is_alive());
    container.map_or_else(
        || "unnamed".to_owned(),
        |container| format!("{}@{}", container.id, container.started_at),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::container::tests::wanted;

    fn desired(role: Role) -> Desired {
        let mut wanted = wanted();
        wanted.worker.role = role;
        Desired { workers: [(wanted.worker.name.clone(), wanted)].into(), ..Desired::default() }
    }

    fn message(topic: &str, payload: &[u8]) -> Message {
        Message { topic: topic.into(), payload: payload.to_vec().into(), retain: false }
    }

    fn said(payload: &Value, role: Role) -> Option<(String, Counters)> {
        let message = message("neptune/workers/s-w-1/info", payload.to_string().as_bytes());
        read(&message, &Prefix::default(), &desired(role), &[]).unwrap().counts
    }

    #[test]
    fn an_edge_workers_numbers_count_and_a_cloud_workers_do_not() {
        let info = json!({"status": "running", "taskInfo": {"inferenceNumber": 5, "hardExampleNumber": 2, "startTime": "t"}});
        assert_eq!(said(&info, Role::Edge), Some(("t".into(), Counters { inference: 5, hard: 2 })));
        assert_eq!(said(&info, Role::Cloud), None);
        assert_eq!(said(&json!({"status": "running"}), Role::Edge), None);
        let unnamed = json!({"taskInfo": {"inferenceNumber": 5, "hardExampleNumber": 2}});
        assert_eq!(said(&unnamed, Role::Edge).unwrap().0, "unnamed");
    }

    #[test]
    fn what_cannot_be_true_or_comes_from_nobody_is_dropped() {
        let topic = "neptune/workers/s-w-1/info";
        let long = format!(r#"{{"status":"{}"}}"#, "x".repeat(200));
        let deep = "[".repeat(200_000);
        let payloads: [&[u8]; 10] = [
            b"",
            b"\xff\xfe\x00",
            b"null",
            b"{",
            br#"{"schemaVersion":9}"#,
            br#"{"taskInfo":{"inferenceNumber":1,"hardExampleNumber":2}}"#,
            br#"{"taskInfo":{"inferenceNumber":-1,"hardExampleNumber":0}}"#,
            br#"{"taskInfo":{"inferenceNumber":NaN,"hardExampleNumber":0}}"#,
            long.as_bytes(),
            deep.as_bytes(),
        ];
        let desired = desired(Role::Edge);
        for payload in payloads {
            let result = read(&message(topic, payload), &Prefix::default(), &desired, &[]);
            assert!(
                result.is_err(),
                "{:?} was taken",
                String::from_utf8_lossy(&payload[..payload.len().min(80)])
            );
        }
        for topic in [
            "neptune/workers/other/info",
            "neptune/edge0/upstream/node",
            "x",
            "neptune/workers/A/info",
        ] {
            assert!(
                read(&message(topic, b"{}"), &Prefix::default(), &desired, &[]).is_err(),
                "{topic} was taken"
            );
        }
    }
}
