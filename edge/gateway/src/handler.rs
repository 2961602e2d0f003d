//! Answers the requests of clients.

mod capture;
mod chat;
mod client;
mod cloud;
mod cloud_stream;
mod completion;
mod edge;
mod edge_down;
mod grpc;
mod invalid;
mod pass;
mod respond;
mod route;
mod shadows;
mod stream;
mod tensors;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use hyper::{
    HeaderMap, Request, StatusCode,
    body::Incoming,
    header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderName, HeaderValue, RETRY_AFTER},
    http::request::Parts,
};
use neptune_cascade::Unjudged;
use tokio::sync::OwnedSemaphorePermit;

use self::route::route;
pub use self::shadows::compare;
use crate::{
    clock,
    gateway::{Gateway, HeldAnswers, Service},
    protocol::{
        batch::Form,
        path::{self, Task},
    },
    server::{
        Answer, BodyError, Entrance, Held, HeldBody, Wire, boxed, error, finished, grpc_error,
        has_content_coding, hides_cors, remove_cors,
    },
    upstream::{CLIENT_TIMEOUT, CloudClient, Deadline, EdgeClient, Hops, Upper, excerpt_line},
};

/// The time that a client of gRPC gives the gateway.
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// A request that is being answered.
#[derive(Debug)]
pub struct Exchange {
    /// REST or gRPC, for the client and both model servers.
    pub wire: Wire,
    /// The state that all requests share.
    pub gateway: Arc<Gateway>,
    /// The configuration in force when the request began.
    pub service: Arc<Service>,
    /// The position in the configuration of the client whose key the request has.
    pub client: Option<usize>,
    /// Time at which the request began.
    pub started: Instant,
    /// The time spent waiting for model servers.
    pub waited: Duration,
    /// The metadata after the edge's message, with gRPC.
    pub trailers: HeaderMap,
    /// Why a sample whose answer is not read is unjudged.
    pub unread_as: Unjudged,
    /// The gateways that passed the request on.
    pub hops: Hops,
    /// What the cloud's answer shows of the gateways above.
    pub upper: Upper,
    /// The request's place among those in flight, from the time at which it is there as a whole.
    pub place: Option<OwnedSemaphorePermit>,
    /// The bytes of its body.
    pub held: HeldBody,
    /// The bytes of the answers to it.
    pub answers: HeldAnswers,
}

impl Exchange {
    /// Returns when an answer of the cloud has to be there.
    fn cloud_deadline(&self, head: &Parts) -> Deadline {
        let total = clock::now() + self.service.config.cloud_total();
        Deadline::earliest(total, self.client_deadline(head))
    }

    /// Returns when the client gives up, if the request states it.
    fn client_deadline(&self, head: &Parts) -> Option<Instant> {
        self.started.checked_add(self.client_limit(head)?)
    }

    /// The time that the client gives, if the request states it. A gateway that passed the request
    /// on gets its answer in time, also if a model server does not answer.
    fn client_limit(&self, head: &Parts) -> Option<Duration> {
        let limit = client_timeout(head)?;
        Some(if self.hops.is_passed_on() { limit * 4 / 5 } else { limit })
    }

    /// How long the edge may take.
    fn edge_limit(&self, head: &Parts) -> Duration {
        let limit = self.service.config.edge_timeout();
        self.client_limit(head).map_or(limit, |client| limit.min(client))
    }

    /// Whether the request stays at the edge: by a route pin, because its client never uploads, or
    /// because it is a comparison.
    fn is_pinned(&self, head: &Parts) -> bool {
        self.hops.is_shadow || self.never_uploads() || self.service.is_pinned(&head.headers)
    }

    fn error(&self, status: StatusCode, message: &str) -> Answer {
        match self.wire {
            Wire::Rest => error(self.service.protocol(), status, message),
            Wire::Grpc => grpc_error(status, message),
        }
    }

    /// Returns the client of the edge for the transport of this request.
    fn edge(&self) -> &EdgeClient {
        self.service.edge(self.wire)
    }

    /// How batches are encoded.
    fn form(&self) -> Form<'_> {
        form(&self.service, self.wire)
    }

    /// The answer to a body that cannot be read.
    fn body_error(&self, problem: &BodyError) -> Answer {
        let status = match problem {
            BodyError::TooLong(_) => StatusCode::PAYLOAD_TOO_LARGE,
            BodyError::Stalled(_) | BodyError::Slow => StatusCode::REQUEST_TIMEOUT,
            BodyError::NoRoom => return self.busy(&problem.to_string()),
            BodyError::Broken(_) => StatusCode::BAD_REQUEST,
        };
        self.error(status, &problem.to_string())
    }
}

/// How batches of a service are encoded.
fn form(service: &Service, wire: Wire) -> Form<'_> {
    match wire {
        Wire::Rest => Form::Rest(service.protocol()),
        Wire::Grpc => {
            let cloud = service.cloud.as_ref();
            Form::Grpc { cloud_model: cloud.and_then(CloudClient::model_name) }
        }
    }
}

fn client_timeout(head: &Parts) -> Option<Duration> {
    let text = |name: &HeaderName| head.headers.get(name)?.to_str().ok();
    let millis = text(&CLIENT_TIMEOUT).and_then(|text| text.parse().ok());
    let by_header = millis.map(Duration::from_millis);
    let by_grpc = text(&GRPC_TIMEOUT).and_then(path::grpc_timeout);
    by_header.into_iter().chain(by_grpc).min()
}

