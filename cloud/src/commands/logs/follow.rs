//! Decides what `logs` requests next, and what it prints. Pure.

use std::time::Duration;

use neptune_api::{
    LogObjectKind, LogObjectReference, LogRequestReason, LogRequestSpec, LogRequestStatus,
    LogWorker,
};
use neptune_wire::is_shown;

use crate::cli::{ObjectArgument, WorkerArgument};

/// Lines of a request that continues a log.
const NEXT_LINES: i32 = 1000;

/// The log that is read, and where the next request continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogReader {
    spec: LogRequestSpec,
    /// The last failure that was printed.
    failure: Option<String>,
}

/// What to print of an answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Printed {
    /// The new lines of the log.
    pub text: String,
    /// A remark, which is not a part of the log.
    pub note: Option<String>,
}

impl LogReader {
    /// Reads the log of a worker from its last `tail` lines, of which none is older than `since`.
    ///
    /// # Errors
    /// The object has no such worker.
    pub fn new(
        object: &ObjectArgument,
        worker: Option<WorkerArgument>,
        (node, tail, since): (Option<&str>, i32, Option<Duration>),
    ) -> Result<Self, String> {
        let (kind, name) = match object {
            ObjectArgument::InferenceModel(name) => (LogObjectKind::InferenceModel, name),
            ObjectArgument::Service(name) => (LogObjectKind::JointInferenceService, name),
            ObjectArgument::TrainingModel(_)
            | ObjectArgument::Model(_)
            | ObjectArgument::Dataset(_) => unreachable!("the flags refuse other kinds"),
        };
        let worker = match (kind, worker) {
            (LogObjectKind::JointInferenceService, None | Some(WorkerArgument::Edge)) => {
                LogWorker::Edge
            }
            (LogObjectKind::JointInferenceService, Some(WorkerArgument::Cloud)) => LogWorker::Cloud,
            (LogObjectKind::InferenceModel, None | Some(WorkerArgument::Server)) => {
                LogWorker::Server
            }
            (LogObjectKind::InferenceModel, Some(WorkerArgument::Transformer)) => {
                LogWorker::Transformer
            }
            (LogObjectKind::JointInferenceService, Some(_)) => {
                return Err(format!("jis/{name} has the workers edge and cloud"));
            }
            (LogObjectKind::InferenceModel, Some(_)) => {
                return Err(format!("im/{name} has the workers server and transformer"));
            }
        };
        let since = since.map(|since| since.as_secs().try_into().unwrap_or(i32::MAX));
        let spec = LogRequestSpec {
            object_ref: LogObjectReference { kind, name: name.clone() },
            worker,
            node: node.map(str::to_owned),
            tail_lines: Some(tail),
            since_seconds: since,
            since_time: None,
        };
        Ok(Self { spec, failure: None })
    }

    /// The spec of the next request.
    pub fn spec(&self) -> &LogRequestSpec {
        &self.spec
    }

    /// Takes the answer to a request. With `follows`, a failure that may pass is only a note.
    ///
    /// # Errors
    /// The failure of the request.
    pub fn on_answer(
        &mut self,
        status: LogRequestStatus,
        follows: bool,
    ) -> Result<Printed, String> {
        let LogRequestStatus { reason, message, text, truncated, next, .. } = status;
        if let Some(reason) = reason {
            if !follows || !may_pass(reason) {
                return Err(message);
            }
            let is_new = self.failure.as_ref() != Some(&message);
            self.failure = Some(message.clone());
            return Ok(Printed { text: String::new(), note: is_new.then_some(message) });
        }
        self.failure = None;
        if let Some(next) = next {
            self.spec.since_time = Some(next);
            self.spec.since_seconds = None;
            self.spec.tail_lines = Some(NEXT_LINES);
        }
        let text = text.chars().filter(|char| is_shown(*char)).collect();
        let note = truncated.then(|| "earlier lines are left out".to_owned());
        Ok(Printed { text, note })
    }
}

