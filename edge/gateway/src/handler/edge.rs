//! Requests to the edge's model server whose answers are read.

use bytes::Bytes;
use hyper::{
    HeaderMap, Response, StatusCode,
    body::Incoming,
    header::{ACCEPT_ENCODING, CONTENT_LENGTH, HeaderName},
    http::request::Parts,
};
use neptune_cascade::policy::Decision;
use tonic::Status;

use super::{Exchange, grpc};
use crate::{
    clock,
    decision::{Outcome, RefusedCall},
    metrics::Side,
    protocol::{Payload, edge_error},
    server::{Answer, BodyError, Paced, Wire, collect_all, grpc_answer, grpc_status, whole},
    upstream::{DECISION, EdgeError, TOO_LARGE, excerpt, forwarded, grpc_reason, reason},
};

const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// The text for a request whose answer has no room.
pub const NO_ROOM: &str = "the gateway holds as many bytes of answers as it can; try again";

/// Why there is no answer of the edge to read.
#[derive(Debug)]
pub enum EdgeFailure {
    /// The model server does not work, for this reason.
    Unanswered(String),
    /// The model server works, and its answer has more bytes than this.
    TooLarge(usize),
    /// The model server works, and the gateway has no room for its answer.
    NoRoom,
}

impl From<String> for EdgeFailure {
    fn from(reason: String) -> Self {
        Self::Unanswered(reason)
    }
}

impl From<BodyError> for EdgeFailure {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLong(max) => Self::TooLarge(max),
            BodyError::NoRoom => Self::NoRoom,
            error => Self::Unanswered(error.to_string()),
        }
    }
}

impl Exchange {
    /// Asks the edge, and reads its whole answer.
    pub(super) async fn ask_edge(
        &mut self,
        head: &Parts,
        path: &str,
        payload: Payload,
    ) -> Result<(StatusCode, HeaderMap, Bytes), EdgeFailure> {
        let asked = clock::now();
        let answered = async {
            let answer = self.open_edge(head, path, payload).await?;
            let (mut parts, body) = answer.into_parts();
            let config = &self.service.config;
            let body = Paced::new(body, config.limits.max_body_bytes, self.edge_limit(head));
            let (body, trailers) = collect_all(body?.holding(self.answers.clone())).await?;
            parts.headers = forwarded(&parts.headers);
            match self.wire {
                Wire::Rest => Ok((parts.status, parts.headers, body, trailers)),
                Wire::Grpc => Ok(grpc::edge_answer(parts.status, parts.headers, body, trailers)?),
            }
        };
        let answered = answered.await;
        let time = clock::now().saturating_duration_since(asked);
        self.waited += time;
        self.gateway.metrics.upstream(Side::Edge, time);
        let (status, headers, body, trailers) = answered.inspect_err(|failure| {
            if matches!(failure, EdgeFailure::Unanswered(_)) {
                self.edge_failed(Some(head));
            }
        })?;
        self.trailers = trailers;
        self.note_edge(status, &headers, &body);
        Ok((status, headers, body))
    }

    /// The edge's model server answered with this status.
    pub(super) fn note_edge(&self, status: StatusCode, headers: &HeaderMap, body: &Bytes) {
        let now = clock::now();
        if status.is_success() {
            self.gateway.decisions().accepted_by_edge(now);
            return;
        }
        let reason = match self.wire {
            Wire::Rest => reason(status, &excerpt(body, None)),
            Wire::Grpc => {
                let status = Status::from_header_map(headers);
                grpc_reason(&status.unwrap_or_else(|| Status::unknown("")), None)
            }
        };
        let (url, status) = (self.edge().address().to_owned(), status.as_u16());
        self.gateway.decisions().refused_by_edge(RefusedCall { url, status, reason }, now);
    }

    /// Whether the cloud may answer a request to which the edge answered so: with an error of its
    /// capacity or capability.
    pub(super) fn is_for_cloud(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> bool {
        if status.is_success() {
            return false;
        }
        let message = match self.wire {
            Wire::Rest => None,
            Wire::Grpc => Status::from_header_map(headers),
        };
        let text = message.as_ref().map_or(&body[..], |status| status.message().as_bytes());
        edge_error::is_for_cloud(self.service.protocol(), status.as_u16(), text)
    }

    /// The reason if the edge's model server does not work, else the answer to the client.
    pub(super) fn edge_reason(&self, failure: EdgeFailure) -> Result<String, Box<Answer>> {
        match failure {
            EdgeFailure::Unanswered(reason) => Ok(reason),
            EdgeFailure::TooLarge(max) => Err(Box::new(self.edge_too_large(max))),
            EdgeFailure::NoRoom => Err(Box::new(self.busy(NO_ROOM))),
        }
    }

    /// The answer to a client whose answer the edge has, but too large to read.
    pub(super) fn edge_too_large(&self, max: usize) -> Answer {
        let status = match self.wire {
            Wire::Rest => StatusCode::BAD_GATEWAY,
            Wire::Grpc => StatusCode::PAYLOAD_TOO_LARGE,
        };
        let address = self.edge().address();
        let text = format!(
            "the answer of the model server at {address} has more than {max} bytes; \
             limits.maxBodyBytes is the limit"
        );
        let mut answer = self.error(status, &text);
        answer.headers_mut().insert(DECISION, TOO_LARGE);
        answer
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
            let outcomes = [Outcome::Edge(Decision::Unjudged(self.unread_as))];
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
