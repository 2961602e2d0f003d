//! Decides what an update is worth when it has arrived. Reads files; blocking.

use std::{fs::File, path::Path};

use neptune_aggregate::{
    update::{Refusal, UpdateSummary, check},
    weights::{Weights, WeightsError},
};
use neptune_wire::{
    ContentReference,
    aggregator::{RunTask, UpdateReport},
};

use crate::{
    error::Error,
    run::{AcceptedUpdate, Problem, TaskResult, Verdict},
};

/// Compares an update with the weights that its task began with. `base` is `None` for first weights.
///
/// # Errors
/// A file cannot be read. That is no verdict.
pub fn judge(
    task: &RunTask,
    update: ContentReference,
    report: UpdateReport,
    path: &Path,
    base: Option<&Path>,
) -> Result<TaskResult, Error> {
    let verdict = match compare(path, base) {
        Ok(Ok(UpdateSummary { norm })) if norm.is_finite() => {
            Verdict::Accepted(AcceptedUpdate { content: update, report, norm })
        }
        Ok(Ok(_)) => {
            let text = "sent a difference to the base whose norm exceeds the range of F64";
            refused(update, report, Problem::new("NotFinite", text))
        }
        Ok(Err(refusal)) => {
            let reason = match refusal {
                Refusal::ShapeMismatch(_) => "ShapeMismatch",
                Refusal::NotFinite { .. } => "NotFinite",
            };
            refused(update, report, Problem::new(reason, format!("sent {refusal}")))
        }
        Err(WeightsError::Io(source)) => return Err(Error::file(path)(source)),
        Err(error) => {
            let text = format!("sent a file that is not usable: {error}");
            refused(update, report, Problem::new("OutputMissing", text))
        }
    };
    Ok(TaskResult { worker: task.worker.clone(), task: task.id.clone(), verdict })
}

/// Refuses an update whose announced size is above the limit.
pub fn too_large(task: &RunTask, sha256: &str, bytes: u64, limit: u64) -> TaskResult {
    let text = format!("sent an update of {bytes} bytes, at most {limit} are accepted");
    let update = ContentReference { sha256: sha256.to_owned(), bytes };
    let problem = Problem::new("UpdateTooLarge", text);
    let verdict = refused(update, UpdateReport::default(), problem);
    TaskResult { worker: task.worker.clone(), task: task.id.clone(), verdict }
}

fn refused(update: ContentReference, report: UpdateReport, problem: Problem) -> Verdict {
    Verdict::Refused { sha256: update.sha256, report, problem }
}

fn compare(
    path: &Path,
    base: Option<&Path>,
) -> Result<Result<UpdateSummary, Refusal>, WeightsError> {
    let open = |path: &Path| File::open(path).map_err(WeightsError::Io).and_then(Weights::open);
    let update = open(path)?;
    match base {
        Some(base) => check(&open(base)?, &update),
        None => check(&update, &update),
    }
}
