//! The `LogRequests` that exist, and what to do with each next. The caller asks nodes, writes
//! statuses and deletes.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use neptune_api::{
    LogObjectKind, LogRequest, LogRequestPhase, LogRequestReason, LogRequestSpec, LogRequestStatus,
};
use neptune_wire::{AnswerReason, NodeAnswer, NodeName, NodeRequest, RequestId, RequestKind};

use super::target::{LogTarget, Refusal, choose, source};

/// The pause before a node is asked again.
const REPEAT: SignedDuration = SignedDuration::from_secs(5);
/// How long a node may take to answer.
const DEADLINE: SignedDuration = SignedDuration::from_secs(30);
/// How long a request exists after its end.
const KEPT: SignedDuration = SignedDuration::from_secs(60);
/// How long a request exists at most.
const MAX_AGE: SignedDuration = SignedDuration::from_secs(600);
/// The pause before a failed write or deletion is repeated.
const RETRY: SignedDuration = SignedDuration::from_secs(1);

/// Requests that may be open for one object, for one node, and together.
const MAX_PER_OBJECT: usize = 2;
const MAX_PER_NODE: usize = 4;
const MAX_OPEN: usize = 32;

/// The requests that exist, by their uid.
#[derive(Debug, Default)]
pub struct LogRequests {
    known: BTreeMap<String, Known>,
}

#[derive(Debug)]
struct Known {
    seen: Timestamp,
    object: (String, LogObjectKind, String),
    state: State,
    /// When the next action may be due.
    at: Timestamp,
}

#[derive(Debug)]
enum State {
    /// No node was asked yet.
    New,
    /// This node is asked until this time.
    Asked { node: NodeName, request: Box<NodeRequest>, until: Timestamp },
    /// This status is to be written.
    Ending(Box<LogRequestStatus>),
    /// The status has the end since this time.
    Ended(Timestamp),
}

impl State {
    fn ending(status: LogRequestStatus) -> Self {
        Self::Ending(Box::new(status))
    }
}

/// What to do with a request.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub enum LogAction {
    /// Nothing is to be done now.
    Wait,
    /// Ask this node. [`LogRequests::on_answer`] takes the answer.
    Ask(NodeName, Box<NodeRequest>),
    /// Write this status. [`LogRequests::written`] confirms it.
    Write(Box<LogRequestStatus>),
    /// Delete the request, which is over.
    Delete,
}

impl LogRequests {
    /// Whether an action may be due: then the target is needed.
    pub fn is_due(&self, uid: &str, now: Timestamp) -> bool {
        self.known.get(uid).is_none_or(|known| known.at <= now)
    }

