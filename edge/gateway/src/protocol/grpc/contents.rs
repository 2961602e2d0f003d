//! Converts typed contents to raw ones and back. Rows are cut from raw contents only.

use bytes::Bytes;

use super::inference::InferTensorContents;
use crate::protocol::tensor;

/// The raw contents; `None` if a value is not of the type, or the type has no typed contents.
pub fn encoded(datatype: &str, contents: &InferTensorContents) -> Option<Vec<u8>> {
    let InferTensorContents { int_contents: int, uint_contents: uint, .. } = contents;
    match datatype {
        "BOOL" => each(&contents.bool_contents, |value| Some([u8::from(*value)])),
        "INT8" => each(int, |value| Some(i8::try_from(*value).ok()?.to_le_bytes())),
        "INT16" => each(int, |value| Some(i16::try_from(*value).ok()?.to_le_bytes())),
        "INT32" => each(int, |value| Some(value.to_le_bytes())),
        "INT64" => each(&contents.int64_contents, |value| Some(value.to_le_bytes())),
        "UINT8" => each(uint, |value| Some(u8::try_from(*value).ok()?.to_le_bytes())),
        "UINT16" => each(uint, |value| Some(u16::try_from(*value).ok()?.to_le_bytes())),
        "UINT32" => each(uint, |value| Some(value.to_le_bytes())),
        "UINT64" => each(&contents.uint64_contents, |value| Some(value.to_le_bytes())),
        "FP32" => each(&contents.fp32_contents, |value| Some(value.to_le_bytes())),
        "FP64" => each(&contents.fp64_contents, |value| Some(value.to_le_bytes())),
        "BYTES" => {
            let mut bytes = Vec::new();
            for text in &contents.bytes_contents {
                tensor::push_text(&mut bytes, text)?;
            }
            Some(bytes)
        }
        _ => None,
    }
}

fn each<T, const N: usize>(values: &[T], bytes: impl Fn(&T) -> Option<[u8; N]>) -> Option<Vec<u8>> {
    let mut all = Vec::with_capacity(values.len().saturating_mul(N));
    for value in values {
        all.extend_from_slice(&bytes(value)?);
    }
    Some(all)
}

/// The typed contents; `None` if the type has none, or the bytes are not of the type.
pub fn decoded(datatype: &str, data: &[u8]) -> Option<InferTensorContents> {
    let mut contents = InferTensorContents::default();
    match datatype {
        "BOOL" => contents.bool_contents = listed(data, |[byte]: [u8; 1]| byte != 0)?,
        "INT8" => contents.int_contents = listed(data, |bytes| i8::from_le_bytes(bytes).into())?,
        "INT16" => contents.int_contents = listed(data, |bytes| i16::from_le_bytes(bytes).into())?,
        "INT32" => contents.int_contents = listed(data, i32::from_le_bytes)?,
        "INT64" => contents.int64_contents = listed(data, i64::from_le_bytes)?,
        "UINT8" => contents.uint_contents = listed(data, |bytes| u8::from_le_bytes(bytes).into())?,
        "UINT16" => {
            contents.uint_contents = listed(data, |bytes| u16::from_le_bytes(bytes).into())?;
        }
        "UINT32" => contents.uint_contents = listed(data, u32::from_le_bytes)?,
        "UINT64" => contents.uint64_contents = listed(data, u64::from_le_bytes)?,
        "FP32" => contents.fp32_contents = listed(data, f32::from_le_bytes)?,
        "FP64" => contents.fp64_contents = listed(data, f64::from_le_bytes)?,
        "BYTES" => {
            let texts = tensor::texts(data)?.into_iter();
            contents.bytes_contents = texts.map(Bytes::copy_from_slice).collect();
        }
        _ => return None,
    }
    Some(contents)
}

fn listed<T, const N: usize>(data: &[u8], value: impl Fn([u8; N]) -> T) -> Option<Vec<T>> {
    let (elements, rest) = data.as_chunks::<N>();
    rest.is_empty().then(|| elements.iter().map(|bytes| value(*bytes)).collect())
}
