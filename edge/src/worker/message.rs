//! Parses messages of workers on the local broker, and rejects invalid ones and those of unknown
//! workers. Pure; `counts.rs` adds them up.

use std::fmt;

use neptune_link::Message;
use neptune_wire::{
    Counters, OutputError, Role, Topic, TopicPrefix, WorkerInfo, WorkerModel, WorkerName, decode,
};

use crate::{
    desired::{Desired, WantedWorker},
    domain::observed_container::ObservedContainer,
    worker::counts::Counts,
};

/// Maximum length in bytes of a run's name and of a status.
const MAX_FIELD_BYTES: usize = 128;

/// A parsed message of a worker.
#[derive(Debug, PartialEq)]
pub struct WorkerMessage<'a> {
    pub worker: WorkerName,
    pub wanted: &'a WantedWorker,
    pub info: WorkerInfo,
    /// The run and its counters, of an edge worker.
    pub counts: Option<(String, Counters)>,
    /// The reports on models, or why they are invalid; the rest of the message is valid.
    pub models: Result<Vec<WorkerModel>, OutputError>,
    /// The ID of its container, if Docker lists it.
    pub container: Option<&'a str>,
}

/// The state against which a message is checked.
pub struct MessageContext<'a, 'b> {
    pub desired: &'a Desired,
    /// The last observation of the containers, if Docker answers.
    pub containers: Option<&'a [ObservedContainer]>,
    pub counts: &'b Counts,
}

/// Why a message is rejected.
#[derive(Debug, PartialEq)]
pub enum MessageError {
    /// Its container was not observed. The next observation may include it.
    NoContainer { worker: WorkerName, why: &'static str },
    /// It is invalid.
    Invalid(String),
}

impl From<&str> for MessageError {
    fn from(why: &str) -> Self {
        Self::Invalid(why.to_owned())
    }
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoContainer { why, .. } => f.write_str(why),
            Self::Invalid(why) => f.write_str(why),
        }
    }
}

/// Parses and checks a message.
///
/// # Errors
/// [`MessageError`] if it is invalid, or if its container was not observed yet.
pub fn parse<'a>(
    message: &Message,
    prefix: &TopicPrefix,
    context: &MessageContext<'a, '_>,
) -> Result<WorkerMessage<'a>, MessageError> {
    let Ok(Topic::WorkerInfo(worker)) = Topic::parse(prefix, &message.topic) else {
        return Err("the topic is not that of a worker".into());
    };
    let wanted =
        context.desired.workers.get(&worker).ok_or("no worker of this name on this node")?;
    let info: WorkerInfo = decode(&message.payload).map_err(invalid)?;
    let mut fields = vec![("status", &info.status)];
    fields.extend(info.task_info.as_ref().map(|task| ("taskInfo.startTime", &task.start_time)));
    let is_invalid = |text: &str| text.len() > MAX_FIELD_BYTES || text.contains(char::is_control);
    if let Some((field, _)) = fields.iter().find(|(_, text)| is_invalid(text)) {
        return Err(invalid(format!(
            "{field} is longer than {MAX_FIELD_BYTES} bytes or contains control characters"
        )));
    }
    let container = context.container(wanted);
    let id = container.map(|container| container.id.as_str());
    let models = info.models();
    let Some(task) = &info.task_info else {
        return Ok(WorkerMessage { worker, wanted, info, counts: None, models, container: id });
    };
    let counters = task.counters().map_err(invalid)?;
    let run = match (task.start_time.as_str(), container) {
        // Without a container it is the last message of a known run, or of a worker of a deleted
        // object of the same name, which is not counted.
        (run, None)
            if context.containers.is_some()
                && !context.counts.contains_run(&wanted.uid, &worker, run) =>
        {
            let why = "no container of this worker's object exists";
            return Err(MessageError::NoContainer { worker, why });
        }
        ("", None) => {
            let why = "taskInfo.startTime is empty and the worker's container is unknown";
            return Err(MessageError::NoContainer { worker, why });
        }
        // Without a start time, each start of the container is a run.
        ("", Some(container)) => format!("{}@{}", container.id, container.started_at),
        (run, _) => run.to_owned(),
    };
    let counts = (wanted.worker.role == Role::Edge).then_some((run, counters));
    Ok(WorkerMessage { worker, wanted, info, counts, models, container: id })
}

fn invalid(why: impl fmt::Display) -> MessageError {
    MessageError::Invalid(why.to_string())
}