/// Whether the same request may succeed later.
fn may_pass(reason: LogRequestReason) -> bool {
    match reason {
        LogRequestReason::NodeOffline
        | LogRequestReason::TooManyRequests
        | LogRequestReason::NoContainer
        | LogRequestReason::LogUnavailable
        | LogRequestReason::DeadlineExceeded => true,
        LogRequestReason::LogsNotAllowed
        | LogRequestReason::AgentTooOld
        | LogRequestReason::WorkerNotFound => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::LogRequestPhase;

    use super::*;

    fn reader(object: &str, worker: Option<WorkerArgument>) -> Result<LogReader, String> {
        let since = Some(Duration::from_secs(60));
        LogReader::new(&object.parse().unwrap(), worker, (None, 10, since))
    }

    fn succeeded(text: &str, next: Option<&str>) -> LogRequestStatus {
        LogRequestStatus {
            phase: LogRequestPhase::Succeeded,
            reason: None,
            message: String::new(),
            text: text.to_owned(),
            truncated: false,
            next: next.map(str::to_owned),
        }
    }

    fn failed(reason: LogRequestReason, message: &str) -> LogRequestStatus {
        let phase = LogRequestPhase::Failed;
        let message = message.to_owned();
        LogRequestStatus { phase, reason: Some(reason), message, ..succeeded("", None) }
    }

    #[test]
    fn worker_is_one_of_the_kind() {
        let worker = |object, worker| reader(object, worker).map(|reader| reader.spec.worker);
        assert_eq!(worker("digits", None), Ok(LogWorker::Edge));
        assert_eq!(worker("jis/digits", Some(WorkerArgument::Cloud)), Ok(LogWorker::Cloud));
        assert_eq!(worker("im/digits", None), Ok(LogWorker::Server));
        let error = worker("digits", Some(WorkerArgument::Server)).unwrap_err();
        assert_eq!(error, "jis/digits has the workers edge and cloud");
        assert!(worker("im/digits", Some(WorkerArgument::Edge)).is_err());
    }

    #[test]
    fn next_request_continues_after_the_last_line() {
        let mut reader = reader("digits", None).unwrap();
        assert_eq!((reader.spec.tail_lines, reader.spec.since_seconds), (Some(10), Some(60)));
        let first = reader.on_answer(succeeded("", None), true).unwrap();
        assert_eq!((first, reader.spec.since_seconds), (Printed::default(), Some(60)));
        let time = "2026-11-24T06:00:00.000000001Z";
        let printed = reader.on_answer(succeeded("a\u{1b}[2Jb\n", Some(time)), true).unwrap();
        assert_eq!(printed, Printed { text: "a[2Jb\n".to_owned(), note: None });
        let LogRequestSpec { since_time, since_seconds, tail_lines, .. } = reader.spec();
        assert_eq!((since_time.as_deref(), *since_seconds), (Some(time), None));
        assert_eq!(*tail_lines, Some(NEXT_LINES));
        let truncated = LogRequestStatus { truncated: true, ..succeeded("c\n", None) };
        let printed = reader.on_answer(truncated, true).unwrap();
        assert_eq!(printed.note.as_deref(), Some("earlier lines are left out"));
        assert_eq!(reader.spec.since_time.as_deref(), Some(time), "there was no line");
    }

    #[test]
    fn failure_that_may_pass_ends_no_follow_and_is_printed_once() {
        use LogRequestReason::{LogsNotAllowed, NodeOffline};
        let mut reader = reader("digits", None).unwrap();
        let offline = || failed(NodeOffline, "node a is offline");
        assert_eq!(reader.on_answer(offline(), false), Err("node a is offline".to_owned()));
        let mut note = |status| reader.on_answer(status, true).unwrap().note;
        assert_eq!(note(offline()).as_deref(), Some("node a is offline"));
        assert_eq!(note(offline()), None);
        assert_eq!(note(succeeded("", None)), None);
        assert_eq!(note(offline()).as_deref(), Some("node a is offline"), "again");
        assert!(reader.on_answer(failed(LogsNotAllowed, "no"), true).is_err());
    }
}
