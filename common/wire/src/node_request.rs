//! A request of the controller to a node for the log of one container, and the answer of the agent.

use serde::{Deserialize, Serialize};

use crate::{ObjectKey, RequestId};

/// Maximum number of lines of a log that one request can ask for.
pub const MAX_TAIL_LINES: u32 = 1000;

/// Maximum length of the text of an answer in bytes, as JSON without its quotes. A batch with one
/// answer stays below 64 KiB.
pub const MAX_ANSWER_BYTES: usize = 48 * 1024;

/// Maximum length of the message of a problem in bytes.
const MAX_PROBLEM_BYTES: usize = 1024;

/// Maximum length of a time in bytes, as text.
const MAX_TIME_BYTES: usize = 64;

/// A request to a node, not retained. The controller repeats it until the answer arrives; the agent
/// answers a repeated one with the same answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRequest {
    /// The ID of the request, which the answer has as well.
    pub id: RequestId,
    /// What the agent is asked for.
    pub kind: RequestKind,
    /// The object whose container is meant.
    pub object: ObjectKey,
    /// The UID of that object: containers of an earlier object of the same name do not count.
    pub uid: String,
    /// The worker of the object whose container is meant.
    pub worker: LogSource,
    /// Number of lines from the end of the log, at most [`MAX_TAIL_LINES`].
    pub tail_lines: u32,
    /// Only lines after this time, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
}

/// The kinds of requests to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RequestKind {
    /// The last lines of the log of a container.
    Log,
    /// A request of a newer controller.
    #[serde(other)]
    Unknown,
}

/// The worker of an object that writes a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LogSource {
    /// The edge worker of a `JointInferenceService`, or its gateway.
    Edge,
    /// The cloud worker of a `JointInferenceService`.
    Cloud,
    /// The model server of an `InferenceModel`.
    Server,
    /// The transformer of an `InferenceModel`.
    Transformer,
    /// A worker of a newer controller.
    #[serde(other)]
    Unknown,
}

impl LogSource {
    /// The worker in messages: "the edge worker".
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Edge => "edge",
            Self::Cloud => "cloud",
            Self::Server => "server",
            Self::Transformer => "transformer",
            Self::Unknown => "such",
        }
    }
}

/// The kinds of containers whose logs the operator of a node can allow to leave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LogKind {
    /// Workers of users, at the edge and in place of the cloud.
    Worker,
    /// Model servers and transformers.
    Server,
    /// Gateways of services without code.
    Gateway,
    /// Trainings, whose logs may contain training data.
    Training,
    /// A kind of a newer agent.
    #[serde(other)]
    Unknown,
}

/// The answer of an agent to a [`NodeRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeAnswer {
    /// The ID of the request.
    pub id: RequestId,
    /// The end of the log.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Whether earlier lines were left out that were requested.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// The time of the last line, in RFC 3339: `since` of a request for what follows. Absent if the
    /// log has no such line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Why there is no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<AnswerProblem>,
}

/// Why an agent does not fulfil a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AnswerProblem {
    /// The problem, as the status of a `LogRequest` names it.
    pub reason: AnswerReason,
    /// Human-readable: what is wrong, and the remedy.
    pub message: String,
}

/// The reasons for which an agent does not fulfil a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AnswerReason {
    /// The operator of the node does not let logs of this kind leave it.
    LogsNotAllowed,
    /// The node has no such worker.
    WorkerNotFound,
    /// The worker has no container, so no log.
    NoContainer,
    /// The container engine does not send the log.
    LogUnavailable,
    /// A reason of a newer agent.
    #[serde(other)]
    Unknown,
}

/// Why an answer is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// A field has more than the allowed bytes.
    #[error("{field} of an answer has more than {max} bytes")]
    TooLong {
        /// The name of the field.
        field: &'static str,
        /// Its maximum length in bytes.
        max: usize,
    },
    /// A text has control characters, which could change the terminal that shows it.
    #[error("{field} of an answer has control characters")]
    Control {
        /// The name of the field.
        field: &'static str,
    },
}

impl NodeAnswer {
    /// Returns an answer without text, because of a problem.
    pub fn refused(id: RequestId, reason: AnswerReason, message: String) -> Self {
        let problem = Some(AnswerProblem { reason, message });
        Self { id, text: String::new(), truncated: false, next: None, problem }
    }

    /// Checks the lengths, and that no text changes a terminal.
    ///
    /// # Errors
    /// [`AnswerError`] with the field.
    pub fn check(&self) -> Result<(), AnswerError> {
        let problem = self.problem.as_ref().map_or("", |problem| &problem.message);
        let next = self.next.as_deref().unwrap_or_default();
        let fields = [
            ("text", &*self.text, MAX_ANSWER_BYTES),
            ("problem", problem, MAX_PROBLEM_BYTES),
            ("next", next, MAX_TIME_BYTES),
        ];
        for (field, text, max) in fields {
            if text.len() > max {
                return Err(AnswerError::TooLong { field, max });
            }
            if text.chars().any(|char| !is_shown(char)) {
                return Err(AnswerError::Control { field });
            }
        }
        Ok(())
    }
}

/// Returns whether a character of a log is kept: all but the control characters that change a
/// terminal.
pub fn is_shown(char: char) -> bool {
    matches!(char, '\n' | '\t') || !char.is_control()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn answer(text: &str) -> NodeAnswer {
        let id = "a-1".parse().unwrap();
        NodeAnswer { id, text: text.to_owned(), truncated: false, next: None, problem: None }
    }

    #[test]
    fn answer_is_bounded_and_changes_no_terminal() {
        assert_eq!(answer("a\tb\n\u{fffd} ä\n").check(), Ok(()));
        assert_eq!(answer(&"x".repeat(MAX_ANSWER_BYTES)).check(), Ok(()));
        let field = "text";
        let max = MAX_ANSWER_BYTES;
        let long = answer(&"x".repeat(max + 1));
        assert_eq!(long.check(), Err(AnswerError::TooLong { field, max }));
        for text in ["\u{1b}[2J", "a\rb", "\0", "\u{9b}31m", "\u{7f}"] {
            assert_eq!(answer(text).check(), Err(AnswerError::Control { field }), "{text:?}");
        }
        let next = Some("2026-11-24T06:00:00Z".repeat(4));
        let long = NodeAnswer { next, ..answer("") };
        assert!(matches!(long.check(), Err(AnswerError::TooLong { field: "next", .. })));
        let id = || "a-1".parse().unwrap();
        let refused = NodeAnswer::refused(id(), AnswerReason::NoContainer, "x".repeat(1025));
        assert!(matches!(refused.check(), Err(AnswerError::TooLong { field: "problem", .. })));
    }
}
