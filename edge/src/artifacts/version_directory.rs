//! Updates a directory of versions for a server that watches it: each version is built outside of
//! it from hard links to the store's files, and appears by one rename.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use neptune_agent_core::domain::{
    artifact::{LocalArtifact, PlacedVersions},
    observed_container::ObservedContainer,
};
use neptune_transfer::durable::{self, Survives, remove};
use tracing::warn;

/// Directory for unfinished versions, beside those of the objects. No UID begins with a dot.
const BUILDING: &str = ".building";

/// Makes the directory contain exactly these versions. Adds before it removes. A version that
/// exists is complete and is never changed, so it is added such that it survives a power failure.
/// `root` must be on the same file system. Blocking.
pub fn place(
    root: &Path,
    dir: &Path,
    wanted: &BTreeMap<String, LocalArtifact>,
) -> io::Result<PlacedVersions> {
    fs::create_dir_all(dir)?;
    for (version, model) in wanted {
        let target = dir.join(version);
        if target.exists() {
            continue;
        }
        let building = root.join(BUILDING).join(unique(dir, version));
        remove(&building)?;
        fs::create_dir_all(&building)?;
        match &model.file {
            Some(name) => link(&model.path, &building.join(name))?,
            None => link_tree(&model.path, &building)?,
        }
        durable::adopt(&building, &target, Survives::PowerLoss)?;
    }
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if !entry.file_name().to_str().is_some_and(|name| wanted.contains_key(name)) {
            // The rename hides it from the server at once, however long the removal takes.
            let removed =
                root.join(BUILDING).join(unique(dir, &entry.file_name().to_string_lossy()));
            remove(&removed)?;
            fs::create_dir_all(root.join(BUILDING))?;
            durable::move_aside(&entry.path(), &removed)?;
            remove(&removed)?;
        }
    }
    durable::sync_directory(dir)?;
    Ok(PlacedVersions { dir: dir.to_owned(), names: wanted.keys().cloned().collect() })
}

/// Removes the directories of objects that are not in `uids`, and of the others the generations
/// that are not in `kept`. A directory that contains a kept one stays. Blocking.
pub fn gc(root: &Path, uids: &BTreeSet<String>, kept: &BTreeSet<PathBuf>) -> io::Result<()> {
    for object in below(root)? {
        let is_used = kept.iter().any(|path| path.starts_with(&object));
        let name = object.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name == BUILDING {
            continue;
        }
        if !uids.contains(name) && !is_used {
            remove(&object)?;
            continue;
        }
        for generation in below(&object)?.into_iter().filter(|dir| !kept.contains(dir)) {
            remove(&generation)?;
        }
    }
    Ok(())
}

/// The directories below `root` that containers have mounted.
pub fn mounted_below(root: &Path, containers: &[ObservedContainer]) -> BTreeSet<PathBuf> {
    let mounted = containers.iter().flat_map(|container| &container.sources);
    mounted.map(PathBuf::from).filter(|path| path.starts_with(root)).collect()
}

/// Runs [`gc`] if `kept` differs from what the last collection kept. An error is logged. Blocking.
pub fn gc_changed(
    root: &Path,
    uids: &BTreeSet<String>,
    kept: BTreeSet<PathBuf>,
    last_kept: &mut Option<BTreeSet<PathBuf>>,
) {
    if last_kept.as_ref() == Some(&kept) {
        return;
    }
    match gc(root, uids, &kept) {
        Ok(()) => *last_kept = Some(kept),
        Err(error) => warn!(%error, path = %root.display(), "cannot remove unused versions"),
    }
}

fn below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// A name for the unfinished version. Unique, because an object has at most one operation at a
/// time.
fn unique(dir: &Path, version: &str) -> String {
    let parts = dir.iter().rev().take(2).map(|part| part.to_string_lossy().into_owned());
    parts.chain([version.to_owned()]).collect::<Vec<_>>().join("+")
}

fn link_tree(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            fs::create_dir(&target)?;
            link_tree(&entry.path(), &target)?;
        } else {
            link(&entry.path(), &target)?;
        }
    }
    Ok(())
}

/// Links, or copies where the file system has no hard links.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => fs::copy(from, to).map(drop),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn versions_appear_complete_and_are_removed_without_leftovers() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("serving");
        let tree = temp.path().join("tree");
        fs::create_dir_all(tree.join("variables")).unwrap();
        fs::write(tree.join("variables/a"), "a").unwrap();
        fs::write(temp.path().join("model"), "plain").unwrap();
        let tree = LocalArtifact { path: tree, file: None };
        let plain = LocalArtifact { path: temp.path().join("model"), file: Some("m.onnx".into()) };
        let dir = root.join("uid/1");

        let both = [("3".to_owned(), tree.clone()), ("4".to_owned(), plain)].into();
        let placed = place(&root, &dir, &both).unwrap();
        assert_eq!(placed.names.len(), 2);
        assert_eq!(fs::read_to_string(dir.join("3/variables/a")).unwrap(), "a");
        assert_eq!(fs::read_to_string(dir.join("4/m.onnx")).unwrap(), "plain");
        assert_eq!(place(&root, &dir, &both).unwrap(), placed, "a repetition changes nothing");

        fs::write(dir.join("stray"), "x").unwrap();
        place(&root, &dir, &[("3".to_owned(), tree)].into()).unwrap();
        let names: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["3"]);
        assert_eq!(fs::read_dir(root.join(BUILDING)).unwrap().count(), 0);

        let missing = LocalArtifact { path: temp.path().join("missing"), file: None };
        assert!(place(&root, &dir, &[("5".to_owned(), missing)].into()).is_err());
        assert!(!dir.join("5").exists());
    }

    #[test]
    fn unused_directories_are_collected() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path();
        for dir in ["gone/1/3", "mounted/1/3", "wanted/1/3", "wanted/2/3"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        let kept = [root.join("mounted/1"), root.join("wanted/2")].into();
        gc(root, &["wanted".to_owned()].into(), &kept).unwrap();
        assert!(!root.join("gone").exists() && !root.join("wanted/1").exists());
        assert!(root.join("mounted/1/3").exists() && root.join("wanted/2/3").exists());
        gc(&root.join("nowhere"), &BTreeSet::new(), &BTreeSet::new()).unwrap();
    }
}