/// Answers one request of a client, and counts it.
pub async fn handle(
    gateway: Arc<Gateway>,
    (entrance, wire): (Entrance, Wire),
    request: Request<Incoming>,
) -> Answer {
    let service = gateway.service();
    let (mut parts, body) = request.into_parts();
    let hosts = service.config.allowed_hosts.on(entrance.is_loopback);
    let checked = gateway.check(entrance.server, &parts, hosts);
    let hides_cors = hides_cors(&parts.headers, hosts);
    let hops = Hops::from_headers(&parts.headers, service.config.id.as_deref());
    let held = service.body_room.hold();
    let answers = service.answer_room.of_request(Arc::clone(&gateway.shadows) as _);
    let mut exchange = Exchange {
        wire,
        gateway,
        service,
        client: None,
        place: None,
        held,
        answers,
        started: clock::now(),
        waited: Duration::ZERO,
        trailers: HeaderMap::new(),
        unread_as: Unjudged::Missing,
        hops: Hops::default(),
        upper: Upper::default(),
    };
    if let Err(problem) = checked {
        return exchange.finish(exchange.error(problem.status(), &problem.to_string()));
    }
    if let Some(refused) = exchange.identify(&mut parts) {
        return exchange.finish(refused);
    }
    match hops {
        Ok(hops) => exchange.hops = hops,
        Err(problem) => {
            let answer = exchange.error(StatusCode::LOOP_DETECTED, &problem.to_string());
            exchange.gateway.decisions().refused(problem.to_string(), exchange.started);
            return exchange.finish(answer);
        }
    }
    let request = Request::from_parts(parts, body);
    let mut answer = match wire {
        Wire::Rest => route(&mut exchange, request).await,
        Wire::Grpc => grpc::route(&mut exchange, request).await,
    };
    if hides_cors {
        remove_cors(answer.headers_mut());
    }
    let (place, memory) =
        (exchange.place.take(), (exchange.held.clone(), exchange.answers.clone()));
    exchange.finish(answer).map(|body| boxed(Held::new(body, place, memory)))
}

impl Exchange {
    /// Takes a place among the requests in flight. Returns the answer if all are taken. A request
    /// whose body is read as a whole takes its place afterwards, so that a client that sends slowly
    /// keeps no other out.
    fn take_place(&mut self) -> Option<Answer> {
        self.place = Arc::clone(&self.service.places).try_acquire_owned().ok();
        let text = "the gateway answers as many requests as maxInFlight permits; try again";
        self.place.is_none().then(|| self.busy(text))
    }

    /// The answer to a request with a content coding, which cannot be judged.
    fn coded(&self, head: &Parts) -> Option<Answer> {
        let codings: Vec<_> = head.headers.get_all(CONTENT_ENCODING).iter().collect();
        if !has_content_coding(&codings) {
            return None;
        }
        let codings = codings.iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
        let codings = codings.collect::<Vec<_>>().join(", ");
        let text =
            format!("the content coding {codings:?} is not supported; send the body as it is");
        let mut answer = self.error(StatusCode::UNSUPPORTED_MEDIA_TYPE, &text);
        answer.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        Some(answer)
    }

    /// Asks the client to come back.
    fn busy(&self, text: &str) -> Answer {
        let status = match self.wire {
            Wire::Rest => StatusCode::SERVICE_UNAVAILABLE,
            Wire::Grpc => StatusCode::TOO_MANY_REQUESTS,
        };
        let mut answer = self.error(status, text);
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        answer
    }

    /// A request is decided.
    fn note_decided(&self) {
        self.gateway.decisions().is_decided(self.started);
    }

    /// A request passes to the edge because it names another model.
    fn note_other_model(&mut self, model: &str) {
        self.unread_as = Unjudged::Undecided;
        let decided = self.service.config.edge.model.as_deref().unwrap_or_default();
        let model = excerpt_line(model, None);
        let why = format!(
            "name the model `{model}`, and this service decides `{decided}`; let clients name \
             `{decided}`"
        );
        self.note_undecided(why);
    }

    /// A request to this path passes to the edge, as a task of another model or in another form.
    fn note_passed(&mut self, task: Option<&Task<'_>>, is_decided: bool, path: &str) {
        match task {
            Some(Task::Tensors { model, .. }) if !is_decided => self.note_other_model(model),
            Some(_) => self.note_undecided("have a raw binary body".to_owned()),
            None => self.note_undecided(format!("are to {}", excerpt_line(path, None))),
        }
    }

    /// A request passes to the edge without a decision. The text continues `the last requests`.
    fn note_undecided(&self, why: String) {
        if !self.hops.is_shadow {
            self.gateway.decisions().passed(why, self.started);
        }
    }

    /// Counts the request with its status and the time that the gateway added.
    fn finish(&self, answer: Answer) -> Answer {
        self.record_client();
        let added = clock::now().saturating_duration_since(self.started);
        self.gateway.metrics.request(
            &self.service.config.service,
            self.service.protocol().as_str(),
            answer.status().as_u16(),
            added.saturating_sub(self.waited),
        );
        match self.wire {
            Wire::Rest => answer,
            Wire::Grpc => finished(answer),
        }
    }
}
