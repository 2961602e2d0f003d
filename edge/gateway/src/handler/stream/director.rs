//! Keeps the edge's stream back until it is decided, then passes it on, or the cloud's instead.
//! After the first byte of an answer nothing is switched.

use std::time::Instant;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::{StatusCode, body::Incoming};
use neptune_cascade::policy::Decision;
use serde_json::json;
use tokio::{
    sync::oneshot,
    time::{Interval, interval_at, timeout},
};
use tracing::debug;

use super::{
    super::{
        Exchange,
        cloud::Unanswered,
        cloud_stream::{OpenedStream, ask_stream},
        completion::CLOUD_FAILED,
        edge_down::Refusal,
        respond::Verdict,
    },
    HEARTBEAT,
};
use crate::{
    clock,
    config::{OnCloudFailure, Streaming},
    decision::Outcome,
    metrics::Side,
    protocol::frames::Frames,
    server::StreamSender,
    upstream::{CloudRequest, Deadline},
};

const WAITING: &[u8] = b": waiting\n\n";

/// A stream that is being decided.
pub struct Director {
    /// What is known of the request.
    pub exchange: Exchange,
    /// Reads the edge's stream.
    pub frames: Frames,
    /// The number of tokens on which to decide; `None` for the whole answer.
    pub prefix: Option<usize>,
    /// Whether a route pin keeps the request at the edge.
    pub is_pinned: bool,
    /// Time at which the client gives up, if that is known.
    pub client_deadline: Option<Instant>,
    /// The request to the cloud, streamed.
    pub cloud: CloudRequest,
    /// The same request to the cloud, not streamed.
    pub comparison: CloudRequest,
    /// Takes the bytes for the client.
    pub out: StreamSender,
    /// Takes the verdict, or the refusal, for the head of the answer. `None` once it was sent.
    pub head: Option<oneshot::Sender<Result<Verdict, Refusal>>>,
}

/// The error that the client went away.
#[derive(Debug)]
pub struct Gone;

/// The reason why no more frames of the edge are read.
enum End {
    /// The last frame of the stream was read.
    Complete,
    /// Enough of the stream is known to decide.
    Decided,
    /// The stream broke before its last frame.
    Broken(Break),
}

/// Why a stream of the edge broke.
struct Break {
    reason: String,
    /// Whether it did not continue in time.
    is_stalled: bool,
}

impl Break {
    const fn new(reason: String) -> Self {
        Self { reason, is_stalled: false }
    }
}

impl Director {
    /// Answers the client until the end of the stream, or until the client goes away.
    pub async fn run(mut self, edge: Incoming) {
        if let Err(Gone) = self.direct(edge).await {
            debug!("a client went away within a stream");
        }
    }

    async fn direct(&mut self, mut edge: Incoming) -> Result<(), Gone> {
        let mut beats = heartbeat();
        let mut held = Vec::new();
        let end = self.hold(&mut edge, &mut held, &mut beats).await?;
        if let End::Broken(broken) = end {
            drop(edge);
            return self.replace_edge(&broken, &mut beats).await;
        }
        let is_complete = matches!(end, End::Complete);
        self.exchange.count_tokens(Side::Edge, &self.frames.reply);
        let signal = self.exchange.signal(&self.frames.reply);
        let (decision, route) =
            self.exchange.decide_one(signal, self.is_pinned, self.client_deadline);
        let mut outcome = Outcome::Edge(decision);
        if decision == Decision::Hard {
            // The edge's stream waits meanwhile: it is the fallback.
            let asked = self.ask_cloud(&mut beats).await;
            let answered = match &asked {
                Ok(Ok(_)) => Ok(None),
                Ok(Err(reason)) => Err(*reason),
                Err(Gone) => Err(Unanswered::Failed),
            };
            self.exchange.record_upload(signal, answered);
            if let Ok(stream) = asked? {
                drop(edge);
                self.exchange.upper = stream.upper.clone();
                let outcome = self.exchange.of_cloud(decision, 1)[0];
                self.decide(outcome, &[signal]).await?;
                return relay_cloud(stream, &self.out).await;
            }
            outcome = Outcome::Fallback;
        } else if decision == Decision::Easy && is_complete {
            let text = self.frames.reply.text();
            // Streams are not captured.
            self.exchange.shadow_text(|| self.comparison.clone(), signal, route, text, || None);
        }
        let config = &self.exchange.service.config;
        if outcome.is_unanswered() && config.on_cloud_failure == OnCloudFailure::Error {
            let text = CLOUD_FAILED.to_owned();
            return self.refuse(Refusal::new(StatusCode::BAD_GATEWAY, text)).await;
        }
        self.decide(outcome, &[signal]).await?;
        send(&self.out, held.into()).await?;
        if is_complete { Ok(()) } else { self.relay_edge(edge).await }
    }

