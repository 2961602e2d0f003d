//! A dataset on this node: what is to be counted, and one count of it from what was known before. I/O.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    annotations::Annotations,
    directory::{count_annotations, count_images},
    error::Error,
    file::FileState,
    format::Format,
    options::Options,
    policy::Policy,
    read::Meter,
    tally::Tally,
};

/// A dataset in the node's file system. Remote ones are another's: a [`crate::Counter`] takes what is downloaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DatasetSpec {
    /// Absolute.
    pub path: PathBuf,
    pub format: Format,
    #[serde(default)]
    pub options: Options,
}

/// What is known of a dataset: its tally, and what is needed to count on from there. Worth storing: a restart then
/// costs a look at the file instead of reading it. One that cannot be deserialised, since a newer release has another
/// form of it, is as good as none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    spec: DatasetSpec,
    tally: Tally,
    known: Known,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Known {
    File(FileState),
    Annotations(Annotations),
    /// Nothing is kept of images: they are not read.
    Images,
}

impl State {
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    pub fn is_of(&self, spec: &DatasetSpec) -> bool {
        self.spec == *spec
    }
}

impl DatasetSpec {
    /// The path of a `dataUrl` on this node: an absolute path, or `file://` with one; none for other schemes.
    pub fn local_path(data_url: &str) -> Option<PathBuf> {
        let path = data_url.strip_prefix("file://").unwrap_or(data_url);
        path.starts_with('/').then(|| path.into())
    }

    /// Counts the dataset as it is now, reading as little as `known` allows. Blocks; a state of another spec is taken
    /// for none.
    ///
    /// # Errors
    /// Whatever keeps it from being counted; what was known stays true.
    pub fn count(
        &self,
        known: Option<&State>,
        policy: &Policy,
        meter: &Meter,
    ) -> Result<State, Error> {
        self.options.check(self.format)?;
        let known = known.filter(|state| state.is_of(self)).map(|state| &state.known);
        let (tally, known) = if self.format.is_directory() {
            self.count_directory(known, policy, meter)?
        } else {
            let file = policy.open(&self.path)?.ok_or_else(|| self.wrong_kind("file"))?;
            let known = if let Some(Known::File(file)) = known { Some(file) } else { None };
            let counted = FileState::refresh(
                known,
                (&file, &self.path),
                (self.format, &self.options),
                meter,
            )?;
            (counted.tally(), Known::File(counted))
        };
        Ok(State { spec: self.clone(), tally, known })
    }

    fn count_directory(
        &self,
        known: Option<&Known>,
        policy: &Policy,
        meter: &Meter,
    ) -> Result<(Tally, Known), Error> {
        let root = policy.resolve(&self.path)?;
        if !root.is_dir() {
            return Err(self.wrong_kind("directory"));
        }
        if self.format == Format::Images {
            return Ok((count_images(&root, policy, meter)?, Known::Images));
        }
        let mut annotations = if let Some(Known::Annotations(known)) = known {
            known.clone()
        } else {
            Annotations::default()
        };
        let tally = count_annotations(&mut annotations, &root, policy, meter)?;
        Ok((tally, Known::Annotations(annotations)))
    }

    fn wrong_kind(&self, needed: &'static str) -> Error {
        Error::WrongKind { path: self.path.clone(), format: self.format, needed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_this_node_are_local() {
        for (url, path) in [
            ("/code/data", Some("/code/data")),
            ("file:///code/data", Some("/code/data")),
            ("file://host/data", None),
            ("http://host/data.csv", None),
            ("s3://bucket/data", None),
            ("data.csv", None),
        ] {
            assert_eq!(DatasetSpec::local_path(url), path.map(PathBuf::from), "{url}");
        }
    }
}
