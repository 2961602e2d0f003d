//! Sends the output of a task to the aggregator until it answers, for days if need be.

use std::io;

use neptune_agent_core::domain::training::{TaskEvent, TaskOutput, TaskProblem, Verdict};
use neptune_backoff::Retries;
use neptune_content::{
    client::{Observation, Outcome, RETRY, Upload, upload_observed},
    text,
    uploads::MAX_BLOCK,
};
use neptune_program::{causes, random::random};
use neptune_wire::{TrainingReason, aggregator::AggregatorProblem};
use reqwest::StatusCode;
use serde::Deserialize as _;

use super::{
    job::TaskJob,
    metrics::SentBlocks,
    prepare::{not_trusted, unreachable},
};

/// Longest answer of an aggregator that is read, in bytes.
const MAX_ANSWER: usize = 64 * 1024;
/// The aggregator has accepted another result of the same task.
const OTHER_ACCEPTED: &str = "OtherUpdateAccepted";
/// The aggregator does not have the report: each attempt sends it first.
const REPORT_MISSING: &str = "ReportMissing";

/// What an answer of the aggregator means.
#[derive(Debug, PartialEq)]
enum Answer {
    Continue,
    End(Verdict),
    Retry(TaskProblem),
}

/// Sends the output. To stop, drop the future.
pub async fn upload(job: &TaskJob, output: &TaskOutput) -> Verdict {
    let mut retries = Retries::new(RETRY);
    loop {
        let problem = match attempt(job, output).await {
            Ok(verdict) => return verdict,
            Err(problem) => problem,
        };
        job.report(TaskEvent::Progress { uploaded: 0, problem: Some(problem) }).await;
        tokio::time::sleep(retries.failed(random())).await;
    }
}

async fn attempt(job: &TaskJob, output: &TaskOutput) -> Result<Verdict, TaskProblem> {
    let (task, origin) = (&job.wanted.task, &job.wanted.aggregator.url);
    let url = match &output.weights {
        None => format!("{origin}/v1/evaluations/{}", task.id.0),
        Some(weights) => format!("{origin}/v1/updates/{}/{}/report", task.id.0, weights.sha256),
    };
    let sent = job.client.put(&url).json(&output.report).send().await;
    let response = sent.map_err(|error| unreachable(origin, &causes(&error)))?;
    let status = response.status();
    let text =
        text(response, MAX_ANSWER).await.map_err(|error| unreachable(origin, &causes(&error)))?;
    match answer(status, &text, origin) {
        Answer::End(verdict) => return Ok(verdict),
        Answer::Retry(problem) => return Err(problem),
        Answer::Continue => {}
    }
    match &output.weights {
        // The aggregator has all of an evaluation.
        None => Ok(Verdict::Accepted),
        Some(weights) => {
            let url = format!("{origin}/v1/updates/{}/{}", task.id.0, weights.sha256);
            let path = job.files.output().join(&weights.name);
            let upload =
                Upload { url, path, length: weights.bytes, block: MAX_BLOCK, backoff: RETRY };
            send(job, &upload).await
        }
    }
}

async fn send(job: &TaskJob, upload: &Upload) -> Result<Verdict, TaskProblem> {
    let origin = &job.wanted.aggregator.url;
    let (mut confirmed, mut sent) = (0, SentBlocks::default());
    let observe = |observation: Observation<'_>| {
        let problem = match observation {
            Observation::Confirmed(bytes) => {
                confirmed = bytes;
                job.node.metrics.on_block(sent.block(bytes, upload.length));
                None
            }
            Observation::Interrupted(Some(StatusCode::INSUFFICIENT_STORAGE), _) => {
                Some(disk_full(origin))
            }
            Observation::Interrupted(_, why) => Some(unreachable(origin, &why.to_string())),
        };
        // A full queue skips it: the next one has the same or more.
        job.try_report(TaskEvent::Progress { uploaded: confirmed, problem });
    };
    match upload_observed(&job.client, upload, random, observe).await {
        Ok(Outcome::Accepted(_)) => Ok(Verdict::Accepted),
        Ok(Outcome::Refused(status, text)) => match answer(status, &text, origin) {
            Answer::End(verdict) => Ok(verdict),
            Answer::Retry(problem) => Err(problem),
            Answer::Continue => Err(unreachable(origin, &format!("it answered {status}"))),
        },
        Err(error) => Ok(lost(&error)),
    }
}

