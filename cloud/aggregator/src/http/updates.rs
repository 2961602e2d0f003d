//! Updates of workers: the report and the resumable upload. `verdict.rs` has what follows.

use std::time::Duration;

use axum::{
    body::Body,
    extract::{Extension, Path, State},
    http::{HeaderMap, Response, StatusCode},
};
use bytes::Bytes;
use neptune_content::{
    Digest,
    headers::{Block, Progress, UPLOAD_OFFSET},
    server::{self, Next},
    uploads::{MAX_BLOCK, UploadId},
};
use neptune_wire::{TaskId, TaskKind, aggregator::UpdateReport};
use tokio::time::timeout;

use super::{
    access::{Peer, TaskAccess},
    body, response,
    shared::{Shared, Upload},
    verdict,
};
use crate::{
    aggregator::Held,
    error::Error,
    run::{Rejection, Verdict},
};

/// Largest report in bytes.
pub const MAX_REPORT: usize = 64 * 1024;
/// How long a block waits while too many others arrive.
const MAX_QUEUE: Duration = Duration::from_mins(5);

/// Handles `PUT /v1/updates/TASK/SHA256/report`, which announces an update with its metrics.
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

/// Handles `PATCH /v1/updates/TASK/SHA256`, which appends a block of bytes to an update.
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
        return verdict::refuse_too_large(&shared, upload, block.length, limit).await;
    }
    // What the next state needs is not known before the verdict.
    let held = shared.aggregator.hold(upload.content);
    let is_complete = shared.aggregator.uploads().complete(&upload.content).is_some();
    if (is_complete || block.is_some_and(|it| it.is_last))
        && let Some(response) = missing_report(report(&shared, &upload).await)
    {
        return response;
    }
    // Without a permit the body is not read, so the client waits without sending it in vain.
    let permit = timeout(MAX_QUEUE, shared.blocks.acquire(upload.task.node.clone()));
    let Ok(permit) = permit.await else { return busy() };
    let bytes = match body::read(request_body, usize::try_from(MAX_BLOCK).unwrap_or(0)).await {
        Ok(bytes) => bytes,
        Err(response) => return response,
    };
    // A client that leaves does not end this: its permit lasts as long as its work, and each content
    // that is complete is judged.
    let stored = tokio::spawn(async move {
        let response = store(&shared, upload, &headers, bytes, held).await;
        drop(permit);
        response
    });
    stored.await.unwrap_or_else(|_| response::empty(StatusCode::INTERNAL_SERVER_ERROR))
}

/// Stores a block, and judges the content that it completes.
async fn store(
    shared: &Shared,
    upload: Upload,
    headers: &HeaderMap,
    bytes: Bytes,
    held: Held,
) -> Response<Body> {
    let length = bytes.len();
    let is_complete = shared.aggregator.uploads().complete(&upload.content).is_some();
    match server::patch(shared.aggregator.uploads(), upload.id, headers, bytes).await {
        Next::Respond(response) => {
            let is_repeated = response.headers().contains_key(UPLOAD_OFFSET)
                && response.status() == StatusCode::CONFLICT;
            shared.aggregator.metrics().received(length, is_repeated);
            response.map(Body::from)
        }
        Next::Judge(path) => {
            shared.aggregator.metrics().received(length, is_complete);
            verdict::judge(shared, upload, path, held).await
        }
    }
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
                Err(verdict::known(result, &sha256))
            }
            _ if run.is_accepting() => Ok(Upload { task: *task, content, id }),
            _ => Err(response::error(&Rejection::RoundClosed.into())),
        },
        // The response to the update that closed a round may have been lost.
        TaskAccess::NotCurrent => match shared.blocking(move |it| it.result(&task)).await {
            Ok(Some(result)) => Err(verdict::known(&result, &sha256)),
            Ok(None) => Err(response::error(&Rejection::RoundClosed.into())),
            Err(error) => Err(response::error(&error)),
        },
    }
}

async fn report(shared: &Shared, upload: &Upload) -> Result<Option<UpdateReport>, Error> {
    let (task, sha256) = (upload.task.id.clone(), upload.content.to_string());
    shared.blocking(move |it| it.report(&task, &sha256)).await
}

/// The response to the last block if the report is not there. After an error of the database the
/// report may be there: the client repeats the block.
fn missing_report(report: Result<Option<UpdateReport>, Error>) -> Option<Response<Body>> {
    match report {
        Ok(Some(_)) => None,
        Ok(None) => Some(response::error(&Rejection::ReportMissing.into())),
        Err(error) => Some(response::error(&error)),
    }
}

fn progress(progress: Progress) -> Response<Body> {
    let mut response = response::empty(StatusCode::NO_CONTENT);
    response.headers_mut().extend(progress.headers());
    response
}

fn busy() -> Response<Body> {
    let text = "too many updates arrive at a time";
    response::retry_later(response::problem(StatusCode::SERVICE_UNAVAILABLE, "Busy", text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_the_database_is_no_missing_report() {
        let busy = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
        let busy = Error::from(rusqlite::Error::SqliteFailure(busy, None));
        for (report, status) in [
            (Ok(Some(UpdateReport::default())), None),
            (Ok(None), Some(StatusCode::CONFLICT)),
            (Err(busy), Some(StatusCode::INTERNAL_SERVER_ERROR)),
        ] {
            assert_eq!(missing_report(report).map(|it| it.status()), status);
        }
    }
}
