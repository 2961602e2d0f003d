//! Single rows of a batch as JSON text, for records of samples. Binary tensors become lists of
//! values. Pure.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use neptune_cascade::rows::Rows;
use serde::Serialize;
use serde_json::value::RawValue;

use super::tensor;

/// One row of a tensor, or the whole tensor.
#[derive(Debug)]
pub struct TensorRow<'a> {
    /// Name of the tensor.
    pub name: Cow<'a, str>,
    /// Data type of the tensor.
    pub datatype: Cow<'a, str>,
    /// The shape, with 1 as the first dimension of a row.
    pub shape: Vec<i64>,
    /// The values of the row, in row-major order.
    pub values: Values<'a>,
}

/// The values of a [`TensorRow`].
#[derive(Debug)]
pub enum Values<'a> {
    /// The values as they are in JSON.
    Json(Vec<&'a RawValue>),
    /// The bytes of a binary tensor.
    Binary(Cow<'a, [u8]>),
}

/// The shape of one row; of the whole tensor without one.
pub fn shape(tensor: &[i64], row: Option<usize>) -> Vec<i64> {
    let mut shape = tensor.to_vec();
    if let (Some(first), Some(_)) = (shape.first_mut(), row) {
        *first = 1;
    }
    shape
}

/// The elements of one row; all elements without one, or if the list has no such row.
pub fn part<'a, T>(list: &'a [T], rows: Option<&Rows>, row: Option<usize>) -> &'a [T] {
    let elements = row.zip(rows).and_then(|(row, rows)| list.get(rows.range(row)));
    elements.filter(|elements| !elements.is_empty()).unwrap_or(list)
}

/// Writes `{"<member>":[tensor, ...]}`. `None` if the values of a type have no form in JSON.
pub fn write(tensors: &[TensorRow<'_>], member: &str, into: &mut Vec<u8>) -> Option<()> {
    into.extend_from_slice(b"{\"");
    into.extend_from_slice(member.as_bytes());
    into.extend_from_slice(b"\":[");
    for (index, tensor) in tensors.iter().enumerate() {
        if index > 0 {
            into.push(b',');
        }
        into.extend_from_slice(b"{\"name\":");
        put(into, &tensor.name);
        into.extend_from_slice(b",\"datatype\":");
        put(into, &tensor.datatype);
        into.extend_from_slice(b",\"shape\":");
        put(into, &tensor.shape);
        into.extend_from_slice(b",\"data\":");
        match &tensor.values {
            Values::Json(values) => put(into, values),
            Values::Binary(bytes) => binary(&tensor.datatype, bytes, into)?,
        }
        into.push(b'}');
    }
    into.extend_from_slice(b"]}");
    Some(())
}

/// Appends a value as text.
fn put<T: Serialize + ?Sized>(into: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(into, value).expect("texts and numbers can be serialised");
}

/// The list of a binary tensor's values. A number that JSON does not have is `null`. A text that is
/// not UTF-8 is `{"b64": ...}`, as in TensorFlow Serving.
fn binary(datatype: &str, data: &[u8], into: &mut Vec<u8>) -> Option<()> {
    match datatype {
        "BOOL" => each(data, into, |[byte]: [u8; 1]| byte != 0),
        "UINT8" => each(data, into, u8::from_le_bytes),
        "INT8" => each(data, into, i8::from_le_bytes),
        "UINT16" => each(data, into, u16::from_le_bytes),
        "INT16" => each(data, into, i16::from_le_bytes),
        "UINT32" => each(data, into, u32::from_le_bytes),
        "INT32" => each(data, into, i32::from_le_bytes),
        "UINT64" => each(data, into, u64::from_le_bytes),
        "INT64" => each(data, into, i64::from_le_bytes),
        "FP32" => each(data, into, f32::from_le_bytes),
        "FP64" => each(data, into, f64::from_le_bytes),
        "FP16" | "BF16" => {
            put(into, &tensor::numbers(datatype, data)?);
            Some(())
        }
        "BYTES" => {
            texts(&tensor::texts(data)?, into);
            Some(())
        }
        _ => None,
    }
}

fn each<T: Serialize, const N: usize>(
    data: &[u8],
    into: &mut Vec<u8>,
    value: impl Fn([u8; N]) -> T,
) -> Option<()> {
    let (elements, rest) = data.as_chunks::<N>();
    if !rest.is_empty() {
        return None;
    }
    into.push(b'[');
    for (index, bytes) in elements.iter().enumerate() {
        if index > 0 {
            into.push(b',');
        }
        put(into, &value(*bytes));
    }
    into.push(b']');
    Some(())
}

fn texts(texts: &[&[u8]], into: &mut Vec<u8>) {
    into.push(b'[');
    for (index, text) in texts.iter().enumerate() {
        if index > 0 {
            into.push(b',');
        }
        if let Ok(text) = std::str::from_utf8(text) {
            put(into, text);
        } else {
            into.extend_from_slice(b"{\"b64\":\"");
            into.extend_from_slice(STANDARD.encode(text).as_bytes());
            into.extend_from_slice(b"\"}");
        }
    }
    into.push(b']');
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn text(datatype: &str, data: &[u8]) -> Option<Value> {
        let tensor = TensorRow {
            name: "x".into(),
            datatype: datatype.into(),
            shape: vec![1, 2],
            values: Values::Binary(data.into()),
        };
        let mut written = Vec::new();
        write(&[tensor], "inputs", &mut written)?;
        let value: Value = serde_json::from_slice(&written).unwrap();
        assert_eq!(value["inputs"][0]["shape"], json!([1, 2]));
        Some(value["inputs"][0]["data"].clone())
    }

    #[test]
    fn values_of_every_type_have_a_form_in_json() {
        for (datatype, data, expected) in [
            ("BOOL", &[1, 0][..], json!([true, false])),
            ("UINT8", &[255], json!([255])),
            ("INT16", &[255, 255], json!([-1])),
            ("FP32", &0.5_f32.to_le_bytes(), json!([0.5])),
            ("FP32", &f32::NAN.to_le_bytes(), json!([null])),
            ("FP16", &[0, 0x3c], json!([1.0])),
            ("BYTES", &[1, 0, 0, 0, b'a', 1, 0, 0, 0, 255], json!(["a", {"b64": "/w=="}])),
        ] {
            assert_eq!(text(datatype, data), Some(expected), "{datatype}");
        }
        assert_eq!((text("FP32", &[0]), text("FP8", &[0])), (None, None));
    }

    #[test]
    fn list_without_such_a_row_is_taken_whole() {
        let rows = Rows::nested(2);
        assert_eq!(part(&[1, 2], Some(&rows), Some(1)), [2]);
        assert_eq!(part(&[1, 2], Some(&rows), Some(2)), [1, 2]);
        assert_eq!(part(&[1, 2], None, Some(0)), [1, 2]);
        assert_eq!((shape(&[5, 2], Some(0)), shape(&[5, 2], None)), (vec![1, 2], vec![5, 2]));
    }
}
