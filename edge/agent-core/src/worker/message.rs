//! Parses messages of workers on the local broker, and rejects invalid ones and those of unknown
//! workers. `counts.rs` adds them up.

use std::{collections::BTreeMap, fmt};

use neptune_wire::{
    AgentInstance, Counters, EarlierRuns, OutputError, Role, RunReport, Topic, TopicPrefix,
    WorkerInfo, WorkerModel, WorkerName, WorkerTaskInfo,
};

use crate::{
    desired::{Desired, WantedWorker},
    domain::observed_container::{ContainerState, ObservedContainer},
    worker::{
        counts::{Counts, gateway_run},
        start_time,
    },
};

/// Maximum length in bytes of a run's name and of a status.
const MAX_FIELD_BYTES: usize = 128;

/// A valid message of a worker, with the worker that sent it.
#[derive(Debug, PartialEq)]
pub struct WorkerMessage<'a> {
    pub worker: WorkerName,
    pub wanted: &'a WantedWorker,
    /// Whether its object was removed from this node.
    pub is_departed: bool,
    pub info: WorkerInfo,
    /// The counters of an edge worker.
    pub counts: Option<WorkerCounters>,
    /// The reports on models, or why they are invalid; the rest of the message is valid.
    pub models: Result<Vec<WorkerModel>, OutputError>,
    /// The worker's container; `None` if Docker does not list it.
    pub container: Option<&'a ObservedContainer>,
}

/// The counters of a message, and the run in which the worker counted them.
#[derive(Debug, PartialEq)]
pub struct WorkerCounters {
    /// The start of the worker's container, or all runs of a gateway; `None` if Docker does not list
    /// the container.
    run: Option<String>,
    start: String,
    counters: Counters,
    is_inherited: bool,
}

impl WorkerCounters {
    pub fn report(&self) -> RunReport<'_> {
        RunReport {
            run: self.run.as_deref(),
            start: &self.start,
            counters: self.counters,
            is_inherited: self.is_inherited,
        }
    }
}

/// The state against which a message is checked.
pub struct MessageContext<'a, 'b> {
    /// The data directory of this agent.
    pub instance: &'a AgentInstance,
    pub desired: &'a Desired,
    /// Workers of removed objects whose containers may still exist.
    pub departed: &'a BTreeMap<WorkerName, WantedWorker>,
    /// The last observation of the containers, if Docker answers.
    pub containers: Option<&'a [ObservedContainer]>,
    pub counts: &'b Counts,
}

/// The workers of one name: the desired one, and one of a removed object.
type Candidates<'a> = ((&'a WantedWorker, bool), Option<(&'a WantedWorker, bool)>);

impl WorkerMessage<'_> {
    /// Whether it may be of a container that no observation includes yet: the known one exited, and
    /// did not state this start time.
    pub fn may_be_of_newer_container(&self, counts: &Counts) -> bool {
        if self.container.is_some_and(ObservedContainer::is_alive) {
            return false;
        }
        // The status is that of one container.
        if self.info.task_info.is_none() {
            return true;
        }
        let (Some(container), Some(counters)) = (self.container, &self.counts) else {
            return false;
        };
        let report = RunReport { run: None, ..counters.report() };
        !container.is_alive() && !counts.is_known_run(&self.wanted.uid, &self.worker, &report)
    }
}

