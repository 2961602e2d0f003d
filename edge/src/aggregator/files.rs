//! The directory of an aggregator below the data directory of the agent, with its key.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, fchown},
    path::{Path, PathBuf},
};

use neptune_agent_core::domain::node_context::AGGREGATORS_DIR;
use neptune_pinned_tls::{KeyError, TlsKey};
use neptune_transfer::durable;
use rustix::fs::OFlags;

/// The key of the aggregator, as the program expects it.
const KEY: &str = "tls.key";

/// The directory of the aggregator of a `TrainingModel`.
pub fn directory(data_dir: &Path, uid: &str) -> PathBuf {
    data_dir.join(AGGREGATORS_DIR).join(uid)
}

/// Creates the directory and the key, unless they exist, for a program of this user. `agent`: the
/// user of the agent.
///
/// # Errors
/// A file cannot be created, or the key is damaged.
pub fn prepare(directory: &Path, user: u32, agent: u32) -> Result<TlsKey, KeyError> {
    let path = directory.join(KEY);
    let failed = |source| KeyError::File { path: path.clone(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    let key = TlsKey::load_or_generate(&path)?;
    if agent == 0 {
        for path in [&path, directory] {
            give(path, user).map_err(failed)?;
        }
    }
    Ok(key)
}

/// Makes this user the owner of a file or a directory. The directory may belong to the user already,
/// who may put a link to another file in its place: that one stays as it is.
fn give(path: &Path, user: u32) -> io::Result<()> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_dir() && metadata.nlink() != 1 {
        return Err(io::Error::other("it has a second name; remove the file"));
    }
    fchown(&file, Some(user), Some(user))
}

/// Removes the directory.
///
/// # Errors
/// A file cannot be removed.
pub fn remove(directory: &Path) -> io::Result<()> {
    durable::remove(directory)
}

/// The UIDs that have a directory.
///
/// # Errors
/// The directory cannot be read.
pub fn uids(data_dir: &Path) -> io::Result<Vec<String>> {
    let listed = match fs::read_dir(data_dir.join(AGGREGATORS_DIR)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed?,
    };
    let names = listed.map(|entry| Ok(entry?.file_name().into_string().ok()));
    names.filter_map(Result::transpose).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn link_in_place_of_the_key_does_not_give_its_target() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("shadow"), "").unwrap();
        std::os::unix::fs::symlink(path("shadow"), path("link")).unwrap();
        let user = rustix::process::geteuid().as_raw();
        give(&path("shadow"), user).unwrap();
        give(folder.path(), user).unwrap();
        assert!(give(&path("link"), user).is_err());
        fs::hard_link(path("shadow"), path("second")).unwrap();
        assert!(give(&path("second"), user).is_err());
    }

    #[test]
    fn key_stays_until_the_directory_is_removed() {
        let data_dir = tempfile::tempdir().unwrap();
        let directory = directory(data_dir.path(), "uid-1");
        let user = rustix::process::geteuid().as_raw();
        let pin = prepare(&directory, user, user).unwrap().pin().clone();
        assert_eq!(prepare(&directory, user, user).unwrap().pin(), &pin);
        assert_eq!(uids(data_dir.path()).unwrap(), ["uid-1"]);
        remove(&directory).unwrap();
        remove(&directory).unwrap();
        assert!(uids(data_dir.path()).unwrap().is_empty());
        assert_ne!(prepare(&directory, user, user).unwrap().pin(), &pin);
    }
}
