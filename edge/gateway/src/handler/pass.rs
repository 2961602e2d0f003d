//! Requests that are not decided: passed to the edge and back without reading the bodies.

use hyper::{Method, StatusCode, body::Incoming, http::request::Parts};
use neptune_cascade::{Unjudged, policy::Decision};

use super::{Exchange, respond::Verdict};
use crate::{
    clock,
    decision::Outcome,
    metrics::Side,
    server::{Answer, Paced, boxed},
    upstream::{EdgeError, forwarded},
};

/// Paths whose answers of two models cannot be exchanged.
const EMBEDDINGS: &str = "/v1/embeddings";

/// Passes a request on.
pub async fn pass(exchange: &mut Exchange, head: Parts, body: Paced<Incoming>) -> Answer {
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let limit = exchange.edge_limit(&head);
    let asked = clock::now();
    let edge = &exchange.service.edge;
    let answer =
        edge.pass(head.method.clone(), path, forwarded(&head.headers), boxed(body), limit).await;
    let waited = clock::now().saturating_duration_since(asked);
    exchange.waited += waited;
    match answer {
        Ok(answer) => {
            exchange.gateway.metrics.upstream(Side::Edge, waited);
            let mut answer = answer.map(boxed);
            *answer.headers_mut() = forwarded(answer.headers());
            let is_sample = head.method == Method::POST && answer.status().is_success();
            if is_sample {
                let outcome = Outcome::Edge(Decision::Unjudged(Unjudged::Missing));
                exchange.count(&[outcome]);
                Verdict::of(&[outcome], None).describe(&mut answer);
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
        Err(error) => exchange.edge_unavailable(&error, StatusCode::SERVICE_UNAVAILABLE),
    }
}

impl Exchange {
    /// The answer when the edge does not answer and the cloud is not asked.
    pub(super) fn edge_unavailable(&self, error: &EdgeError, status: StatusCode) -> Answer {
        let address = self.service.edge.address();
        self.error(status, &format!("the model server at {address} does not answer ({error})"))
    }
}
