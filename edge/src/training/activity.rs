//! Carries out the activities of tasks, each in its own task of the runtime. The outcome is sent as an
//! event.

use std::{collections::BTreeSet, fs, io, ops::ControlFlow, path::Path, sync::Arc};

use neptune_agent_core::{
    backoff::ENGINE_CONNECT,
    domain::{
        node_context::TRAINING_DIR,
        problem::Problem,
        training::{
            CleanProblem, SweepState, TASK, TaskEvent, TaskOutput, TaskProblem, TaskRecord,
            VerifyProblem,
        },
    },
    training::{
        container::{TaskInputs, TrainingIdentity},
        volumes::UID,
    },
};
use neptune_edge_engine::supervisor::FoundContainer;
use neptune_program::random::random;
use neptune_wire::{TaskId, WorkerReason};
use tokio::{sync::Notify, task::spawn_blocking};
use tracing::{info, warn};

use super::{
    job::{TaskJob, TrainingNode},
    output::{Expected, TaskFiles},
    prepare::{self, engine_problem},
    run, upload,
};
use crate::event::AgentEvent;

/// Attempts to remove the containers of earlier tasks while the engine answers.
const SWEEP_ATTEMPTS: u32 = 5;

/// An activity with its input.
pub enum Work {
    Prepare,
    Run,
    Verify(TaskRecord),
    Upload(TaskOutput),
}

impl TaskJob {
    /// Begins an activity. It ends by itself, or after `cancel` is notified.
    pub fn begin(self, work: Work, cancel: Arc<Notify>) {
        tokio::spawn(async move {
            let event = match work {
                Work::Prepare => {
                    let prepared = async { TaskEvent::Prepared(prepare::prepare(&self).await) };
                    unless(&cancel, prepared).await
                }
                // It looks at `cancel` itself: not while the engine creates the container, which
                // would be left behind.
                Work::Run => run::run(&self, &cancel).await,
                Work::Verify(record) => TaskEvent::Verified(self.verify(&record).await),
                Work::Upload(output) => {
                    let uploaded =
                        async { TaskEvent::Uploaded(upload::upload(&self, &output).await) };
                    unless(&cancel, uploaded).await
                }
            };
            self.node.metrics.on_event(&event);
            self.report(event).await;
        });
    }

    /// Verifies the output, after nothing can change it any more.
    async fn verify(&self, record: &TaskRecord) -> Result<TaskOutput, VerifyProblem> {
        let removed = self.node.remove_containers(&self.wanted.task.id).await;
        removed.map_err(|problem| VerifyProblem::Retry(engine_problem(problem)))?;
        let expected = Expected {
            kind: self.wanted.task.kind,
            max_update_bytes: self.wanted.container.max_update_bytes,
            counted: counted(record, &self.inputs).map_err(VerifyProblem::Retry)?,
            seconds: record.seconds,
        };
        let (files, boot) = (self.files.clone(), self.node.boot.clone());
        let verified = spawn_blocking(move || files.verify_in(&boot, &expected)).await;
        verified.expect("no file makes the verification panic")
    }
}

/// The samples that a program may report: those of the dataset now, or when the container was started
/// if that is more. Without a dataset and without a count at the start it waits: a program whose
/// samples have no bound would give itself a weight.
fn counted(
    record: &TaskRecord,
    inputs: &Result<TaskInputs, TaskProblem>,
) -> Result<Option<u64>, TaskProblem> {
    match inputs {
        Ok(inputs) => Ok(inputs.counted.max(record.counted)),
        Err(problem) => record.counted.map(Some).ok_or_else(|| problem.clone()),
    }
}

async fn unless(cancel: &Notify, activity: impl Future<Output = TaskEvent>) -> TaskEvent {
    tokio::select! {
        event = activity => event,
        () = cancel.notified() => TaskEvent::Cancelled,
    }
}

impl TrainingNode {
    /// Removes the containers of a task.
    async fn remove_containers(&self, task: &TaskId) -> Result<(), Problem> {
        let is_of_task = |identity: &TrainingIdentity| identity.task == *task;
        self.supervisor
            .remove_unwanted(&labels(), |container| self.has(container, is_of_task))
            .await
    }

    /// Whether it is a training container of this node, and this of it is true.
    fn has(&self, container: &FoundContainer, is: impl Fn(&TrainingIdentity) -> bool) -> bool {
        TrainingIdentity::from_labels(&container.labels)
            .is_some_and(|identity| identity.is_of(&self.context, &self.instance) && is(&identity))
    }

    /// Removes the container and the files of a task, and reports the result.
    pub fn clean(self, task: TaskId) {
        tokio::spawn(async move {
            let removed = self.remove_containers(&task).await;
            let files = TaskFiles::new(&self.context.data_dir, &task);
            let cleaned = match removed {
                Ok(()) => {
                    let shown = files.dir.display().to_string();
                    let removed = spawn_blocking(move || files.remove()).await;
                    removed.expect("removing files does not panic").map_err(|error| CleanProblem {
                        is_container_removed: true,
                        message: format!("cannot remove {shown}: {error}; remove it as root, or run the agent as root; retrying"),
                    })
                }
                Err(Problem { message, .. }) => {
                    Err(CleanProblem { is_container_removed: false, message })
                }
            };
            let event = AgentEvent::Training { task, event: TaskEvent::Cleaned(cleaned) };
            // The receiver is dropped only when the process exits.
            let _ = self.events.send(event).await;
        });
    }

