//! The `crds` command: prints the `CustomResourceDefinitions`, or writes them into a directory.

use std::{io::Write as _, path::Path};

use crate::error::Error;

/// Prints all CRDs as one YAML stream, or writes one file per CRD into the directory `output`.
///
/// # Errors
/// [`Error::Write`].
pub fn crds(output: Option<&Path>) -> Result<(), Error> {
    let write = |path: &Path, source| Error::Write { path: path.to_owned(), source };
    let Some(directory) = output else {
        let stream = neptune_api::crdgen::stream();
        let result = std::io::stdout().write_all(stream.as_bytes());
        return result.map_err(|source| write(Path::new("standard output"), source));
    };
    std::fs::create_dir_all(directory).map_err(|source| write(directory, source))?;
    for (name, text) in neptune_api::crdgen::files() {
        let path = directory.join(name);
        std::fs::write(&path, text).map_err(|source| write(&path, source))?;
    }
    Ok(())
}
