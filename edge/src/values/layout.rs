//! The directory of a volume with files of a Secret or a `ConfigMap`, laid out as by the kubelet.
//! Blocking.
//!
//! ```text
//! VOLUME/..1f0c.../url          a directory per version, complete before it gets its name
//! VOLUME/..data -> ..1f0c...    replaced in one step
//! VOLUME/url -> ..data/url
//! ```
//!
//! A container mounts the directory, and so sees all files of the old version or all of the new one.
//! Everybody may read them: the user of a container is not known, and the directory above all
//! volumes is the agent's alone.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink},
    path::Path,
};

use neptune_agent_core::values::files::VolumeFiles;
use neptune_transfer::durable::{Access, Survives, adopt, replace};

/// The link to the directory of the version.
const DATA: &str = "..data";
/// The names of what is not finished.
const NEW_DATA: &str = "..data-new";
const NEW_VERSION: &str = "..version-new";
/// Everybody may read, and nobody may write.
const FILE: u32 = 0o444;
const VERSION_DIR: u32 = 0o555;
const OPEN_DIR: u32 = 0o755;

/// Makes a volume have exactly these files. `version` names them: other files have another one, which
/// is a file name without a leading dot. Does nothing if the volume has them.
///
/// # Errors
/// A file cannot be written. The volume has its old files, or the new ones.
pub fn provide(volume: &Path, version: &str, content: &VolumeFiles) -> io::Result<()> {
    let version = format!("..{version}");
    DirBuilder::new().recursive(true).mode(OPEN_DIR).create(volume)?;
    let tops: BTreeSet<&str> = content.files.keys().map(|path| top(path)).collect();
    if !is_current(volume, &version) {
        let new = volume.join(NEW_VERSION);
        remove(&new)?;
        write_version(&new, content)?;
        remove(&volume.join(&version))?;
        adopt(&new, &volume.join(&version), Survives::Kill)?;
        // Before the switch: links that lead nowhere for a moment, and never an old file.
        link_all(volume, &tops)?;
        let link = volume.join(NEW_DATA);
        remove(&link)?;
        symlink(&version, &link)?;
        adopt(&link, &volume.join(DATA), Survives::Kill)?;
    }
    link_all(volume, &tops)?;
    for entry in fs::read_dir(volume)? {
        let name = entry?.file_name();
        let is_used = name.to_str().is_some_and(|name| {
            name == DATA || name == version || (!name.starts_with("..") && tops.contains(name))
        });
        if !is_used {
            remove(&volume.join(name))?;
        }
    }
    Ok(())
}

/// Removes a file, a link or a directory with its content, also one without write permission. Absent
/// is removed.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            fs::set_permissions(path, Permissions::from_mode(OPEN_DIR))?;
            for entry in fs::read_dir(path)? {
                remove(&entry?.path())?;
            }
            fs::remove_dir(path)
        }
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn is_current(volume: &Path, version: &str) -> bool {
    fs::read_link(volume.join(DATA)).is_ok_and(|link| link == Path::new(version))
        && volume.join(version).is_dir()
}

/// The first part of a path: the entry of the volume that leads to it.
fn top(path: &str) -> &str {
    path.split('/').next().unwrap_or(path)
}

fn write_version(dir: &Path, content: &VolumeFiles) -> io::Result<()> {
    DirBuilder::new().mode(OPEN_DIR).create(dir)?;
    let mut dirs = BTreeSet::from([dir.to_owned()]);
    for (path, value) in &content.files {
        let file = dir.join(path);
        let parent = file.parent().unwrap_or(dir);
        DirBuilder::new().recursive(true).mode(OPEN_DIR).create(parent)?;
        dirs.extend(parent.ancestors().take_while(|it| *it != dir).map(Path::to_owned));
        replace(&file, value.expose(), Access::mode(FILE), Survives::Kill)?;
    }
    // Independent of the umask, and only once they are complete.
    for dir in &dirs {
        fs::set_permissions(dir, Permissions::from_mode(VERSION_DIR))?;
    }
    Ok(())
}

