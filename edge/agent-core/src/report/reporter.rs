//! Decides which object statuses to report, and when: only changed ones, at most once per second
//! and object. A changed state of a gateway does not wait for that second, because counters change
//! in each. Publishing is left to publisher.rs.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use neptune_wire::{
    AggregatorReport, DatasetReport, DatasetState, GatewayReport, ModelOutput, ModelPresenceReport,
    ModelServerReport, ObjectKey, Phase, PresenceState, RejectedMessages, ReportOutput, Role,
    StatusReport, TaskInfo, TaskReport, TaskState, TrainingReport, Transition, WorkerReason,
    WorkerReport, WorkerState, replica::StoredObject,
};

use crate::domain::{
    health::{WorkerHealth, is_transient},
    identity::AgentIdentity,
    worker_count::CountTotal,
};

/// Minimum time between two reports of one object. Changes within it are reported together.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// What is reported of one worker.
pub struct WorkerStatus {
    pub health: WorkerHealth,
    /// The last status that it reported.
    pub status: String,
    /// The worker's messages that were rejected; `None` without any.
    pub rejected: Option<RejectedMessages>,
    /// Whether the cloud worker answered none of its last hard samples.
    pub cloud_unreachable: bool,
    /// What a gateway reports in its present run.
    pub gateway: Option<GatewayReport>,
}

/// A reported object and its present state.
pub struct ObjectStatus<'a> {
    pub key: &'a ObjectKey,
    pub object: &'a StoredObject,
    /// The states of the workers, in the order of the object.
    pub workers: Vec<WorkerStatus>,
    pub total: CountTotal,
    /// The report of the object's model server; `None` if it has none.
    pub server: Option<ModelServerReport>,
    /// The models that the workers reported.
    pub outputs: Vec<ModelOutput>,
    /// Whether the file of a Model is on the node; `None` for other objects.
    pub model: Option<ModelPresenceReport>,
    /// The counted samples of a Dataset; `None` for other objects.
    pub dataset: Option<DatasetReport>,
    /// The tasks of a `TrainingModel`.
    pub training: Option<TrainingReport>,
    /// The status of a `TrainingModel`'s aggregator; `None` if this node does not run it.
    pub aggregator: Option<AggregatorReport>,
}

/// A start, download or count that takes less than this is reported once, when it is complete.
const START_GRACE: Duration = Duration::from_millis(500);

/// Decides which reports are due, compared with the reports sent before.
#[derive(Debug)]
pub struct Reporter {
    identity: AgentIdentity,
    seq: u64,
    last_sent: BTreeMap<ObjectKey, SentReport>,
    /// Objects with a start, download or count in progress, and since when.
    starting: BTreeMap<ObjectKey, Instant>,
}

#[derive(Debug)]
struct SentReport {
    /// The report without its `seq` and `currentTime`, to compare it with the next one.
    report: StatusReport,
    /// The report with its `seq` and `currentTime`.
    sent: StatusReport,
    at: Instant,
    /// When a changed state of a gateway was last reported without waiting.
    gateway_at: Option<Instant>,
}

/// The reports to send now, and when the next one may be due.
#[derive(Debug, Default, PartialEq)]
#[must_use]
pub struct DueReports {
    pub reports: Vec<(ObjectKey, StatusReport)>,
    pub next_at: Option<Instant>,
}

impl Reporter {
    pub fn new(identity: AgentIdentity) -> Self {
        Self { identity, seq: 0, last_sent: BTreeMap::new(), starting: BTreeMap::new() }
    }

    /// Numbers the reports above `seq`.
    #[must_use]
    pub fn starting_after(self, seq: u64) -> Self {
        Self { seq, ..self }
    }

    /// Makes all reports due again, because the cloud may have lost them.
    pub fn resend_all(&mut self) {
        self.last_sent.clear();
    }

    /// The reports as they were sent last, with the same sequence numbers.
    pub fn repeated(&self) -> impl Iterator<Item = (&ObjectKey, &StatusReport)> {
        self.last_sent.iter().map(|(key, last_sent)| (key, &last_sent.sent))
    }

