//! Requests while the edge's model server does not answer.

use hyper::{HeaderMap, StatusCode, header::CONTENT_TYPE};
use neptune_cascade::policy::Decision;

use super::Exchange;
use crate::{
    clock,
    config::OnEdgeFailure,
    decision::Outcome,
    protocol::Payload,
    server::{Answer, Wire, grpc_answer, json},
    upstream::CloudRequest,
};

const PINNED: &str = "this request is pinned to the edge, whose model server does not answer";

impl Exchange {
    /// Whether the cloud may answer a request of so many samples instead of the edge. Otherwise the
    /// answer to the client.
    pub(super) fn replace_edge(
        &self,
        samples: usize,
        is_pinned: bool,
        reason: &str,
    ) -> Result<(), Box<Answer>> {
        let refused = self.may_replace_edge(samples, is_pinned, reason);
        refused.map_err(|text| Box::new(self.error(StatusCode::SERVICE_UNAVAILABLE, &text)))
    }

    /// As [`Exchange::replace_edge`], with the text of the error.
    pub(super) fn may_replace_edge(
        &self,
        samples: usize,
        is_pinned: bool,
        reason: &str,
    ) -> Result<(), String> {
        if is_pinned {
            return Err(PINNED.to_owned());
        }
        let address = self.edge().address();
        let edge = format!("the model server at {address} does not answer ({reason})");
        if self.service.config.on_edge_failure == OnEdgeFailure::Error {
            return Err(format!("{edge}, and onEdgeFailure is Error"));
        }
        let now = clock::now();
        let mut decisions = self.gateway.decisions();
        let route = decisions.route(false, None, now);
        let cloud = decisions.cloud_state(now);
        match decisions.decide_edge_down(samples, route) {
            Ok(()) => Ok(()),
            Err(Decision::OverBudget) => {
                Err(format!("{edge}, and the budget of uploads is used up"))
            }
            Err(_) => Err(format!("{edge}, and {cloud}")),
        }
    }

    /// The cloud's answer in place of the edge's: for the client, and as it came.
    pub(super) async fn answer_of_cloud(
        &mut self,
        samples: usize,
        request: &CloudRequest,
        reason: &str,
        is_answer: impl Fn(&Payload) -> bool,
    ) -> (Answer, Option<Payload>) {
        match self.ask_cloud(request, is_answer).await {
            Ok(payload) => (self.cloud_answered(samples, &payload), Some(payload)),
            Err(_) => (self.nobody_answered(reason), None),
        }
    }

    fn cloud_answered(&self, samples: usize, payload: &Payload) -> Answer {
        let outcomes = vec![Outcome::Cloud(Decision::EdgeDown); samples.max(1)];
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

    pub(super) fn nobody_answered(&self, reason: &str) -> Answer {
        self.error(StatusCode::SERVICE_UNAVAILABLE, &self.nobody_text(reason))
    }

    pub(super) fn nobody_text(&self, reason: &str) -> String {
        let address = self.edge().address();
        format!(
            "the model server at {address} does not answer ({reason}), and the cloud gave no answer either"
        )
    }
}