    /// Keeps frames back until enough is known.
    async fn hold(
        &mut self,
        edge: &mut Incoming,
        held: &mut Vec<u8>,
        beats: &mut Interval,
    ) -> Result<End, Gone> {
        let max = self.exchange.service.config.limits.max_body_bytes;
        let (mut is_first, mut is_full) = (true, false);
        loop {
            let tokens = self.frames.reply.tokens();
            if self.prefix.is_some_and(|prefix| tokens >= prefix) || held.len() > max || is_full {
                return Ok(End::Decided);
            }
            let next = tokio::select! {
                next = next(edge, &mut self.frames, &self.exchange) => next,
                () = self.out.closed() => return Err(Gone),
                _ = beats.tick() => {
                    send(&self.out, Bytes::from_static(WAITING)).await?;
                    continue;
                }
            };
            match next {
                Ok(Some(frames)) => {
                    // Without room it is decided on what is there.
                    is_full = !self.exchange.answers.hold(frames.len());
                    held.extend_from_slice(&frames);
                }
                Ok(None) => return Ok(End::Complete),
                Err(broken) => return Ok(End::Broken(broken)),
            }
            if std::mem::take(&mut is_first) {
                let time = clock::now().saturating_duration_since(self.exchange.started);
                self.exchange.gateway.metrics.first_token(Side::Edge, time);
            }
        }
    }

    /// The cloud's stream, with comments for the client meanwhile.
    async fn ask_cloud(
        &mut self,
        beats: &mut Interval,
    ) -> Result<Result<OpenedStream, Unanswered>, Gone> {
        let Exchange { gateway, service, answers, .. } = &self.exchange;
        // Keeping the edge's stream back takes nothing from the cloud's time.
        let total = clock::now() + service.config.cloud_total();
        self.cloud.deadline = Deadline::earliest(total, self.client_deadline);
        // Then a stream that breaks leaves the fallback.
        let is_held = service.config.streaming == Streaming::Buffer;
        let ask = async {
            let stream = ask_stream(gateway, service, &self.cloud).await?;
            if !is_held {
                return Ok(stream);
            }
            let held = stream.hold(service.config.limits.max_body_bytes, answers).await;
            held.map_err(|_| Unanswered::Failed)
        };
        tokio::pin!(ask);
        loop {
            tokio::select! {
                asked = &mut ask => return Ok(asked),
                () = self.out.closed() => return Err(Gone),
                _ = beats.tick() => send(&self.out, Bytes::from_static(WAITING)).await?,
            }
        }
    }

    /// The edge's stream broke before the client got anything of it.
    async fn replace_edge(&mut self, broken: &Break, beats: &mut Interval) -> Result<(), Gone> {
        let Break { reason, is_stalled } = broken;
        self.exchange.edge_failed(None);
        let deadline = self.client_deadline;
        let unanswered =
            if *is_stalled { StatusCode::GATEWAY_TIMEOUT } else { StatusCode::SERVICE_UNAVAILABLE };
        if let Err(refusal) = self.exchange.may_replace_edge(deadline, 1, self.is_pinned, reason) {
            let status = if refusal.is_deadline { refusal.status } else { unanswered };
            return self.refuse(Refusal { status, ..refusal }).await;
        }
        let Ok(stream) = self.ask_cloud(beats).await? else {
            let text = self.exchange.nobody_text(reason);
            return self.refuse(Refusal::new(unanswered, text)).await;
        };
        self.exchange.upper = stream.upper.clone();
        self.decide(Outcome::Cloud(Decision::EdgeDown), &[]).await?;
        relay_cloud(stream, &self.out).await
    }

