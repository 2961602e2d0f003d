//! Decides what to do with each request for a log: a repeated one gets the same answer, and one log
//! is read at a time.

use std::collections::VecDeque;

use jiff::Timestamp;
use neptune_wire::{AnswerReason, MAX_TAIL_LINES, NodeAnswer, NodeRequest, RequestId, RequestKind};

use super::{
    lines::LogText,
    source::{LogFacts, container_of},
};

/// Number of answers that are remembered.
const MAX_ANSWERS: usize = 64;

/// Number of requests that wait while a log is read. Further ones are repeated by the controller.
const MAX_WAITING: usize = 4;

/// The requests for logs, and the last answers.
#[derive(Debug, Default)]
pub struct LogRequests {
    reading: Option<RequestId>,
    waiting: VecDeque<NodeRequest>,
    answers: VecDeque<NodeAnswer>,
}

/// What to do with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum RequestAction {
    /// Publish this answer to the cloud.
    Answer(NodeAnswer),
    /// Read the log. [`LogRequests::on_read`] takes the result.
    Read(LogRead),
    /// Nothing: the answer follows, or the controller repeats the request.
    Wait,
}

/// A log to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRead {
    /// The ID of the request.
    pub id: RequestId,
    /// The worker, for the agent's log.
    pub worker: String,
    /// The ID of the container.
    pub container: String,
    /// The number of lines from the end.
    pub lines: usize,
    /// Lines until this time are left out.
    pub since: Option<Timestamp>,
}

impl LogRequests {
    /// Decides about a request.
    pub fn on_request(&mut self, request: NodeRequest, facts: &LogFacts<'_>) -> RequestAction {
        if let Some(answer) = self.answers.iter().find(|answer| answer.id == request.id) {
            return RequestAction::Answer(answer.clone());
        }
        if request.kind != RequestKind::Log {
            return RequestAction::Wait;
        }
        if let Some(reading) = &self.reading {
            let is_known = *reading == request.id
                || self.waiting.iter().any(|waiting| waiting.id == request.id);
            if !is_known && self.waiting.len() < MAX_WAITING {
                self.waiting.push_back(request);
            }
            return RequestAction::Wait;
        }
        match container_of(&request, facts) {
            Ok(container) => {
                self.reading = Some(request.id.clone());
                RequestAction::Read(LogRead {
                    id: request.id,
                    worker: container.identity.worker.to_string(),
                    container: container.id.clone(),
                    lines: request.tail_lines.clamp(1, MAX_TAIL_LINES) as usize,
                    since: request.since.and_then(|text| text.parse().ok()),
                })
            }
            Err((reason, message)) => {
                let answer = NodeAnswer::refused(request.id, reason, message);
                self.remember(&answer);
                RequestAction::Answer(answer)
            }
        }
    }

    /// Takes the log that was read; or why it could not be read. Returns its answer.
    pub fn on_read(&mut self, id: RequestId, read: Result<LogText, String>) -> NodeAnswer {
        self.reading = None;
        let answer = match read {
            Ok(LogText { text, truncated, next }) => {
                NodeAnswer { id, text, truncated, next, problem: None }
            }
            Err(problem) => NodeAnswer::refused(id, AnswerReason::LogUnavailable, problem),
        };
        self.remember(&answer);
        answer
    }

    /// The next request that waited, while no log is read.
    pub fn pop(&mut self) -> Option<NodeRequest> {
        if self.reading.is_some() { None } else { self.waiting.pop_front() }
    }

