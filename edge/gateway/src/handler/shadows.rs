//! Sends shadows to the cloud, and compares the answers.

use std::sync::Arc;

use neptune_cascade::compare::same_text;

use super::{cloud::ask, form};
use crate::{
    clock,
    gateway::{EdgeAnswer, Gateway, Shadow},
    protocol::{Payload, batch::Batch, completion},
    upstream::{Deadline, PURPOSE, SHADOW},
};

/// Compares shadows, one at a time.
pub async fn compare(gateway: Arc<Gateway>) {
    loop {
        let (mut shadow, _held) = gateway.shadows.next().await;
        // Waiting in the queue takes nothing from the time of the answer.
        shadow.request.headers.insert(PURPOSE, SHADOW);
        let total = clock::now() + shadow.service.config.cloud_total();
        shadow.request.deadline = Deadline::earliest(total, None);
        let (agreed, answer) = agreements(&gateway, &shadow).await;
        if let (Some(sample), Some(capture)) = (shadow.sample.take(), gateway.capture()) {
            capture.push(sample.answered(answer));
        }
        for (signal, agreed) in shadow.signals.iter().zip(agreed) {
            if let Some(agreed) = agreed {
                gateway.shadowed(*signal, agreed);
            }
        }
    }
}

/// Asks the cloud. Returns whether the answers agree, per sample, and the answer of the cloud.
async fn agreements(
    gateway: &Arc<Gateway>,
    shadow: &Shadow,
) -> (Vec<Option<bool>>, Option<Payload>) {
    let service = &shadow.service;
    match &shadow.edge {
        EdgeAnswer::Rows(edge) => {
            let output = service.config.hard_example.output.as_deref();
            let body = shadow.request.body.clone();
            let Ok(Some(batch)) = Batch::parse(form(service, shadow.request.wire), &body, output)
            else {
                return (Vec::new(), None);
            };
            let is_answer = |payload: &Payload| batch.is_answer(payload);
            let Ok(answer) = ask(gateway, service, &shadow.request, is_answer).await else {
                return (Vec::new(), None);
            };
            let answer = answer.payload;
            let Some(read) = batch.read(&answer) else { return (Vec::new(), None) };
            let cloud = batch.scores(&read, output, edge.count());
            let agree = |row| edge.agree(row, &cloud, row, &service.rule);
            ((0..edge.count()).map(agree).collect(), Some(answer))
        }
        EdgeAnswer::Text(edge) => {
            let is_answer = |payload: &Payload| completion::is_answer(&payload.body);
            let answer = ask(gateway, service, &shadow.request, is_answer).await;
            let answer = answer.map(|answer| answer.payload);
            let text = answer.as_ref().ok().and_then(|answer| completion::text(&answer.body));
            let labels = &service.config.hard_example.labels;
            (vec![text.and_then(|cloud| same_text(edge, &cloud, labels))], answer.ok())
        }
    }
}
