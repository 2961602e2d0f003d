//! Requests that are not decided: passed to the edge and back without reading the bodies.

use std::time::Duration;

use hyper::{StatusCode, http::request::Parts};
use neptune_cascade::{Unjudged, policy::Decision};

use super::{Exchange, respond::Verdict};
use crate::{
    clock,
    decision::Outcome,
    metrics::Side,
    server::{Answer, AnyBody, boxed},
    upstream::{EdgeError, forwarded},
};

/// Paths whose answers of two models cannot be exchanged.
const EMBEDDINGS: &str = "/v1/embeddings";

/// Passes a request on. An inference counts as an unjudged sample.
pub async fn pass(
    exchange: &mut Exchange,
    head: Parts,
    body: AnyBody,
    limit: Duration,
    is_sample: bool,
) -> Answer {
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let asked = clock::now();
    let edge = exchange.edge();
    let answer = edge.pass(head.method.clone(), path, forwarded(&head.headers), body, limit).await;
    let waited = clock::now().saturating_duration_since(asked);
    exchange.waited += waited;
    match answer {
        Ok(answer) => {
            exchange.gateway.metrics.upstream(Side::Edge, waited);
            let mut answer = answer.map(boxed);
            *answer.headers_mut() = forwarded(answer.headers());
            if is_sample && answer.status().is_success() {
                let outcome = Outcome::Edge(Decision::Unjudged(Unjudged::Undecided));
                exchange.count(&[outcome]);
                exchange.verdict(&[outcome], None).describe(&mut answer);
            }
            if head.uri.path() == EMBEDDINGS {
                Verdict::explain(
                    &mut answer,
                    "embeddings of two models cannot be exchanged: this path goes to the edge only",
                );
            }
            answer
        }
        Err(EdgeError::Body(problem)) => exchange.body_error(&problem),
        Err(error) if is_sample => {
            exchange.edge_failed(Some(&head));
            exchange.edge_unavailable(&error, StatusCode::SERVICE_UNAVAILABLE)
        }
        Err(error) => exchange.edge_unavailable(&error, StatusCode::SERVICE_UNAVAILABLE),
    }
}

impl Exchange {
    /// The answer when the edge does not answer and the cloud is not asked.
    pub(super) fn edge_unavailable(&self, error: &EdgeError, status: StatusCode) -> Answer {
        let address = self.edge().address();
        self.error(status, &format!("the model server at {address} does not answer ({error})"))
    }
}