    fn remember(&mut self, answer: &NodeAnswer) {
        if self.answers.len() >= MAX_ANSWERS {
            self.answers.pop_front();
        }
        self.answers.push_back(answer.clone());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::collections::BTreeSet;

    use neptune_wire::{LogKind, LogSource, NodeName};

    use super::*;
    use crate::{
        desired::Desired,
        domain::observed_container::{ContainerIdentity, ObservedContainer},
        fixtures::{container_identity, observed_container, wanted_worker},
    };

    struct Node {
        name: NodeName,
        desired: Desired,
        containers: Vec<ObservedContainer>,
        allowed: BTreeSet<LogKind>,
        requests: LogRequests,
    }

    impl Node {
        fn new() -> Self {
            let wanted = wanted_worker();
            let identity = ContainerIdentity {
                owner: wanted.owner.clone(),
                uid: wanted.uid.clone(),
                worker: wanted.worker.name.clone(),
                ..container_identity()
            };
            let mut desired = Desired::default();
            desired.workers.insert(wanted.worker.name.clone(), wanted);
            Self {
                name: "edge0".parse().unwrap(),
                desired,
                containers: vec![ObservedContainer { identity, ..observed_container("c") }],
                allowed: [LogKind::Worker].into(),
                requests: LogRequests::default(),
            }
        }

        fn on(&mut self, request: NodeRequest) -> RequestAction {
            let facts = LogFacts {
                node: &self.name,
                desired: &self.desired,
                containers: Ok(&self.containers),
                allowed: &self.allowed,
            };
            self.requests.on_request(request, &facts)
        }
    }

    fn request(id: &str) -> NodeRequest {
        let wanted = wanted_worker();
        NodeRequest {
            id: id.parse().unwrap(),
            kind: RequestKind::Log,
            object: wanted.owner,
            uid: wanted.uid,
            worker: LogSource::Edge,
            tail_lines: 5000,
            since: Some("2026-11-24T06:00:00Z".to_owned()),
        }
    }

    fn text(text: &str) -> LogText {
        LogText { text: text.to_owned(), truncated: false, next: None }
    }

    #[test]
    fn repeated_request_gets_the_same_answer() {
        let mut node = Node::new();
        let RequestAction::Read(read) = node.on(request("a")) else { panic!("it is read") };
        assert_eq!((read.container.as_str(), read.lines), ("c", 1000));
        assert_eq!(read.since.unwrap().as_second(), 1_795_500_000);
        assert_eq!(node.on(request("a")), RequestAction::Wait, "it is being read");
        let answer = node.requests.on_read(read.id, Ok(text("x\n")));
        assert_eq!(answer.text, "x\n");
        assert_eq!(node.on(request("a")), RequestAction::Answer(answer));
    }

    #[test]
    fn refusal_is_repeated_although_the_permission_changed() {
        let mut node = Node { allowed: BTreeSet::new(), ..Node::new() };
        let RequestAction::Answer(refused) = node.on(request("a")) else { panic!("refused") };
        assert_eq!(refused.problem.as_ref().unwrap().reason, AnswerReason::LogsNotAllowed);
        node.allowed.insert(LogKind::Worker);
        assert_eq!(node.on(request("a")), RequestAction::Answer(refused));
    }

    #[test]
    fn one_log_is_read_at_a_time_and_few_requests_wait() {
        let mut node = Node::new();
        let RequestAction::Read(first) = node.on(request("0")) else { panic!("it is read") };
        for id in ["1", "1", "2", "3", "4", "5"] {
            assert_eq!(node.on(request(id)), RequestAction::Wait);
        }
        assert_eq!(node.requests.pop(), None, "a log is being read");
        let failed = node.requests.on_read(first.id, Err("Docker does not answer".to_owned()));
        assert_eq!(failed.problem.unwrap().reason, AnswerReason::LogUnavailable);
        let waited = std::iter::from_fn(|| node.requests.pop()).map(|it| it.id.to_string());
        assert_eq!(waited.collect::<Vec<_>>(), ["1", "2", "3", "4"], "5 is repeated");
    }

    #[test]
    fn oldest_answers_are_forgotten() {
        let mut node = Node::new();
        for n in 0..=MAX_ANSWERS {
            let RequestAction::Read(read) = node.on(request(&n.to_string())) else {
                panic!("it is read")
            };
            let _ = node.requests.on_read(read.id, Ok(text("")));
        }
        assert_eq!(node.requests.answers.len(), MAX_ANSWERS);
        assert!(matches!(node.on(request("1")), RequestAction::Answer(_)));
        assert!(matches!(node.on(request("0")), RequestAction::Read(_)), "it was forgotten");
    }

    #[test]
    fn request_of_an_unknown_kind_is_ignored() {
        let mut node = Node::new();
        let unknown = NodeRequest { kind: RequestKind::Unknown, ..request("a") };
        assert_eq!(node.on(unknown), RequestAction::Wait);
    }
}
