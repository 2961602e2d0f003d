//! Counting the files of a directory: images, or annotations with the classes of their objects. I/O.

use std::{fs::Metadata, io::Read, os::unix::fs::MetadataExt, path::Path};

use crate::{
    annotations::{Annotations, Digests, Facts},
    error::Error,
    format::voc,
    policy::Policy,
    read::Meter,
    tally::Tally,
    walk::walk,
};

/// What cameras and labelling tools write.
const IMAGES: [&str; 13] = [
    "jpg", "jpeg", "png", "bmp", "gif", "tif", "tiff", "webp", "ppm", "pgm", "pbm", "heic", "avif",
];
const ANNOTATIONS: [&str; 1] = ["xml"];
/// A longer file is no annotation of one image; in bytes.
const MAX_ANNOTATION: u64 = 4 * 1024 * 1024;

/// One sample an image. Only names and sizes are looked at.
///
/// # Errors
/// As [`walk`].
pub(crate) fn count_images(root: &Path, policy: &Policy, meter: &Meter) -> Result<Tally, Error> {
    let mut tally = Tally::default();
    let skipped = walk(root, &IMAGES, policy, meter, |_, metadata| {
        tally.samples += 1;
        tally.bytes += metadata.len();
    })?;
    Ok(Tally { skipped: skipped.count, skipped_example: skipped.example, ..tally })
}

/// One sample a readable annotation. Lists the directory, and reads the files of the buckets that have changed.
///
/// # Errors
/// As [`walk`].
pub(crate) fn count_annotations(
    known: &mut Annotations,
    root: &Path,
    policy: &Policy,
    meter: &Meter,
) -> Result<Tally, Error> {
    let mut now = Digests::default();
    let skipped =
        walk(root, &ANNOTATIONS, policy, meter, |path, metadata| now.add(&facts(path, metadata)))?;
    let changed = known.forget_changed(&now);
    if !changed.is_empty() {
        // The files are listed again, since their names would not fit: a bucket gets the digest of what is read now.
        walk(root, &ANNOTATIONS, policy, meter, |path, metadata| {
            let file = facts(path, metadata);
            if file.is_in(&changed)
                && let Some(read) = read(path, metadata, policy, meter)
            {
                known.add(&file, read);
            }
        })?;
    }
    let tally = known.tally();
    let example = tally.skipped_example.or(skipped.example);
    Ok(Tally { skipped: tally.skipped + skipped.count, skipped_example: example, ..tally })
}

fn facts(path: &Path, metadata: &Metadata) -> Facts {
    Facts::new(path, metadata.ino(), metadata.len(), (metadata.ctime(), metadata.ctime_nsec()))
}

/// The classes in a file, or why there are none; nothing if the file is gone.
fn read(
    path: &Path,
    metadata: &Metadata,
    policy: &Policy,
    meter: &Meter,
) -> Option<Result<Vec<String>, String>> {
    let about = |reason: &dyn std::fmt::Display| Some(Err(format!("{}: {reason}", path.display())));
    if metadata.len() > MAX_ANNOTATION {
        return about(&"too long for an annotation");
    }
    let file = match policy.open(path) {
        Ok(file) => file?,
        Err(Error::Missing { .. }) => return None,
        Err(error) => return Some(Err(error.to_string())),
    };
    let mut bytes = Vec::new();
    if let Err(error) = file.take(MAX_ANNOTATION).read_to_end(&mut bytes) {
        return about(&error);
    }
    meter.add(bytes.len());
    match voc::classes(&bytes) {
        Ok(classes) => Some(Ok(classes)),
        Err(error) => about(&error),
    }
}