fn link_all(volume: &Path, tops: &BTreeSet<&str>) -> io::Result<()> {
    for top in tops {
        let (link, target) = (volume.join(top), Path::new(DATA).join(top));
        if fs::read_link(&link).is_ok_and(|it| it == target) {
            continue;
        }
        remove(&link)?;
        symlink(target, link)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{
        collections::BTreeMap,
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use neptune_wire::SecretBytes;
    use proptest::prelude::*;

    use super::*;

    fn content(files: &[(&str, &str)]) -> VolumeFiles {
        let file = |(path, text): &(&str, &str)| {
            ((*path).to_owned(), SecretBytes::new(text.as_bytes().to_vec()))
        };
        VolumeFiles { files: files.iter().map(file).collect() }
    }

    /// What a kill or a person does to a volume.
    type Damage = fn(&Path);

    /// What a container sees: its own entries, without those of the layout.
    fn seen(dir: &Path) -> BTreeMap<String, String> {
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(dir).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let path = dir.join(&name);
            if name.starts_with("..") {
                continue;
            }
            if path.is_dir() {
                files.extend(seen(&path).into_iter().map(|(at, it)| (format!("{name}/{at}"), it)));
            } else {
                files.insert(name, fs::read_to_string(path).unwrap());
            }
        }
        files
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn volume_is_laid_out_as_by_the_kubelet_and_read_only() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("uid/w/v");
        provide(&volume, "1", &content(&[("url", "u"), ("a/b/c", "deep")])).unwrap();
        assert_eq!(fs::read_link(volume.join("..data")).unwrap(), Path::new("..1"));
        assert_eq!(fs::read_link(volume.join("url")).unwrap(), Path::new("..data/url"));
        assert_eq!(fs::read_link(volume.join("a")).unwrap(), Path::new("..data/a"));
        assert_eq!(mode(&volume.join("..1/url")), 0o444);
        assert_eq!(mode(&volume.join("..1/a/b")), 0o555);
        assert_eq!(mode(&volume), 0o755);
        provide(&volume, "2", &content(&[("url", "v")])).unwrap();
        assert_eq!(seen(&volume), [("url".to_owned(), "v".to_owned())].into());
        let entries = fs::read_dir(&volume).unwrap().count();
        assert_eq!(entries, 3, "the version before is gone");
        remove(&volume).unwrap();
        assert!(!volume.exists());
    }

    #[test]
    fn what_a_kill_or_a_person_left_is_repaired() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("v");
        let files = content(&[("a", "1"), ("b/c", "2")]);
        provide(&volume, "1", &files).unwrap();
        let expected = seen(&volume);
        let damages: [Damage; 6] = [
            |volume| fs::remove_file(volume.join("..data")).unwrap(),
            |volume| remove(&volume.join("..1")).unwrap(),
            |volume| fs::remove_file(volume.join("a")).unwrap(),
            |volume| fs::create_dir_all(volume.join("..version-new/x")).unwrap(),
            |volume| symlink("..0", volume.join("..data-new")).unwrap(),
            |volume| fs::create_dir_all(volume.join("other/x")).unwrap(),
        ];
        for (index, damage) in damages.iter().enumerate() {
            damage(&volume);
            provide(&volume, "1", &files).unwrap();
            assert_eq!(seen(&volume), expected, "damage {index}");
            assert_eq!(fs::read_dir(&volume).unwrap().count(), 4, "damage {index}");
        }
    }

    proptest! {
        #[test]
        fn volume_has_the_files_of_its_last_version(
            versions in prop::collection::vec(
                prop::collection::btree_map("[a-c](/[d-e]){0,2}", "[x-z]{0,3}", 0..5), 1..6,
            ),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let volume = dir.path().join("v");
            for (index, files) in versions.iter().enumerate() {
                // A path is not a file and a directory: refused before.
                let files: BTreeMap<&str, &str> = files
                    .iter()
                    .filter(|(path, _)| !files.keys().any(|it| it.starts_with(&format!("{path}/"))))
                    .map(|(path, text)| (path.as_str(), text.as_str()))
                    .collect();
                let pairs: Vec<_> = files.iter().map(|(path, text)| (*path, *text)).collect();
                provide(&volume, &index.to_string(), &content(&pairs)).unwrap();
                let expected: BTreeMap<String, String> =
                    pairs.iter().map(|(path, text)| ((*path).into(), (*text).into())).collect();
                prop_assert_eq!(seen(&volume), expected);
            }
        }
    }

    #[test]
    fn reader_of_two_keys_never_sees_a_mixed_pair_during_updates() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("v");
        let pair = |number: u32| {
            let text = number.to_string();
            content(&[("user", text.as_str()), ("password", text.as_str())])
        };
        provide(&volume, "0", &pair(0)).unwrap();
        let (is_over, read_pairs) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut numbers = BTreeSet::new();
                while !is_over.load(Ordering::Relaxed) {
                    // As a program that needs both: it opens the version once.
                    let version = volume.join(fs::read_link(volume.join(DATA)).unwrap());
                    let read = |key: &str| fs::read_to_string(version.join(key));
                    // The version may be removed between both: it reads again.
                    if let (Ok(user), Ok(password)) = (read("user"), read("password")) {
                        assert_eq!(user, password);
                        assert!(!user.is_empty(), "a part of a version");
                        numbers.insert(user);
                        read_pairs.store(numbers.len() > 1, Ordering::Relaxed);
                    }
                }
            });
            for number in 1..=100 {
                provide(&volume, &number.to_string(), &pair(number)).unwrap();
            }
            let mut number = 100;
            while !read_pairs.load(Ordering::Relaxed) {
                number += 1;
                provide(&volume, &number.to_string(), &pair(number)).unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
