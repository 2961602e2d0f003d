//! What an update is worth: checks a complete one, stores the verdict, and responds with it.

use std::path::{Path, PathBuf};

use axum::{
    body::Body,
    http::{Response, StatusCode},
};
use neptune_content::Digest;
use neptune_wire::{
    ContentReference,
    aggregator::{RunTask, UpdateAccepted},
};

use super::{
    response,
    shared::{Shared, Upload},
};
use crate::{
    aggregator::{Aggregator, Held},
    error::Error,
    judge,
    run::{Event, Rejection, TaskResult, Verdict, credible_samples},
};

/// Checks a complete update, and responds with its verdict.
pub async fn judge(shared: &Shared, upload: Upload, path: PathBuf, held: Held) -> Response<Body> {
    match judge_and_record(shared, upload, path, held).await {
        Ok(result) => respond(&result.verdict),
        Err(error) => response::error(&error),
    }
}

/// Refuses an update whose announced size is above the limit.
pub async fn refuse_too_large(
    shared: &Shared,
    upload: Upload,
    bytes: u64,
    limit: u64,
) -> Response<Body> {
    let result = judge::too_large(&upload.task, &upload.content.to_string(), bytes, limit);
    match shared.blocking(move |it| record(it, &upload.task, &result)).await {
        Ok(result) => respond(&result.verdict),
        Err(error) => response::error(&error),
    }
}

/// The response to an update of a task with a result.
pub fn known(result: &TaskResult, sha256: &str) -> Response<Body> {
    match &result.verdict {
        Verdict::Accepted(update) if update.content.sha256 != sha256 => {
            let accepted = update.content.sha256.clone();
            response::error(&Rejection::OtherUpdateAccepted(accepted).into())
        }
        other => respond(other),
    }
}

fn respond(verdict: &Verdict) -> Response<Body> {
    match verdict {
        Verdict::Accepted(update) => {
            let samples = credible_samples(&update.report);
            let accepted = UpdateAccepted { accepted: true, norm: update.norm, samples };
            response::json(StatusCode::CREATED, &accepted)
        }
        Verdict::Refused { problem, .. } | Verdict::Failed(problem) => response::refused(problem),
    }
}

/// Checks a complete update, and stores the verdict.
async fn judge_and_record(
    shared: &Shared,
    upload: Upload,
    path: PathBuf,
    held: Held,
) -> Result<TaskResult, Error> {
    let _permit = shared.checks.acquire().await.map_err(|it| Error::Start(it.to_string()))?;
    let judged = shared.blocking(move |it| {
        let checked = check(it, &upload.task, upload.content, &path);
        // After an error of a file or of the database, the client repeats the block.
        if matches!(checked, Ok(_) | Err(Error::Rejected(_))) {
            held.remove_unneeded();
        }
        checked
    });
    judged.await
}

fn check(
    aggregator: &Aggregator,
    task: &RunTask,
    content: Digest,
    path: &Path,
) -> Result<TaskResult, Error> {
    // Another request with the same update was faster.
    if let Some(result) = aggregator.result(&task.id)? {
        return Ok(result);
    }
    let sha256 = content.to_string();
    let report = aggregator.report(&task.id, &sha256)?.ok_or(Rejection::ReportMissing)?;
    let bytes = std::fs::metadata(path).map_err(Error::file(path))?.len();
    let update = ContentReference { sha256, bytes };
    let base = task.base.as_ref().map(|it| {
        let path = aggregator.content(&it.sha256);
        path.ok_or_else(|| Error::file(&*it.sha256)(std::io::ErrorKind::NotFound.into()))
    });
    let base = base.transpose()?;
    let result = judge::judge(task, update, report, path, base.as_deref())?;
    record(aggregator, task, &result)
}

/// Stores a verdict, unless the task has one. Returns the one that counts.
fn record(
    aggregator: &Aggregator,
    task: &RunTask,
    result: &TaskResult,
) -> Result<TaskResult, Error> {
    aggregator.apply(Event::Judged(result.clone()))?;
    let stored = aggregator.result(&task.id)?.unwrap_or_else(|| result.clone());
    if stored == *result {
        aggregator.metrics().judged(&task.node, &result.verdict);
        match &result.verdict {
            Verdict::Accepted(update) => {
                tracing::info!(
                    worker = task.worker,
                    round = task.round,
                    norm = update.norm,
                    "update accepted"
                );
            }
            Verdict::Refused { problem, .. } | Verdict::Failed(problem) => {
                let (reason, message) = (&problem.reason, &problem.message);
                tracing::warn!(
                    worker = task.worker,
                    round = task.round,
                    reason,
                    message,
                    "update refused"
                );
            }
        }
    }
    Ok(stored)
}
