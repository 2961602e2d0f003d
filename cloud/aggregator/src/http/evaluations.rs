//! Handles `PUT /v1/evaluations/TASK`, with which a worker reports the metrics of weights.

use axum::{
    body::Body,
    extract::{Extension, Path, State},
    http::{Response, StatusCode},
};
use neptune_content::Digest;
use neptune_wire::{TaskId, TaskKind};

use super::{
    access::{Peer, TaskAccess},
    body, response,
    shared::Shared,
    updates::MAX_REPORT,
};
use crate::run::{Event, Rejection};

/// Records the metrics of an evaluation task. Repeating the request changes nothing.
pub async fn put(
    State(shared): State<Shared>,
    Extension(peer): Extension<Peer>,
    Path(task): Path<Digest>,
    request_body: Body,
) -> Response<Body> {
    let task = TaskId(task.to_string());
    let current = shared.aggregator.current();
    let evaluated = current.run.as_ref().and_then(|it| it.evaluated.as_ref());
    match peer.task(&current, &task) {
        TaskAccess::Own(task) if task.kind == TaskKind::Evaluate => {}
        // The response to an earlier request was lost.
        TaskAccess::NotCurrent if evaluated == Some(&task) => {
            return response::empty(StatusCode::CREATED);
        }
        TaskAccess::Own(_) | TaskAccess::NotCurrent => {
            return response::error(&Rejection::RoundClosed.into());
        }
        TaskAccess::Denied => return response::not_trusted(),
    }
    let report = match body::read_json(request_body, MAX_REPORT).await {
        Ok(report) => report,
        Err(response) => return response,
    };
    let event = Event::Evaluated { task: task.clone(), report };
    match shared.blocking(move |it| it.apply(event)).await {
        Ok(run) if run.evaluated.as_ref() == Some(&task) => response::empty(StatusCode::CREATED),
        Ok(run) => {
            let status = run.status(0);
            response::problem(StatusCode::CONFLICT, "EvaluationFailed", status.message)
        }
        Err(error) => response::error(&error),
    }
}
