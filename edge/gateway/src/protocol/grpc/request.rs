//! The request of `ModelInfer`. Its raw contents are slices of the message.

use bytes::Bytes;
use neptune_cascade::rows::{Rows, RowsError, Selection, batch_size};
use prost::Message as _;

use super::{
    contents,
    inference::{
        ModelInferRequest,
        model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
    },
};
use crate::protocol::{
    error::Malformed,
    payload::Payload,
    row_text::{TensorRow, Values, part, shape},
    tensor,
};

/// A request of the method `ModelInfer`.
#[derive(Debug)]
pub struct Request {
    message: ModelInferRequest,
    /// The rows and the raw contents of each input.
    inputs: Vec<(Rows, Bytes)>,
    rows: usize,
    /// The output with the scores, if the client did not ask for it among others.
    added: Option<String>,
    /// The name of the model in the cloud, if it differs.
    cloud_model: Option<String>,
}

/// The model that a request is for.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Target {
    /// Name of the model.
    #[prost(string, tag = "1")]
    pub model_name: String,
    /// Version of the model; empty if the server chooses.
    #[prost(string, tag = "2")]
    pub model_version: String,
}

impl Target {
    /// Reads the model of a request, and nothing else.
    ///
    /// # Errors
    /// The message cannot be read.
    pub fn from_message(message: &Bytes) -> Result<Self, Malformed> {
        Self::decode(message.clone()).map_err(|error| Malformed::Message(error.to_string()))
    }
}

/// The request for another model. A model in the cloud has versions of its own.
///
/// # Errors
/// The message cannot be read.
pub fn renamed(payload: &Payload, model: &str, keeps_version: bool) -> Result<Payload, Malformed> {
    let mut message = decode(payload)?;
    model.clone_into(&mut message.model_name);
    if !keeps_version {
        message.model_version.clear();
    }
    Ok(message.encode_to_vec().into())
}

fn decode(payload: &Payload) -> Result<ModelInferRequest, Malformed> {
    let message = ModelInferRequest::decode(payload.body.clone());
    message.map_err(|error| Malformed::Message(error.to_string()))
}

impl Request {
    /// Reads a request. `None` if it is none that can be split: the model server judges it.
    ///
    /// # Errors
    /// The inputs have different numbers of rows, or contents that do not fit.
    pub fn parse(
        payload: &Payload,
        output: Option<&str>,
        cloud_model: Option<&str>,
    ) -> Result<Option<Self>, Malformed> {
        let message = decode(payload)?;
        let Some(inputs) = raw_contents(&message)? else { return Ok(None) };
        let mut read = Vec::with_capacity(inputs.len());
        for (input, data) in message.inputs.iter().zip(inputs) {
            let rows = tensor::rows(&input.name, &input.datatype, &input.shape, &data)?;
            let Some(rows) = rows else { return Ok(None) };
            read.push((rows, data));
        }
        let shapes = message.inputs.iter().map(|input| (&*input.name, &*input.shape));
        let rows = match batch_size(shapes) {
            Ok(rows) => rows,
            Err(error @ RowsError::Unequal { .. }) => return Err(Malformed::Rows(error)),
            Err(_) => return Ok(None),
        };
        // Rows without data: a shape alone decides about no memory.
        if rows > payload.body.len() {
            return Ok(None);
        }
        let asks_for = |name: &&str| message.outputs.iter().any(|output| output.name == *name);
        let added = output.filter(|name| !message.outputs.is_empty() && !asks_for(name));
        let (added, cloud_model) = (added.map(str::to_owned), cloud_model.map(str::to_owned));
        Ok(Some(Self { message, inputs: read, rows, added, cloud_model }))
    }

    /// The number of rows.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// The output that only the gateway asks for.
    pub fn added(&self) -> Option<&str> {
        self.added.as_deref()
    }

    /// The message for the edge, if it differs from the client's.
    pub fn edge_body(&self) -> Option<Payload> {
        self.added.as_ref()?;
        let mut message = self.message.clone();
        self.ask_for_scores(&mut message);
        Some(message.encode_to_vec().into())
    }

    /// The message for the cloud, with the selected rows.
    ///
    /// # Errors
    /// The contents do not fit.
    pub fn cloud_body(&self, selection: &Selection) -> Result<Payload, RowsError> {
        let mut message = self.message.clone();
        let is_raw = !message.raw_input_contents.is_empty();
        for (index, (rows, data)) in self.inputs.iter().enumerate() {
            let input = &mut message.inputs[index];
            let selected = rows.select(data, selection)?;
            input.shape = selection.shape(&input.shape);
            if is_raw {
                message.raw_input_contents[index] = selected.into();
            } else {
                input.contents = contents::decoded(&input.datatype, &selected);
            }
        }
        self.ask_for_scores(&mut message);
        if let Some(model) = &self.cloud_model {
            message.model_name.clone_from(model);
        }
        message.model_version.clear();
        Ok(message.encode_to_vec().into())
    }

    /// The inputs of one row, or of all.
    pub fn tensors(&self, row: Option<usize>) -> Vec<TensorRow<'_>> {
        let tensors = self.message.inputs.iter().zip(&self.inputs);
        let tensor = |(input, (rows, data)): (&'_ InferInputTensor, &'_ (Rows, Bytes))| TensorRow {
            name: input.name.clone().into(),
            datatype: input.datatype.clone().into(),
            shape: shape(&input.shape, row),
            values: Values::Binary(part(data, Some(rows), row).to_vec().into()),
        };
        tensors.map(tensor).collect()
    }

    fn ask_for_scores(&self, message: &mut ModelInferRequest) {
        if let Some(name) = &self.added {
            let output = InferRequestedOutputTensor { name: name.clone(), ..Default::default() };
            message.outputs.push(output);
        }
    }
}

/// The raw contents of each input. `None` if the type of one is unknown.
fn raw_contents(message: &ModelInferRequest) -> Result<Option<Vec<Bytes>>, Malformed> {
    let (inputs, raw) = (&message.inputs, &message.raw_input_contents);
    if !raw.is_empty() {
        if let Some(mixed) = inputs.iter().find(|input| input.contents.is_some()) {
            return Err(Malformed::Mixed(mixed.name.clone()));
        }
        if raw.len() != inputs.len() {
            return Err(Malformed::RawCount { raw: raw.len(), inputs: inputs.len() });
        }
        return Ok(Some(raw.clone()));
    }
    let mut all = Vec::with_capacity(inputs.len());
    for input in inputs {
        if neptune_cascade::rows::Element::from_datatype(&input.datatype).is_none() {
            return Ok(None);
        }
        let typed = input.contents.as_ref();
        let data =
            typed.map_or_else(|| Some(Vec::new()), |c| contents::encoded(&input.datatype, c));
        let Some(data) = data else {
            let (name, datatype) = (input.name.clone(), input.datatype.clone());
            return Err(Malformed::Contents { name, datatype });
        };
        all.push(data.into());
    }
    Ok(Some(all))
}