    /// When the next action may be due.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.known.values().map(|known| known.at).min()
    }

    /// Decides about a request. `now` is the fleet's time, `wall` that of the cluster. No wall clock
    /// decides when a request is deleted: it may differ from that of the API server.
    pub fn decide(
        &mut self,
        request: &LogRequest,
        target: Option<&LogTarget>,
        (now, wall): (Timestamp, Timestamp),
    ) -> LogAction {
        let uid = request.metadata.uid.as_deref().unwrap_or_default();
        let is_ended = has_ended(request);
        if !self.known.contains_key(uid) {
            let state = if is_ended { State::Ended(now) } else { State::New };
            let namespace = request.metadata.namespace.clone().unwrap_or_default();
            let reference = &request.spec.object_ref;
            let object = (namespace, reference.kind, reference.name.clone());
            self.known.insert(uid.to_owned(), Known { seen: now, object, state, at: now });
        }
        if self.known.get(uid).is_some_and(|known| matches!(known.state, State::New)) {
            let state = self.begin(uid, &request.spec, target, (now, wall));
            let known = self.known.get_mut(uid).expect("it was inserted");
            known.state = state.unwrap_or(State::New);
        }
        let known = self.known.get_mut(uid).expect("it was inserted");
        known.at = now + RETRY;
        if matches!(known.state, State::New) && now >= known.seen + DEADLINE {
            let message = format!(
                "no agent that runs the worker reported for {} s; repeat the request",
                DEADLINE.as_secs()
            );
            known.state = State::ending(refused((LogRequestReason::NodeOffline, message)));
        }
        if now >= known.seen + MAX_AGE {
            return LogAction::Delete;
        }
        if let State::Asked { node, until, .. } = &known.state
            && now >= *until
        {
            let message = format!(
                "node {node} did not answer for {} s; see whether its agent runs, and repeat the request",
                DEADLINE.as_secs()
            );
            known.state = State::ending(refused((LogRequestReason::DeadlineExceeded, message)));
        }
        match &known.state {
            State::New => LogAction::Wait,
            State::Asked { node, request, until } => {
                known.at = (now + REPEAT).min(*until);
                LogAction::Ask(node.clone(), request.clone())
            }
            State::Ending(status) => LogAction::Write(status.clone()),
            State::Ended(at) if now >= *at + KEPT => LogAction::Delete,
            State::Ended(at) => {
                known.at = *at + KEPT;
                LogAction::Wait
            }
        }
    }

    /// The state of a new request; `None` while its node may still report.
    fn begin(
        &self,
        uid: &str,
        spec: &LogRequestSpec,
        target: Option<&LogTarget>,
        (now, wall): (Timestamp, Timestamp),
    ) -> Option<State> {
        let refuse = |refusal| Some(State::ending(refused(refusal)));
        let node = match choose(spec, target) {
            Ok(node) => node?,
            Err(refusal) => return refuse(refusal),
        };
        if let Some(refusal) = self.too_many(uid, &node) {
            return refuse(refusal);
        }
        let (target, id) = (target?, uid.parse::<RequestId>().ok()?);
        let ago = spec.since_seconds.map(|ago| wall - SignedDuration::from_secs(ago.into()));
        let request = NodeRequest {
            id,
            kind: RequestKind::Log,
            object: target.key.clone(),
            uid: target.uid.clone(),
            worker: source(spec.worker),
            tail_lines: spec
                .tail_lines
                .unwrap_or(LogRequestSpec::DEFAULT_TAIL_LINES)
                .try_into()
                .unwrap_or(1),
            since: spec.since_time.clone().or(ago.map(|time| time.to_string())),
        };
        Some(State::Asked { node, request: Box::new(request), until: now + DEADLINE })
    }

    fn too_many(&self, uid: &str, node: &NodeName) -> Option<Refusal> {
        let object = &self.known.get(uid)?.object;
        let asked = |known: &Known| match &known.state {
            State::Asked { node, .. } => Some((known.object.clone(), node.clone())),
            _ => None,
        };
        let open: Vec<_> = self.known.values().filter_map(asked).collect();
        let what = if open.iter().filter(|(other, _)| other == object).count() >= MAX_PER_OBJECT {
            format!("{MAX_PER_OBJECT} requests for logs of {} are open", object.2)
        } else if open.iter().filter(|(_, other)| other == node).count() >= MAX_PER_NODE {
            format!("{MAX_PER_NODE} requests for logs of node {node} are open")
        } else if open.len() >= MAX_OPEN {
            format!("{MAX_OPEN} requests for logs are open")
        } else {
            return None;
        };
        Some((
            LogRequestReason::TooManyRequests,
            format!("{what}; repeat the request in a few seconds"),
        ))
    }

    /// Takes the answer of a node. One to a request that is not open changes nothing.
    pub fn on_answer(&mut self, from: &NodeName, answer: NodeAnswer, now: Timestamp) {
        let Some(known) = self.known.get_mut(answer.id.as_str()) else { return };
        if matches!(&known.state, State::Asked { node, .. } if node == from) {
            known.state = State::ending(status(answer));
            known.at = now;
        }
    }

    /// The status of a request was written.
    pub fn written(&mut self, uid: &str, now: Timestamp) {
        if let Some(known) = self.known.get_mut(uid)
            && matches!(known.state, State::Ending(_))
        {
            known.state = State::Ended(now);
            known.at = now + KEPT;
        }
    }

    /// The ID of each open request, and the node that is asked.
    pub fn asked(&self) -> impl Iterator<Item = (&RequestId, &NodeName)> {
        self.known.values().filter_map(|known| match &known.state {
            State::Asked { node, request, .. } => Some((&request.id, node)),
            _ => None,
        })
    }

    /// Forgets the requests that do not exist any more.
    pub fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.known.retain(|uid, _| exists(uid));
    }
}

fn has_ended(request: &LogRequest) -> bool {
    request.status.as_ref().is_some_and(|status| status.phase != LogRequestPhase::Pending)
}

fn refused((reason, message): Refusal) -> LogRequestStatus {
    LogRequestStatus {
        phase: LogRequestPhase::Failed,
        reason: Some(reason),
        message,
        text: String::new(),
        truncated: false,
        next: None,
    }
}

fn status(answer: NodeAnswer) -> LogRequestStatus {
    let NodeAnswer { text, truncated, next, problem, .. } = answer;
    if let Some(problem) = problem {
        let reason = match problem.reason {
            AnswerReason::LogsNotAllowed => LogRequestReason::LogsNotAllowed,
            AnswerReason::WorkerNotFound => LogRequestReason::WorkerNotFound,
            AnswerReason::NoContainer => LogRequestReason::NoContainer,
            AnswerReason::LogUnavailable | AnswerReason::Unknown => {
                LogRequestReason::LogUnavailable
            }
        };
        return refused((reason, problem.message));
    }
    let (phase, message) = (LogRequestPhase::Succeeded, String::new());
    LogRequestStatus { phase, reason: None, message, text, truncated, next }
}

#[cfg(test)]
mod tests;