impl<'a> MessageContext<'a, '_> {
    /// The worker's container, preferably a running one. Containers of earlier objects of that name
    /// are ignored.
    fn container(&self, wanted: &WantedWorker) -> Option<&'a ObservedContainer> {
        let is_of_worker = |container: &&ObservedContainer| {
            container.identity.worker == wanted.worker.name && container.identity.uid == wanted.uid
        };
        let containers = self.containers.unwrap_or_default().iter().filter(is_of_worker);
        containers.max_by_key(|container| container.is_alive())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::wanted_worker;

    fn desired(role: Role) -> Desired {
        let mut wanted = wanted_worker();
        wanted.worker.role = role;
        Desired { workers: [(wanted.worker.name.clone(), wanted)].into(), ..Desired::default() }
    }

    fn message(topic: &str, payload: &[u8]) -> Message {
        Message { topic: topic.into(), payload: payload.to_vec().into(), retain: false }
    }

    const TOPIC: &str = "neptune/workers/s-w-1/info";

    fn context<'a>(
        desired: &'a Desired,
        containers: Option<&'a [ObservedContainer]>,
        counts: &'a Counts,
    ) -> MessageContext<'a, 'a> {
        MessageContext { desired, containers, counts }
    }

    fn parsed_counts(
        payload: &Value,
        role: Role,
    ) -> Result<Option<(String, Counters)>, MessageError> {
        let message = message(TOPIC, payload.to_string().as_bytes());
        let desired = desired(role);
        let counts = Counts::default();
        parse(&message, &TopicPrefix::default(), &context(&desired, None, &counts))
            .map(|parsed| parsed.counts)
    }

    #[test]
    fn only_edge_workers_are_counted() {
        let info = json!({"status": "running", "taskInfo": {"inferenceNumber": 5, "hardExampleNumber": 2, "startTime": "t"}});
        assert_eq!(
            parsed_counts(&info, Role::Edge),
            Ok(Some(("t".into(), Counters { inference: 5, hard: 2 })))
        );
        assert_eq!(parsed_counts(&info, Role::Cloud), Ok(None));
        assert_eq!(parsed_counts(&json!({"status": "running"}), Role::Edge), Ok(None));
    }

    #[test]
    fn unnamed_run_is_that_of_its_container_and_needs_one() {
        let desired = desired(Role::Edge);
        let mut counts = Counts::default();
        let observed = |uid: &str| {
            let mut container = crate::fixtures::observed_container("1");
            container.identity.worker = wanted_worker().worker.name;
            container.identity.uid = uid.to_owned();
            [container]
        };
        let run = |start: &str, observed: Option<&[ObservedContainer]>, counts: &Counts| {
            let task = json!({"taskInfo": {"inferenceNumber": 5, "hardExampleNumber": 2, "startTime": start}});
            let message = message(TOPIC, task.to_string().as_bytes());
            let context = context(&desired, observed, counts);
            let parsed = parse(&message, &TopicPrefix::default(), &context);
            parsed.ok().and_then(|parsed| parsed.counts).map(|(run, _)| run)
        };
        let (current, earlier) = (observed("uid"), observed("of an earlier object"));
        assert_eq!(run("", Some(&current), &counts).as_deref(), Some("1@then"));
        assert_eq!(run("t", Some(&current), &counts).as_deref(), Some("t"));
        assert_eq!(run("t", None, &counts).as_deref(), Some("t"), "Docker does not answer");
        for containers in [None, Some(&earlier[..]), Some(&[])] {
            assert_eq!(run("", containers, &counts), None, "the run is unknown");
        }
        assert_eq!(run("t", Some(&earlier), &counts), None);
        assert_eq!(run("t", Some(&[]), &counts), None);
        let info: WorkerInfo = serde_json::from_str("{}").unwrap();
        let name = wanted_worker().worker.name;
        counts.observe(
            &wanted_worker().owner,
            "uid",
            &name,
            &info,
            Some(("t", Counters::default())),
        );
        assert_eq!(run("t", Some(&[]), &counts).as_deref(), Some("t"), "its last message");
    }

    #[test]
    fn invalid_message_or_unknown_worker_is_rejected() {
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
        let (desired, counts) = (desired(Role::Edge), Counts::default());
        let context = context(&desired, None, &counts);
        for payload in payloads {
            let result = parse(&message(TOPIC, payload), &TopicPrefix::default(), &context);
            assert!(
                result.is_err(),
                "{:?} was accepted",
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
                parse(&message(topic, b"{}"), &TopicPrefix::default(), &context).is_err(),
                "{topic} was accepted"
            );
        }
    }
}
