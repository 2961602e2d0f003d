//! A batch of either tensor protocol.

use neptune_cascade::rows::{RowsError, Selection};

use super::{
    error::{Malformed, MergeError},
    grpc,
    json::Object,
    oip,
    payload::Payload,
    row_text,
    scores::Scores,
    tfserving,
};
use crate::config::Protocol;

/// The members of the Open Inference Protocol.
const INPUTS: &str = "inputs";
const OUTPUTS: &str = "outputs";

/// How a batch is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form<'a> {
    /// REST with the JSON of this protocol.
    Rest(Protocol),
    /// The Open Inference Protocol over gRPC.
    Grpc {
        /// The name of the model in the cloud, if it differs. With REST it is in the path.
        cloud_model: Option<&'a str>,
    },
}

impl Form<'_> {
    /// The body for the cloud with all rows. A message that cannot be read stays as it is.
    pub fn whole_body(self, payload: &Payload) -> Payload {
        let Self::Grpc { cloud_model } = self else { return payload.clone() };
        let renamed = grpc::Target::from_message(&payload.body).and_then(|target| {
            grpc::renamed(payload, cloud_model.unwrap_or(&target.model_name), false)
        });
        renamed.unwrap_or_else(|_| payload.clone())
    }
}

/// A request with a batch, in the form of its protocol.
#[derive(Debug)]
pub enum Batch<'a> {
    /// A request of the Open Inference Protocol over REST.
    Oip(oip::Request<'a>),
    /// A request of the Open Inference Protocol over gRPC.
    Grpc(grpc::Request),
    /// A request of TensorFlow Serving over REST.
    Tfserving(tfserving::Request<'a>),
}

/// An answer to a batch, in the form of its protocol.
#[derive(Debug)]
pub enum BatchAnswer<'a> {
    /// An answer of the Open Inference Protocol over REST.
    Oip(oip::Answer<'a>),
    /// An answer of the Open Inference Protocol over gRPC.
    Grpc(grpc::Answer),
    /// An answer of TensorFlow Serving over REST.
    Tfserving(Object<'a>),
}

impl<'a> Batch<'a> {
    /// Reads a request; `None` if it cannot be judged.
    ///
    /// # Errors
    /// What is wrong with its tensors.
    pub fn parse(
        form: Form<'_>,
        payload: &'a Payload,
        output: Option<&str>,
    ) -> Result<Option<Self>, Malformed> {
        Ok(match form {
            Form::Rest(Protocol::Oip) => oip::Request::parse(payload, output)?.map(Self::Oip),
            Form::Rest(Protocol::Tfserving) => {
                tfserving::Request::parse(&payload.body).map(Self::Tfserving)
            }
            Form::Rest(Protocol::Openai) => None,
            Form::Grpc { cloud_model } => {
                grpc::Request::parse(payload, output, cloud_model)?.map(Self::Grpc)
            }
        })
    }

    /// The number of rows; `None` if it cannot be split.
    pub fn rows(&self) -> Option<usize> {
        match self {
            Self::Oip(request) => Some(request.rows()),
            Self::Grpc(request) => Some(request.rows()),
            Self::Tfserving(request) => request.rows(),
        }
    }

    /// Appends one row as JSON, or all of them. `None` if a value has no form in JSON; then what was
    /// appended is not complete.
    pub fn write_row(&self, row: Option<usize>, into: &mut Vec<u8>) -> Option<()> {
        match self {
            Self::Oip(request) => row_text::write(&request.tensors(row), INPUTS, into),
            Self::Grpc(request) => row_text::write(&request.tensors(row), INPUTS, into),
            Self::Tfserving(request) => {
                let text = match (request.rows(), row) {
                    (Some(rows), Some(row)) => {
                        let is_chosen: Vec<bool> = (0..rows).map(|index| index == row).collect();
                        request.cloud_body(&Selection::new(&is_chosen)).ok()?
                    }
                    _ => request.whole(),
                };
                into.extend_from_slice(&text);
                Some(())
            }
        }
    }

    /// Appends one row of an answer with this number of rows as JSON, or all of it. As
    /// [`Batch::write_row`].
    pub fn write_answer(
        &self,
        answer: &BatchAnswer<'_>,
        row: Option<usize>,
        rows: usize,
        into: &mut Vec<u8>,
    ) -> Option<()> {
        match (self, answer) {
            (Self::Tfserving(request), BatchAnswer::Tfserving(answer)) => {
                into.extend_from_slice(&request.row_of(answer, row, rows));
                Some(())
            }
            (_, BatchAnswer::Oip(answer)) => {
                row_text::write(&answer.tensors(row, rows), OUTPUTS, into)
            }
            (_, BatchAnswer::Grpc(answer)) => {
                row_text::write(&answer.tensors(row, rows), OUTPUTS, into)
            }
            _ => None,
        }
    }

    /// The body for the edge, if it differs from the client's.
    pub fn edge_body(&self) -> Option<Payload> {
        match self {
            Self::Oip(request) => request.edge_body(),
            Self::Grpc(request) => request.edge_body(),
            Self::Tfserving(_) => None,
        }
    }

    /// The body for the cloud, with the selected rows.
    ///
    /// # Errors
    /// The data do not fit their shape.
    pub fn cloud_body(&self, selection: &Selection) -> Result<Payload, RowsError> {
        match self {
            Self::Oip(request) => request.cloud_body(selection),
            Self::Grpc(request) => request.cloud_body(selection),
            Self::Tfserving(request) => request.cloud_body(selection).map(Payload::from),
        }
    }

    /// Reads an answer; `None` if it is none of the protocol.
    pub fn read<'b>(&self, payload: &'b Payload) -> Option<BatchAnswer<'b>> {
        match self {
            Self::Oip(_) => oip::Answer::parse(payload).map(BatchAnswer::Oip),
            Self::Grpc(_) => grpc::Answer::parse(payload).map(BatchAnswer::Grpc),
            Self::Tfserving(_) => Object::parse(&payload.body).ok().map(BatchAnswer::Tfserving),
        }
    }

    /// Whether the body is an answer with outputs.
    pub fn is_answer(&self, payload: &Payload) -> bool {
        self.read(payload).is_some_and(|answer| answer.has_outputs())
    }

    /// The scores in an answer that has as many rows.
    pub fn scores(&self, answer: &BatchAnswer<'_>, output: Option<&str>, rows: usize) -> Scores {
        match (self, answer) {
            (Self::Tfserving(request), BatchAnswer::Tfserving(answer)) => {
                request.scores(answer, output, rows)
            }
            (_, BatchAnswer::Oip(answer)) => answer.scores(output, rows),
            (_, BatchAnswer::Grpc(answer)) => answer.scores(output, rows),
            _ => Scores::missing(rows),
        }
    }

    /// The answer as the client asked for it; `None` if it is that already.
    pub fn stripped(&self, answer: &BatchAnswer<'_>) -> Option<Payload> {
        match (self, answer) {
            (Self::Oip(request), BatchAnswer::Oip(answer)) => answer.stripped(request.added()?),
            (Self::Grpc(request), BatchAnswer::Grpc(answer)) => {
                Some(answer.stripped(request.added()?))
            }
            _ => None,
        }
    }

    /// The edge's answer with the selected rows of the cloud's.
    ///
    /// # Errors
    /// They cannot be mixed.
    pub fn merge(
        &self,
        edge: &BatchAnswer<'_>,
        cloud: &BatchAnswer<'_>,
        selection: &Selection,
        answered_by: &str,
    ) -> Result<Payload, MergeError> {
        match (self, edge, cloud) {
            (Self::Oip(request), BatchAnswer::Oip(edge), BatchAnswer::Oip(cloud)) => {
                edge.merge(cloud, selection, answered_by, request.added())
            }
            (Self::Grpc(request), BatchAnswer::Grpc(edge), BatchAnswer::Grpc(cloud)) => {
                edge.merge(cloud, selection, answered_by, request.added())
            }
            (
                Self::Tfserving(request),
                BatchAnswer::Tfserving(edge),
                BatchAnswer::Tfserving(cloud),
            ) => request.merge(edge, cloud, selection).map(Payload::from),
            _ => Err(MergeError::Unreadable("cloud")),
        }
    }
}

