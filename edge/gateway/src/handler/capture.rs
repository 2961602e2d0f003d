//! Hands answered samples to the capture.

use std::sync::Arc;

use bytes::Bytes;
use neptune_cascade::{Signal, policy::Decision};

use super::{
    Exchange,
    completion::Completion,
    tensors::{EdgeBatch, Tensors},
};
use crate::{
    capture::{Capture, Sample, SampleRow},
    clock,
    config::{Protocol, Rule},
    decision::Outcome,
    protocol::{Payload, path::unpinned},
};

impl Exchange {
    /// The capture. The comparisons of another gateway are not captured.
    fn capture(&self) -> Option<Arc<Capture>> {
        self.gateway.capture().filter(|_| !self.hops.is_shadow)
    }

    /// Captures the rows of a batch that the edge answered, but for those in `is_shadow`.
    pub(super) fn capture_batch(
        &self,
        request: &Tensors<'_>,
        judged: &EdgeBatch<'_>,
        outcomes: &[Outcome],
        cloud: Option<Payload>,
        is_shadow: &[bool],
    ) {
        let Some(capture) = self.capture() else { return };
        let mut cloud_rows = 0;
        let mut rows = Vec::new();
        for (row, outcome) in outcomes.iter().enumerate() {
            // The answer of a gateway that fell back is no label.
            let cloud_row = matches!(outcome, Outcome::Cloud(_)).then_some(cloud_rows);
            cloud_rows += usize::from(outcome.is_from_cloud());
            let is_later = is_shadow.get(row) == Some(&true);
            if !is_later && capture.takes(*outcome, request.is_pinned, clock::random()) {
                let confidence = judged.signals.get(row).and_then(|signal| signal.ok());
                rows.push(SampleRow { row, cloud_row, confidence, decision: outcome.as_str() });
            }
        }
        if rows.is_empty() {
            return;
        }
        let sample = self.sample(Some(request.model), judged.request.clone(), rows);
        capture.push(Sample {
            edge: Some(judged.answer.clone()),
            cloud,
            cloud_rows,
            is_whole: judged.is_whole,
            ..sample
        });
    }

    /// Captures a batch that the cloud answered in the edge's place.
    pub(super) fn capture_cloud_batch(
        &self,
        request: &Tensors<'_>,
        decision: Decision,
        rows: Option<usize>,
        payload: &Payload,
        cloud: Payload,
    ) {
        let Some(capture) = self.capture() else { return };
        let outcome = Outcome::Cloud(decision);
        let cloud_rows = rows.unwrap_or(1);
        let is_taken = |_: &usize| capture.takes(outcome, request.is_pinned, clock::random());
        let row = |row| SampleRow {
            row,
            cloud_row: Some(row),
            confidence: None,
            decision: outcome.as_str(),
        };
        let taken: Vec<_> = (0..cloud_rows).filter(is_taken).map(row).collect();
        if taken.is_empty() {
            return;
        }
        let sample = self.sample(Some(request.model), payload.clone(), taken);
        let is_whole = rows.is_none();
        capture.push(Sample { cloud: Some(cloud), cloud_rows, is_whole, ..sample });
    }

    /// The easy rows that are captured when the cloud answered them as well.
    pub(super) fn shadow_sample(
        &self,
        request: &Tensors<'_>,
        judged: &EdgeBatch<'_>,
        chosen: &[usize],
    ) -> Option<Sample> {
        let capture = self.capture().filter(|capture| capture.takes_easy())?;
        let easy = Outcome::Edge(Decision::Easy);
        // Of all rows, because the cloud answers them together.
        if !capture.takes(easy, request.is_pinned, clock::random()) {
            return None;
        }
        let row = |row: &usize| SampleRow {
            row: *row,
            cloud_row: None,
            confidence: judged.signals.get(*row).and_then(|signal| signal.ok()),
            decision: easy.as_str(),
        };
        let rows = chosen.iter().map(row).collect();
        let sample = self.sample(Some(request.model), judged.request.clone(), rows);
        Some(Sample { edge: Some(judged.answer.clone()), ..sample })
    }

    /// Captures a completion with the answers that it got.
    pub(super) fn capture_completion(
        &self,
        completion: &Completion<'_>,
        edge: Option<&Bytes>,
        cloud: Option<&Bytes>,
        outcome: Outcome,
        confidence: Option<f64>,
    ) {
        let Some(capture) = self.capture() else { return };
        if !capture.takes(outcome, completion.is_pinned, clock::random()) {
            return;
        }
        let cloud_row = cloud.map(|_| 0);
        let row = SampleRow { row: 0, cloud_row, confidence, decision: outcome.as_str() };
        let sample = self.completion_sample(completion, row);
        let payload = |body: Option<&Bytes>| body.cloned().map(Payload::from);
        capture.push(Sample { edge: payload(edge), cloud: payload(cloud), ..sample });
    }

    /// Returns a completion to capture with the answer of its shadow; see
    /// [`Exchange::shadow_sample`].
    pub(super) fn shadow_completion(
        &self,
        completion: &Completion<'_>,
        edge: &Bytes,
        signal: Signal,
    ) -> Option<Sample> {
        let easy = Outcome::Edge(Decision::Easy);
        let is_taken = |capture: &Capture| {
            capture.takes_easy() && capture.takes(easy, completion.is_pinned, clock::random())
        };
        self.capture().filter(|capture| is_taken(capture))?;
        let (confidence, decision) = (signal.ok(), easy.as_str());
        let row = SampleRow { row: 0, cloud_row: None, confidence, decision };
        let sample = self.completion_sample(completion, row);
        Some(Sample { edge: Some(edge.clone().into()), ..sample })
    }

    fn completion_sample(&self, completion: &Completion<'_>, row: SampleRow) -> Sample {
        let model = completion.request.model.as_deref();
        let model = model.map(|model| unpinned(model).unwrap_or(model));
        let sample = self.sample(model, completion.body.clone().into(), vec![row]);
        Sample { cloud_rows: 1, is_whole: true, ..sample }
    }

    /// A sample without answers.
    fn sample(&self, model: Option<&str>, request: Payload, rows: Vec<SampleRow>) -> Sample {
        let config = &self.service.config;
        let name = config.edge.model.as_deref().or(model);
        let decisions = self.gateway.decisions();
        let edge_model = name.map(|name| match decisions.saved().0 {
            Some(version) => format!("{name}:{version}"),
            None => name.to_owned(),
        });
        let cloud = config.cloud.as_ref();
        let cloud_model = cloud.and_then(|cloud| cloud.model_name.as_deref()).or(model);
        Sample {
            wire: self.wire,
            protocol: self.service.protocol(),
            output: config.hard_example.output.clone(),
            has_classes: self.service.protocol() != Protocol::Openai
                && !matches!(self.service.rule, Rule::Boxes(_)),
            time: clock::timestamp(),
            edge_model,
            cloud_model: cloud_model.map(str::to_owned),
            request,
            edge: None,
            cloud: None,
            cloud_rows: 0,
            is_whole: false,
            rows,
        }
    }
}
