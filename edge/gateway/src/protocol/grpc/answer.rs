//! The answer of `ModelInfer`: its scores, and the rows of the cloud in the edge's answer.

use bytes::Bytes;
use neptune_cascade::rows::{Element, Rows, RowsError, Selection};
use prost::Message as _;

use super::{
    contents,
    inference::{
        InferParameter, ModelInferResponse, infer_parameter::ParameterChoice,
        model_infer_response::InferOutputTensor,
    },
};
use crate::protocol::{
    error::MergeError,
    payload::Payload,
    row_text::{TensorRow, Values, part, shape},
    scores::Scores,
    tensor,
};

/// An answer of the method `ModelInfer`.
#[derive(Debug)]
pub struct Answer {
    message: ModelInferResponse,
}

impl Answer {
    /// Reads an answer; `None` if it is not one.
    pub fn parse(payload: &Payload) -> Option<Self> {
        let message = ModelInferResponse::decode(payload.body.clone()).ok()?;
        let raw = message.raw_output_contents.len();
        (raw == 0 || raw == message.outputs.len()).then_some(Self { message })
    }

    /// Whether it has outputs.
    pub const fn has_outputs(&self) -> bool {
        !self.message.outputs.is_empty()
    }

    /// Returns the version of the model that answered, if the answer names it.
    pub fn version(&self) -> Option<String> {
        Some(self.message.model_version.clone()).filter(|version| !version.is_empty())
    }

    /// The scores in the named output, or in the first that fits.
    pub fn scores(&self, output: Option<&str>, rows: usize) -> Scores {
        let mut outputs = self.message.outputs.iter();
        let position = outputs.position(|candidate| match output {
            Some(name) => candidate.name == name,
            None => tensor::fits(&candidate.datatype, &candidate.shape),
        });
        let scores = position.and_then(|index| {
            let output = &self.message.outputs[index];
            let numbers = tensor::numbers(&output.datatype, &self.data(index)?)?;
            tensor::scores(&numbers, &output.shape, rows)
        });
        scores.unwrap_or_else(|| Scores::missing(rows))
    }

    /// The answer without the output that only the gateway asked for.
    pub fn stripped(&self, added: &str) -> Payload {
        let mut message = self.message.clone();
        remove(&mut message, added);
        message.encode_to_vec().into()
    }

    /// The edge's answer with the selected rows of the cloud's, and who answered each row.
    ///
    /// # Errors
    /// The outputs cannot be mixed.
    pub fn merge(
        &self,
        cloud: &Self,
        selection: &Selection,
        answered_by: &str,
        added: Option<&str>,
    ) -> Result<Payload, MergeError> {
        let mut message = self.message.clone();
        let is_raw = !message.raw_output_contents.is_empty();
        let differ = || MergeError::Outputs { edge: described(self), cloud: described(cloud) };
        if message.outputs.len() != cloud.message.outputs.len() {
            return Err(differ());
        }
        for (index, output) in message.outputs.iter_mut().enumerate() {
            let data = self.merge_output(index, cloud, selection).ok_or_else(differ)??;
            if is_raw {
                message.raw_output_contents[index] = data.into();
            } else {
                let typed = contents::decoded(&output.datatype, &data);
                output.contents = Some(typed.ok_or_else(differ)?);
            }
        }
        if let Some(added) = added {
            remove(&mut message, added);
        }
        let value = ParameterChoice::StringParam(answered_by.to_owned());
        let value = InferParameter { parameter_choice: Some(value) };
        message.parameters.insert("neptune_answered_by".to_owned(), value);
        Ok(message.encode_to_vec().into())
    }

    /// The outputs of one row, or of all. An output with another number of rows is whole; one
    /// without contents is left out.
    pub fn tensors(&self, row: Option<usize>, rows: usize) -> Vec<TensorRow<'_>> {
        let tensor = |(index, output): (usize, &'_ InferOutputTensor)| {
            let (data, dimensions) = (self.data(index)?, &output.shape);
            let row =
                row.filter(|_| dimensions.first().is_some_and(|n| usize::try_from(*n) == Ok(rows)));
            let element = Element::from_datatype(&output.datatype);
            let binary_rows =
                element.and_then(|element| Rows::binary(&data, dimensions, element).ok());
            Some(TensorRow {
                name: output.name.clone().into(),
                datatype: output.datatype.clone().into(),
                shape: shape(dimensions, row),
                values: Values::Binary(part(&data, binary_rows.as_ref(), row).to_vec().into()),
            })
        };
        self.message.outputs.iter().enumerate().filter_map(tensor).collect()
    }

    /// `None` if the outputs have different types or dimensions.
    fn merge_output(
        &self,
        index: usize,
        cloud: &Self,
        selection: &Selection,
    ) -> Option<Result<Vec<u8>, RowsError>> {
        let output = &self.message.outputs[index];
        let is_other = |other: &InferOutputTensor| other.name == output.name;
        let place = cloud.message.outputs.iter().position(is_other)?;
        let other = &cloud.message.outputs[place];
        if output.datatype != other.datatype || output.shape.get(1..)? != other.shape.get(1..)? {
            return None;
        }
        let element = Element::from_datatype(&output.datatype)?;
        let (edge, cloud) = (self.data(index)?, cloud.data(place)?);
        let merged = || {
            let edge_rows = Rows::binary(&edge, &output.shape, element)?;
            let cloud_rows = Rows::binary(&cloud, &other.shape, element)?;
            edge_rows.merge(&edge, selection, &cloud_rows, &cloud)
        };
        Some(merged())
    }

    /// The raw contents of an output.
    fn data(&self, index: usize) -> Option<Bytes> {
        if let Some(raw) = self.message.raw_output_contents.get(index) {
            return Some(raw.clone());
        }
        let output = &self.message.outputs[index];
        contents::encoded(&output.datatype, output.contents.as_ref()?).map(Bytes::from)
    }
}

fn remove(message: &mut ModelInferResponse, name: &str) {
    let Some(index) = message.outputs.iter().position(|output| output.name == name) else {
        return;
    };
    message.outputs.remove(index);
    if index < message.raw_output_contents.len() {
        message.raw_output_contents.remove(index);
    }
}

/// Such as `probabilities FP32 [-1,10]`.
fn described(answer: &Answer) -> String {
    let outputs = answer.message.outputs.iter();
    let described =
        outputs.map(|output| tensor::described(&output.name, &output.datatype, &output.shape));
    described.collect::<Vec<_>>().join(" and ")
}
