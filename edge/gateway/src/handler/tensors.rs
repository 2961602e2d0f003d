//! Batches of the tensor protocols: the edge answers, and the hard rows go to the cloud in one call.

use hyper::{StatusCode, header::CONTENT_TYPE, http::request::Parts};
use neptune_cascade::{
    Signal,
    policy::{Decision, Route, Upload},
    rows::Selection,
};
use tracing::warn;

use super::{
    Exchange,
    cloud::Unanswered,
    edge_down::Fault,
    respond::{Verdict, least},
};
use crate::{
    clock,
    config::OnCloudFailure,
    decision::Outcome,
    gateway::{EdgeAnswer, Shadow},
    protocol::{
        MergeError, Payload, Scores,
        batch::{Batch, BatchAnswer},
        json::Object,
    },
    server::Answer,
};

/// A request with a batch, and where it goes.
#[derive(Debug)]
pub struct Tensors<'a> {
    /// Path of the request at the edge.
    pub edge_path: String,
    /// Path of the request at the cloud.
    pub cloud_path: String,
    /// The model that the request names.
    pub model: &'a str,
    /// Whether a route pin keeps the request at the edge.
    pub is_pinned: bool,
    /// Whether the request names a version of the model.
    pub is_versioned: bool,
    /// The head of the request.
    pub head: &'a Parts,
}

/// What the edge answered to a batch.
pub(super) struct EdgeBatch<'a> {
    batch: &'a Batch<'a>,
    /// The request as the client sent it.
    pub(super) request: &'a Payload,
    /// The whole answer of the edge.
    pub(super) answer: &'a Payload,
    scores: Scores,
    /// The confidence of each row, or one for the request as a whole.
    pub(super) signals: Vec<Signal>,
    pub(super) is_whole: bool,
}

/// Who answers each sample.
struct Decided {
    /// The answer with the cloud's rows, if there are any.
    merged: Option<Payload>,
    outcomes: Vec<Outcome>,
    /// The cloud's answer, if it is used.
    cloud: Option<Payload>,
    /// The samples that are recorded once the cloud answered them as well.
    is_shadow: Vec<bool>,
}

/// Answers a batch of a tensor protocol.
pub async fn answer(exchange: &mut Exchange, request: &Tensors<'_>, payload: Payload) -> Answer {
    let output = exchange.service.config.hard_example.output.clone();
    let batch = match Batch::parse(exchange.form(), &payload, output.as_deref()) {
        Ok(batch) => batch,
        Err(problem) => return exchange.error(StatusCode::BAD_REQUEST, &problem.to_string()),
    };
    let edge_body = batch.as_ref().and_then(Batch::edge_body).unwrap_or_else(|| payload.clone());
    let answered = exchange.ask_edge(request.head, &request.edge_path, edge_body).await;
    let (status, mut headers, edge) = match answered {
        Ok((status, headers, body)) if exchange.is_for_cloud(status, &headers, &body) => {
            let error = exchange.answer_with(status, headers, body);
            let fault = Fault::Error(Box::new(error));
            return replace(exchange, request, batch.as_ref(), &payload, fault).await;
        }
        Ok(answered) => answered,
        Err(failure) => match exchange.edge_reason(failure) {
            Ok(reason) => {
                let fault = Fault::Down(reason);
                return replace(exchange, request, batch.as_ref(), &payload, fault).await;
            }
            Err(answer) => return *answer,
        },
    };
    let (Some(batch), true, Ok(edge_payload)) =
        (batch, status.is_success(), Payload::new(&headers, edge.clone()))
    else {
        return exchange.unread(status, headers, edge);
    };
    let Some(parsed) = batch.read(&edge_payload) else {
        return exchange.unread(status, headers, edge);
    };
    exchange.observe_version(request, &parsed);
    let bodies = (&payload, &edge_payload);
    let judged = exchange.judge(&batch, bodies, &parsed, output.as_deref());
    let Decided { merged, outcomes, cloud, is_shadow } =
        exchange.decide(request, &judged, &parsed).await;
    if outcomes.iter().any(|outcome| outcome.is_unanswered())
        && exchange.service.config.on_cloud_failure == OnCloudFailure::Error
    {
        return exchange.cloud_failed();
    }
    exchange.count(&outcomes);
    exchange.capture_batch(request, &judged, &outcomes, cloud, &is_shadow);
    let body = match merged.or_else(|| batch.stripped(&parsed)) {
        None => edge,
        Some(changed) => {
            changed.describe(&mut headers);
            if changed.is_binary() != edge_payload.is_binary() {
                headers.insert(CONTENT_TYPE, changed.content_type());
            }
            changed.body
        }
    };
    let mut answer = exchange.answer_with(status, headers, body);
    exchange.verdict(&outcomes, Some(&judged.signals)).describe(&mut answer);
    answer
}

