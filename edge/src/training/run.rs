//! Runs the container of a task until it ends: adopts the one that an earlier process started, or
//! starts one, and ends it when it takes too long or writes too much.

use std::{
    collections::HashMap,
    io,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use neptune_agent_core::{
    domain::{
        allowed_dirs::PathUse,
        container::ContainerSpec,
        training::{RunOutcome, TASK, TaskEvent, TaskProblem},
    },
    supervision::{self, Claim, End, Exit, Limits, RestartPolicy},
    training::{
        container::{self, STARTED, TaskInputs, TrainingIdentity},
        volumes::volume_labels,
    },
};
use neptune_edge_engine::supervisor::{Adopted, FoundContainer, NewContainer};
use neptune_wire::{TaskKind, TrainingReason, WorkerReason};
use tokio::{sync::Notify, task::spawn_blocking};
use tracing::info;

use super::{
    boot_time::BootTime,
    job::{TaskJob, TrainingNode},
    output::too_large_problem,
    prepare::{self, engine_problem},
};
use crate::artifacts::host_path;

/// Interval between two measurements of the output's size.
const MEASURE_INTERVAL: Duration = Duration::from_millis(500);
/// After this time without an answer of the engine the run counts as interrupted.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(60);

/// A container of the task that runs or has ended.
struct Begun {
    id: String,
    /// Time at which the container has to end; `None` without a limit.
    deadline: Option<Instant>,
}

/// Runs the container until it ends, or until `cancel` is notified. A container that is cancelled
/// keeps running until it is removed.
pub async fn run(job: &TaskJob, cancel: &Notify) -> TaskEvent {
    let begun = match begin(job).await {
        Ok(begun) => begun,
        Err(outcome) => return TaskEvent::Ran(outcome),
    };
    tokio::select! {
        outcome = supervise(job, begun) => TaskEvent::Ran(outcome),
        () = cancel.notified() => TaskEvent::Cancelled,
    }
}

/// Adopts or starts the container. An error is the end of the run.
async fn begin(job: &TaskJob) -> Result<Begun, RunOutcome> {
    let claim = |labels: &HashMap<String, String>| claim(job, labels);
    let adopted = job.node.supervisor.adopt(TASK, RestartPolicy::OnFailure, claim).await;
    match adopted.map_err(|problem| RunOutcome::Lost(engine_problem(problem)))? {
        Some(Adopted::Running { container, started_at }) => {
            let FoundContainer { id, labels } = container;
            info!(task = job.wanted.task.id.0, container = id, "training container adopted");
            let noted = labels.get(STARTED).and_then(|text| text.parse().ok());
            Ok(Begun { id, deadline: deadline(job, age(noted.as_ref(), started_at)) })
        }
        // An earlier process began the run.
        Some(Adopted::Done(exit)) => Err(succeeded(job, exit.seconds)),
        None => start(job).await,
    }
}

/// Whether a container is that of this task, or another one of its name or of the task.
fn claim(job: &TaskJob, labels: &HashMap<String, String>) -> Claim {
    let Some(identity) = TrainingIdentity::from_labels(labels) else { return Claim::Foreign };
    let TrainingNode { context, instance, .. } = &job.node;
    let is_node = identity.node == context.node.as_str();
    let is_task = identity.task == job.wanted.task.id;
    let is_same_name = is_node && container::has_name_of(labels, &job.wanted);
    if !identity.is_of(context, instance) || !is_task && !is_same_name {
        Claim::Foreign
    } else if is_task && is_node && identity.instance == instance.0 {
        Claim::Current
    } else {
        Claim::Outdated
    }
}

/// How long a container ran. `noted`: when the agent started it; an agent of an earlier version noted
/// nothing. `started_at`: by the clock of the engine.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
fn age(noted: Option<&BootTime>, started_at: Option<Timestamp>) -> Duration {
    let wall = started_at.map_or(0, |start| (Timestamp::now() - start).get_seconds());
    let wall = Duration::from_secs(u64::try_from(wall).unwrap_or(0));
    BootTime::age(noted, BootTime::now().as_ref(), wall)
}

#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
fn deadline(job: &TaskJob, ran: Duration) -> Option<Instant> {
    let limit = job.wanted.container.timeout_seconds.map(Duration::from_secs);
    supervision::deadline(limit, ran, Instant::now())
}

/// Starts the container with an empty output directory.
async fn start(job: &TaskJob) -> Result<Begun, RunOutcome> {
    let weights = prepare::check(job).await.map_err(RunOutcome::InputMissing)?;
    let user = container::user(&job.wanted, &job.node.context);
    let (files, agent) = (job.files.clone(), job.node.context.agent_user);
    let ca = job.wanted.session.as_ref().map(|session| session.ca.clone());
    let boot = job.node.boot.clone();
    let reset = spawn_blocking(move || {
        files.reset_output(user, agent)?;
        files.write_boot(&boot)?;
        ca.map_or(Ok(()), |ca| files.write_ca(&ca))
    })
    .await;
    reset.expect("creating a directory does not panic").map_err(|error| {
        let reason = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => TrainingReason::DiskFull,
            _ => TrainingReason::ContainerRefused,
        };
        let message = format!("cannot create {}: {error}; retrying", job.files.output().display());
        RunOutcome::Interrupted(TaskProblem::new(reason, message))
    })?;
    let inputs = job.inputs.clone().map_err(RunOutcome::InputMissing)?;
    let inputs = TaskInputs { weights, ..inputs };
    let spec = container::spec(&job.wanted, &inputs, &job.files, &job.node.context);
    let spec = host_path::resolved(&spec, &job.node.context).await.map_err(not_mounted)?;
    let spec = ContainerSpec { units: job.units.clone(), ..spec };
    let mut labels = container::labels(&job.wanted, &job.node.context, &job.node.instance);
    labels.extend(BootTime::now().map(|now| (STARTED.to_owned(), now.to_string())));
    let new = NewContainer {
        name: container::name(&job.wanted, &job.node.context),
        labels,
        volume_labels: volume_labels(&job.wanted, &job.node.context, &job.node.instance),
        spec,
        max_file_bytes: container::output_limit(&job.wanted),
        node: job.node.context.node.clone(),
        owner: job.wanted.owner.clone(),
    };
    let volumes = job.node.volumes.lock().await;
    let started = job.node.supervisor.start_new(&new).await;
    drop(volumes);
    let id = started.map_err(|problem| match problem.reason {
        // It may start it all the same.
        WorkerReason::DockerUnavailable => RunOutcome::Lost(engine_problem(problem)),
        _ => RunOutcome::Interrupted(engine_problem(problem)),
    })?;
    info!(
        task = job.wanted.task.id.0, object = %job.wanted.owner, worker = job.wanted.task.worker,
        round = job.wanted.task.round, container = id, "training container started"
    );
    Ok(Begun { id, deadline: deadline(job, Duration::ZERO) })
}

