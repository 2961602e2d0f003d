//! The seal key and the runtime directory: inspects them, and decides their findings.

use std::{fs, io, os::unix::fs::PermissionsExt as _, path::Path};

use neptune_agent_core::domain::node_context::SEAL_KEY_FILE;
use neptune_seal::{SealKey, SealKeyError};
use rustix::fs::{Access, access, statfs};

use crate::commands::doctor::{
    facts::{Checked, RuntimeDir, RuntimeDirFacts},
    report::Finding,
};

const SEAL_KEY: &str = "seal key";
const RUNTIME_DIR: &str = "runtime files";

/// The type of a file system in memory.
const TMPFS: i128 = 0x0102_1994;
const RAMFS: i128 = 0x8584_58f6;
/// Permission bits with which others could change the files.
const OTHERS_WRITE: u32 = 0o022;

/// The name of the seal key in this data directory; `None` if there is none yet.
pub fn seal_key(data_dir: &Path) -> Checked<Option<String>> {
    match SealKey::load(&data_dir.join(SEAL_KEY_FILE)) {
        Ok(key) => Ok(Some(key.public_key().id().to_string())),
        Err(SealKeyError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(error.to_string()),
    }
}

/// A directory for files of Secrets; `None` if it does not exist.
pub fn runtime_dir(path: &Path) -> Checked<Option<RuntimeDir>> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    if !metadata.is_dir() {
        return Err("it is not a directory".to_owned());
    }
    access(path, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| error.to_string())?;
    let kind = statfs(path).map_err(|error| error.to_string())?.f_type;
    let is_in_memory = [TMPFS, RAMFS].contains(&i128::from(kind));
    Ok(Some(RuntimeDir { mode: metadata.permissions().mode() & 0o777, is_in_memory }))
}

/// Whether the agent can open secrets.
pub fn seal_key_finding(key: &Checked<Option<String>>) -> Finding {
    match key {
        Ok(Some(id)) => Finding::ok(SEAL_KEY, id.clone()),
        Ok(None) => Finding::ok(SEAL_KEY, "none yet; the agent creates it at its first start"),
        Err(why) => Finding::error(
            SEAL_KEY,
            why.clone(),
            "workers with Secrets do not start; restore seal.key, or remove it and restart the agent",
        ),
    }
}

/// Whether files of Secrets can be written, in memory and for the agent alone.
pub fn runtime_dir_finding(RuntimeDirFacts { path, state }: &RuntimeDirFacts) -> Finding {
    let path = path.display();
    match state {
        Ok(None) => {
            Finding::ok(RUNTIME_DIR, format!("{path} does not exist; created when it is needed"))
        }
        Ok(Some(RuntimeDir { is_in_memory: false, .. })) => Finding::warning(
            RUNTIME_DIR,
            format!("{path} is not in memory: values of Secrets are written to the disk"),
            "mount a tmpfs there, or set --runtime-dir to a directory below /run",
        ),
        Ok(Some(RuntimeDir { mode, .. })) if mode & OTHERS_WRITE != 0 => Finding::warning(
            RUNTIME_DIR,
            format!("{path} has mode {mode:04o}: other users can replace files of workers"),
            "give it to the user of the agent, with mode 0700",
        ),
        Ok(Some(_)) => Finding::ok(RUNTIME_DIR, format!("{path} in memory")),
        Err(why) => Finding::error(
            RUNTIME_DIR,
            format!("{path}: {why}"),
            "let the user of the agent write there; workers that mount Secrets or ConfigMaps do not start",
        ),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn key_and_directory_are_inspected_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(seal_key(dir.path()), Ok(None));
        let key = SealKey::load_or_generate(&dir.path().join(SEAL_KEY_FILE)).unwrap();
        assert_eq!(seal_key(dir.path()), Ok(Some(key.public_key().id().to_string())));
        fs::write(dir.path().join(SEAL_KEY_FILE), "x").unwrap();
        assert!(seal_key(dir.path()).unwrap_err().contains("is damaged"));

        assert_eq!(runtime_dir(&dir.path().join("missing")), Ok(None));
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o750)).unwrap();
        assert_eq!(runtime_dir(dir.path()).unwrap().unwrap().mode, 0o750);
        let file = dir.path().join(SEAL_KEY_FILE);
        assert_eq!(runtime_dir(&file), Err("it is not a directory".to_owned()));
        let memory = Path::new("/dev/shm");
        assert!(!memory.exists() || runtime_dir(memory).unwrap().unwrap().is_in_memory);
    }
}