    /// The reports that are due. Each counts as sent.
    pub fn due(
        &mut self,
        subjects: &[ObjectStatus<'_>],
        now: Instant,
        wall: Timestamp,
    ) -> DueReports {
        let mut due = DueReports::default();
        self.last_sent.retain(|key, _| subjects.iter().any(|subject| subject.key == key));
        self.starting.retain(|key, _| subjects.iter().any(|subject| subject.key == key));
        for subject in subjects {
            let report = self.report(subject);
            if self.last_sent.get(subject.key).is_some_and(|last_sent| last_sent.report == report) {
                continue;
            }
            let is_gateway_changed = self
                .last_sent
                .get(subject.key)
                .is_some_and(|last_sent| has_other_gateway_state(&last_sent.report, &report));
            let mut gateway_at = self.last_sent.get(subject.key).and_then(|it| it.gateway_at);
            let mut at = self.not_before(subject, now);
            if is_gateway_changed {
                at = at.min(gateway_at.map_or(now, |last| now.max(last + MIN_INTERVAL)));
            }
            if at > now {
                due.next_at = Some(due.next_at.map_or(at, |earlier| earlier.min(at)));
                continue;
            }
            self.seq += 1;
            let mut sent = StatusReport { seq: self.seq, ..report.clone() };
            if let Some(task) = &mut sent.output.task_info {
                task.current_time = format!("{wall:.3}");
            }
            if is_gateway_changed {
                gateway_at = Some(now);
            }
            let last_sent = SentReport { report, sent: sent.clone(), at: now, gateway_at };
            self.last_sent.insert(subject.key.clone(), last_sent);
            due.reports.push((subject.key.clone(), sent));
        }
        due
    }

    /// The earliest time to report a change of this object.
    fn not_before(&mut self, subject: &ObjectStatus<'_>, now: Instant) -> Instant {
        let next_report =
            self.last_sent.get(subject.key).map_or(now, |last_sent| last_sent.at + MIN_INTERVAL);
        let is_starting =
            subject.workers.iter().any(|it| it.health.reason.is_some_and(is_transient));
        let is_downloading =
            subject.model.as_ref().is_some_and(|model| model.state == PresenceState::Downloading);
        // A small dataset is counted within START_GRACE.
        let is_counting =
            subject.dataset.as_ref().is_some_and(|data| data.state == DatasetState::Counting);
        if !is_starting && !is_downloading && !is_counting {
            self.starting.remove(subject.key);
            return next_report;
        }
        let since = *self.starting.entry(subject.key.clone()).or_insert(now);
        next_report.max(since + START_GRACE)
    }

    fn report(&self, subject: &ObjectStatus<'_>) -> StatusReport {
        let ObjectStatus {
            object,
            workers,
            total,
            server,
            outputs,
            model,
            dataset,
            training,
            aggregator,
            ..
        } = subject;
        let task_info = total.has_counted.then(|| TaskInfo {
            counters: total.counters,
            upload_cloud_ratio: total.counters.upload_cloud_ratio(),
            start_time: total.first_start.clone(),
            current_time: String::new(),
        });
        let statuses = object.content.workers.iter().zip(workers).map(
            |(worker, WorkerStatus { health, rejected, cloud_unreachable, gateway, .. })| {
                WorkerReport {
                    name: worker.name.clone(),
                    role: worker.role,
                    state: health.state,
                    reason: health.reason,
                    message: health.message.clone(),
                    restarts: health.restarts,
                    rejected: rejected.clone(),
                    cloud_unreachable: *cloud_unreachable,
                    gateway: gateway.clone().map(Box::new),
                }
            },
        );
        StatusReport {
            instance: self.identity.instance.clone(),
            epoch: self.identity.epoch,
            seq: 0,
            uid: object.content.metadata.uid.clone(),
            revision: object.revision,
            hash: Some(object.hash.clone()),
            phase: phase(workers.iter().map(|worker| &worker.health))
                .max(server.as_ref().map_or(Phase::Running, phase_of_server))
                .max(model.as_ref().map_or(Phase::Running, phase_of_model))
                .max(dataset.as_ref().map_or(Phase::Running, phase_of_dataset))
                .max(training.as_ref().map_or(Phase::Running, phase_of_training)),
            status: status(subject),
            output: ReportOutput { models: outputs.clone(), task_info },
            workers: statuses.collect(),
            serving: server.clone(),
            model: model.clone().map(Box::new),
            dataset: dataset.clone().map(Box::new),
            training: training.clone().map(Box::new),
            aggregator: aggregator.clone().map(Box::new),
        }
    }
}

/// Whether the state of a gateway differs, as opposed to its figures.
fn has_other_gateway_state(before: &StatusReport, after: &StatusReport) -> bool {
    let gateway = |report: &StatusReport, at: usize| {
        report.workers.get(at).and_then(|worker| worker.gateway.clone())
    };
    (0..after.workers.len()).any(|at| match (gateway(before, at), gateway(after, at)) {
        (Some(before), Some(after)) => !before.is_same_state(&after),
        (before, after) => before.is_some() != after.is_some(),
    })
}

/// The phase of the worst state. A completed worker waits for nothing.
fn phase<'a>(workers: impl Iterator<Item = &'a WorkerHealth>) -> Phase {
    let phase_of = |health: &WorkerHealth| match health.state {
        _ if health.reason == Some(WorkerReason::Completed) => Phase::Running,
        WorkerState::Running => Phase::Running,
        WorkerState::Pending => Phase::Pending,
        WorkerState::Failed => Phase::Failed,
    };
    workers.map(phase_of).max().unwrap_or(Phase::Running)
}