/// Why a message is rejected.
#[derive(Debug, PartialEq)]
pub enum MessageError {
    /// The container of the worker was not observed. The next observation may include it.
    NoContainer { worker: WorkerName, why: &'static str },
    /// The content of the message is invalid. The text is the reason.
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
    (topic, payload): (&str, &[u8]),
    prefix: &TopicPrefix,
    context: &MessageContext<'a, '_>,
) -> Result<WorkerMessage<'a>, MessageError> {
    let Ok(Topic::WorkerInfo(worker)) = Topic::parse(prefix, topic) else {
        return Err("the topic is not that of a worker".into());
    };
    let candidates = context.candidates(&worker).ok_or("no worker of this name on this node")?;
    let info = WorkerInfo::decode(payload).map_err(invalid)?;
    let (wanted, is_departed) = context.sender(candidates, &info);
    let mut fields = vec![("status", &info.status)];
    fields.extend(info.task_info.as_ref().map(|task| ("taskInfo.startTime", &task.start_time)));
    let earlier = info.task_info.as_ref().and_then(|task| task.earlier_runs.as_ref());
    fields.extend(earlier.map(|earlier| ("taskInfo.earlierRuns.startTime", &earlier.start_time)));
    let is_invalid = |text: &str| text.len() > MAX_FIELD_BYTES || text.contains(char::is_control);
    if let Some((field, _)) = fields.iter().find(|(_, text)| is_invalid(text)) {
        return Err(invalid(format!(
            "{field} is longer than {MAX_FIELD_BYTES} bytes or contains control characters"
        )));
    }
    let container = context.container(wanted);
    let models = info.models();
    let Some(task) = &info.task_info else {
        return Ok(WorkerMessage {
            worker,
            wanted,
            is_departed,
            info,
            counts: None,
            models,
            container,
        });
    };
    let run = container.map(ObservedContainer::run_name);
    // No other container of a removed worker starts.
    let run = run.or_else(|| {
        let last_run = || context.counts.last_run(&wanted.uid, &worker);
        is_departed.then(last_run).flatten().map(str::to_owned)
    });
    let is_inherited = container.is_some_and(|it| it.identity.instance != *context.instance);
    let counts = match context.sum(wanted, task) {
        Some((start, earlier)) => WorkerCounters {
            run: run.map(|_| gateway_run(&start)),
            counters: task.checked_with(earlier).map_err(invalid)?,
            start,
            is_inherited,
        },
        None => WorkerCounters {
            run,
            start: start_time::normalize(&task.start_time),
            counters: task.checked().map_err(invalid)?,
            is_inherited,
        },
    };
    // Without a container it is the last message of a known run, or of a worker of a deleted object
    // of the same name, which is not counted.
    if !context.counts.is_known_run(&wanted.uid, &worker, &counts.report()) {
        let why = "no container of this worker's object is known";
        return Err(MessageError::NoContainer { worker, why });
    }
    let counts = (wanted.worker.role == Role::Edge).then_some(counts);
    Ok(WorkerMessage { worker, wanted, is_departed, info, counts, models, container })
}

fn invalid(why: impl fmt::Display) -> MessageError {
    MessageError::Invalid(why.to_string())
}