/// A path that the container would mount became another one since it was checked.
fn not_mounted((path_use, message): (PathUse, String)) -> RunOutcome {
    let reason = match path_use {
        PathUse::Scripts => TrainingReason::ScriptMissing,
        PathUse::Model | PathUse::Dataset | PathUse::Capture | PathUse::Volume => {
            TrainingReason::DatasetUnavailable
        }
    };
    RunOutcome::InputMissing(TaskProblem::new(reason, message))
}

/// Waits for the end of the container.
async fn supervise(job: &TaskJob, begun: Begun) -> RunOutcome {
    let limit = container::output_limit(&job.wanted);
    let limits = Limits {
        deadline: begun.deadline.map(|at| (at, RunOutcome::Failed(timed_out(job)))),
        check_interval: Some(MEASURE_INTERVAL),
        engine_timeout: ENGINE_TIMEOUT,
    };
    let check = || async move { excess(job, limit).await.map(RunOutcome::Refused) };
    let interrupted = |message| {
        RunOutcome::Interrupted(TaskProblem::new(TrainingReason::ContainerRefused, message))
    };
    let end = match job.node.supervisor.watch(&begun.id, limits, check).await {
        Ok(end) => end,
        Err(outcome) => return outcome,
    };
    match end {
        End::Exited(exit) if exit.code == 0 => succeeded(job, exit.seconds),
        End::Exited(exit) => failed(job, &begun.id, exit).await,
        End::Removed => interrupted("the training container was removed; starting it again"),
        End::WithEngine => {
            interrupted("the training container ended with the container engine; starting it again")
        }
        End::EngineLost(problem) => RunOutcome::Lost(engine_problem(problem)),
    }
}

