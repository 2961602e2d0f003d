//! Converts values between JSON and binary tensors, for two servers that answer in different forms.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::protocol::{json, numbers, tensor};

/// The bytes of a tensor; `None` if a value is not of the type, or JSON has no form of it.
pub fn encoded(datatype: &str, value: &RawValue) -> Option<Vec<u8>> {
    let leaves = numbers::leaves(value);
    match datatype {
        "BOOL" => each(&leaves, |value: bool| [u8::from(value)]),
        "UINT8" => each(&leaves, u8::to_le_bytes),
        "INT8" => each(&leaves, i8::to_le_bytes),
        "UINT16" => each(&leaves, u16::to_le_bytes),
        "INT16" => each(&leaves, i16::to_le_bytes),
        "UINT32" => each(&leaves, u32::to_le_bytes),
        "INT32" => each(&leaves, i32::to_le_bytes),
        "UINT64" => each(&leaves, u64::to_le_bytes),
        "INT64" => each(&leaves, i64::to_le_bytes),
        "FP32" => each(&leaves, f32::to_le_bytes),
        "FP64" => each(&leaves, f64::to_le_bytes),
        "BYTES" => {
            let mut bytes = Vec::new();
            for leaf in leaves {
                let text: String = serde_json::from_str(leaf.get()).ok()?;
                tensor::push_text(&mut bytes, text.as_bytes())?;
            }
            Some(bytes)
        }
        _ => None,
    }
}

fn each<'a, T: Deserialize<'a>, const N: usize>(
    leaves: &[&'a RawValue],
    bytes: impl Fn(T) -> [u8; N],
) -> Option<Vec<u8>> {
    let mut all = Vec::with_capacity(leaves.len().saturating_mul(N));
    for leaf in leaves {
        all.extend_from_slice(&bytes(serde_json::from_str(leaf.get()).ok()?));
    }
    Some(all)
}

/// The values of a tensor as a flat list; `None` if JSON has no form of them.
pub fn decoded(datatype: &str, data: &[u8]) -> Option<Vec<Box<RawValue>>> {
    match datatype {
        "BOOL" => listed(data, |[byte]: [u8; 1]| byte != 0),
        "UINT8" => listed(data, u8::from_le_bytes),
        "INT8" => listed(data, i8::from_le_bytes),
        "UINT16" => listed(data, u16::from_le_bytes),
        "INT16" => listed(data, i16::from_le_bytes),
        "UINT32" => listed(data, u32::from_le_bytes),
        "INT32" => listed(data, i32::from_le_bytes),
        "UINT64" => listed(data, u64::from_le_bytes),
        "INT64" => listed(data, i64::from_le_bytes),
        "FP32" => listed(data, f32::from_le_bytes),
        "FP64" => listed(data, f64::from_le_bytes),
        "BYTES" => {
            let text = |text| Some(json::raw(std::str::from_utf8(text).ok()?));
            tensor::texts(data)?.into_iter().map(text).collect()
        }
        _ => None,
    }
}

fn listed<T: Serialize, const N: usize>(
    data: &[u8],
    value: impl Fn([u8; N]) -> T,
) -> Option<Vec<Box<RawValue>>> {
    let (elements, rest) = data.as_chunks::<N>();
    rest.is_empty().then(|| elements.iter().map(|bytes| json::raw(&value(*bytes))).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn values_survive_both_ways() {
        for (datatype, value) in [
            ("BOOL", json!([true, false])),
            ("UINT8", json!([0, 255])),
            ("INT8", json!([-128, 127])),
            ("UINT16", json!([65_535])),
            ("INT16", json!([-1])),
            ("UINT32", json!([u32::MAX])),
            ("INT32", json!([i32::MIN])),
            ("UINT64", json!([u64::MAX])),
            ("INT64", json!([i64::MIN])),
            ("FP32", json!([0.5, -1.25])),
            ("FP64", json!([0.1])),
            ("BYTES", json!(["one", "", "é"])),
        ] {
            let bytes = encoded(datatype, &json::raw(&value)).unwrap();
            let list = decoded(datatype, &bytes).unwrap();
            let text = json::list(list.iter().map(|value| &**value));
            assert_eq!(serde_json::from_str::<serde_json::Value>(text.get()).unwrap(), value);
        }
        for (datatype, value) in [
            ("UINT8", json!([256])),
            ("BYTES", json!([1])),
            ("FP16", json!([1])),
            ("BOOL", json!([1])),
        ] {
            assert_eq!(encoded(datatype, &json::raw(&value)), None, "{datatype}");
        }
        assert!(decoded("FP16", &[0, 0]).is_none() && decoded("INT32", &[0]).is_none());
    }

    proptest! {
        #[test]
        fn no_tensor_fails(data in prop::collection::vec(any::<u8>(), 0..20)) {
            for datatype in ["BOOL", "INT16", "FP32", "FP64", "BYTES", "FP16", "x"] {
                let _ = decoded(datatype, &data);
                let _ = tensor::numbers(datatype, &data);
            }
        }
    }
}
