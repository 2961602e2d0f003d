//! Counts the files of a directory. I/O.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::Metadata,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use neptune_sources::{DatasetFormat, FormatOptions};
use serde::{Deserialize, Serialize};

use crate::{
    counted_file::CountedFile,
    counts::SampleCounts,
    directory_index::{BucketDigests, DirectoryIndex, FileFingerprint},
    error::DatasetError,
    format::voc,
    path_policy::PathPolicy,
    read::ReadMeter,
    walk::walk,
};

/// Maximum size of an annotation file, in bytes. A larger file is not an annotation of one image.
const MAX_ANNOTATION_BYTES: u64 = 4 * 1024 * 1024;
/// Minimum size of a file that is resumed at its end after it has grown, in bytes. A smaller one is
/// read again.
const MIN_RESUMED_BYTES: u64 = 64 * 1024;
/// Maximum number of files of a directory that are resumed. One takes a few hundred bytes, and at
/// most 40 KiB with the maximum number of labels.
const MAX_RESUMED_FILES: usize = 256;

/// The counts of a directory, and the data that is needed to resume counting.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CountedDirectory {
    index: DirectoryIndex,
    /// The counts of the large files, each with the position at which its count resumes.
    resumed: BTreeMap<PathBuf, CountedFile>,
}

/// What is counted in a directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DirectoryFormat<'a> {
    pub(crate) format: DatasetFormat,
    pub(crate) options: &'a FormatOptions,
    pub(crate) policy: &'a PathPolicy,
}

/// Counts one sample per image. Uses only file names and sizes.
///
/// # Errors
/// The errors of [`walk`].
pub(crate) fn count_images(
    root: &Path,
    policy: &PathPolicy,
    meter: &ReadMeter,
) -> Result<SampleCounts, DatasetError> {
    let mut counts = SampleCounts::default();
    let skipped = walk(root, DatasetFormat::Images, policy, meter, |_, metadata| {
        counts.samples += 1;
        counts.bytes += metadata.len();
    })?;
    Ok(SampleCounts { skipped: skipped.count, skipped_example: skipped.example, ..counts })
}

impl CountedDirectory {
    /// Sums the counts of all files. Lists the directory, and reads only the files of the buckets
    /// that changed since the last call.
    ///
    /// # Errors
    /// The errors of [`walk`]. A file that cannot be counted is skipped.
    pub(crate) fn refresh(
        &mut self,
        root: &Path,
        files: DirectoryFormat,
        meter: &ReadMeter,
    ) -> Result<SampleCounts, DatasetError> {
        let DirectoryFormat { format, policy, .. } = files;
        let mut now = BucketDigests::default();
        let mut gone: BTreeSet<PathBuf> = self.resumed.keys().cloned().collect();
        let skipped = walk(root, format, policy, meter, |path, metadata| {
            now.add(&fingerprint(path, metadata));
            gone.remove(path);
        })?;
        self.resumed.retain(|path, _| !gone.contains(path));
        let changed = self.index.remove_changed(&now);
        if !changed.is_empty() {
            // The second walk is needed because the names of all files are not kept in memory. The
            // bucket gets the digest of the files as they are during this walk.
            walk(root, format, policy, meter, |path, metadata| {
                let file = fingerprint(path, metadata);
                if file.is_in(&changed)
                    && let Some(counted) = self.count_file(path, metadata, files, meter)
                {
                    self.index.add(&file, counted);
                }
            })?;
            if meter.is_stopped() {
                // The last file may be incomplete.
                return Err(DatasetError::Stopped);
            }
        }
        let counts = self.index.counts();
        let example = counts.skipped_example.or(skipped.example);
        let skipped = counts.skipped + skipped.count;
        Ok(SampleCounts { skipped, skipped_example: example, ..counts })
    }

    /// The counts of a file, or the reason why it cannot be counted. `None` if it no longer exists.
    fn count_file(
        &mut self,
        path: &Path,
        metadata: &Metadata,
        files: DirectoryFormat,
        meter: &ReadMeter,
    ) -> Option<Result<SampleCounts, String>> {
        let counted = if files.format == DatasetFormat::Xml {
            count_annotation(path, metadata, files.policy, meter)
        } else {
            self.count_samples(path, files, meter)
        };
        match counted {
            Err(DatasetError::NotFound { .. }) => None,
            // Errors of the format do not name the file.
            Err(error) if error.is_malformed_data() => {
                Some(Err(format!("{}: {error}", path.display())))
            }
            counted => Some(counted.map_err(|error| error.to_string())),
        }
    }

    /// Counts a file, and resumes at the end of its last count if it has grown.
    fn count_samples(
        &mut self,
        path: &Path,
        files: DirectoryFormat,
        meter: &ReadMeter,
    ) -> Result<SampleCounts, DatasetError> {
        let not_found = || DatasetError::NotFound { path: path.to_owned() };
        let file = files.policy.open(path)?.ok_or_else(not_found)?;
        let known = self.resumed.remove(path);
        let format = (files.format, files.options);
        let counted = CountedFile::refresh(known.as_ref(), (&file, path), format, meter)?;
        let counts = counted.counts();
        if counts.bytes >= MIN_RESUMED_BYTES && self.resumed.len() < MAX_RESUMED_FILES {
            self.resumed.insert(path.to_owned(), counted);
        }
        Ok(counts)
    }
}

fn fingerprint(path: &Path, metadata: &Metadata) -> FileFingerprint {
    let changed = (metadata.ctime(), metadata.ctime_nsec());
    FileFingerprint::new(path, metadata.ino(), metadata.len(), changed)
}

/// One sample, with its objects per class.
fn count_annotation(
    path: &Path,
    metadata: &Metadata,
    policy: &PathPolicy,
    meter: &ReadMeter,
) -> Result<SampleCounts, DatasetError> {
    let malformed = |reason: String| DatasetError::MalformedAnnotation { reason };
    if metadata.len() > MAX_ANNOTATION_BYTES {
        return Err(malformed("too large for an annotation".to_owned()));
    }
    let not_found = || DatasetError::NotFound { path: path.to_owned() };
    let file = policy.open(path)?.ok_or_else(not_found)?;
    let mut bytes = Vec::new();
    file.take(MAX_ANNOTATION_BYTES)
        .read_to_end(&mut bytes)
        .map_err(|error| DatasetError::io(path, &error))?;
    meter.add(bytes.len());
    let mut counts = SampleCounts { samples: 1, bytes: metadata.len(), ..SampleCounts::default() };
    for class in voc::classes(&bytes)? {
        counts.labels.add(&class, 1);
    }
    Ok(counts)
}
