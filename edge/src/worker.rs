//! Reads what a worker says on the local broker, and drops what cannot be true or comes from nobody
//! that this node runs. Adding it up is left to counts.rs.

use std::fmt;

use neptune_link::Message;
use neptune_wire::{
    Counters, OutputError, Role, Topic, TopicPrefix, WorkerInfo, WorkerModel, WorkerName, decode,
};

use crate::{
    counts::Counts,
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
    /// What it says of models, or why that cannot be taken; the rest of the message can.
    pub models: Result<Vec<WorkerModel>, OutputError>,
    /// Its container, if Docker shows it.
    pub container: Option<&'a str>,
}

/// What may be known of a worker beside its words.
pub struct Known<'a, 'b> {
    pub desired: &'a Desired,
    /// What Docker last showed, if it does.
    pub shown: Option<&'a [Container]>,
    pub counts: &'b Counts,
}

/// Why a message is not taken.
#[derive(Debug, PartialEq)]
pub enum Refusal {
    /// Its container is not to be seen. The next look may show it.
    NoContainer { worker: WorkerName, why: &'static str },
    /// It is of no use.
    Useless(String),
}

impl From<&str> for Refusal {
    fn from(why: &str) -> Self {
        Self::Useless(why.to_owned())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoContainer { why, .. } => f.write_str(why),
            Self::Useless(why) => f.write_str(why),
        }
    }
}

/// Reads a message.
///
/// # Errors
/// Why it is not taken.
pub fn read<'a>(
    message: &Message,
    prefix: &TopicPrefix,
    known: &Known<'a, '_>,
) -> Result<Said<'a>, Refusal> {
    let Ok(Topic::WorkerInfo(worker)) = Topic::parse(prefix, &message.topic) else {
        return Err("not a worker's topic".into());
    };
    let wanted =
        known.desired.workers.get(&worker).ok_or("this node runs no worker of that name")?;
    let info: WorkerInfo = decode(&message.payload).map_err(useless)?;
    let mut words = vec![("status", &info.status)];
    words.extend(info.task_info.as_ref().map(|task| ("taskInfo.startTime", &task.start_time)));
    if let Some((field, _)) =
        words.iter().find(|(_, word)| word.len() > LONGEST_WORD || word.contains(char::is_control))
    {
        return Err(useless(format!("{field} is not one word of at most {LONGEST_WORD} bytes")));
    }
    let container = known.container(wanted);
    let id = container.map(|container| container.id.as_str());
    let models = info.models();
    let Some(task) = &info.task_info else {
        return Ok(Said { worker, wanted, info, counts: None, models, container: id });
    };
    let counters = task.counters().map_err(useless)?;
    let run = match (task.start_time.as_str(), container) {
        // Without its container it may be the last word of a run that is known, or of an earlier
        // object's worker of the same name, which counts for nobody.
        (run, None) if known.shown.is_some() && !known.counts.knows(&wanted.uid, &worker, run) => {
            let why = "no container of this worker's object is there";
            return Err(Refusal::NoContainer { worker, why });
        }
        ("", None) => {
            let why = "it has no taskInfo.startTime, and its container is not known";
            return Err(Refusal::NoContainer { worker, why });
        }
        // A worker that does not name its runs has one for each start of its container.
        ("", Some(container)) => format!("{}@{}", container.id, container.started_at),
        (run, _) => run.to_owned(),
    };
    let counts = (wanted.worker.role == Role::Edge).then_some((run, counters));
    Ok(Said { worker, wanted, info, counts, models, container: id })
}

fn useless(why: impl fmt::Display) -> Refusal {
    Refusal::Useless(why.to_string())
}

impl<'a> Known<'a, '_> {
    /// The worker's container, the running one first. One of an earlier object of that name is not its.
    fn container(&self, wanted: &Wanted) -> Option<&'a Container> {
        let is_its = |container: &&Container| {
            container.identity.worker == wanted.worker.name && container.identity.uid == wanted.uid
        };
        let its = self.shown.unwrap_or_default().iter().filter(is_its);
        its.max_by_key(|container| container.is_alive())
    }
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

    const TOPIC: &str = "neptune/workers/s-w-1/info";

    fn known<'a>(
        desired: &'a Desired,
        shown: Option<&'a [Container]>,
        counts: &'a Counts,
    ) -> Known<'a, 'a> {
        Known { desired, shown, counts }
    }

    fn said(payload: &Value, role: Role) -> Result<Option<(String, Counters)>, Refusal> {
        let message = message(TOPIC, payload.to_string().as_bytes());
        let desired = desired(role);
        let counts = Counts::default();
        read(&message, &TopicPrefix::default(), &known(&desired, None, &counts))
            .map(|said| said.counts)
    }

    #[test]
    fn an_edge_workers_numbers_count_and_a_cloud_workers_do_not() {
        let info = json!({"status": "running", "taskInfo": {"inferenceNumber": 5, "hardExampleNumber": 2, "startTime": "t"}});
        assert_eq!(
            said(&info, Role::Edge),
            Ok(Some(("t".into(), Counters { inference: 5, hard: 2 })))
        );
        assert_eq!(said(&info, Role::Cloud), Ok(None));
        assert_eq!(said(&json!({"status": "running"}), Role::Edge), Ok(None));
    }

    #[test]
    fn a_run_without_a_name_is_its_containers_and_an_earlier_objects_worker_counts_for_nobody() {
        let desired = desired(Role::Edge);
        let mut counts = Counts::default();
        let shown = |uid: &str| {
            let mut container = crate::observed::tests::container("1");
            container.identity.worker = wanted().worker.name;
            container.identity.uid = uid.to_owned();
            [container]
        };
        let run = |start: &str, shown: Option<&[Container]>, counts: &Counts| {
            let task = json!({"taskInfo": {"inferenceNumber": 5, "hardExampleNumber": 2, "startTime": start}});
            let message = message(TOPIC, task.to_string().as_bytes());
            let said = read(&message, &TopicPrefix::default(), &known(&desired, shown, counts));
            said.ok().and_then(|said| said.counts).map(|(run, _)| run)
        };
        let (own, earlier) = (shown("uid"), shown("of an earlier object"));
        assert_eq!(run("", Some(&own), &counts).as_deref(), Some("1@then"));
        assert_eq!(run("t", Some(&own), &counts).as_deref(), Some("t"));
        assert_eq!(run("t", None, &counts).as_deref(), Some("t"), "Docker does not answer");
        for shown in [None, Some(&earlier[..]), Some(&[])] {
            assert_eq!(run("", shown, &counts), None, "whose run it is cannot be known");
        }
        assert_eq!(run("t", Some(&earlier), &counts), None);
        assert_eq!(run("t", Some(&[]), &counts), None);
        let info: WorkerInfo = serde_json::from_str("{}").unwrap();
        let name = wanted().worker.name;
        counts.observe(&wanted().owner, "uid", &name, &info, Some(("t", Counters::default())));
        assert_eq!(run("t", Some(&[]), &counts).as_deref(), Some("t"), "its last word");
    }

    #[test]
    fn what_cannot_be_true_or_comes_from_nobody_is_dropped() {
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
            let result = read(&message(TOPIC, payload), &TopicPrefix::default(), &known);
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
                read(&message(topic, b"{}"), &TopicPrefix::default(), &known).is_err(),
                "{topic} was taken"
            );
        }
    }
}