/// The phase of the tasks of a `TrainingModel`.
fn phase_of_training(training: &TrainingReport) -> Phase {
    let phase_of = |task: &TaskReport| match task.state {
        TaskState::Preparing => Phase::Pending,
        TaskState::Refused | TaskState::Failed => Phase::Failed,
        TaskState::Training | TaskState::Verifying | TaskState::Uploading | TaskState::Accepted => {
            Phase::Running
        }
    };
    training.tasks.iter().map(phase_of).max().unwrap_or(Phase::Running)
}

/// Returns the phase of an object that has a model server.
fn phase_of_server(status: &ModelServerReport) -> Phase {
    match status.transition {
        Transition::UpToDate => Phase::Running,
        Transition::InProgress => Phase::Pending,
        Transition::BlockedByFailedLoad | Transition::InvalidSpec => Phase::Failed,
    }
}

/// Returns the phase of a Model, from the presence of its file.
fn phase_of_model(model: &ModelPresenceReport) -> Phase {
    match model.state {
        PresenceState::Present => Phase::Running,
        PresenceState::Downloading => Phase::Pending,
        PresenceState::Failed => Phase::Failed,
    }
}

/// Returns the phase of a Dataset, from its count.
fn phase_of_dataset(status: &DatasetReport) -> Phase {
    match status.state {
        DatasetState::Counted => Phase::Running,
        DatasetState::Counting => Phase::Pending,
        DatasetState::Failed => Phase::Failed,
    }
}

