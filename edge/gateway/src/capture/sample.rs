//! A sample on its way into the dataset: which samples are taken, and their records. Pure.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use super::binary::{BinaryFile, extract};
use crate::{
    config::{Labels, Protocol, What},
    decision::Outcome,
    protocol::{
        Payload,
        batch::{Batch, Form},
        completion,
    },
    server::Wire,
};

/// The samples of one request.
#[derive(Debug, Clone)]
pub struct Sample {
    /// How the bodies are encoded.
    pub wire: Wire,
    /// The protocol of the bodies.
    pub protocol: Protocol,
    /// The output with the scores, if one is configured.
    pub output: Option<String>,
    /// Whether the scores are those of classes, of which the best is the label.
    pub has_classes: bool,
    /// Time at which the client got its answer.
    pub time: Timestamp,
    /// The edge's model, with its version if that is known.
    pub edge_model: Option<String>,
    /// The name of the cloud's model, if one is configured.
    pub cloud_model: Option<String>,
    /// The request as the client sent it.
    pub request: Payload,
    /// The edge's answer to it; `None` if the edge did not answer.
    pub edge: Option<Payload>,
    /// The cloud's answer to those of its rows that it got.
    pub cloud: Option<Payload>,
    /// The rows that the cloud answered.
    pub cloud_rows: usize,
    /// Whether the request is one sample.
    pub is_whole: bool,
    /// The samples to record.
    pub rows: Vec<SampleRow>,
}

/// One of the samples of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleRow {
    /// Row of the sample in the request and in the edge's answer.
    pub row: usize,
    /// Row of the sample in the cloud's answer; `None` if the cloud did not answer it.
    pub cloud_row: Option<usize>,
    /// The confidence of the edge, if it was judged.
    pub confidence: Option<f64>,
    /// How it was answered.
    pub decision: &'static str,
}

impl Sample {
    /// The sample with the cloud's answer to all of its rows, if there is one.
    #[must_use]
    pub fn answered(mut self, cloud: Option<Payload>) -> Self {
        if cloud.is_some() {
            self.cloud_rows = self.rows.len();
            for (index, row) in self.rows.iter_mut().enumerate() {
                row.cloud_row = Some(index);
            }
        }
        self.cloud = cloud;
        self
    }

    /// The bytes that the sample occupies in memory.
    pub fn bytes(&self) -> usize {
        let bodies = [Some(&self.request), self.edge.as_ref(), self.cloud.as_ref()];
        bodies.into_iter().flatten().map(|payload| payload.body.len()).sum()
    }
}

/// Whether a sample is one of those to record. `pins` is whether samples are recorded that a route
/// pin keeps at the edge.
pub const fn takes(what: What, pins: bool, is_pinned: bool, outcome: Outcome) -> bool {
    let is_one = match what {
        What::Hard => matches!(outcome, Outcome::Cloud(decision) if decision.is_hard()),
        What::Uploaded => matches!(outcome, Outcome::Cloud(_)),
        What::All => true,
    };
    is_one && (pins || !is_pinned)
}

/// A record, as one line of JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Record<'a> {
    id: &'a str,
    time: String,
    request: &'a RawValue,
    edge: Option<&'a RawValue>,
    cloud: Option<&'a RawValue>,
    confidence: Option<f64>,
    decision: &'static str,
    edge_model: Option<&'a str>,
    cloud_model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<Label>,
}

/// The answer of the cloud's model, as a label.
#[derive(Serialize)]
#[serde(untagged)]
enum Label {
    Class(usize),
    Text(String),
}

/// The bodies of one sample as JSON.
struct Bodies {
    request: Vec<u8>,
    edge: Option<Vec<u8>>,
    cloud: Option<Vec<u8>>,
    label: Option<Label>,
}

/// A record, and the binary values of its request.
#[derive(Debug, PartialEq, Eq)]
pub struct CaptureRecord {
    /// A line that ends with a line feed.
    pub line: Vec<u8>,
    /// The files to which it refers.
    pub files: Vec<BinaryFile>,
}

/// The records of a sample's rows. `None` for a row that has no form in JSON. `id` returns a new
/// identity.
pub fn records(
    sample: &Sample,
    labels: Labels,
    mut id: impl FnMut() -> String,
) -> Vec<Option<CaptureRecord>> {
    let mut written = Vec::with_capacity(sample.rows.len());
    let mut push = |row: &SampleRow, bodies: Option<Bodies>| {
        written.push(bodies.and_then(|bodies| line(sample, labels, row, bodies, &id())));
    };
    if sample.protocol == Protocol::Openai {
        sample.rows.iter().for_each(|row| push(row, Some(completion_bodies(sample, row))));
        return written;
    }
    let form = match sample.wire {
        Wire::Rest => Form::Rest(sample.protocol),
        Wire::Grpc => Form::Grpc { cloud_model: None },
    };
    let batch = Batch::parse(form, &sample.request, sample.output.as_deref());
    let batch = batch.ok().flatten();
    for row in &sample.rows {
        push(row, batch.as_ref().and_then(|batch| batch_bodies(sample, batch, row)));
    }
    written
}

