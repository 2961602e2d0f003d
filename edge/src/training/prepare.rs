//! Brings what a task needs to the node: the image, the weights, and the program and dataset at their
//! paths. Downloads of programs and datasets are left to `artifacts`.

use std::path::Path;

use neptune_agent_core::{
    domain::{allowed_dirs::PathUse, problem::Problem, training::TaskProblem},
    training::container,
};
use neptune_aggregate::weights::{Format, Weights};
use neptune_content::download::{Download, DownloadError, Length, download};
use neptune_wire::{TrainingReason, TrainingScript, WorkerReason};
use reqwest::StatusCode;
use tokio::{fs, task::spawn_blocking};

use super::{job::TaskJob, output::TaskFiles, readable};
use crate::artifacts::host_path;

/// Prepares the task once. What was downloaded is kept if something else fails.
///
/// # Errors
/// What is missing, with the remedy.
pub async fn prepare(job: &TaskJob) -> Result<(), TaskProblem> {
    check_paths(job).await?;
    let docker = &job.node.supervisor.docker;
    docker.pull_if_absent(image(job), &job.node.events).await.map_err(engine_problem)?;
    download_base(job).await
}

/// Checks that everything that [`prepare`] provided is on the node. Returns the name of the weights
/// in the container.
///
/// # Errors
/// What is missing, with the remedy.
pub async fn check(job: &TaskJob) -> Result<Option<&'static str>, TaskProblem> {
    check_paths(job).await?;
    if !job.node.supervisor.docker.has_image(image(job)).await.map_err(engine_problem)? {
        let message = format!("image {} is not on the node any more; pulling it", image(job));
        return Err(TaskProblem::new(TrainingReason::ImageMissing, message));
    }
    if job.wanted.task.base.is_none() {
        return Ok(None);
    }
    let path = job.files.base();
    let opened = spawn_blocking(move || Weights::open(std::fs::File::open(path)?));
    let opened = opened.await.expect("reading a header does not panic");
    match opened {
        Ok(weights) => Ok(Some(match weights.format() {
            Format::Npz => "weights.npz",
            Format::Safetensors => "weights.safetensors",
        })),
        Err(error) => {
            let message =
                format!("the weights of the round are not usable: {error}; downloading them again");
            Err(TaskProblem::new(TrainingReason::DownloadFailed, message))
        }
    }
}

fn image(job: &TaskJob) -> &str {
    &job.wanted.container.program.image
}

/// The problem of a task that follows from one of the engine.
pub fn engine_problem(problem: Problem) -> TaskProblem {
    let reason = match problem.reason {
        WorkerReason::ImageMissing => TrainingReason::ImageMissing,
        _ => TrainingReason::ContainerRefused,
    };
    TaskProblem::new(reason, problem.message)
}

async fn check_paths(job: &TaskJob) -> Result<(), TaskProblem> {
    let inputs = job.inputs.as_ref().map_err(Clone::clone)?;
    check_dataset(job, inputs).await?;
    let problem = |message: String| Err(TaskProblem::new(TrainingReason::ScriptMissing, message));
    match &job.wanted.container.script {
        None => Ok(()),
        Some(TrainingScript::Directory(scripts)) => {
            let dir = Path::new(&scripts.dir);
            if let Err(why) = host_path::check(dir, PathUse::Scripts, &job.node.context).await {
                return problem(format!("script.scriptDir {} {why}", dir.display()));
            }
            let file = dir.join(&scripts.boot_file);
            if neptune_agent_core::domain::mounts::is_below(&scripts.boot_file)
                && is_file(&file).await
            {
                return Ok(());
            }
            problem(format!(
                "file {} not found on the node; copy it to the node, or correct script.scriptDir and script.bootFile",
                file.display()
            ))
        }
        Some(TrainingScript::Download { boot_file, url, .. }) => {
            let Some(script) = &inputs.script else {
                return problem(
                    "the program is not on the node any more; downloading it".to_owned(),
                );
            };
            let is_present = match &script.file {
                Some(file) => file == boot_file && is_file(&script.path).await,
                None => is_file(&script.path.join(boot_file)).await,
            };
            if is_present {
                return Ok(());
            }
            problem(format!("{url} has no file {boot_file}; correct script.bootFile"))
        }
    }
}

async fn is_file(path: &Path) -> bool {
    fs::metadata(path).await.is_ok_and(|metadata| metadata.is_file())
}

