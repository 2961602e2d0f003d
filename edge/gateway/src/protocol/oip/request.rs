//! The body of `infer`: JSON, with binary tensors after it.

use neptune_cascade::rows::{Rows, RowsError, Selection, batch_size};

use serde_json::value::RawValue;

use crate::protocol::{
    error::Malformed,
    json::{self, Object},
    numbers,
    payload::Payload,
    row_text::{TensorRow, Values, part, shape},
    tensor,
};

/// The body of a request to `infer`.
#[derive(Debug)]
pub struct Request<'a> {
    object: Object<'a>,
    inputs: Vec<Input<'a>>,
    tail: &'a [u8],
    is_binary: bool,
    rows: usize,
    /// The output with the scores, if the client did not ask for it among others.
    added: Option<String>,
}

#[derive(Debug)]
struct Input<'a> {
    object: Object<'a>,
    shape: Vec<i64>,
    /// `None` if its values are in the JSON.
    binary: Option<(Rows, &'a [u8])>,
}

impl<'a> Request<'a> {
    /// Reads a request. `None` if it is none that can be split: the model server judges it.
    ///
    /// # Errors
    /// The inputs have different numbers of rows, or binary data do not fit.
    pub fn parse(payload: &'a Payload, output: Option<&str>) -> Result<Option<Self>, Malformed> {
        let Ok(object) = Object::parse(payload.json()) else { return Ok(None) };
        let inputs = object
            .original("inputs")
            .and_then(|inputs| serde_json::from_str::<Vec<Object<'a>>>(inputs.get()).ok());
        let Some(inputs) = inputs else { return Ok(None) };
        let slices = slices(&inputs, payload.tail())?;
        let mut read = Vec::with_capacity(inputs.len());
        let mut shapes: Vec<(String, Vec<i64>)> = Vec::with_capacity(inputs.len());
        for (object, slice) in inputs.into_iter().zip(slices) {
            let (Some(name), Some(shape)) =
                (object.get::<String>("name"), object.get::<Vec<i64>>("shape"))
            else {
                return Ok(None);
            };
            let binary = match slice {
                None => None,
                Some(data) => {
                    let datatype: String = object.get("datatype").unwrap_or_default();
                    let Some(rows) = tensor::rows(&name, &datatype, &shape, data)? else {
                        return Ok(None);
                    };
                    Some((rows, data))
                }
            };
            shapes.push((name, shape.clone()));
            read.push(Input { object, shape, binary });
        }
        let rows = match batch_size(shapes.iter().map(|(name, shape)| (&**name, &**shape))) {
            Ok(rows) => rows,
            Err(error @ RowsError::Unequal { .. }) => return Err(Malformed::Rows(error)),
            Err(_) => return Ok(None),
        };
        // Rows without data: a shape alone decides about no memory.
        if rows > payload.body.len() {
            return Ok(None);
        }
        let asked: Vec<Object<'_>> = object.get("outputs").unwrap_or_default();
        let asks_for =
            |name| asked.iter().any(|output| output.get::<String>("name").as_deref() == Some(name));
        let added = output.filter(|name| !asked.is_empty() && !asks_for(name)).map(str::to_owned);
        let (tail, is_binary) = (payload.tail(), payload.is_binary());
        Ok(Some(Self { object, inputs: read, tail, is_binary, rows, added }))
    }

    /// The number of rows.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// The output that only the gateway asks for.
    pub fn added(&self) -> Option<&str> {
        self.added.as_deref()
    }

    /// The body for the edge, if it differs from the client's: the output with the scores is asked
    /// for as well.
    pub fn edge_body(&self) -> Option<Payload> {
        let added = self.added.as_deref()?;
        let mut object = self.object.clone();
        self.ask_for(&mut object, added);
        Some(Payload::assembled(object.to_vec(), [self.tail], self.is_binary))
    }

    /// The body for the cloud, with the selected rows.
    ///
    /// # Errors
    /// The data of an input do not fit its shape.
    pub fn cloud_body(&self, selection: &Selection) -> Result<Payload, RowsError> {
        let mut pieces = Vec::new();
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for input in &self.inputs {
            let mut object = input.object.clone();
            if let Some((rows, data)) = &input.binary {
                let selected = rows.select(data, selection)?;
                set_size(&mut object, selected.len());
                pieces.push(selected);
            } else {
                let data = object.original("data").and_then(numbers::elements).unwrap_or_default();
                let selected = rows_of(data.len(), &input.shape)?.select(&data, selection)?;
                object.set("data", json::list(selected));
            }
            object.put("shape", &selection.shape(&input.shape));
            inputs.push(object);
        }
        let mut object = self.object.clone();
        object.put("inputs", &inputs);
        if let Some(added) = &self.added {
            self.ask_for(&mut object, added);
        }
        let pieces = pieces.iter().map(Vec::as_slice);
        Ok(Payload::assembled(object.to_vec(), pieces, self.is_binary))
    }

    /// The inputs of one row, or of all.
    pub fn tensors(&self, row: Option<usize>) -> Vec<TensorRow<'_>> {
        let tensor = |input: &'_ Input<'a>| {
            let values = match &input.binary {
                Some((rows, data)) => Values::Binary(part(data, Some(rows), row).into()),
                None => Values::Json(json_part(&input.object, &input.shape, row)),
            };
            TensorRow {
                name: input.object.get("name").unwrap_or_default(),
                datatype: input.object.get("datatype").unwrap_or_default(),
                shape: shape(&input.shape, row),
                values,
            }
        };
        self.inputs.iter().map(tensor).collect()
    }

