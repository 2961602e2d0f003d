//! Parses the messages of workers on the local broker, and rejects messages that are impossible or
//! come from no worker of this node. Pure; `counts.rs` adds them up.

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

/// A run's name or a status that is longer is no such thing.
const MAX_TEXT_BYTES: usize = 128;

/// What a worker says of itself.
#[derive(Debug, PartialEq)]
pub struct WorkerMessage<'a> {
    pub worker: WorkerName,
    pub wanted: &'a WantedWorker,
    pub info: WorkerInfo,
    /// What an edge worker has counted in which run.
    pub counts: Option<(String, Counters)>,
    /// What it says of models, or why that cannot be taken; the rest of the message can.
    pub models: Result<Vec<WorkerModel>, OutputError>,
    /// Its container, if Docker shows it.
    pub container: Option<&'a str>,
}

/// What may be known of a worker beside its words.
pub struct MessageContext<'a, 'b> {
    pub desired: &'a Desired,
    /// What Docker last showed, if it does.
    pub observed: Option<&'a [ObservedContainer]>,
    pub counts: &'b Counts,
}

/// Why a message is not taken.
#[derive(Debug, PartialEq)]
pub enum MessageError {
    /// Its container is not to be seen. The next look may show it.
    NoContainer { worker: WorkerName, why: &'static str },
    /// It is of no use.
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

/// Reads a message.
///
/// # Errors
/// Why it is not taken.
pub fn parse<'a>(
    message: &Message,
    prefix: &TopicPrefix,
    known: &MessageContext<'a, '_>,
) -> Result<WorkerMessage<'a>, MessageError> {
    let Ok(Topic::WorkerInfo(worker)) = Topic::parse(prefix, &message.topic) else {
        return Err("not a worker's topic".into());
    };
    let wanted =
        known.desired.workers.get(&worker).ok_or("this node runs no worker of that name")?;
    let info: WorkerInfo = decode(&message.payload).map_err(invalid)?;
    let mut texts = vec![("status", &info.status)];
    texts.extend(info.task_info.as_ref().map(|task| ("taskInfo.startTime", &task.start_time)));
    if let Some((field, _)) = texts
        .iter()
        .find(|(_, text)| text.len() > MAX_TEXT_BYTES || text.contains(char::is_control))
    {
        return Err(invalid(format!("{field} is not one word of at most {MAX_TEXT_BYTES} bytes")));
    }
    let container = known.container(wanted);
    let id = container.map(|container| container.id.as_str());
    let models = info.models();
    let Some(task) = &info.task_info else {
        return Ok(WorkerMessage { worker, wanted, info, counts: None, models, container: id });
    };
    let counters = task.counters().map_err(invalid)?;
    let run = match (task.start_time.as_str(), container) {
        // Without its container it may be the last word of a run that is known, or of an earlier
        // object's worker of the same name, which counts for nobody.
        (run, None)
            if known.observed.is_some() && !known.counts.knows(&wanted.uid, &worker, run) =>
        {
            let why = "no container of this worker's object is there";
            return Err(MessageError::NoContainer { worker, why });
        }
        ("", None) => {
            let why = "it has no taskInfo.startTime, and its container is not known";
            return Err(MessageError::NoContainer { worker, why });
        }
        // A worker that does not name its runs has one for each start of its container.
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
    /// The worker's container, the running one first. One of an earlier object of that name is not
    /// its.
    fn container(&self, wanted: &WantedWorker) -> Option<&'a ObservedContainer> {
        let belongs_to_worker = |container: &&ObservedContainer| {
            container.identity.worker == wanted.worker.name && container.identity.uid == wanted.uid
        };
        let own_containers = self.observed.unwrap_or_default().iter().filter(belongs_to_worker);
        own_containers.max_by_key(|container| container.is_alive())
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

    fn known<'a>(
        desired: &'a Desired,
        observed: Option<&'a [ObservedContainer]>,
        counts: &'a Counts,
    ) -> MessageContext<'a, 'a> {
        MessageContext { desired, observed, counts }
    }

    fn parsed(payload: &Value, role: Role) -> Result<Option<(String, Counters)>, MessageError> {
        let message = message(TOPIC, payload.to_string().as_bytes());
        let desired = desired(role);
        let counts = Counts::default();
        parse(&message, &TopicPrefix::default(), &known(&desired, None, &counts))
            .map(|parsed| parsed.counts)
    }

    #[test]
    fn counters_of_edge_workers_count_and_of_cloud_workers_do_not() {
        let info = json!({"status": "running", "taskInfo": {"inferenceNumber": 5, "hardExampleNumber": 2, "startTime": "t"}});
        assert_eq!(
            parsed(&info, Role::Edge),
            Ok(Some(("t".into(), Counters { inference: 5, hard: 2 })))
        );
        assert_eq!(parsed(&info, Role::Cloud), Ok(None));
        assert_eq!(parsed(&json!({"status": "running"}), Role::Edge), Ok(None));
    }

    #[test]
    fn unnamed_run_is_attributed_to_the_container_of_its_object() {
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
            let parsed =
                parse(&message, &TopicPrefix::default(), &known(&desired, observed, counts));
            parsed.ok().and_then(|parsed| parsed.counts).map(|(run, _)| run)
        };
        let (own, earlier) = (observed("uid"), observed("of an earlier object"));
        assert_eq!(run("", Some(&own), &counts).as_deref(), Some("1@then"));
        assert_eq!(run("t", Some(&own), &counts).as_deref(), Some("t"));
        assert_eq!(run("t", None, &counts).as_deref(), Some("t"), "Docker does not answer");
        for observed in [None, Some(&earlier[..]), Some(&[])] {
            assert_eq!(run("", observed, &counts), None, "whose run it is cannot be known");
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
        assert_eq!(run("t", Some(&[]), &counts).as_deref(), Some("t"), "its last word");
    }

    #[test]
    fn impossible_or_foreign_messages_are_dropped() {
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
        let known = known(&desired, None, &counts);
        for payload in payloads {
            let result = parse(&message(TOPIC, payload), &TopicPrefix::default(), &known);
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
                parse(&message(topic, b"{}"), &TopicPrefix::default(), &known).is_err(),
                "{topic} was taken"
            );
        }
    }
}