    /// Removes the files and containers of tasks that are not known, which a lost database or a
    /// former name of the node left behind. Reports when the files are removed, and when the
    /// containers are: the engine may be away for long.
    pub fn sweep(self, known: BTreeSet<TaskId>) {
        tokio::spawn(async move {
            let (root, kept) = (self.context.data_dir.join(TRAINING_DIR), known.clone());
            let removed = spawn_blocking(move || remove_unknown(&root, &kept)).await;
            for problem in removed.expect("removing files does not panic") {
                warn!(problem, "cannot remove files of an earlier training task");
            }
            // The receiver is dropped only when the process exits.
            let _ = self.events.send(AgentEvent::TrainingSwept(SweepState::Files)).await;
            let is_unknown = |it: &TrainingIdentity| !(known.contains(&it.task) && self.owns(it));
            let labels = labels();
            self.supervisor
                .sweep(&labels, |container| self.has(container, is_unknown), on_failed_sweep)
                .await;
            let _ = self.events.send(AgentEvent::TrainingSwept(SweepState::Containers)).await;
        });
    }

    /// Removes the volumes of trainings that left the node, whenever one did, for as long as the agent
    /// runs. A volume is not removed before its containers: the engine refuses that until then.
    pub fn collect_volumes(&self) {
        let node = self.clone();
        tokio::spawn(async move {
            loop {
                node.volumes.changed().await;
                let mut failures = 0;
                while let Err(Problem { message: problem, .. }) = node.remove_unused_volumes().await
                {
                    failures += 1;
                    if failures == 1 {
                        info!(problem, "cannot remove the volumes of a training; retrying");
                    }
                    tokio::time::sleep(ENGINE_CONNECT.delay(failures, random())).await;
                }
            }
        });
    }

    async fn remove_unused_volumes(&self) -> Result<(), Problem> {
        let _volumes = self.volumes.lock().await;
        let Some(kept) = self.volumes.kept() else { return Ok(()) };
        let is_unused = |labels: &_| kept.is_unused(labels, &self.context, &self.instance);
        self.supervisor.remove_unused_volumes(UID, is_unused).await
    }

    /// Whether this data directory created the container under the present name of the node.
    fn owns(&self, identity: &TrainingIdentity) -> bool {
        identity.node == self.context.node.as_str() && identity.instance == self.instance.0
    }
}

/// The labels of training containers.
fn labels() -> [String; 1] {
    [TASK.to_owned()]
}

/// Whether the removal of earlier training containers continues after this many failures.
fn on_failed_sweep(failures: u32, problem: &Problem) -> ControlFlow<()> {
    if failures == 1 {
        info!(problem = problem.message, "cannot look for training containers; retrying");
    }
    // The engine answers, and refuses to remove one: the tasks of the node go on.
    if problem.reason == WorkerReason::ContainerRefused && failures >= SWEEP_ATTEMPTS {
        warn!(
            problem = problem.message,
            "a training container of an earlier task is left behind; remove it"
        );
        return ControlFlow::Break(());
    }
    ControlFlow::Continue(())
}

/// Removes the files of tasks that are not known. Returns what could not be removed: that does not
/// keep the others.
fn remove_unknown(root: &Path, known: &BTreeSet<TaskId>) -> Vec<String> {
    let text = |path: &Path, error: &io::Error| format!("{}: {error}", path.display());
    let listed = match fs::read_dir(root) {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => return vec![text(root, &error)],
    };
    let mut problems = Vec::new();
    for entry in listed.flatten() {
        let name = entry.file_name().into_string().ok();
        if name.is_some_and(|name| known.contains(&TaskId(name))) {
            continue;
        }
        if let Err(error) = fs::remove_dir_all(entry.path()) {
            problems.push(text(&entry.path(), &error));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_agent_core::fixtures::local_file;

    use super::*;

    #[test]
    fn entry_that_cannot_be_removed_does_not_keep_the_others() {
        let root = tempfile::tempdir().unwrap();
        let (kept, known) = (TaskId("b".into()), root.path().join("b"));
        // A file is no directory of a task, and cannot be removed as one.
        for name in ["a", "d"] {
            fs::write(root.path().join(name), "").unwrap();
        }
        for name in ["b", "c", "e"] {
            fs::create_dir_all(root.path().join(name).join("output")).unwrap();
        }
        let problems = remove_unknown(root.path(), &[kept].into());
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(known.exists());
        assert!(!root.path().join("c").exists() && !root.path().join("e").exists());
    }
    #[test]
    fn samples_of_a_program_are_bounded_when_its_dataset_is_gone() {
        use neptune_wire::TrainingReason;

        let record = |counted| TaskRecord { counted, ..TaskRecord::default() };
        let has = |counted| {
            let (dataset, format) = (local_file("/data/log.jsonl"), "jsonl".to_owned());
            Ok(TaskInputs { dataset, format, counted: Some(counted), script: None, weights: None })
        };
        let gone = TaskProblem::new(TrainingReason::DatasetUnavailable, "it is gone".to_owned());
        assert_eq!(counted(&record(Some(400)), &has(430)), Ok(Some(430)), "data arrived");
        assert_eq!(counted(&record(Some(400)), &has(12)), Ok(Some(400)), "data was removed");
        assert_eq!(counted(&record(Some(400)), &Err(gone.clone())), Ok(Some(400)));
        // A record of an earlier agent: the output is verified when the dataset is back.
        assert_eq!(counted(&record(None), &has(430)), Ok(Some(430)));
        assert_eq!(counted(&record(None), &Err(gone.clone())), Err(gone));
    }
}
