//! Updates of workers: the report, the resumable upload, and the verdict.

use std::{
    path::{Path as FilePath, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{
    body::Body,
    extract::{Extension, Path, State},
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
};
use neptune_content::{
    Digest,
    headers::{Block, Progress, UPLOAD_OFFSET},
    server::{self, Next},
    uploads::{MAX_BLOCK, UploadId},
};
use neptune_wire::{
    ContentReference, TaskId, TaskKind,
    aggregator::{RunTask, UpdateAccepted},
};
use tokio::time::timeout;

use super::{
    access::{Peer, TaskAccess},
    body, response,
    router::Shared,
};
use crate::{
    aggregator::Aggregator,
    error::Error,
    judge,
    run::{Event, Rejection, TaskResult, Verdict, credible_samples},
};

/// Largest report in bytes.
pub const MAX_REPORT: usize = 64 * 1024;
/// How long a block waits while too many others arrive.
const MAX_QUEUE: Duration = Duration::from_mins(5);

/// A request for an update that may continue.
struct Upload {
    task: RunTask,
    content: Digest,
    id: UploadId,
}

/// Handles `PUT /v1/updates/TASK/SHA256/report`.
pub async fn put_report(
    State(shared): State<Shared>,
    Extension(peer): Extension<Peer>,
    Path(path): Path<(Digest, Digest)>,
    request_body: Body,
) -> Response<Body> {
    let upload = match begin(&shared, &peer, path).await {
        Ok(upload) => upload,
        Err(response) => return response,
    };
    let report = match body::read_json(request_body, MAX_REPORT).await {
        Ok(report) => report,
        Err(response) => return response,
    };
    let (task, sha256) = (upload.task.id, upload.content.to_string());
    match shared.blocking(move |it| it.save_report(&task, &sha256, &report)).await {
        Ok(()) => response::empty(StatusCode::NO_CONTENT),
        Err(error) => response::error(&error),
    }
}

/// Handles `HEAD /v1/updates/TASK/SHA256`. An update that has no verdict yet, or was refused, begins
/// at byte 0: the response to the next block has the verdict, for which this one has no body.
pub async fn head(
    State(shared): State<Shared>,
    Extension(peer): Extension<Peer>,
    Path(path): Path<(Digest, Digest)>,
) -> Response<Body> {
    let from_start = Progress { offset: 0, is_complete: false };
    let upload = match begin(&shared, &peer, path).await {
        Ok(upload) => upload,
        Err(response) if response.status() == StatusCode::UNPROCESSABLE_ENTITY => {
            return progress(from_start);
        }
        Err(response) if response.status() == StatusCode::CREATED => {
            return progress(Progress { offset: 0, is_complete: true });
        }
        Err(response) => return response,
    };
    if shared.aggregator.uploads().complete(&upload.content).is_some() {
        return progress(from_start);
    }
    server::head(shared.aggregator.uploads(), upload.id).await.map(Body::from)
}

/// Handles `PATCH /v1/updates/TASK/SHA256`.
pub async fn patch(
    State(shared): State<Shared>,
    Extension(peer): Extension<Peer>,
    Path(path): Path<(Digest, Digest)>,
    headers: HeaderMap,
    request_body: Body,
) -> Response<Body> {
    let upload = match begin(&shared, &peer, path).await {
        Ok(upload) => upload,
        Err(response) => return response,
    };
    let limit = shared.aggregator.uploads().max_bytes();
    let block = Block::parse(&headers).ok();
    if let Some(block) = block.filter(|it| it.length > limit) {
        let sha256 = upload.content.to_string();
        let result = judge::too_large(&upload.task, &sha256, block.length, limit);
        return match shared.blocking(move |it| record(it, &upload.task, &result)).await {
            Ok(result) => verdict(&result.verdict),
            Err(error) => response::error(&error),
        };
    }
    // What the next state needs is not known before the verdict.
    let held = shared.aggregator.hold(upload.content);
    let is_complete = shared.aggregator.uploads().complete(&upload.content).is_some();
    if (is_complete || block.is_some_and(|it| it.is_last)) && !has_report(&shared, &upload).await {
        let text = "the report of the update is missing: send PUT .../report before the last block";
        return response::problem(StatusCode::CONFLICT, "ReportMissing", text);
    }
    // Without a permit the body is not read, so the client waits without sending it in vain.
    let permit = timeout(MAX_QUEUE, Arc::clone(&shared.blocks).acquire_owned());
    let Ok(Ok(_permit)) = permit.await else { return busy() };
    let bytes = match body::read(request_body, usize::try_from(MAX_BLOCK).unwrap_or(0)).await {
        Ok(bytes) => bytes,
        Err(response) => return response,
    };
    let length = bytes.len();
    if block.is_some_and(|it| it.offset == 0)
        && let Err(error) = discard_others(&shared, upload.id).await
    {
        return response::error(&error);
    }
    match server::patch(shared.aggregator.uploads(), upload.id, &headers, bytes).await {
        Next::Respond(response) => {
            let is_repeated = response.headers().contains_key(UPLOAD_OFFSET)
                && response.status() == StatusCode::CONFLICT;
            shared.aggregator.metrics().received(length, is_repeated);
            response.map(Body::from)
        }
        Next::Judge(path) => {
            shared.aggregator.metrics().received(length, is_complete);
            // A client that leaves does not stop the check.
            let judged = tokio::spawn(async move {
                let result = judge_and_record(&shared, upload, path).await;
                drop(held);
                result
            });
            match judged.await {
                Ok(Ok(result)) => verdict(&result.verdict),
                Ok(Err(error)) => response::error(&error),
                Err(_) => response::empty(StatusCode::INTERNAL_SERVER_ERROR),
            }
        }
    }
}

/// Removes what is here of other contents for the task: a worker has one update at a time, and could
/// fill the disk otherwise.
async fn discard_others(shared: &Shared, id: UploadId) -> Result<(), Error> {
    let discard = move |it: &Aggregator| {
        it.uploads().discard_others(&id).map_err(Error::file(id.purpose.to_string()))
    };
    shared.blocking(discard).await
}

/// Decides whether a request may continue. Otherwise returns the response, also with the verdict that
/// the update has.
async fn begin(
    shared: &Shared,
    peer: &Peer,
    (task, content): (Digest, Digest),
) -> Result<Upload, Response<Body>> {
    let id = UploadId { purpose: task, content };
    let (task, sha256) = (TaskId(task.to_string()), content.to_string());
    let current = shared.aggregator.current();
    let run = current.run.as_ref().ok_or_else(response::not_trusted)?;
    match peer.task(&current, &task) {
        TaskAccess::Denied => Err(response::not_trusted()),
        TaskAccess::Own(task) if task.kind == TaskKind::Evaluate => {
            Err(response::error(&Rejection::RoundClosed.into()))
        }
        TaskAccess::Own(task) => match run.results.get(&task.worker) {
            Some(result) if !matches!(result.verdict, Verdict::Failed(_)) => {
                Err(known(result, &sha256))
            }
            _ if run.is_accepting() => Ok(Upload { task: *task, content, id }),
            _ => Err(response::error(&Rejection::RoundClosed.into())),
        },
        // The response to the update that closed a round may have been lost.
        TaskAccess::NotCurrent => match shared.blocking(move |it| it.result(&task)).await {
            Ok(Some(result)) => Err(known(&result, &sha256)),
            Ok(None) => Err(response::error(&Rejection::RoundClosed.into())),
            Err(error) => Err(response::error(&error)),
        },
    }
}

/// The response to an update of a task with a result.
fn known(result: &TaskResult, sha256: &str) -> Response<Body> {
    match &result.verdict {
        Verdict::Accepted(update) if update.content.sha256 != sha256 => {
            let accepted = update.content.sha256.clone();
            response::error(&Rejection::OtherUpdateAccepted(accepted).into())
        }
        other => verdict(other),
    }
}

fn verdict(verdict: &Verdict) -> Response<Body> {
    match verdict {
        Verdict::Accepted(update) => {
            let samples = credible_samples(&update.report);
            let accepted = UpdateAccepted { accepted: true, norm: update.norm, samples };
            response::json(StatusCode::CREATED, &accepted)
        }
        Verdict::Refused { problem, .. } | Verdict::Failed(problem) => response::refused(problem),
    }
}

async fn has_report(shared: &Shared, upload: &Upload) -> bool {
    let (task, sha256) = (upload.task.id.clone(), upload.content.to_string());
    let report = shared.blocking(move |it| it.report(&task, &sha256)).await;
    report.is_ok_and(|it| it.is_some())
}

/// Checks a complete update, and stores the verdict.
async fn judge_and_record(
    shared: &Shared,
    upload: Upload,
    path: PathBuf,
) -> Result<TaskResult, Error> {
    let _permit = shared.checks.acquire().await.map_err(|it| Error::Start(it.to_string()))?;
    shared.blocking(move |it| check(it, &upload.task, upload.content, &path)).await
}

fn check(
    aggregator: &Aggregator,
    task: &RunTask,
    content: Digest,
    path: &FilePath,
) -> Result<TaskResult, Error> {
    // Another request with the same update was faster.
    if let Some(result) = aggregator.result(&task.id)? {
        return Ok(result);
    }
    let sha256 = content.to_string();
    let report = aggregator.report(&task.id, &sha256)?.unwrap_or_default();
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

fn progress(progress: Progress) -> Response<Body> {
    let mut response = response::empty(StatusCode::NO_CONTENT);
    response.headers_mut().extend(progress.headers());
    response
}

fn busy() -> Response<Body> {
    let text = "too many updates arrive at a time";
    let mut response = response::problem(StatusCode::SERVICE_UNAVAILABLE, "Busy", text);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
    response
}
