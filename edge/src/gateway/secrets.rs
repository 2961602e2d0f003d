//! Copies a gateway's secrets from the node's directory of secrets into the directory that the
//! gateway has mounted. A mounted file would keep its first content when it is replaced, and the
//! whole directory contains secrets of others.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use neptune_transfer::durable::{self, Access, Survives};

/// Maximum size of a secret. Certificate bundles of systems have a quarter of it.
const MAX_BYTES: u64 = 1024 * 1024;

/// Reads a secret. `name` is plain.
///
/// # Errors
/// The file, what is wrong with it and the remedy, as text. Links may not lead out of the directory.
pub fn read(dir: &Path, name: &str) -> Result<Vec<u8>, String> {
    let path = dir.join(name);
    let shown = path.display();
    let problem = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => format!("file {shown} not found on the node; create it"),
        io::ErrorKind::PermissionDenied => {
            format!("file {shown} is not readable for the agent; make its user the owner")
        }
        _ => format!("file {shown}: {error}; correct it"),
    };
    let real = fs::canonicalize(&path).map_err(problem)?;
    if !fs::canonicalize(dir).is_ok_and(|dir| real.starts_with(dir)) {
        return Err(format!("file {shown} leads out of {}; put the file there", dir.display()));
    }
    if !fs::metadata(&real).map_err(problem)?.is_file() {
        return Err(format!("{shown} is not a file; replace it by one"));
    }
    let mut content = Vec::new();
    let file = File::open(&real).map_err(problem)?;
    file.take(MAX_BYTES + 1).read_to_end(&mut content).map_err(problem)?;
    match content.len() as u64 {
        0 => Err(format!("file {shown} is empty; write the secret into it")),
        size if size > MAX_BYTES => {
            Err(format!("file {shown} has more than {MAX_BYTES} bytes; name the right file"))
        }
        _ => Ok(content),
    }
}

/// Replaces a file if its content or group differs: another process reads the old or the new
/// content. `group`: the file's, if it is not that of the agent. Returns whether it was replaced.
/// Survives a power failure: with an empty configuration or token, a gateway would not work until
/// the agent has written it again.
///
/// # Errors
/// It cannot be written.
pub fn replace(path: &Path, content: &[u8], mode: u32, group: Option<u32>) -> io::Result<bool> {
    let has_group =
        group.is_none_or(|group| fs::metadata(path).is_ok_and(|metadata| metadata.gid() == group));
    if has_group && fs::read(path).is_ok_and(|before| before == content) {
        return Ok(false);
    }
    let access = Access::mode(mode).with_group(group);
    durable::replace(path, content, access, Survives::PowerLoss)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn secret_is_read_only_within_its_directory() {
        let node = tempfile::tempdir().unwrap();
        let dir = node.path().join("secrets");
        fs::create_dir_all(dir.join("..data")).unwrap();
        fs::write(node.path().join("shadow"), "other").unwrap();
        fs::write(dir.join("llm"), "token").unwrap();
        // As Kubernetes lays out a mounted Secret.
        fs::write(dir.join("..data/linked"), "token").unwrap();
        symlink("..data/linked", dir.join("linked")).unwrap();
        for name in ["llm", "linked"] {
            assert_eq!(read(&dir, name).unwrap(), b"token", "{name}");
        }
        symlink("../shadow", dir.join("escape")).unwrap();
        fs::create_dir(dir.join("folder")).unwrap();
        fs::write(dir.join("empty"), "").unwrap();
        fs::write(dir.join("big"), vec![b'x'; 1024 * 1024 + 1]).unwrap();
        for (name, problem) in [
            ("missing", "not found on the node; create it"),
            ("escape", "leads out of"),
            ("folder", "is not a file"),
            ("empty", "is empty"),
            ("big", "has more than"),
        ] {
            let error = read(&dir, name).unwrap_err();
            assert!(error.contains(problem) && error.contains(name), "{name}: {error}");
            assert!(!error.contains("other"), "{error}");
        }
        assert!(read(&node.path().join("nowhere"), "llm").unwrap_err().contains("not found"));
    }

    #[test]
    fn replaced_file_has_its_mode_and_no_temporary_one_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("llm");
        fs::write(durable::temporary(&path), "of a killed agent").unwrap();
        for (content, is_replaced) in [(b"one", true), (b"one", false), (b"two", true)] {
            assert_eq!(replace(&path, content, 0o400, None).unwrap(), is_replaced);
        }
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o400);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