fn lost(error: &io::Error) -> Verdict {
    Verdict::Lost(TaskProblem::new(
        TrainingReason::OutputMissing,
        format!("the output cannot be read any more: {error}; running the program again"),
    ))
}

fn disk_full(origin: &str) -> TaskProblem {
    TaskProblem::new(
        TrainingReason::DiskFull,
        format!("the disk of aggregator {origin} is full; enlarge its volume; retrying"),
    )
}

/// Decides what a response means.
fn answer(status: StatusCode, text: &str, origin: &str) -> Answer {
    let problem = serde_json::from_str::<AggregatorProblem>(text).ok();
    let refused = |reason: Option<TrainingReason>| {
        let message = match &problem {
            Some(problem) => format!("{}: {}", problem.reason, problem.detail),
            None => format!("the aggregator answered {status}"),
        };
        Answer::End(Verdict::Refused { reason, message })
    };
    let is_reason = |reason: &str| problem.as_ref().is_some_and(|it| it.reason == reason);
    match status {
        status if status.is_success() => Answer::Continue,
        StatusCode::FORBIDDEN => Answer::Retry(not_trusted(origin)),
        StatusCode::UNPROCESSABLE_ENTITY => {
            refused(problem.as_ref().map(|problem| reason(&problem.reason)))
        }
        StatusCode::PAYLOAD_TOO_LARGE => refused(Some(TrainingReason::UpdateTooLarge)),
        StatusCode::CONFLICT if is_reason(OTHER_ACCEPTED) => Answer::End(Verdict::Accepted),
        StatusCode::CONFLICT if is_reason(REPORT_MISSING) => Answer::Retry(TaskProblem::new(
            TrainingReason::AggregatorUnreachable,
            format!("aggregator {origin} does not have the report of the update; sending it again"),
        )),
        StatusCode::CONFLICT | StatusCode::GONE if problem.is_some() => refused(None),
        StatusCode::INSUFFICIENT_STORAGE => Answer::Retry(disk_full(origin)),
        // An aggregator that was replaced does not know the task yet.
        _ => Answer::Retry(unreachable(origin, &format!("it answered {status}"))),
    }
}

fn reason(text: &str) -> TrainingReason {
    let deserializer: serde::de::value::StrDeserializer<'_, serde::de::value::Error> =
        serde::de::IntoDeserializer::into_deserializer(text);
    TrainingReason::deserialize(deserializer).unwrap_or(TrainingReason::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(reason: &str) -> String {
        format!(r#"{{"reason": "{reason}", "detail": "why"}}"#)
    }

    #[test]
    fn answers_end_the_upload_or_repeat_it() {
        let answered = |status: u16, reason: &str| {
            answer(StatusCode::from_u16(status).expect("it is a status"), &problem(reason), "o")
        };
        let refused = |reason, message: &str| {
            Answer::End(Verdict::Refused { reason, message: message.to_owned() })
        };
        for status in [200, 201, 204] {
            assert_eq!(answered(status, ""), Answer::Continue);
        }
        let mismatch = Some(TrainingReason::ShapeMismatch);
        assert_eq!(answered(422, "ShapeMismatch"), refused(mismatch, "ShapeMismatch: why"));
        let newer = Some(TrainingReason::Unknown);
        assert_eq!(answered(422, "OfTheFuture"), refused(newer, "OfTheFuture: why"));
        assert_eq!(answered(410, "RoundClosed"), refused(None, "RoundClosed: why"));
        assert_eq!(answered(409, "RunEnded"), refused(None, "RunEnded: why"));
        assert_eq!(answered(409, "OtherUpdateAccepted"), Answer::End(Verdict::Accepted));
        for (status, reason) in [
            ((403, "x"), TrainingReason::NodeNotTrusted),
            ((404, "x"), TrainingReason::AggregatorUnreachable),
            ((409, "ReportMissing"), TrainingReason::AggregatorUnreachable),
            ((500, "x"), TrainingReason::AggregatorUnreachable),
            ((503, "x"), TrainingReason::AggregatorUnreachable),
            ((507, "x"), TrainingReason::DiskFull),
        ] {
            let Answer::Retry(problem) = answered(status.0, status.1) else {
                unreachable!("{status:?} is retried")
            };
            assert_eq!(problem.reason, reason, "{status:?}");
        }
    }
}