fn completion_bodies(sample: &Sample, row: &SampleRow) -> Bodies {
    let body = |payload: &Option<Payload>| payload.as_ref().map(|payload| payload.body.to_vec());
    let cloud = body(&sample.cloud).filter(|_| row.cloud_row.is_some());
    let label = cloud.as_deref().and_then(completion::text).map(Label::Text);
    Bodies { request: sample.request.body.to_vec(), edge: body(&sample.edge), cloud, label }
}

fn batch_bodies(sample: &Sample, batch: &Batch<'_>, row: &SampleRow) -> Option<Bodies> {
    let rows = batch.rows().unwrap_or(1);
    let (own, in_cloud) =
        if sample.is_whole { (None, None) } else { (Some(row.row), row.cloud_row) };
    let mut request = Vec::new();
    batch.write_row(own, &mut request)?;
    let edge = match &sample.edge {
        None => None,
        Some(payload) => {
            let mut text = Vec::new();
            batch.write_answer(&batch.read(payload)?, own, rows, &mut text)?;
            Some(text)
        }
    };
    let (mut cloud, mut label) = (None, None);
    if let (Some(payload), Some(cloud_row)) = (&sample.cloud, row.cloud_row) {
        let (answer, mut text) = (batch.read(payload)?, Vec::new());
        let answered = if sample.is_whole { rows } else { sample.cloud_rows };
        batch.write_answer(&answer, in_cloud, answered, &mut text)?;
        cloud = Some(text);
        if sample.has_classes && (!sample.is_whole || rows == 1) {
            let scores = batch.scores(&answer, sample.output.as_deref(), answered);
            label = scores.class(cloud_row).map(|(class, _)| Label::Class(class));
        }
    }
    Some(Bodies { request, edge, cloud, label })
}

fn line(
    sample: &Sample,
    labels: Labels,
    row: &SampleRow,
    bodies: Bodies,
    id: &str,
) -> Option<CaptureRecord> {
    let (request, files) = extract(bodies.request);
    let cloud_model = sample.cloud_model.as_deref().filter(|_| bodies.cloud.is_some());
    let record = Record {
        id,
        time: format!("{:.3}", sample.time),
        request: serde_json::from_slice(&request).ok()?,
        edge: json(bodies.edge.as_deref()).ok()?,
        cloud: json(bodies.cloud.as_deref()).ok()?,
        confidence: row.confidence,
        decision: row.decision,
        edge_model: sample.edge_model.as_deref(),
        cloud_model,
        label: bodies.label.filter(|_| labels == Labels::Cloud),
    };
    let mut line = serde_json::to_vec(&record).ok()?;
    // Within JSON they are white space between values: in a text they are escaped.
    line.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    line.push(b'\n');
    Some(CaptureRecord { line, files })
}

