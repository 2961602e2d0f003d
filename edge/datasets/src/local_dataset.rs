//! A dataset in the node's file system, and one count of it from an earlier state. I/O.

use std::path::{Path, PathBuf};

use neptune_sources::{DatasetFormat, FormatOptions};
use serde::{Deserialize, Serialize};

use crate::{
    counted_file::CountedFile,
    counts::SampleCounts,
    directory::{CountedDirectory, DirectoryFormat, count_images},
    error::DatasetError,
    path_policy::PathPolicy,
    read::ReadMeter,
};

/// A dataset in the node's file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalDataset {
    /// Absolute path of the file or directory on the node.
    pub path: PathBuf,
    /// Format of the file, or of the files in the directory.
    pub format: DatasetFormat,
    /// Options of the format.
    #[serde(default)]
    pub options: FormatOptions,
}

/// The counts of a dataset, and the data that is needed to resume counting.
///
/// Store it to make a restart cheap: the next count then reads only what changed. Treat a stored
/// state that cannot be deserialized as missing, because the layout changes between releases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountState {
    #[serde(rename = "spec")]
    dataset: LocalDataset,
    #[serde(rename = "tally")]
    counts: SampleCounts,
    #[serde(rename = "known")]
    resume: ResumePoint,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ResumePoint {
    File(CountedFile),
    Directory(CountedDirectory),
    /// Images are not read, so each count lists the directory again.
    Images,
}

impl CountState {
    /// The counts at the time of this state.
    pub fn counts(&self) -> &SampleCounts {
        &self.counts
    }

    /// Whether this state is a count of `dataset`, with the same path, format and options.
    pub fn belongs_to(&self, dataset: &LocalDataset) -> bool {
        self.dataset == *dataset
    }
}

impl LocalDataset {
    /// Counts the dataset and reads only what changed since `known`. Blocking.
    ///
    /// Ignores `known` if it belongs to another dataset. Adds the bytes that were read to `meter`.
    ///
    /// # Errors
    /// Any [`DatasetError`]. `known` remains valid.
    pub fn count(
        &self,
        known: Option<&CountState>,
        policy: &PathPolicy,
        meter: &ReadMeter,
    ) -> Result<CountState, DatasetError> {
        self.options.check(self.format)?;
        let known = known.filter(|state| state.belongs_to(self)).map(|state| &state.resume);
        let root = policy.resolve(&self.path)?;
        let (counts, resume) = if root.is_dir() {
            self.count_directory(&root, known, policy, meter)?
        } else if self.format.needs_directory() {
            return Err(self.wrong_file_type("directory"));
        } else {
            let file = policy.open(&self.path)?.ok_or_else(|| self.wrong_file_type("file"))?;
            let known = if let Some(ResumePoint::File(file)) = known { Some(file) } else { None };
            let counted = CountedFile::refresh(
                known,
                (&file, &self.path),
                (self.format, &self.options),
                meter,
            )?;
            (counted.counts(), ResumePoint::File(counted))
        };
        Ok(CountState { dataset: self.clone(), counts, resume })
    }

    fn count_directory(
        &self,
        root: &Path,
        known: Option<&ResumePoint>,
        policy: &PathPolicy,
        meter: &ReadMeter,
    ) -> Result<(SampleCounts, ResumePoint), DatasetError> {
        if self.format == DatasetFormat::Images {
            return Ok((count_images(root, policy, meter)?, ResumePoint::Images));
        }
        let mut directory = if let Some(ResumePoint::Directory(known)) = known {
            known.clone()
        } else {
            CountedDirectory::default()
        };
        let files = DirectoryFormat { format: self.format, options: &self.options, policy };
        let counts = directory.refresh(root, files, meter)?;
        Ok((counts, ResumePoint::Directory(directory)))
    }

    fn wrong_file_type(&self, needed: &'static str) -> DatasetError {
        DatasetError::WrongFileType { path: self.path.clone(), format: self.format, needed }
    }
}
