//! Compares the answers of both model servers with labels and expected answers.

use neptune_cascade::{
    calibration::Judged,
    compare::{contains_text, same_text},
};

use super::samples::{Question, Row};
use crate::{
    clock,
    config::Rule,
    error::CalibrateError,
    gateway::Service,
    protocol::{
        Payload, Scores,
        batch::{Batch, Form},
        completion::{Reply, is_answer},
    },
};

/// Compares the answers to a batch with its labels.
pub fn judge_rows(
    service: &Service,
    request: &Payload,
    [edge, cloud]: &[Payload; 2],
    rows: &[Row],
    what: &str,
) -> Result<Vec<Judged>, CalibrateError> {
    let unusable = |side, reason: &str| CalibrateError::Answer {
        side,
        what: what.to_owned(),
        reason: reason.to_owned(),
    };
    let output = service.config.hard_example.output.as_deref();
    let batch = Batch::parse(Form::Rest(service.protocol()), request, output);
    let batch = batch.ok().flatten().ok_or_else(|| unusable("edge", "the request has no rows"))?;
    let scores = |side, payload| {
        let answer = batch.read(payload);
        let answer = answer.ok_or_else(|| unusable(side, "it is none of the protocol"))?;
        let scores = batch.scores(&answer, output, rows.len());
        let class = |row: &Row, index| is_right(&scores, index, row.label);
        let classes = rows.iter().zip(0..).map(|(row, index)| class(row, index));
        let right = classes.collect::<Result<Vec<_>, _>>();
        Ok((right.map_err(|reason| unusable(side, &reason))?, scores))
    };
    let (edge, edge_scores) = scores("edge", edge)?;
    let (cloud, _) = scores("cloud", cloud)?;
    let signals = edge_scores.signals(&service.rule, clock::random);
    let answered = signals.into_iter().zip(edge).zip(cloud);
    Ok(answered
        .map(|((signal, is_edge_right), is_cloud_right)| Judged {
            signal,
            is_edge_right,
            is_cloud_right,
        })
        .collect())
}

/// Whether the class of a row is that of the label.
fn is_right(scores: &Scores, row: usize, label: usize) -> Result<bool, String> {
    match scores.class(row) {
        None => Err(
            "it has no scores of classes for each sample; name the output in hardExample.output"
                .to_owned(),
        ),
        Some((_, classes)) if label >= classes => Err(format!(
            "it has {classes} classes, and a sample has the label {label}; labels begin at 0"
        )),
        Some((class, _)) => Ok(class == label),
    }
}

/// Compares the answers to a question with those that are right.
pub fn judge_text(
    service: &Service,
    answers: &[Payload; 2],
    question: &Question,
    what: &str,
) -> Result<Judged, CalibrateError> {
    for (payload, side) in answers.iter().zip(["edge", "cloud"]) {
        if !is_answer(&payload.body) {
            let reason = "it is no chat completion".to_owned();
            return Err(CalibrateError::Answer { side, what: what.to_owned(), reason });
        }
    }
    let labels = &service.config.hard_example.labels;
    let is_right = |reply: &Reply| {
        question.answers.iter().any(|answer| {
            if labels.is_empty() {
                contains_text(reply.text(), answer)
            } else {
                same_text(reply.text(), answer, labels) == Some(true)
            }
        })
    };
    let [edge, cloud] = answers.each_ref().map(|payload| Reply::from_body(&payload.body));
    let signal = match &service.rule {
        Rule::Tokens(signal) => edge.signal(signal),
        _ => Ok(clock::random()),
    };
    Ok(Judged { signal, is_edge_right: is_right(&edge), is_cloud_right: is_right(&cloud) })
}