    fn ask_for(&self, object: &mut Object<'a>, output: &str) {
        let mut asked: Vec<Object<'_>> = self.object.get("outputs").unwrap_or_default();
        let mut added = Object::default();
        added.put("name", output);
        asked.push(added);
        object.put("outputs", &asked);
    }
}

/// The bytes of each binary input, in the order of the inputs.
fn slices<'a>(inputs: &[Object<'_>], tail: &'a [u8]) -> Result<Vec<Option<&'a [u8]>>, Malformed> {
    let mut rest = tail;
    let mut slices = Vec::with_capacity(inputs.len());
    for input in inputs {
        let parameters: Object<'_> = input.get("parameters").unwrap_or_default();
        let Some(size) = parameters.raw("binary_data_size") else {
            slices.push(None);
            continue;
        };
        let name: String = input.get("name").unwrap_or_default();
        let Ok(bytes) = serde_json::from_str::<u64>(size.get()) else {
            return Err(Malformed::Size { name, size: size.get().to_owned() });
        };
        if input.raw("data").is_some() {
            return Err(Malformed::Both(name));
        }
        let split = usize::try_from(bytes).ok().and_then(|bytes| rest.split_at_checked(bytes));
        let Some((slice, after)) = split else {
            return Err(Malformed::Short { name, size: bytes, left: rest.len() });
        };
        slices.push(Some(slice));
        rest = after;
    }
    if rest.is_empty() {
        return Ok(slices);
    }
    Err(Malformed::Long { used: tail.len() - rest.len(), actual: tail.len() })
}

/// Sets the size of binary data.
pub(super) fn set_size(tensor: &mut Object<'_>, size: usize) {
    let mut parameters: Object<'_> = tensor.get("parameters").unwrap_or_default();
    parameters.put("binary_data_size", &size);
    let text = json::raw(&parameters);
    tensor.set("parameters", text);
}

/// The values of one row in the JSON of a tensor, or all of them.
pub(super) fn json_part<'a>(
    tensor: &Object<'a>,
    shape: &[i64],
    row: Option<usize>,
) -> Vec<&'a RawValue> {
    let list = tensor.original("data").and_then(numbers::elements).unwrap_or_default();
    let rows = rows_of(list.len(), shape).ok();
    part(&list, rows.as_ref(), row).to_vec()
}

/// The rows of a list, flat or with one element per row.
pub(super) fn rows_of(len: usize, shape: &[i64]) -> Result<Rows, RowsError> {
    match (Rows::flat(len, shape), shape.first()) {
        (Err(_), Some(rows)) if usize::try_from(*rows) == Ok(len) => Ok(Rows::nested(len)),
        (rows, _) => rows,
    }
}