    /// Counts the sample, and sends the verdict, in the head or as a comment.
    async fn decide(
        &mut self,
        outcome: Outcome,
        signals: &[neptune_cascade::Signal],
    ) -> Result<(), Gone> {
        self.exchange.count(&[outcome]);
        let verdict = self.exchange.verdict(&[outcome], Some(signals));
        let comment = verdict.comment();
        let head = self.head.take().ok_or(Gone)?;
        if head.send(Ok(verdict)).is_err() {
            send(&self.out, comment.into()).await?;
        }
        Ok(())
    }

    /// An error, in the head or as an event.
    async fn refuse(&mut self, refusal: Refusal) -> Result<(), Gone> {
        let event = error_event(&refusal.text);
        let head = self.head.take().ok_or(Gone)?;
        if head.send(Err(refusal)).is_err() {
            send(&self.out, event).await?;
        }
        Ok(())
    }

    /// Passes on the rest of the edge's stream.
    async fn relay_edge(&mut self, mut edge: Incoming) -> Result<(), Gone> {
        loop {
            let next = tokio::select! {
                next = next(&mut edge, &mut self.frames, &self.exchange) => next,
                () = self.out.closed() => return Err(Gone),
            };
            match next {
                Ok(Some(frames)) => send(&self.out, frames).await?,
                Ok(None) => return Ok(()),
                Err(broken) => return cut(&self.out, &broken.reason).await,
            }
        }
    }
}

fn heartbeat() -> Interval {
    interval_at((clock::now() + HEARTBEAT).into(), HEARTBEAT)
}

/// The next frames of the edge; `None` after the last one. The reason, if the stream broke.
async fn next(
    edge: &mut Incoming,
    frames: &mut Frames,
    exchange: &Exchange,
) -> Result<Option<Bytes>, Break> {
    let limit = exchange.service.config.edge_timeout();
    loop {
        let piece = match timeout(limit, edge.frame()).await {
            Err(_) => {
                let reason = format!("its stream did not continue for {} s", limit.as_secs_f64());
                return Err(Break { reason, is_stalled: true });
            }
            Ok(Some(Err(error))) => return Err(Break::new(error.to_string())),
            Ok(Some(Ok(piece))) => piece,
            Ok(None) => {
                let rest = frames.finish().map_err(|error| Break::new(error.to_string()))?;
                return Ok((!rest.is_empty()).then_some(rest));
            }
        };
        let Ok(piece) = piece.into_data() else { continue };
        return frames.push(&piece).map(Some).map_err(|error| Break::new(error.to_string()));
    }
}

/// Passes the cloud's stream on.
///
/// # Errors
/// The client went away.
pub async fn relay_cloud(mut stream: OpenedStream, out: &StreamSender) -> Result<(), Gone> {
    loop {
        let next = tokio::select! {
            next = stream.next() => next,
            () = out.closed() => return Err(Gone),
        };
        match next {
            Ok(Some(piece)) => send(out, piece).await?,
            Ok(None) => return Ok(()),
            Err(reason) => return cut(out, &reason.to_string()).await,
        }
    }
}

async fn send(out: &StreamSender, bytes: Bytes) -> Result<(), Gone> {
    if bytes.is_empty() {
        return Ok(());
    }
    out.send(bytes).await.map_err(|_| Gone)
}

/// Ends a stream that broke within the answer with an error, and without `[DONE]`. Cutting the
/// connection instead could lose the frames before it.
async fn cut(out: &StreamSender, reason: &str) -> Result<(), Gone> {
    send(out, error_event(&format!("the stream broke: {reason}"))).await
}

fn error_event(message: &str) -> Bytes {
    let error = json!({"error": {"message": message, "type": "server_error"}});
    format!("data: {error}\n\n").into()
}
