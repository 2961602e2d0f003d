//! Reads model files. `model` parses them.

use crate::error::Error;
use crate::model::Model;

/// Reads the model in the file at `path`.
///
/// # Errors
/// [`Error::ModelFile`] when it cannot be read, [`Error::Model`] when it is not a model of this
/// example.
pub fn read(path: &str) -> Result<Model, Error> {
    let json = std::fs::read_to_string(path)
        .map_err(|source| Error::ModelFile { path: path.to_owned(), source })?;
    Model::parse(&json).map_err(|reason| Error::Model { path: path.to_owned(), reason })
}