/// A body as JSON, if there is one.
fn json(text: Option<&[u8]>) -> Result<Option<&RawValue>, serde_json::Error> {
    text.map(serde_json::from_slice).transpose()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_cascade::policy::Decision;
    use serde_json::{Value, json};

    use super::*;

    fn sample(protocol: Protocol, request: &Value, edge: &Value, cloud: &Value) -> Sample {
        let payload = |value: &Value| Payload::from(value.to_string().into_bytes());
        Sample {
            wire: Wire::Rest,
            protocol,
            output: None,
            has_classes: true,
            time: "2026-01-02T03:04:05.678Z".parse().unwrap(),
            edge_model: Some("small:3".to_owned()),
            cloud_model: Some("big".to_owned()),
            request: payload(request),
            edge: Some(payload(edge)).filter(|_| !edge.is_null()),
            cloud: Some(payload(cloud)).filter(|_| !cloud.is_null()),
            cloud_rows: 1,
            is_whole: false,
            rows: vec![SampleRow {
                row: 1,
                cloud_row: Some(0),
                confidence: Some(0.25),
                decision: "hard",
            }],
        }
    }

    fn read(sample: &Sample, labels: Labels) -> Vec<Value> {
        let mut next = 0;
        let written = records(sample, labels, || {
            next += 1;
            next.to_string()
        });
        let parse = |record: Option<CaptureRecord>| {
            let line = record.unwrap().line;
            assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1));
            serde_json::from_slice(&line).unwrap()
        };
        written.into_iter().map(parse).collect()
    }

    fn tensor(name: &str, rows: &[[f64; 2]]) -> Value {
        json!([{"name": name, "datatype": "FP32", "shape": [rows.len(), 2], "data": rows}])
    }

    #[test]
    fn hard_row_of_a_batch_is_a_record_with_both_answers() {
        let request = json!({"id": "x", "inputs": tensor("x", &[[1.0, 2.0], [3.0, 4.0]])});
        let edge = json!({"outputs": tensor("p", &[[0.9, 0.1], [0.6, 0.4]])});
        let cloud = json!({"outputs": tensor("p", &[[0.1, 0.9]])});
        let batch = sample(Protocol::Oip, &request, &edge, &cloud);
        let record = json!({
            "id": "1", "time": "2026-01-02T03:04:05.678Z",
            "request": {"inputs": tensor("x", &[[3.0, 4.0]])},
            "edge": {"outputs": tensor("p", &[[0.6, 0.4]])},
            "cloud": {"outputs": tensor("p", &[[0.1, 0.9]])},
            "confidence": 0.25, "decision": "hard",
            "edgeModel": "small:3", "cloudModel": "big", "label": 1,
        });
        assert_eq!(read(&batch, Labels::Cloud), [record]);
        assert_eq!(read(&batch, Labels::None)[0]["label"], Value::Null);
        let boxes = Sample { has_classes: false, ..batch };
        assert_eq!(read(&boxes, Labels::Cloud)[0]["label"], Value::Null);
    }

    #[test]
    fn row_form_and_completion_are_recorded_as_they_are() {
        let request = json!({"signature_name": "s", "instances": [[1], [2]]});
        let edge = json!({"predictions": [[0.9, 0.1], [0.6, 0.4]]});
        let cloud = json!({"predictions": [[0.1, 0.9]]});
        let [record] =
            &read(&sample(Protocol::Tfserving, &request, &edge, &cloud), Labels::Cloud)[..]
        else {
            unreachable!()
        };
        assert_eq!(record["request"], json!({"signature_name": "s", "instances": [[2]]}));
        assert_eq!(record["edge"], json!({"predictions": [[0.6, 0.4]]}));
        assert_eq!((&record["cloud"], &record["label"]), (&cloud, &json!(1)));

        let request = json!({"messages": [{"role": "user", "content": "a\nb"}]});
        let answer = |text| json!({"choices": [{"message": {"content": text}}]});
        let chat = sample(Protocol::Openai, &request, &answer("one"), &answer("two"));
        // As clients send it that format their JSON.
        let request = serde_json::to_string_pretty(&request).unwrap();
        let chat = Sample { request: request.into_bytes().into(), ..chat };
        let record = &read(&chat, Labels::Cloud)[0];
        assert_eq!((&record["label"], &record["edge"]), (&json!("two"), &answer("one")));
        assert_eq!(record["request"]["messages"][0]["content"], "a\nb");
    }

    #[test]
    fn sample_without_an_answer_has_null_and_no_label() {
        let request = json!({"inputs": tensor("x", &[[1.0, 2.0], [3.0, 4.0]])});
        let answer = json!({"outputs": tensor("p", &[[0.9, 0.1], [0.6, 0.4]])});
        let mut easy = sample(Protocol::Oip, &request, &answer, &Value::Null);
        easy.rows[0] = SampleRow { cloud_row: None, decision: "easy", ..easy.rows[0] };
        let record = &read(&easy, Labels::Cloud)[0];
        assert_eq!((&record["cloud"], &record["cloudModel"]), (&Value::Null, &Value::Null));
        assert!(record.get("label").is_none() && record["edgeModel"] == "small:3");
        let mut down = sample(Protocol::Oip, &request, &Value::Null, &answer);
        (down.cloud_rows, down.rows[0].cloud_row) = (2, Some(1));
        let record = &read(&down, Labels::Cloud)[0];
        assert_eq!((&record["edge"], &record["label"]), (&Value::Null, &json!(0)));
    }

    #[test]
    fn request_that_is_one_sample_is_recorded_whole() {
        let request = json!({"inputs": tensor("x", &[[1.0, 2.0], [3.0, 4.0]])});
        let answer = json!({"outputs": tensor("p", &[[0.9, 0.1], [0.6, 0.4]])});
        let mut whole = sample(Protocol::Oip, &request, &answer, &answer);
        (whole.is_whole, whole.rows[0].row) = (true, 0);
        let record = &read(&whole, Labels::Cloud)[0];
        assert_eq!(record["request"]["inputs"], request["inputs"]);
        assert_eq!(record["cloud"], answer);
        assert!(record.get("label").is_none(), "two rows have two labels");
    }

    #[test]
    fn body_that_is_not_json_is_no_record() {
        let mut chat = sample(Protocol::Openai, &json!({}), &json!({}), &json!({}));
        chat.request = b"{".to_vec().into();
        assert_eq!(records(&chat, Labels::Cloud, String::new), [None]);
    }

    #[test]
    fn each_kind_takes_its_samples() {
        let outcomes = [
            Outcome::Cloud(Decision::Hard),
            Outcome::Cloud(Decision::EdgeDown),
            Outcome::Fallback,
            Outcome::Edge(Decision::OverBudget),
            Outcome::Edge(Decision::Easy),
        ];
        let taken = |what| outcomes.map(|outcome| takes(what, false, false, outcome));
        assert_eq!(taken(What::Hard), [true, false, false, false, false]);
        assert_eq!(taken(What::Uploaded), [true, true, false, false, false]);
        assert_eq!(taken(What::All), [true; 5]);
        let pinned = Outcome::Edge(Decision::Pinned);
        assert!(takes(What::All, true, true, pinned) && !takes(What::All, false, true, pinned));
    }
}
