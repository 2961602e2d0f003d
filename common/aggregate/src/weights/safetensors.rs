//! The header of a safetensors file: 8 bytes of length, JSON, then the data of all tensors.
//! Format: <https://github.com/huggingface/safetensors#format>.

use std::{collections::BTreeSet, fmt, fs::File, os::unix::fs::FileExt};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, Visitor},
};

use super::{DataType, Location, MAX_HEADER, MAX_TENSORS, Tensor, WeightsError};

/// Reads the header. Returns its bytes with the length before it, and the tensors in the order of
/// their data.
pub(super) fn read(file: &File, length: u64) -> Result<(Vec<u8>, Vec<Tensor>), WeightsError> {
    let mut prefix = [0; 8];
    file.read_exact_at(&mut prefix, 0)?;
    let header_length = u64::from_le_bytes(prefix);
    if header_length > MAX_HEADER {
        let what = "length of the header of a safetensors file";
        return Err(WeightsError::TooLarge { what, value: header_length, limit: MAX_HEADER });
    }
    if header_length > length.saturating_sub(8) {
        return Err(WeightsError::safetensors("the header ends behind the file"));
    }
    let mut header = vec![0; 8 + usize::try_from(header_length).unwrap_or(usize::MAX - 8)];
    file.read_exact_at(&mut header, 0)?;
    let tensors = parse(&header[8..], 8 + header_length, length)?;
    Ok((header, tensors))
}

fn parse(json: &[u8], data: u64, length: u64) -> Result<Vec<Tensor>, WeightsError> {
    let problem = |error: serde_json::Error| WeightsError::safetensors(error.to_string());
    let Entries(entries) = serde_json::from_slice(json).map_err(problem)?;
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        let Some(data_type) = DataType::from_safetensors(&entry.dtype) else {
            let problem = format!("type {:?} is not supported", entry.dtype);
            return Err(WeightsError::Unsupported { tensor: name, problem });
        };
        let [from, to] = entry.data_offsets;
        let location = Location::Raw { at: data.saturating_add(from) };
        let tensor = Tensor { name, data_type, shape: entry.shape, fortran_order: false, location };
        // An impossible shape has no size, and neither have offsets in the wrong order.
        if tensor.bytes().is_none() || tensor.bytes() != to.checked_sub(from) {
            let text = format!("data_offsets of \"{}\" do not match its shape", tensor.name);
            return Err(WeightsError::safetensors(text));
        }
        tensors.push(tensor);
    }
    tensors.sort_by_key(Tensor::position);
    let mut end = data;
    for tensor in &tensors {
        // Empty tensors may be anywhere between others.
        if tensor.position() != end {
            let text = format!("the data of \"{}\" overlaps or leaves a gap", tensor.name);
            return Err(WeightsError::safetensors(text));
        }
        end = end.saturating_add(tensor.bytes().unwrap_or_default());
    }
    if end != length {
        let text = format!("the tensors end at byte {end}, the file at {length}");
        return Err(WeightsError::safetensors(text));
    }
    Ok(tensors)
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The entries in their order. A name that occurs twice is an error.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;
        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let (mut entries, mut names) = (Vec::new(), BTreeSet::new());
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format!("duplicate tensor {name:?}")));
                    }
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    if entries.len() == MAX_TENSORS {
                        let text = format!("more than {MAX_TENSORS} tensors");
                        return Err(A::Error::custom(text));
                    }
                    entries.push((name, map.next_value()?));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(EntriesVisitor)
    }
}