/// The outcome of a program that exited with 0.
fn succeeded(job: &TaskJob, seconds: u64) -> RunOutcome {
    match job.wanted.task.kind {
        TaskKind::Session => RunOutcome::SessionEnded,
        _ => RunOutcome::Succeeded { seconds },
    }
}

fn timed_out(job: &TaskJob) -> TaskProblem {
    let limit = job.wanted.container.timeout_seconds.unwrap_or_default();
    TaskProblem::new(
        TrainingReason::TimedOut,
        format!(
            "script did not end within {limit} s and was killed; use fewer epochs or a smaller model, or raise the time limit"
        ),
    )
}

/// The problem that the output exceeds its limit, or that this cannot be known.
async fn excess(job: &TaskJob, limit: u64) -> Option<TaskProblem> {
    let files = job.files.clone();
    let usage = spawn_blocking(move || files.usage()).await.expect("measuring does not panic");
    let max = job.wanted.container.max_update_bytes;
    excess_of(usage, (limit, max), job.node.context.agent_user)
}

fn excess_of(
    usage: io::Result<Option<u64>>,
    (limit, max): (u64, u64),
    agent_user: u32,
) -> Option<TaskProblem> {
    match usage {
        Ok(Some(bytes)) if bytes <= limit => None,
        Ok(Some(bytes)) => {
            Some(too_large_problem(&format!("script wrote {bytes} bytes into OUTPUT_DIR"), max))
        }
        Ok(None) => Some(too_large_problem("script wrote too many files into OUTPUT_DIR", max)),
        // Otherwise the script could fill the disk there.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Some(TaskProblem::new(
            TrainingReason::UpdateTooLarge,
            format!(
                "script made a directory in OUTPUT_DIR that the agent (user {agent_user}) cannot read, so that its size is not limited; write files into OUTPUT_DIR itself, make directories readable for all, or run the agent as root"
            ),
        )),
        // Verification reads it again.
        Err(_) => None,
    }
}

/// The outcome of a program that exited with another code than 0.
async fn failed(
    job: &TaskJob,
    id: &str,
    Exit { code, out_of_memory, seconds }: Exit,
) -> RunOutcome {
    // A file reached its limit: the program cannot write more.
    let limit = container::output_limit(&job.wanted).saturating_sub(1);
    if let Some(problem) = excess(job, limit).await {
        return RunOutcome::Refused(problem);
    }
    let log = job.node.supervisor.log(id).await;
    let end = if log.is_empty() { String::new() } else { format!(": {log}") };
    if out_of_memory {
        return RunOutcome::Failed(TaskProblem::new(
            TrainingReason::OutOfMemory,
            format!(
                "script was killed after {seconds} s because of its memory limit; raise workerSpec.resources, or use less memory{end}"
            ),
        ));
    }
    let (dir, reserve) = (job.files.dir.clone(), FULL_BELOW_BYTES);
    let free = spawn_blocking(move || rustix::fs::statvfs(&dir)).await;
    let free = free.expect("a system call does not panic");
    let is_full = free.is_ok_and(|state| state.f_bavail.saturating_mul(state.f_frsize) < reserve);
    if is_full {
        return RunOutcome::Failed(TaskProblem::new(
            TrainingReason::DiskFull,
            format!(
                "the file system of the data directory is full, and the script ended with exit code {code} after {seconds} s{end}; free disk space"
            ),
        ));
    }
    RunOutcome::Failed(TaskProblem::new(
        TrainingReason::ScriptFailed,
        format!("script ended with exit code {code} after {seconds} s{end}"),
    ))
}

/// Free space below which a disk is full.
const FULL_BELOW_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_that_cannot_be_measured_is_refused() {
        let reason = |usage| excess_of(usage, (100, 90), 1000).map(|problem| problem.reason);
        assert_eq!(reason(Ok(Some(100))), None);
        for usage in [Ok(Some(101)), Ok(None), Err(io::ErrorKind::PermissionDenied.into())] {
            assert_eq!(reason(usage), Some(TrainingReason::UpdateTooLarge));
        }
        assert_eq!(reason(Err(io::ErrorKind::NotConnected.into())), None, "read again later");
    }
}