impl<'a> MessageContext<'a, '_> {
    /// The workers of this name, each with whether its object was removed from this node: first
    /// the one that sends most messages.
    fn candidates(&self, worker: &WorkerName) -> Option<Candidates<'a>> {
        let desired = self.desired.workers.get(worker).map(|wanted| (wanted, false));
        let departed = self.departed.get(worker).map(|wanted| (wanted, true));
        match (desired, departed) {
            (Some(desired), departed) => Some((desired, departed)),
            (None, departed) => Some((departed?, None)),
        }
    }

    /// Which of them sent a message. An object can be recreated while the container of the earlier
    /// one stops; then the start time shows whose run it is.
    fn sender(
        &self,
        (first, second): Candidates<'a>,
        info: &WorkerInfo,
    ) -> (&'a WantedWorker, bool) {
        let task = info.task_info.as_ref();
        let earlier = task.and_then(|task| task.earlier_runs.as_ref());
        let starts = task.map(|task| &task.start_time).into_iter();
        let starts = starts.chain(earlier.map(|earlier| &earlier.start_time));
        let starts: Vec<String> = starts.map(|start| start_time::normalize(start)).collect();
        let has_run = |wanted: &WantedWorker| {
            let (uid, name) = (&wanted.uid, &wanted.worker.name);
            starts.iter().any(|start| self.counts.has_start(uid, name, start))
        };
        let second = second.filter(|(departed, _)| has_run(departed) && !has_run(first.0));
        second.unwrap_or(first)
    }

    /// The start of the sum of a gateway's runs, and what earlier processes counted. `None` if each
    /// container is a run: for other workers, and if an agent of an earlier version counted some of
    /// these processes so.
    fn sum<'t>(
        &self,
        wanted: &WantedWorker,
        task: &'t WorkerTaskInfo,
    ) -> Option<(String, &'t EarlierRuns)> {
        let earlier = task.earlier_runs.as_ref()?;
        let start = start_time::normalize(&earlier.start_time);
        let is_counted =
            self.counts.has_container_run_since(&wanted.uid, &wanted.worker.name, &start);
        (!start.is_empty() && !is_counted).then_some((start, earlier))
    }

    /// The worker's container, preferably a running one. Containers of earlier objects of that name
    /// are ignored.
    fn container(&self, wanted: &WantedWorker) -> Option<&'a ObservedContainer> {
        let is_of_worker = |container: &&ObservedContainer| {
            container.identity.worker == wanted.worker.name
                && container.identity.uid == wanted.uid
                // Of another one, the run is not known.
                && container.state != ContainerState::Unknown
        };
        let containers = self.containers.unwrap_or_default().iter().filter(is_of_worker);
        containers.max_by_key(|container| container.is_alive())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::LazyLock;

    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::wanted_worker;

    fn desired(role: Role) -> Desired {
        let mut wanted = wanted_worker();
        wanted.worker.role = role;
        Desired { workers: [(wanted.worker.name.clone(), wanted)].into(), ..Desired::default() }
    }

    const TOPIC: &str = "neptune/workers/s-w-1/info";

    static INSTANCE: LazyLock<AgentInstance> = LazyLock::new(|| AgentInstance("abc".into()));
    static DEPARTED: BTreeMap<WorkerName, WantedWorker> = BTreeMap::new();

    fn context<'a>(
        desired: &'a Desired,
        containers: Option<&'a [ObservedContainer]>,
        counts: &'a Counts,
    ) -> MessageContext<'a, 'a> {
        MessageContext { instance: &INSTANCE, desired, departed: &DEPARTED, containers, counts }
    }

    fn observed(uid: &str) -> [ObservedContainer; 1] {
        let mut container = crate::fixtures::observed_container("1");
        container.identity.worker = wanted_worker().worker.name;
        container.identity.uid = uid.to_owned();
        [container]
    }

    fn parsed_counts(payload: &Value, role: Role) -> Result<Option<WorkerCounters>, MessageError> {
        let message = payload.to_string();
        let (desired, counts, containers) = (desired(role), Counts::default(), observed("uid"));
        parse(
            (TOPIC, message.as_bytes()),
            &TopicPrefix::default(),
            &context(&desired, Some(&containers), &counts),
        )
        .map(|parsed| parsed.counts)
    }

    #[test]
    fn only_edge_workers_are_counted() {
        let info = json!({"status": "running", "taskInfo": {"inferenceNumber": 5, "hardExampleNumber": 2, "startTime": "t"}});
        let counts = parsed_counts(&info, Role::Edge).unwrap().unwrap();
        let (counters, is_inherited) =
            (Counters { inference: 5, hard: 2, ..Counters::default() }, false);
        let expected = RunReport { run: Some("1@then"), start: "t", counters, is_inherited };
        assert_eq!(counts.report(), expected);
        assert_eq!(parsed_counts(&info, Role::Cloud), Ok(None));
        assert_eq!(parsed_counts(&json!({"status": "running"}), Role::Edge), Ok(None));
    }

    #[test]
    fn run_is_the_start_of_the_container_or_a_known_one() {
        let desired = desired(Role::Edge);
        let mut counts = Counts::default();
        let run = |start: &str, observed: Option<&[ObservedContainer]>, counts: &Counts| {
            let task = json!({"taskInfo": {"inferenceNumber": 5, "hardExampleNumber": 2, "startTime": start}});
            let message = task.to_string();
            let context = context(&desired, observed, counts);
            let parsed = parse((TOPIC, message.as_bytes()), &TopicPrefix::default(), &context);
            parsed.ok().and_then(|parsed| parsed.counts).map(|counts| counts.run)
        };
        let (current, earlier) = (observed("uid"), observed("of an earlier object"));
        let then = Some(Some("1@then".to_owned()));
        assert_eq!(run("", Some(&current), &counts), then);
        assert_eq!(run("t", Some(&current), &counts), then);
        for containers in [None, Some(&earlier[..]), Some(&[])] {
            for start in ["", "t"] {
                assert_eq!(run(start, containers, &counts), None, "the run is unknown");
            }
        }
        let info: WorkerInfo = serde_json::from_str("{}").unwrap();
        let (wanted, counters) = (wanted_worker(), Counters::default());
        let report = RunReport { run: Some("0@x"), start: "t", counters, is_inherited: false };
        let (object, name) = (&wanted.owner, &wanted.worker.name);
        counts.observe(object, "uid", name, &info, Some(&report)).unwrap();
        assert_eq!(run("t", Some(&[]), &counts), Some(None), "its last message");
        assert_eq!(run("t", None, &counts), Some(None), "Docker does not answer");
    }

    /// A report of a gateway's process, in a container that started at that time.
    fn gateway_message(start: &str, inference: u64, earlier: u64) -> String {
        let task = json!({
            "inferenceNumber": inference, "hardExampleNumber": 0, "startTime": start,
            "earlierRuns": {"startTime": FIRST, "inference": earlier, "hard": 0},
        });
        json!({ "taskInfo": task }).to_string()
    }

    const FIRST: &str = "2026-08-01T12:00:00.000000000Z";
    const SECOND: &str = "2026-08-01T12:00:05.000000000Z";

    fn count(counts: &mut Counts, message: &str, container: &str) -> u64 {
        let desired = desired(Role::Edge);
        let mut containers = observed("uid");
        containers[0].id = container.to_owned();
        let parsed = parse(
            (TOPIC, message.as_bytes()),
            &TopicPrefix::default(),
            &context(&desired, Some(&containers), counts),
        );
        let (parsed, wanted) = (parsed.unwrap(), wanted_worker());
        let (object, name) = (&wanted.owner, &wanted.worker.name);
        let report = parsed.counts.as_ref().map(WorkerCounters::report);
        counts.observe(object, "uid", name, &parsed.info, report.as_ref()).unwrap();
        counts.total("uid").counters.inference
    }

    #[test]
    fn killed_gateways_last_counts_come_with_the_next_process() {
        let mut counts = Counts::default();
        assert_eq!(count(&mut counts, &gateway_message(FIRST, 100, 0), "1"), 100);
        // 7 samples were not reported before the kill. The container may be replaced or not.
        assert_eq!(count(&mut counts, &gateway_message(SECOND, 0, 107), "2"), 107);
        assert_eq!(count(&mut counts, &gateway_message(SECOND, 5, 107), "2"), 112);
        assert_eq!(count(&mut counts, &gateway_message(FIRST, 103, 0), "2"), 112, "late");
        assert_eq!(count(&mut counts, &gateway_message("t", 1, 112), "2"), 113, "same container");
    }

    #[test]
    fn processes_that_an_older_agent_counted_are_not_counted_again() {
        let (mut counts, wanted) = (Counts::default(), wanted_worker());
        let info: WorkerInfo = serde_json::from_str("{}").unwrap();
        let counters = Counters { inference: 100, ..Counters::default() };
        let report = RunReport { run: Some("1@then"), start: FIRST, counters, is_inherited: false };
        let name = &wanted.worker.name;
        counts.observe(&wanted.owner, "uid", name, &info, Some(&report)).unwrap();
        assert_eq!(count(&mut counts, &gateway_message(FIRST, 103, 0), "1"), 103);
        assert_eq!(count(&mut counts, &gateway_message(SECOND, 5, 107), "2"), 108);
        // A gateway that began its sum afterwards.
        let later = gateway_message("2026-08-01T13:00:00Z", 1, 0);
        let later = later.replace(FIRST, "2026-08-01T13:00:00Z");
        assert_eq!(count(&mut counts, &later, "3"), 109);
    }

    #[test]
    fn container_of_another_data_directory_is_inherited() {
        let (desired, counts, mut containers) =
            (desired(Role::Edge), Counts::default(), observed("uid"));
        containers[0].identity.instance = AgentInstance("deleted".into());
        let payload = json!({"taskInfo": {"inferenceNumber": 5, "hardExampleNumber": 2}});
        let message = payload.to_string();
        let context = context(&desired, Some(&containers), &counts);
        let parsed = parse((TOPIC, message.as_bytes()), &TopicPrefix::default(), &context).unwrap();
        assert!(parsed.counts.unwrap().report().is_inherited);
    }

    #[test]
    fn last_message_of_a_removed_worker_is_accepted() {
        let (counts, containers) = (Counts::default(), observed("uid"));
        let departed = [(wanted_worker().worker.name, wanted_worker())].into();
        let desired = Desired::default();
        let context = context(&desired, Some(&containers), &counts);
        let payload = json!({"taskInfo": {"inferenceNumber": 5, "hardExampleNumber": 2}});
        let message = payload.to_string();
        assert!(parse((TOPIC, message.as_bytes()), &TopicPrefix::default(), &context).is_err());
        let context = MessageContext { departed: &departed, ..context };
        let parsed = parse((TOPIC, message.as_bytes()), &TopicPrefix::default(), &context).unwrap();
        assert_eq!(parsed.counts.unwrap().counters.inference, 5);
    }

    #[test]
    fn last_message_of_the_earlier_object_is_not_of_the_recreated_one() {
        let (desired, mut counts) = (desired(Role::Edge), Counts::default());
        let earlier = WantedWorker { uid: "earlier".to_owned(), ..wanted_worker() };
        let name = earlier.worker.name.clone();
        let info: WorkerInfo = serde_json::from_str("{}").unwrap();
        let counters = Counters { inference: 135, ..Counters::default() };
        let report = RunReport { run: Some("0@x"), start: "t", counters, is_inherited: false };
        counts.observe(&earlier.owner, "earlier", &name, &info, Some(&report)).unwrap();
        let departed = [(name, earlier)].into();
        let sender = |start: &str, containers: &[ObservedContainer]| {
            let task = json!({"taskInfo": {"inferenceNumber": 136, "hardExampleNumber": 0, "startTime": start}});
            let message = task.to_string();
            let context = context(&desired, Some(containers), &counts);
            let context = MessageContext { departed: &departed, ..context };
            let parsed =
                parse((TOPIC, message.as_bytes()), &TopicPrefix::default(), &context).unwrap();
            (parsed.wanted.uid.clone(), parsed.is_departed)
        };
        for containers in [observed("earlier"), observed("uid")] {
            assert_eq!(sender("t", &containers), ("earlier".to_owned(), true));
        }
        assert_eq!(sender("another", &observed("uid")), ("uid".to_owned(), false));
    }

    #[test]
    fn invalid_message_or_unknown_worker_is_rejected() {
        let long = format!(r#"{{"status":"{}"}}"#, "x".repeat(200));
        let deep = "[".repeat(200_000);
        let payloads: [&[u8]; 11] = [
            b"",
            b"\xff\xfe\x00",
            b"null",
            b"{",
            br#"{"schemaVersion":9}"#,
            br#"{"taskInfo":{"inferenceNumber":1,"hardExampleNumber":2}}"#,
            br#"{"taskInfo":{"inferenceNumber":18446744073709551615,"hardExampleNumber":0}}"#,
            br#"{"taskInfo":{"inferenceNumber":-1,"hardExampleNumber":0}}"#,
            br#"{"taskInfo":{"inferenceNumber":NaN,"hardExampleNumber":0}}"#,
            long.as_bytes(),
            deep.as_bytes(),
        ];
        let (desired, counts) = (desired(Role::Edge), Counts::default());
        let context = context(&desired, None, &counts);
        for payload in payloads {
            let result = parse((TOPIC, payload), &TopicPrefix::default(), &context);
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
                parse((topic, b"{}"), &TopicPrefix::default(), &context).is_err(),
                "{topic} was accepted"
            );
        }
    }
}