/// The cloud's answer in place of the edge's, if it may answer and does.
async fn replace(
    exchange: &mut Exchange,
    request: &Tensors<'_>,
    batch: Option<&Batch<'_>>,
    payload: &Payload,
    fault: Fault,
) -> Answer {
    let sample = (request.head, batch.and_then(Batch::rows).unwrap_or(1), request.is_pinned);
    let call = |exchange: &Exchange| {
        let whole = exchange.form().whole_body(payload);
        exchange.cloud_request(request.head, request.cloud_path.clone(), whole)
    };
    let is_answer = |answer: &Payload| is_answer(batch, answer);
    let (answer, cloud) = exchange.answer_of_cloud(sample, fault, call, is_answer).await;
    if let (Some(batch), Some((cloud, decision))) = (batch, cloud) {
        exchange.capture_cloud_batch(request, decision, batch.rows(), payload, cloud);
    }
    answer
}

impl Exchange {
    fn observe_version(&self, request: &Tensors<'_>, answer: &BatchAnswer<'_>) {
        let is_configured = self.service.config.edge.model_version.is_some();
        if is_configured || request.is_versioned {
            return;
        }
        if let Some(version) = answer.version()
            && self.gateway.decisions().observe_version(&version)
        {
            warn!("the edge's model has version {version} now: the threshold is learnt again");
        }
    }

