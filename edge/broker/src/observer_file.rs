//! The file with the URL of the observer, for people who read the workers' messages. Only the
//! agent's user and root can read it.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use neptune_transfer::durable::{self, Access, Survives};

use crate::credentials::OBSERVER_USER;

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("observer-url")
}

/// Replaces the file. Survives a kill: each start of the agent has another password and writes the
/// file again. For the same reason the earlier file is removed if this fails.
pub fn write(data_dir: &Path, address: SocketAddr, password: &str) -> io::Result<()> {
    let path = path(data_dir);
    let url = format!("mqtt://{OBSERVER_USER}:{password}@{address}\n");
    durable::replace(&path, url.as_bytes(), Access::OWNER, Survives::Kill).inspect_err(|_| {
        let _ = fs::remove_file(&path);
    })
}

/// The observer's URL that the running agent wrote.
///
/// # Errors
/// The file does not exist, or this user may not read it.
pub fn read_observer_url(data_dir: &Path) -> io::Result<String> {
    fs::read_to_string(path(data_dir)).map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn observer_file_is_replaced_and_readable_only_by_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(path(dir.path()), "readable by everybody").unwrap();
        let temporary = durable::temporary(&path(dir.path()));
        fs::write(&temporary, "left by a power cut").unwrap();
        write(dir.path(), "127.0.0.1:1884".parse().unwrap(), "secret").unwrap();
        let url = read_observer_url(dir.path()).unwrap();
        assert_eq!(url, "mqtt://neptune_observer:secret@127.0.0.1:1884");
        let mode = fs::metadata(path(dir.path())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!temporary.exists());
    }
}
