//! Requests that the edge's model server does not answer, or with an error of its capacity or
//! capability.

use std::time::Instant;

use hyper::{HeaderMap, StatusCode, header::CONTENT_TYPE, http::request::Parts};
use neptune_cascade::policy::Decision;

use super::Exchange;
use crate::{
    clock,
    config::OnEdgeFailure,
    decision::Outcome,
    protocol::Payload,
    server::{Answer, Wire, grpc_answer, json},
    upstream::{CloudRequest, DEADLINE, DECISION},
};

/// Why the edge has no answer to a request.
#[derive(Debug)]
pub enum Fault {
    /// The model server does not work, for this reason.
    Down(String),
    /// The model server works, and this is its error. The client gets it unless the cloud answers.
    Error(Box<Answer>),
}

impl Fault {
    /// The decision if the cloud answers instead.
    pub(super) const fn decision(&self) -> Decision {
        match self {
            Self::Down(_) => Decision::EdgeDown,
            Self::Error(_) => Decision::EdgeError,
        }
    }
}

/// What the client gets instead of an answer.
#[derive(Debug)]
pub struct Refusal {
    /// Status code of HTTP, also for gRPC.
    pub status: StatusCode,
    /// The message for the client.
    pub text: String,
    /// Whether the time passed that the client gave. For a gateway that passed the request on that
    /// is no failure of the cloud.
    pub is_deadline: bool,
}

impl Refusal {
    /// Returns the refusal for a model server or a cloud that does not work.
    pub const fn new(status: StatusCode, text: String) -> Self {
        Self { status, text, is_deadline: false }
    }

    const fn deadline(text: String) -> Self {
        Self { status: StatusCode::GATEWAY_TIMEOUT, text, is_deadline: true }
    }
}

const PINNED: &str = "this request is pinned to the edge, whose model server does not answer";

impl Exchange {
    /// Returns the answer with the refusal for the client.
    pub(super) fn refused(&self, refusal: &Refusal) -> Answer {
        let mut answer = self.error(refusal.status, &refusal.text);
        if refusal.is_deadline {
            answer.headers_mut().insert(DECISION, DEADLINE);
        }
        answer
    }

    /// Whether the cloud may answer a request of so many samples instead of the edge. Otherwise the
    /// answer to the client.
    pub(super) fn replace_edge(
        &self,
        head: &Parts,
        samples: usize,
        is_pinned: bool,
        fault: Fault,
    ) -> Result<Fault, Box<Answer>> {
        let deadline = self.client_deadline(head);
        let may_replace = |reason| self.may_replace_edge(deadline, samples, is_pinned, reason);
        match fault {
            Fault::Down(reason) => match may_replace(&reason) {
                Ok(()) => Ok(Fault::Down(reason)),
                Err(refusal) => Err(Box::new(self.refused(&refusal))),
            },
            // The client gets the edge's own error, and not why the cloud may not answer.
            Fault::Error(answer) => match may_replace("") {
                Ok(()) => Ok(Fault::Error(answer)),
                Err(_) => Err(answer),
            },
        }
    }

    /// Decides like [`Exchange::replace_edge`] for [`Fault::Down`]. Returns the status and the text
    /// of the error. `deadline` is when the client gives up, if that is known. If it passed, the
    /// cloud cannot answer in time either: nothing is taken from the cap.
    pub(super) fn may_replace_edge(
        &self,
        deadline: Option<Instant>,
        samples: usize,
        is_pinned: bool,
        reason: &str,
    ) -> Result<(), Refusal> {
        let now = clock::now();
        let unavailable = |text: String| Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text));
        let edge = self.edge_text(reason);
        if deadline.is_some_and(|deadline| deadline <= now) {
            let text = format!("{edge}, and the time that the client gave is over");
            return Err(Refusal::deadline(text));
        }
        if is_pinned {
            return unavailable(PINNED.to_owned());
        }
        if self.service.config.on_edge_failure == OnEdgeFailure::Error {
            return unavailable(format!("{edge}, and onEdgeFailure is Error"));
        }
        let mut decisions = self.gateway.decisions();
        let route = decisions.route(false, deadline, now);
        let cloud = decisions.cloud_state(now);
        match decisions.decide_edge_down(samples, route) {
            Ok(()) => Ok(()),
            Err(Decision::OverBudget) => {
                unavailable(format!("{edge}, and the budget of uploads is used up"))
            }
            Err(Decision::Deadline) => {
                let text =
                    format!("{edge}, and the rest of the client's time is too short for the cloud");
                Err(Refusal::deadline(text))
            }
            Err(_) => unavailable(format!("{edge}, and {cloud}")),
        }
    }

    /// The cloud's answer in place of the edge's, if it may answer and does: for the client, and as
    /// it came, with the decision. `call` makes the request of the cloud.
    pub(super) async fn answer_of_cloud(
        &mut self,
        (head, samples, is_pinned): (&Parts, usize, bool),
        fault: Fault,
        call: impl FnOnce(&Self) -> CloudRequest,
        is_answer: impl Fn(&Payload) -> bool,
    ) -> (Answer, Option<(Payload, Decision)>) {
        let fault = match self.replace_edge(head, samples, is_pinned, fault) {
            Ok(fault) => fault,
            Err(answer) => return (*answer, None),
        };
        let request = call(self);
        match self.ask_cloud(&request, is_answer).await {
            Ok(payload) => {
                let decision = fault.decision();
                let answer = self.cloud_answered(samples, decision, &payload);
                (answer, Some((payload, decision)))
            }
            Err(_) => (self.nobody_answered(fault), None),
        }
    }

    fn cloud_answered(&self, samples: usize, decision: Decision, payload: &Payload) -> Answer {
        let outcomes = vec![Outcome::Cloud(decision); samples.max(1)];
        self.count(&outcomes);
        let mut answer = match self.wire {
            Wire::Rest => json(StatusCode::OK, payload.body.clone()),
            Wire::Grpc => grpc_answer(payload.body.clone(), HeaderMap::new()),
        };
        if payload.is_binary() {
            answer.headers_mut().insert(CONTENT_TYPE, payload.content_type());
            payload.describe(answer.headers_mut());
        }
        self.verdict(&outcomes, None).describe(&mut answer);
        answer
    }

    /// The beginning of texts about the edge.
    pub(super) fn edge_text(&self, reason: &str) -> String {
        format!("the model server at {} does not answer ({reason})", self.edge().address())
    }

    pub(super) fn nobody_answered(&self, fault: Fault) -> Answer {
        match fault {
            Fault::Down(reason) => {
                self.error(StatusCode::SERVICE_UNAVAILABLE, &self.nobody_text(&reason))
            }
            Fault::Error(answer) => *answer,
        }
    }

    pub(super) fn nobody_text(&self, reason: &str) -> String {
        format!("{}, and the cloud gave no answer either", self.edge_text(reason))
    }
}
