//! Reads model files. What they mean is decided in `model`.

use crate::error::Error;
use crate::model::Model;

/// The model in the file at `path`.
///
/// # Errors
/// [`Error::ModelFile`] when it cannot be read, [`Error::Model`] when it is no model of this example.
pub fn read(path: &str) -> Result<Model, Error> {
    let json = std::fs::read_to_string(path)
        .map_err(|source| Error::ModelFile { path: path.to_owned(), source })?;
    Model::parse(&json).map_err(|reason| Error::Model { path: path.to_owned(), reason })
}
