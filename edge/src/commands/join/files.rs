//! Reads and writes the files of a join: token, settings, key and certificates.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Read as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, chown, lchown},
    path::{Path, PathBuf},
};

use neptune_agent_core::domain::node_context::KEY_FILE;
use neptune_pinned_tls::TlsKey;
use neptune_transfer::durable::{self, Access, Survives};
use zeroize::Zeroizing;

use super::step::{Failure, Reason, SAME_LINE, Step, file_failure};
use crate::cli::JoinArgs;

/// Bytes of a token that are read: more than any token has.
const MAX_TOKEN: u64 = 1024;
/// The settings of the operator may have a password: only root writes them, and the agent reads them.
const SETTINGS_MODE: u32 = 0o640;
/// What everybody may read: certificates contain no secret.
const PUBLIC_MODE: u32 = 0o644;
/// The mode of a data directory, as the unit sets it.
const DATA_DIR_MODE: u32 = 0o750;
/// The user of the unit, and where users are.
const USER: &str = "neptune";
const USERS: &str = "/etc/passwd";

/// Returns the text of the token: the argument, or the content of a file or of standard input.
///
/// # Errors
/// There is none, or two, or the file cannot be read.
pub fn token(args: &JoinArgs) -> Result<Zeroizing<String>, Failure> {
    let fail = |problem: String| {
        let remedy =
            "give the token as an argument, in NEPTUNE_JOIN_TOKEN, or with --token-file FILE";
        Failure::new(Step::Preflight, Reason::TokenMalformed, problem, remedy)
    };
    let path = match (&args.token, &args.token_file) {
        (Some(token), None) => return Ok(Zeroizing::new(token.clone())),
        (None, Some(path)) => path,
        (None, None) => return Err(fail("there is no token".to_owned())),
        (Some(_), Some(_)) => return Err(fail("a token and --token-file are given".to_owned())),
    };
    let mut text = Zeroizing::new(String::new());
    let read = if path == Path::new("-") {
        io::stdin().take(MAX_TOKEN).read_to_string(&mut text)
    } else {
        File::open(path).and_then(|file| file.take(MAX_TOKEN).read_to_string(&mut text))
    };
    read.map_err(|error| fail(format!("cannot read the token from {}: {error}", path.display())))?;
    Ok(text)
}

/// Returns the content of a file of the operator; an absent one is empty.
///
/// # Errors
/// [`Reason::SettingsUnreadable`].
pub fn settings(path: &Path) -> Result<String, Failure> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => {
            let problem = format!("cannot read the settings {}: {error}", path.display());
            let remedy = format!("make the file readable, then {SAME_LINE}");
            Err(Failure::new(Step::Preflight, Reason::SettingsUnreadable, problem, remedy))
        }
    }
}

/// Reads the key of the node, or makes it, with the data directory. Both belong to the user of the
/// agent: that of the directory, or the one that the package creates.
///
/// # Errors
/// [`Reason::DataDirectoryNotWritable`].
pub fn key(data_dir: &Path, has_unit: bool) -> Result<TlsKey, Failure> {
    let fail = |problem: String| {
        let remedy = format!("correct the data directory (--data-dir), then {SAME_LINE}");
        Failure::new(Step::Key, Reason::DataDirectoryNotWritable, problem, remedy)
    };
    let in_directory = |error: io::Error| fail(format!("{}: {error}", data_dir.display()));
    if !data_dir.to_str().is_some_and(|path| path.starts_with('/') && !path.contains(['\'', '\n']))
    {
        return Err(fail(format!("{} is not an absolute path without quotes", data_dir.display())));
    }
    if !data_dir.exists() {
        DirBuilder::new()
            .recursive(true)
            .mode(DATA_DIR_MODE)
            .create(data_dir)
            .map_err(in_directory)?;
        if has_unit && let Some((user, group)) = user_of(&settings_or_empty(Path::new(USERS))) {
            chown(data_dir, Some(user), Some(group)).map_err(in_directory)?;
        }
    }
    let path = data_dir.join(KEY_FILE);
    let key = TlsKey::load_or_generate(&path).map_err(|error| fail(error.to_string()))?;
    let (owner, file) = (fs::metadata(data_dir), fs::symlink_metadata(&path));
    let (owner, file) = (owner.map_err(in_directory)?, file.map_err(in_directory)?);
    if (owner.uid(), owner.gid()) != (file.uid(), file.gid()) {
        // Without this the agent, which is not root, could not read the key that root made.
        lchown(&path, Some(owner.uid()), Some(owner.gid())).map_err(in_directory)?;
    }
    Ok(key)
}

/// Writes a certificate. Survives a power failure: the settings that are written later name it.
///
/// # Errors
/// [`Reason::DiskFull`] and [`Reason::FileNotWritten`].
pub fn write_certificate(step: Step, path: &Path, pem: &str) -> Result<(), Failure> {
    let access = Access::mode(PUBLIC_MODE);
    let written = durable::replace(path, pem.as_bytes(), access, Survives::PowerLoss);
    written.map_err(|error| file_failure(step, path, &error))
}

/// Writes the settings, which make the node one of the fleet. They belong to root, and to the group
/// of another file or directory: that of the data, so that the agent can read them.
///
/// # Errors
/// [`Reason::DiskFull`] and [`Reason::FileNotWritten`].
pub fn write_settings(path: &Path, text: &str, like: &Path) -> Result<(), Failure> {
    let written = (|| {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let group = fs::metadata(like)?.gid();
        let access = Access::mode(SETTINGS_MODE).with_group(Some(group));
        durable::replace(path, text.as_bytes(), access, Survives::PowerLoss)
    })();
    written.map_err(|error| file_failure(Step::Settings, path, &error))
}

/// Returns the content of a file that may be absent or unreadable.
#[must_use]
pub fn settings_or_empty(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Removes the certificates of a join, with what a kill left of them. Returns those that existed.
///
/// # Errors
/// A file cannot be removed.
pub fn remove_certificates(paths: &[&PathBuf]) -> io::Result<Vec<PathBuf>> {
    let mut removed = Vec::new();
    for &path in paths {
        durable::remove_file(&durable::temporary(path))?;
        if path.exists() {
            durable::remove_file(path)?;
            removed.push(path.clone());
        }
    }
    Ok(removed)
}

/// The IDs of the unit's user and of its group, in the text of the list of users.
fn user_of(users: &str) -> Option<(u32, u32)> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_user = fields.next() == Some(USER);
        // The second field was the password.
        let mut ids = fields.skip(1).map(|id| id.parse().ok());
        is_user.then_some((ids.next()??, ids.next()??))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_the_units_user_are_those_of_the_list() {
        let users = "root:x:0:0:root:/root:/bin/bash\nneptune2:x:1:1::/:/\n\
                     neptune:x:107:112:Neptune agent:/var/lib/neptune:/usr/sbin/nologin\n";
        assert_eq!(user_of(users), Some((107, 112)));
        assert_eq!(user_of("root:x:0:0::/:/\n"), None);
        assert_eq!(user_of("neptune:x:a:b"), None);
    }
}
