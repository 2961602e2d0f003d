//! Writes safetensors files for the tests.

#![allow(clippy::unwrap_used)]

use std::{fs::File, io::Write};

use crate::weights::{DataType, Weights};

/// A tensor for a file: name, type, shape, data.
pub(crate) type TestTensor = (String, DataType, Vec<u64>, Vec<u8>);

pub(crate) fn file() -> File {
    tempfile::tempfile().unwrap()
}

/// Returns the bytes of a safetensors file.
pub(crate) fn safetensors(tensors: &[TestTensor]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, data_type, shape, bytes) in tensors {
        let from = data.len();
        data.extend(bytes);
        let entry = serde_json::json!({
            "dtype": data_type.to_string(), "shape": shape, "data_offsets": [from, data.len()],
        });
        header.insert(name.clone(), entry);
    }
    let header = serde_json::Value::from(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

pub(crate) fn open(bytes: &[u8]) -> Result<Weights, crate::weights::WeightsError> {
    let mut file = file();
    file.write_all(bytes).unwrap();
    Weights::open(file)
}

/// A file with one f32 tensor "w".
pub(crate) fn one(values: &[f32]) -> Weights {
    let bytes = values.iter().flat_map(|it| it.to_le_bytes()).collect();
    let shape = vec![values.len() as u64];
    open(&safetensors(&[("w".to_owned(), DataType::F32, shape, bytes)])).unwrap()
}
