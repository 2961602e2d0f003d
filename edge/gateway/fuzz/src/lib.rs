//! What the fuzz targets of batches have in common: a request and the answers of both model servers
//! go through the gateway's steps, and invariants are checked.

pub mod protocol;

use bytes::Bytes;
use hyper::{HeaderMap, header::HeaderName};
use neptune_cascade::rows::Selection;
pub use neptune_gateway_config as config;

use crate::{
    config::{HardExample, Protocol},
    protocol::{
        Payload,
        batch::{Batch, Form},
    },
};

/// Separates the request, the edge's answer and the cloud's answer in an input.
const SEPARATOR: &[u8] = b"\n====\n";
/// Name of the output with the scores.
const OUTPUT: &str = "p";
/// More rows than this are not selected one by one.
const MAX_ROWS: usize = 64;

/// The three parts of an input. Missing ones are empty.
pub fn parts(input: &[u8]) -> [&[u8]; 3] {
    let (first, rest) = split(input);
    let (second, third) = split(rest);
    [first, second, third]
}

fn split(input: &[u8]) -> (&[u8], &[u8]) {
    let place = input.windows(SEPARATOR.len()).position(|window| window == SEPARATOR);
    place.map_or((input, &[]), |at| (&input[..at], &input[at + SEPARATOR.len()..]))
}

/// A body after a line with the value of `Inference-Header-Content-Length`, which may be empty.
pub fn payload_with_header(part: &[u8]) -> Option<Payload> {
    let end = part.iter().position(|byte| *byte == b'\n')?;
    let (value, body) = (&part[..end], Bytes::copy_from_slice(&part[end + 1..]));
    let mut headers = HeaderMap::new();
    if !value.is_empty() {
        let name = HeaderName::from_static("inference-header-content-length");
        headers.insert(name, value.try_into().ok()?);
    }
    Payload::new(&headers, body).ok()
}

/// A request and both answers: they are read, judged, split and merged.
///
/// # Panics
/// An invariant is violated.
pub fn check_batch(form: Form<'_>, request: &Payload, edge: &Payload, cloud: &Payload) {
    let _ = form.whole_body(request);
    for output in [None, Some(OUTPUT)] {
        let Ok(Some(batch)) = Batch::parse(form, request, output) else { continue };
        let _ = batch.edge_body();
        let rows = batch.rows().unwrap_or(1);
        // A small request must not claim memory for many rows.
        assert!(rows <= request.body.len().max(1), "{rows} rows in {} bytes", request.body.len());
        check_selections(form, &batch, rows, output);
        let (Some(edge), Some(cloud)) = (batch.read(edge), batch.read(cloud)) else { continue };
        let _ = (batch.stripped(&edge), edge.version());
        let protocol = if let Form::Rest(protocol) = form { protocol } else { Protocol::Oip };
        let rule = HardExample::default().rule(protocol).expect("the default fits");
        let scores = batch.scores(&edge, output, rows);
        let signals = scores.signals(&rule, || 0.5);
        for signal in signals.iter().flatten() {
            assert!(signal.is_finite(), "{signal}");
        }
        let is_hard: Vec<bool> = (0..rows.min(MAX_ROWS)).map(|row| row % 2 == 0).collect();
        let selection = Selection::new(&is_hard);
        let others = batch.scores(&cloud, output, selection.chosen().len());
        for row in 0..rows.min(MAX_ROWS) {
            let _ = (scores.agree(row, &others, row / 2, &rule), scores.class(row));
        }
        if let Ok(merged) = batch.merge(&edge, &cloud, &selection, "edge,cloud") {
            // The client can read what was merged.
            assert!(batch.read(&merged).is_some(), "the merged answer is none");
        }
    }
}

/// What is sent to the cloud has as many rows as were selected, also when it is read again.
fn check_selections(form: Form<'_>, batch: &Batch<'_>, rows: usize, output: Option<&str>) {
    if rows > MAX_ROWS || batch.rows().is_none() {
        return;
    }
    for selected in 1..=rows.min(3) {
        let is_hard: Vec<bool> = (0..rows).map(|row| row < selected).collect();
        let Ok(body) = batch.cloud_body(&Selection::new(&is_hard)) else { continue };
        match Batch::parse(form, &body, output) {
            Ok(Some(sent)) => {
                assert_eq!(sent.rows(), Some(selected));
                // Its data fit its shape.
                let again = sent.cloud_body(&Selection::new(&vec![true; selected]));
                assert!(again.is_ok(), "{again:?}");
            }
            Ok(None) => panic!("the request to the cloud cannot be read"),
            Err(problem) => panic!("the request to the cloud: {problem}"),
        }
    }
}