/// The most important status that the edge workers reported, or the cloud workers where no edge
/// worker exists: `failed`, `running`, none, `completed`, then any other.
fn status(subject: &ObjectStatus<'_>) -> String {
    let statuses = |role: Option<Role>| -> Vec<&str> {
        let workers = subject.object.content.workers.iter().zip(&subject.workers);
        let of_role = workers.filter(|(worker, _)| role.is_none_or(|role| worker.role == role));
        of_role.map(|(_, worker)| worker.status.as_str()).collect()
    };
    let edge = statuses(Some(Role::Edge));
    let reported = if edge.is_empty() { statuses(None) } else { edge };
    let first =
        ["failed", "running", "", "completed"].into_iter().find(|status| reported.contains(status));
    first.or_else(|| reported.first().copied()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::unwrap_used)]
    use neptune_wire::{AgentInstance, Counters, Figure, GatewayCloud, ObjectContent, Revision};
    use serde_json::json;

    use super::*;

    fn object(roles: &[&str]) -> StoredObject {
        let worker = |(n, role): (usize, &&str)| json!({"name": format!("w{n}"), "role": role, "image": "i", "model": "m"});
        let content: ObjectContent = serde_json::from_value(json!({
            "apiVersion": "v", "kind": "k", "metadata": {"namespace": "d", "name": "s", "uid": "u"},
            "workers": roles.iter().enumerate().map(worker).collect::<Vec<_>>(),
        }))
        .unwrap();
        StoredObject { revision: Revision(7), hash: content.hash(), content }
    }

    fn health(state: WorkerState) -> WorkerHealth {
        WorkerHealth { state, reason: None, message: String::new(), restarts: 0 }
    }

    fn subject<'a>(
        key: &'a ObjectKey,
        object: &'a StoredObject,
        workers: &[(WorkerState, &str)],
        inference: u64,
    ) -> ObjectStatus<'a> {
        let counters = Counters {
            inference,
            hard: inference / 2,
            fallback: 2,
            decided_hard: 19,
            over_budget: 3,
            unjudged: 5,
            shadow: 7,
            deadline: 11,
            tiers: [13].into_iter().collect(),
        };
        ObjectStatus {
            key,
            object,
            workers: workers
                .iter()
                .map(|(state, status)| WorkerStatus {
                    health: health(*state),
                    status: (*status).to_owned(),
                    rejected: None,
                    cloud_unreachable: false,
                    gateway: None,
                })
                .collect(),
            total: CountTotal { counters, first_start: "then".into(), has_counted: inference > 0 },
            server: None,
            outputs: Vec::new(),
            model: None,
            dataset: None,
            training: None,
            aggregator: None,
        }
    }

    fn reporter() -> Reporter {
        Reporter::new(AgentIdentity { instance: AgentInstance("i".into()), epoch: 3 })
    }

    #[test]
    fn change_is_reported_at_once_and_then_at_most_once_per_second() {
        let (key, object) = ("d/jointinferenceservices/s".parse().unwrap(), object(&["edge"]));
        let running =
            |inference| [subject(&key, &object, &[(WorkerState::Running, "running")], inference)];
        let (mut reporter, start) = (reporter(), Instant::now());
        let after = |ms| start + Duration::from_millis(ms);

        let first = reporter.due(&running(0), after(0), Timestamp::UNIX_EPOCH);
        assert_eq!(first.reports[0].1.output.task_info, None, "nothing counted yet");
        assert_eq!(
            reporter.due(&running(0), after(500), Timestamp::UNIX_EPOCH),
            DueReports::default()
        );
        let early = reporter.due(&running(10), after(600), Timestamp::UNIX_EPOCH);
        assert_eq!(early, DueReports { reports: vec![], next_at: Some(after(1000)) });
        let second = reporter.due(&running(20), after(1000), Timestamp::UNIX_EPOCH);
        let report = &second.reports[0].1;
        assert_eq!((report.epoch, report.seq, report.revision), (3, 2, Revision(7)));
        let task = report.output.task_info.as_ref().unwrap();
        assert_eq!(task.counters, running(20)[0].total.counters);
        assert!((task.upload_cloud_ratio - 0.5).abs() < f64::EPSILON);
        assert_eq!(task.current_time, "1970-01-01T00:00:00.000Z");

        reporter.resend_all();
        let again = reporter.due(&running(20), after(1001), Timestamp::UNIX_EPOCH);
        assert_eq!(again.reports[0].1.seq, 3, "sequence numbers continue");
    }

    #[test]
    fn state_of_a_gateway_does_not_wait_and_its_figures_do() {
        use GatewayCloud::{LeftAlone, Reachable};
        let (key, object) = ("d/jointinferenceservices/s".parse().unwrap(), object(&["edge"]));
        let with = |inference, cloud, threshold| {
            let mut running =
                [subject(&key, &object, &[(WorkerState::Running, "running")], inference)];
            running[0].workers[0].gateway = Some(GatewayReport {
                cloud,
                threshold: Figure::new(threshold),
                ..GatewayReport::default()
            });
            running
        };
        let (mut reporter, start) = (reporter(), Instant::now());
        let mut at = |ms, inference, cloud, threshold| {
            let now = start + Duration::from_millis(ms);
            let due = reporter.due(&with(inference, cloud, threshold), now, Timestamp::UNIX_EPOCH);
            let next = due.next_at.map(|next| next.saturating_duration_since(start).as_millis());
            (due.reports.len(), next)
        };
        assert_eq!(at(0, 1, Reachable, 0.5), (1, None));
        assert_eq!(at(100, 2, Reachable, 0.6), (0, Some(1000)), "figures wait");
        assert_eq!(at(200, 2, LeftAlone, 0.6), (1, None), "a state does not");
        assert_eq!(at(300, 2, Reachable, 0.6), (0, Some(1200)), "an alternating one does");
        assert_eq!(at(1200, 2, Reachable, 0.6), (1, None));
        assert_eq!(at(1300, 2, Reachable, 0.6), (0, None), "nothing changed");
    }

    #[test]
    fn unchanged_reports_are_repeated_with_their_numbers() {
        let (key, object) = ("d/jointinferenceservices/s".parse().unwrap(), object(&["edge"]));
        let (mut reporter, now) = (reporter(), Instant::now());
        assert_eq!(reporter.repeated().count(), 0);
        let running = [subject(&key, &object, &[(WorkerState::Running, "running")], 5)];
        let due = reporter.due(&running, now, Timestamp::UNIX_EPOCH);
        let sent: Vec<_> = due.reports.iter().map(|(key, report)| (key, report)).collect();
        assert_eq!(reporter.repeated().collect::<Vec<_>>(), sent);
        assert_eq!(reporter.due(&running, now, Timestamp::UNIX_EPOCH), DueReports::default());
    }

    #[test]
    fn rejected_messages_are_reported() {
        let (key, object) = ("d/jointinferenceservices/s".parse().unwrap(), object(&["edge"]));
        let mut running = [subject(&key, &object, &[(WorkerState::Running, "running")], 5)];
        let rejected = RejectedMessages { count: 3, reason: "wrong".to_owned() };
        running[0].workers[0].rejected = Some(rejected.clone());
        let due = reporter().due(&running, Instant::now(), Timestamp::UNIX_EPOCH);
        assert_eq!(due.reports[0].1.workers[0].rejected, Some(rejected));
    }

    #[test]
    fn short_start_is_reported_once_when_complete() {
        let (key, object) = ("d/jointinferenceservices/s".parse().unwrap(), object(&["edge"]));
        let (mut reporter, start) = (reporter(), Instant::now());
        let mut starting = [subject(&key, &object, &[(WorkerState::Pending, "")], 0)];
        starting[0].workers[0].health.reason = Some(WorkerReason::Starting);
        let early = reporter.due(&starting, start, Timestamp::UNIX_EPOCH);
        assert_eq!(early, DueReports { reports: vec![], next_at: Some(start + START_GRACE) });
        assert_eq!(
            reporter.due(&starting, start + START_GRACE, Timestamp::UNIX_EPOCH).reports.len(),
            1
        );

        let mut quick = Reporter::new(reporter.identity.clone());
        assert_eq!(quick.due(&starting, start, Timestamp::UNIX_EPOCH).reports.len(), 0);
        let running = [subject(&key, &object, &[(WorkerState::Running, "")], 0)];
        let soon = start + Duration::from_millis(100);
        assert_eq!(quick.due(&running, soon, Timestamp::UNIX_EPOCH).reports.len(), 1);
    }

    #[test]
    fn model_is_reported_once_when_present() {
        let key = "d/models/m".parse().unwrap();
        let (mut reporter, object, start) = (reporter(), object(&[]), Instant::now());
        let presence = |state| ModelPresenceReport {
            state,
            url: "http://h/m".into(),
            sha256: None,
            bytes: None,
            files: None,
            revision: None,
            source: None,
            rejected_peers: Vec::new(),
            progress: None,
            reason: None,
            message: String::new(),
        };
        let subject = |state| {
            [ObjectStatus { model: Some(presence(state)), ..subject(&key, &object, &[], 0) }]
        };
        let downloading = subject(PresenceState::Downloading);
        let due = reporter.due(&downloading, start, Timestamp::UNIX_EPOCH);
        assert_eq!(due, DueReports { reports: vec![], next_at: Some(start + START_GRACE) });
        let present = subject(PresenceState::Present);
        let due = reporter.due(&present, start, Timestamp::UNIX_EPOCH);
        let report = &due.reports[0].1;
        assert_eq!((report.phase, report.uid.as_str()), (Phase::Running, "u"));
        assert_eq!(report.model.as_deref(), present[0].model.as_ref());
        assert_eq!(reporter.due(&present, start, Timestamp::UNIX_EPOCH), DueReports::default());
        let failed = subject(PresenceState::Failed);
        let due = reporter.due(&failed, start + MIN_INTERVAL, Timestamp::UNIX_EPOCH);
        assert_eq!(due.reports[0].1.phase, Phase::Failed);
    }

    #[test]
    fn worst_worker_sets_the_phase_and_edge_workers_the_status() {
        use WorkerState::{Failed, Pending, Running};
        let key: ObjectKey = "d/jointinferenceservices/s".parse().unwrap();
        let both = object(&["edge", "cloud"]);
        for (workers, phase, status) in [
            ([(Running, "running"), (Running, "completed")], Phase::Running, "running"),
            ([(Running, "completed"), (Pending, "running")], Phase::Pending, "completed"),
            ([(Failed, ""), (Pending, "running")], Phase::Failed, ""),
            ([(Running, "other"), (Running, "running")], Phase::Running, "other"),
        ] {
            let due = reporter().due(
                &[subject(&key, &both, &workers, 0)],
                Instant::now(),
                Timestamp::UNIX_EPOCH,
            );
            let report = &due.reports[0].1;
            assert_eq!((report.phase, report.status.as_str()), (phase, status), "{workers:?}");
        }
        let cloud = object(&["cloud"]);
        let subject = subject(&key, &cloud, &[(Running, "running")], 0);
        let due = reporter().due(&[subject], Instant::now(), Timestamp::UNIX_EPOCH);
        assert_eq!(due.reports[0].1.status, "running");
    }
}
