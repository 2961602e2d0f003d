//! Requests to the edge's model server whose answers are read.

use bytes::Bytes;
use hyper::{
    HeaderMap, Response, StatusCode,
    body::Incoming,
    header::{ACCEPT_ENCODING, CONTENT_LENGTH, HeaderName},
    http::request::Parts,
};
use neptune_cascade::{Unjudged, policy::Decision};

use super::{Exchange, grpc};
use crate::{
    clock,
    decision::Outcome,
    metrics::Side,
    protocol::Payload,
    server::{Answer, Paced, Wire, collect_all, grpc_answer, grpc_status, whole},
    upstream::{EdgeError, forwarded},
};

const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

impl Exchange {
    /// The edge's whole answer. The reason, if it does not work.
    pub(super) async fn ask_edge(
        &mut self,
        head: &Parts,
        path: &str,
        payload: Payload,
    ) -> Result<(StatusCode, HeaderMap, Bytes), String> {
        let asked = clock::now();
        let answered = async {
            let answer = self.open_edge(head, path, payload).await?;
            let (mut parts, body) = answer.into_parts();
            let config = &self.service.config;
            let body = Paced::new(body, config.limits.max_body_bytes, self.edge_limit(head));
            let body = match body {
                Ok(body) => collect_all(body).await.map_err(|error| error.to_string())?,
                Err(error) => return Err(error.to_string()),
            };
            let (body, trailers) = body;
            parts.headers = forwarded(&parts.headers);
            match self.wire {
                Wire::Rest => Ok((parts.status, parts.headers, body, trailers)),
                Wire::Grpc => grpc::edge_answer(parts.status, parts.headers, body, trailers),
            }
        };
        let answered = answered.await;
        let time = clock::now().saturating_duration_since(asked);
        self.waited += time;
        self.gateway.metrics.upstream(Side::Edge, time);
        let (status, headers, body, trailers) =
            answered.inspect_err(|_| self.edge_failed(Some(head)))?;
        self.trailers = trailers;
        Ok((status, headers, body))
    }

    /// The head of the edge's answer. The reason, if it does not work.
    pub(super) async fn open_edge(
        &self,
        head: &Parts,
        path: &str,
        payload: Payload,
    ) -> Result<Response<Incoming>, String> {
        let mut headers = forwarded(&head.headers);
        headers.remove(ACCEPT_ENCODING);
        headers.remove(GRPC_ACCEPT_ENCODING);
        payload.describe(&mut headers);
        let limit = self.edge_limit(head);
        let answer = self.edge().post(path, &headers, payload.body, limit).await;
        let answer = answer.map_err(|error: EdgeError| error.to_string());
        let answer = answer.and_then(|answer| match answer.status().as_u16() {
            502..=504 => Err(answer.status().to_string()),
            _ => Ok(answer),
        });
        answer.inspect_err(|_| self.edge_failed(Some(head)))
    }

    /// The edge did not answer. That is no failure of the edge if the client's time passed.
    pub(super) fn edge_failed(&self, head: Option<&Parts>) {
        let deadline = head.and_then(|head| self.client_deadline(head));
        if deadline.is_none_or(|deadline| clock::now() < deadline) {
            self.gateway.decisions().edge_failed(self.edge().address());
        }
    }

    /// An answer that cannot be judged, as it came.
    pub(super) fn unread(&self, status: StatusCode, headers: HeaderMap, body: Bytes) -> Answer {
        let mut answer = self.answer_with(status, headers, body);
        if status.is_success() {
            let outcomes = [Outcome::Edge(Decision::Unjudged(Unjudged::Missing))];
            self.count(&outcomes);
            self.verdict(&outcomes, None).describe(&mut answer);
        }
        answer
    }

    /// An answer with the edge's headers and another body.
    pub(super) fn answer_with(
        &self,
        status: StatusCode,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Answer {
        headers.remove(CONTENT_LENGTH);
        let mut answer = match self.wire {
            Wire::Rest => Response::new(whole(body)),
            Wire::Grpc if status.is_success() => grpc_answer(body, self.trailers.clone()),
            Wire::Grpc => grpc_status(HeaderMap::new()),
        };
        *answer.status_mut() = status;
        answer.headers_mut().extend(headers);
        answer
    }
}