async fn check_dataset(job: &TaskJob, inputs: &container::TaskInputs) -> Result<(), TaskProblem> {
    let path = &inputs.dataset.path;
    let problem = |why: String| {
        let message = format!("dataset path {} {why}", path.display());
        TaskProblem::new(TrainingReason::DatasetUnavailable, message)
    };
    if !neptune_agent_core::domain::mounts::is_of_agent(path, &job.node.context) {
        host_path::check(path, PathUse::Dataset, &job.node.context).await.map_err(problem)?;
    }
    // An agent of an earlier version may not know the format, and cannot count the dataset then.
    let Ok(format) = inputs.format.parse() else { return Ok(()) };
    let user = container::user(&job.wanted, &job.node.context);
    let dataset = path.clone();
    let result = spawn_blocking(move || readable::first_unreadable(&dataset, format, user)).await;
    match result.expect("reading permissions does not panic") {
        Ok(None) => Ok(()),
        Ok(Some(unreadable)) => Err(problem(unreadable.message(user))),
        Err(_) => Err(problem("no longer exists on the node; retrying".to_owned())),
    }
}

/// Downloads the weights of the round from the aggregator, unless another task of the node has them.
async fn download_base(job: &TaskJob) -> Result<(), TaskProblem> {
    let file = |error: std::io::Error| {
        let reason = match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                TrainingReason::DiskFull
            }
            _ => TrainingReason::DownloadFailed,
        };
        let message = format!("cannot write {}: {error}; retrying", job.files.dir.display());
        TaskProblem::new(reason, message)
    };
    let files = job.files.clone();
    let created = spawn_blocking(move || files.create()).await;
    created.expect("creating a directory does not panic").map_err(file)?;
    let Some(base) = &job.wanted.task.base else { return Ok(()) };
    let Ok(content) = base.sha256.parse() else {
        return Err(TaskProblem::new(TrainingReason::DownloadFailed, "invalid digest"));
    };
    let path = job.files.base();
    for other in &job.same_base {
        // The digest is verified below.
        let _ =
            fs::hard_link(TaskFiles::new(&job.node.context.data_dir, other).base(), &path).await;
    }
    let url = format!("{}/v1/content/{}", job.wanted.aggregator.url, base.sha256);
    let wanted = Download { url, content, length: Length::Exactly(base.bytes), path: path.clone() };
    download(&job.client, &wanted).await.map_err(|error| download_problem(job, error, file))?;
    // The user of the program reads it. Its directory is the agent's alone.
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(&path, readable).await.map_err(file)
}

fn download_problem(
    job: &TaskJob,
    error: DownloadError,
    file: impl FnOnce(std::io::Error) -> TaskProblem,
) -> TaskProblem {
    let url = &job.wanted.aggregator.url;
    match error {
        DownloadError::File { error, .. } => file(error),
        DownloadError::Status(StatusCode::FORBIDDEN, _) => not_trusted(url),
        DownloadError::Status(status, _) if status.is_server_error() => TaskProblem::new(
            TrainingReason::AggregatorUnreachable,
            format!("aggregator {url} answered {status}; retrying"),
        ),
        DownloadError::Http(_) => unreachable(url, &error.to_string()),
        DownloadError::Digest { .. } => TaskProblem::new(
            TrainingReason::DigestMismatch,
            format!("weights of {url}: {error}; retrying"),
        ),
        DownloadError::Status(..)
        | DownloadError::Length { .. }
        | DownloadError::TooLarge { .. } => TaskProblem::new(
            TrainingReason::DownloadFailed,
            format!("weights of {url}: {error}; retrying"),
        ),
    }
}

/// The problem that the aggregator cannot be reached.
pub fn unreachable(url: &str, why: &str) -> TaskProblem {
    TaskProblem::new(
        TrainingReason::AggregatorUnreachable,
        format!(
            "cannot reach aggregator {url}: {why}; check that the node can connect to this address; retrying"
        ),
    )
}

/// The problem that the aggregator does not know the key of this node.
pub fn not_trusted(url: &str) -> TaskProblem {
    TaskProblem::new(
        TrainingReason::NodeNotTrusted,
        format!(
            "aggregator {url} does not know the key of this node yet; the controller sends it when the node has reported it; retrying"
        ),
    )
}
