//! Completions that are not streamed: the edge answers, and a hard one is answered by the cloud.

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};
use neptune_cascade::{compare::same_text, policy::Decision};

use super::{Exchange, completion::Completion, edge_down::Fault};
use crate::{
    config::OnCloudFailure,
    decision::Outcome,
    metrics::Side,
    protocol::{
        Payload,
        completion::{Reply, is_answer, text, without_logprobs},
    },
    server::Answer,
};

/// Answers a completion that is not streamed.
pub async fn answer(exchange: &mut Exchange, completion: &Completion<'_>) -> Answer {
    let edge_body = exchange.edge_body(completion);
    let mut answered =
        exchange.ask_edge(completion.head, &completion.path, edge_body.body.clone().into()).await;
    let mut is_extended = edge_body.is_extended;
    // The server may refuse log-probabilities with other options of this request.
    let is_repeated = is_extended
        && matches!(&answered, Ok((status @ StatusCode::BAD_REQUEST, headers, body))
            if !exchange.is_for_cloud(*status, headers, body));
    if is_repeated {
        is_extended = false;
        let plain = completion.plain_body();
        answered = exchange.ask_edge(completion.head, &completion.path, plain.into()).await;
    }
    match answered {
        Ok((status, headers, body)) if status.is_success() => {
            judge(exchange, completion, is_extended, (status, headers, body)).await
        }
        Ok((status, headers, body)) => {
            let is_for_cloud = exchange.is_for_cloud(status, &headers, &body);
            let answer = exchange.answer_with(status, headers, body);
            if !is_for_cloud {
                return answer;
            }
            replace(exchange, completion, Fault::Error(Box::new(answer))).await
        }
        Err(failure) => match exchange.edge_reason(failure) {
            Ok(reason) => replace(exchange, completion, Fault::Down(reason)).await,
            Err(answer) => *answer,
        },
    }
}

/// The cloud's answer in place of the edge's, if it may answer and does.
async fn replace(exchange: &mut Exchange, completion: &Completion<'_>, fault: Fault) -> Answer {
    let sample = (completion.head, 1, completion.is_pinned);
    let call = |exchange: &Exchange| exchange.completion_at_cloud(completion, false);
    let is_answer = |payload: &Payload| is_answer(&payload.body);
    let (answer, cloud) = exchange.answer_of_cloud(sample, fault, call, is_answer).await;
    if let Some((cloud, decision)) = cloud {
        let outcome = Outcome::Cloud(decision);
        exchange.capture_completion(completion, None, Some(&cloud.body), outcome, None);
    }
    answer
}

async fn judge(
    exchange: &mut Exchange,
    completion: &Completion<'_>,
    is_extended: bool,
    (status, headers, body): (StatusCode, HeaderMap, Bytes),
) -> Answer {
    let reply = Reply::from_body(&body);
    exchange.count_tokens(Side::Edge, &reply);
    let signal = exchange.signal(&reply);
    let deadline = exchange.client_deadline(completion.head);
    let (decision, route) = exchange.decide_one(signal, completion.is_pinned, deadline);
    let mut outcome = Outcome::Edge(decision);
    let (mut cloud_answer, mut is_shadow) = (None, false);
    if decision == Decision::Hard {
        let call = exchange.completion_at_cloud(completion, false);
        let answer = exchange.ask_cloud(&call, |payload| is_answer(&payload.body)).await;
        let answer = answer.map(|payload| payload.body);
        let agreed = answer.as_deref().map(|cloud| {
            let labels = &exchange.service.config.hard_example.labels;
            text(cloud).and_then(|cloud| same_text(reply.text(), &cloud, labels))
        });
        exchange.record_upload(signal, agreed.map_err(|reason| *reason));
        outcome =
            if answer.is_ok() { exchange.of_cloud(decision, 1)[0] } else { Outcome::Fallback };
        cloud_answer = answer.ok();
    } else if decision == Decision::Easy {
        let call = || exchange.completion_at_cloud(completion, false);
        let sample = || exchange.shadow_completion(completion, &body, signal);
        is_shadow = exchange.shadow_text(call, signal, route, reply.text(), sample);
    }
    if outcome.is_unanswered() && exchange.service.config.on_cloud_failure == OnCloudFailure::Error
    {
        return exchange.cloud_failed();
    }
    exchange.count(&[outcome]);
    if !is_shadow {
        // The answer of a gateway that fell back is no label.
        let label = cloud_answer.as_ref().filter(|_| outcome != Outcome::FallbackAbove);
        exchange.capture_completion(completion, Some(&body), label, outcome, signal.ok());
    }
    let body = if let Some(cloud) = cloud_answer {
        exchange.count_tokens(Side::Cloud, &Reply::from_body(&cloud));
        cloud
    } else {
        let stripped = if is_extended { without_logprobs(&body) } else { None };
        stripped.map_or(body, Bytes::from)
    };
    let mut answer = exchange.answer_with(status, headers, body);
    exchange.verdict(&[outcome], Some(&[signal])).describe(&mut answer);
    answer
}