    fn judge<'a>(
        &self,
        batch: &'a Batch<'a>,
        (request, body): (&'a Payload, &'a Payload),
        answer: &BatchAnswer<'_>,
        output: Option<&str>,
    ) -> EdgeBatch<'a> {
        let rows = batch.rows().unwrap_or(1);
        let scores = batch.scores(answer, output, rows);
        let signals = scores.signals(&self.service.rule, clock::random);
        for confidence in signals.iter().flatten() {
            self.gateway.metrics.judged(*confidence);
        }
        let is_whole = self.service.is_whole() || batch.rows().is_none() || rows == 0;
        let signals = if is_whole {
            vec![least(&signals).unwrap_or(Err(neptune_cascade::Unjudged::Empty))]
        } else {
            signals
        };
        EdgeBatch { batch, request, answer: body, scores, signals, is_whole }
    }

    /// Decides about each sample, and asks the cloud.
    async fn decide(
        &mut self,
        request: &Tensors<'_>,
        judged: &EdgeBatch<'_>,
        edge: &BatchAnswer<'_>,
    ) -> Decided {
        let (decisions, route) = {
            let mut decisions = self.gateway.decisions();
            let deadline = self.client_deadline(request.head);
            let route = decisions.route(request.is_pinned, deadline, clock::now());
            if self.hops.is_shadow {
                // No sample: the policy does not see it.
                (vec![Decision::Pinned; judged.signals.len()], route)
            } else {
                (decisions.decide(&judged.signals, route, clock::random), route)
            }
        };
        let is_hard: Vec<bool> = decisions.iter().map(|one| *one == Decision::Hard).collect();
        let mut outcomes: Vec<Outcome> = decisions.iter().map(|one| Outcome::Edge(*one)).collect();
        let is_shadow = self.send_shadows(request, judged, &decisions, route);
        if !is_hard.contains(&true) {
            return Decided { merged: None, outcomes, cloud: None, is_shadow };
        }
        let hard = Selection::new(&is_hard);
        for row in hard.chosen() {
            outcomes[*row] = Outcome::Cloud(Decision::Hard);
        }
        let answered_by = Verdict::from_outcomes(&outcomes, None).answered_by().to_owned();
        let uploaded = self.upload(request, judged, &hard).await;
        let merged = uploaded.as_ref().ok().and_then(|cloud| {
            if judged.is_whole {
                return Some(cloud.clone());
            }
            self.merge(judged, edge, cloud, &hard, &answered_by)
        });
        let used = match &uploaded {
            Ok(cloud) if merged.is_some() => Ok(cloud),
            Ok(_) => Err(Unanswered::Failed),
            Err(reason) => Err(*reason),
        };
        let of_cloud = self.of_cloud(Decision::Hard, hard.chosen().len());
        self.record_uploads(judged, &hard, used, &of_cloud);
        for (row, outcome) in hard.chosen().iter().zip(of_cloud) {
            outcomes[*row] = if merged.is_some() { outcome } else { Outcome::Fallback };
        }
        let cloud = uploaded.ok().filter(|_| merged.is_some());
        Decided { merged, outcomes, cloud, is_shadow }
    }

    /// The cloud's answer to the hard rows.
    async fn upload(
        &mut self,
        request: &Tensors<'_>,
        judged: &EdgeBatch<'_>,
        hard: &Selection,
    ) -> Result<Payload, Unanswered> {
        let body = if judged.is_whole {
            self.form().whole_body(judged.request)
        } else {
            judged.batch.cloud_body(hard).map_err(|_| Unanswered::NotSent)?
        };
        let call = self.cloud_request(request.head, request.cloud_path.clone(), body);
        self.ask_cloud(&call, |answer| is_answer(Some(judged.batch), answer)).await
    }

    fn merge(
        &self,
        judged: &EdgeBatch<'_>,
        edge: &BatchAnswer<'_>,
        cloud: &Payload,
        hard: &Selection,
        answered_by: &str,
    ) -> Option<Payload> {
        let cloud = judged.batch.read(cloud)?;
        match judged.batch.merge(edge, &cloud, hard, answered_by) {
            Ok(merged) => Some(merged),
            Err(problem @ MergeError::Outputs { .. }) => {
                self.service.answer_as_a_whole(&problem.to_string());
                None
            }
            Err(problem) => {
                warn!("the cloud's answer is not used: {problem}");
                let cloud = self.service.cloud.as_ref().map_or("", |client| client.url(self.wire));
                let text = format!("the answers of {cloud} do not fit the edge's: {problem}");
                self.gateway.decisions().answer_invalid(text);
                None
            }
        }
    }

    /// Records what became of the hard rows: `used` is the cloud's answer, if it was used.
    fn record_uploads(
        &self,
        judged: &EdgeBatch<'_>,
        hard: &Selection,
        used: Result<&Payload, Unanswered>,
        of_cloud: &[Outcome],
    ) {
        let output = self.service.config.hard_example.output.as_deref();
        let rows = hard.chosen().len();
        let scores = used.map(|cloud| {
            let parsed = judged.batch.read(cloud);
            parsed.map_or_else(
                || Scores::missing(rows),
                |parsed| judged.batch.scores(&parsed, output, rows),
            )
        });
        let mut decisions = self.gateway.decisions();
        for (index, row) in hard.chosen().iter().enumerate() {
            let upload = match &scores {
                Err(Unanswered::NotSent) => Upload::NotSent,
                Err(Unanswered::Failed) => Upload::Failed,
                // The answer of a gateway that fell back is not the one to compare with.
                Ok(_) if judged.is_whole || of_cloud[index] == Outcome::FallbackAbove => {
                    Upload::Answered(None)
                }
                Ok(cloud) => {
                    let rule = &self.service.rule;
                    Upload::Answered(judged.scores.agree(*row, cloud, index, rule))
                }
            };
            decisions.uploaded(judged.signals[*row], upload);
        }
    }

    /// Queues some of the easy rows for comparison, if there is room. Returns those of them that are
    /// recorded after that.
    fn send_shadows(
        &self,
        request: &Tensors<'_>,
        judged: &EdgeBatch<'_>,
        decisions: &[Decision],
        route: Route,
    ) -> Vec<bool> {
        let none = || vec![false; decisions.len()];
        if route != Route::Open || judged.is_whole || !decisions.contains(&Decision::Easy) {
            return none();
        }
        if !self.gateway.shadows.has_place() {
            return none();
        }
        let chosen = self.gateway.decisions().take_shadows(decisions, route, clock::random);
        if !chosen.contains(&true) {
            return none();
        }
        let selection = Selection::new(&chosen);
        let Ok(part) = judged.batch.cloud_body(&selection) else { return none() };
        let sample = self.shadow_sample(request, judged, selection.chosen());
        let is_captured = sample.is_some();
        let call = self.cloud_request(request.head, request.cloud_path.clone(), part);
        let is_queued = self.gateway.shadows.push(Shadow {
            service: std::sync::Arc::clone(&self.service),
            request: call,
            signals: selection.chosen().iter().map(|row| judged.signals[*row]).collect(),
            edge: EdgeAnswer::Rows(judged.scores.select(selection.chosen())),
            sample,
        });
        if is_captured && is_queued { chosen } else { none() }
    }
}

fn is_answer(batch: Option<&Batch<'_>>, answer: &Payload) -> bool {
    match batch {
        Some(batch) => batch.is_answer(answer),
        None => Object::parse(answer.json()).is_ok(),
    }
}
