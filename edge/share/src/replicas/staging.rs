//! Files that are written beside the replica's directory until they are complete. Blocking.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use neptune_transfer::{
    Digest,
    durable::{self, Survives},
};

use crate::replicas::{
    files::hash_blocks,
    manifest::{BLOCK, RelativePath},
};

/// The blocks that an earlier process wrote.
pub fn staged_blocks(staging: &Path) -> io::Result<Vec<Digest>> {
    match fs::symlink_metadata(staging) {
        Ok(metadata) => hash_blocks(staging, 0, metadata.len()),
        Err(_) => Ok(Vec::new()),
    }
}

/// Removes the manifests and the parts of files that no sync needs any more.
pub fn remove_leftovers(state: &Path) -> io::Result<()> {
    for directory in [state.to_owned(), state.join("new")] {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let is_manifest = entry.file_name().to_string_lossy().starts_with("manifest-");
            if is_manifest || directory != state {
                fs::remove_file(entry.path())?;
            }
        }
    }
    Ok(())
}

/// Renames a complete file to its path. Removes what is in its way. Survives a kill; after a power
/// failure the `syncing` marker, which is removed when all files were synced together, makes the
/// next sync compare them.
pub fn put(staging: &Path, root: &Path, path: &RelativePath, bytes: u64) -> io::Result<()> {
    File::options().create(true).truncate(false).write(true).open(staging)?.set_len(bytes)?;
    let target = path.below(root);
    let mut parents: Vec<_> =
        target.ancestors().skip(1).take_while(|it| *it != root).map(Path::to_owned).collect();
    parents.reverse();
    for parent in parents {
        // A link could lead out of the directory.
        match fs::symlink_metadata(&parent) {
            Ok(metadata) if metadata.is_dir() => continue,
            Ok(_) => fs::remove_file(&parent)?,
            Err(_) => {}
        }
        fs::create_dir(&parent)?;
    }
    if fs::symlink_metadata(&target).is_ok_and(|it| it.is_dir()) {
        fs::remove_dir_all(&target)?;
    }
    durable::adopt(staging, &target, Survives::Kill)
}

/// Takes all whole lines out of `held`, or all of it if a line is longer than a block.
pub fn whole_lines(held: &mut Vec<u8>) -> Vec<u8> {
    let end = held.iter().rposition(|byte| *byte == b'\n').map(|end| end + 1);
    let end = end.unwrap_or(if held.len() as u64 >= BLOCK { held.len() } else { 0 });
    let rest = held.split_off(end);
    std::mem::replace(held, rest)
}