impl BatchAnswer<'_> {
    /// The version of the model, if the protocol has one.
    pub fn version(&self) -> Option<String> {
        match self {
            Self::Oip(answer) => answer.version(),
            Self::Grpc(answer) => answer.version(),
            Self::Tfserving(_) => None,
        }
    }

    fn has_outputs(&self) -> bool {
        match self {
            Self::Oip(answer) => answer.has_outputs(),
            Self::Grpc(answer) => answer.has_outputs(),
            Self::Tfserving(answer) => {
                answer.raw("predictions").is_some() || answer.raw("outputs").is_some()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        config::HardExample,
        protocol::completion::{Kind, Probed, Reply, Request, without_logprobs},
    };

    /// JSON of names and values that the protocols use, in any order and nesting.
    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-2_i64..5).prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            prop_oneof![Just("FP32"), Just("x"), Just("a b"), Just("length"), Just("é")]
                .prop_map(Value::from),
        ];
        let name = prop::sample::select(vec![
            "inputs",
            "outputs",
            "name",
            "shape",
            "datatype",
            "data",
            "instances",
            "predictions",
            "parameters",
            "choices",
            "message",
            "delta",
            "content",
            "logprobs",
            "token",
            "logprob",
            "top_logprobs",
            "tokens",
            "token_logprobs",
            "text",
            "finish_reason",
            "usage",
            "model",
        ]);
        leaf.prop_recursive(5, 60, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(name.clone(), inner, 0..6).prop_map(|map| json!(map)),
            ]
        })
    }

    /// A batch as clients send it, with a first dimension that may be wrong.
    fn batch() -> impl Strategy<Value = Value> {
        (0_usize..5, 0_usize..4, 0_usize..5).prop_map(|(rows, columns, claimed)| {
            let data = vec![0.5; rows * columns];
            json!({
                "inputs": [{"name": "x", "datatype": "FP32", "shape": [claimed, columns], "data": data}],
                "outputs": [{"name": "x", "datatype": "FP32", "shape": [claimed, columns], "data": data}],
                "instances": data, "predictions": data,
            })
        })
    }

    proptest! {
        #[test]
        fn no_body_fails(
            body in prop_oneof![any_json(), batch()],
            edge in prop_oneof![any_json(), batch()],
            cloud in prop_oneof![any_json(), batch()],
            chosen in prop::collection::vec(any::<bool>(), 0..6),
        ) {
            let [body, edge, cloud] = [body, edge, cloud].map(|value| Payload::from(value.to_string().into_bytes()));
            for protocol in [Protocol::Oip, Protocol::Tfserving] {
                let rule = HardExample::default().rule(protocol).map_err(|e| TestCaseError::fail(e.to_string()))?;
                for output in [None, Some("x")] {
                    let Ok(Some(batch)) = Batch::parse(Form::Rest(protocol), &body, output) else { continue };
                    let (Some(edge), Some(cloud)) = (batch.read(&edge), batch.read(&cloud))
                    else { continue };
                    let rows = batch.rows().unwrap_or(1);
                    let scores = batch.scores(&edge, output, rows);
                    let _ = scores.signals(&rule, || 0.5);
                    let mut is_hard = chosen.clone();
                    is_hard.resize(rows.min(100), true);
                    let selection = Selection::new(&is_hard);
                    let _ = batch.cloud_body(&selection);
                    let _ = batch.merge(&edge, &cloud, &selection, "edge");
                    let others = batch.scores(&cloud, output, selection.chosen().len());
                    let _ = scores.agree(0, &others, 0, &rule);
                    let _ = (batch.stripped(&edge), batch.edge_body());
                }
            }
            let _ = without_logprobs(&edge.body);
            let _ = Reply::from_body(&edge.body).signal(&neptune_cascade::tokens::TokenSignal::Mean);
            for kind in [Kind::Chat, Kind::Text] {
                let request = Request::parse(kind, &body.body);
                let mean = neptune_cascade::tokens::TokenSignal::Mean;
                let _ = request.map(|request| request.edge_body(None, Some(&mean), Probed::Top2));
            }
        }
    }
}
