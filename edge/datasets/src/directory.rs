//! Counts the files of a directory: images, or annotations with the classes of their objects. I/O.

use std::{fs::Metadata, io::Read, os::unix::fs::MetadataExt, path::Path};

use crate::{
    annotation_index::{AnnotationIndex, BucketDigests, FileFingerprint},
    counts::SampleCounts,
    error::DatasetError,
    format::voc,
    path_policy::PathPolicy,
    read::ReadMeter,
    walk::walk,
};

/// The image file extensions that cameras and labelling tools write.
const IMAGE_EXTENSIONS: [&str; 13] = [
    "jpg", "jpeg", "png", "bmp", "gif", "tif", "tiff", "webp", "ppm", "pgm", "pbm", "heic", "avif",
];
const ANNOTATION_EXTENSIONS: [&str; 1] = ["xml"];
/// Maximum size of an annotation file, in bytes. A larger file is not an annotation of one image.
const MAX_ANNOTATION_BYTES: u64 = 4 * 1024 * 1024;

/// Counts one sample per image. Uses only file names and sizes.
///
/// # Errors
/// Those of [`walk`].
pub(crate) fn count_images(
    root: &Path,
    policy: &PathPolicy,
    meter: &ReadMeter,
) -> Result<SampleCounts, DatasetError> {
    let mut counts = SampleCounts::default();
    let skipped = walk(root, &IMAGE_EXTENSIONS, policy, meter, |_, metadata| {
        counts.samples += 1;
        counts.bytes += metadata.len();
    })?;
    Ok(SampleCounts { skipped: skipped.count, skipped_example: skipped.example, ..counts })
}

/// Counts one sample per readable annotation. Lists the directory, and reads only the files of the
/// buckets that changed since `index` was last updated.
///
/// # Errors
/// Those of [`walk`].
pub(crate) fn count_annotations(
    index: &mut AnnotationIndex,
    root: &Path,
    policy: &PathPolicy,
    meter: &ReadMeter,
) -> Result<SampleCounts, DatasetError> {
    let mut now = BucketDigests::default();
    let skipped = walk(root, &ANNOTATION_EXTENSIONS, policy, meter, |path, metadata| {
        now.add(&fingerprint(path, metadata));
    })?;
    let changed = index.remove_changed(&now);
    if !changed.is_empty() {
        // The second walk is needed because the names of all files are not kept in memory. The
        // bucket gets the digest of the files as they are during this walk.
        walk(root, &ANNOTATION_EXTENSIONS, policy, meter, |path, metadata| {
            let file = fingerprint(path, metadata);
            if file.is_in(&changed)
                && let Some(read) = read_annotation(path, metadata, policy, meter)
            {
                index.add(&file, read);
            }
        })?;
    }
    let counts = index.counts();
    let example = counts.skipped_example.or(skipped.example);
    Ok(SampleCounts { skipped: counts.skipped + skipped.count, skipped_example: example, ..counts })
}

fn fingerprint(path: &Path, metadata: &Metadata) -> FileFingerprint {
    let changed = (metadata.ctime(), metadata.ctime_nsec());
    FileFingerprint::new(path, metadata.ino(), metadata.len(), changed)
}

/// The classes of the objects in a file, or the reason why it cannot be counted. `None` if the file
/// no longer exists.
fn read_annotation(
    path: &Path,
    metadata: &Metadata,
    policy: &PathPolicy,
    meter: &ReadMeter,
) -> Option<Result<Vec<String>, String>> {
    let about = |reason: &dyn std::fmt::Display| Some(Err(format!("{}: {reason}", path.display())));
    if metadata.len() > MAX_ANNOTATION_BYTES {
        return about(&"too large for an annotation");
    }
    let file = match policy.open(path) {
        Ok(file) => file?,
        Err(DatasetError::NotFound { .. }) => return None,
        Err(error) => return Some(Err(error.to_string())),
    };
    let mut bytes = Vec::new();
    if let Err(error) = file.take(MAX_ANNOTATION_BYTES).read_to_end(&mut bytes) {
        return about(&error);
    }
    meter.add(bytes.len());
    match voc::classes(&bytes) {
        Ok(classes) => Some(Ok(classes)),
        Err(error) => about(&error),
    }
}
