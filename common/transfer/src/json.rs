//! Records in JSON files. Blocking.

use std::{fs, io, path::Path};

use serde::{Serialize, de::DeserializeOwned};

use crate::durable::{self, Access, Survives};

/// Replaces a JSON file. Survives a power failure.
///
/// # Errors
/// See [`durable::replace`].
pub fn write<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    durable::replace(path, &serde_json::to_vec(value)?, Access::default(), Survives::PowerLoss)
}

/// Reads a JSON file. Returns `None` if it is missing or invalid.
pub fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}
