//! Replaces a file, or gives a finished one its name, in one step. Blocking.
//!
//! | Function | Before | After |
//! |---|---|---|
//! | [`replace`] | the content in memory | the file has the old or the new content, never a part |
//! | [`adopt`] | a finished file or directory | the same under its final name |
//! | [`move_aside`] | a file or directory to remove | invisible at once, removed later |
//!
//! [`Survives`] is the strength: each caller documents which one it needs and why.
//!
//! # Temporary files
//! [`replace`] writes to `.NAME.new` beside the file `NAME`: see [`temporary`]. The next replacement
//! of the same file overwrites what a kill left behind. A directory whose files have changing names
//! is cleaned with [`remove_leftovers`] at start. One file has one writer at a time: two concurrent
//! replacements of the same file may fail.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, fchown},
    path::{Path, PathBuf},
};

/// Prefix of a temporary name: directory listings, and the names of secrets, leave it out.
const PREFIX: &str = ".";
/// Suffix of the name of a temporary file.
const SUFFIX: &str = ".new";
/// Permission bits of a file.
const MODE_BITS: u32 = 0o7777;

/// After which failures a name has either the old or the new content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survives {
    /// After a kill of the process. A power failure may leave the file empty or as it was before.
    Kill,
    /// Also after a power failure: the content is on the disk before the name changes, and the
    /// name is on the disk when the call returns.
    PowerLoss,
}

/// Who may access a new file. The default is that of the process: read and write, less the umask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    mode: Option<u32>,
    group: Option<u32>,
}

impl Access {
    /// The owner reads and writes the file: the mode of secrets.
    pub const OWNER: Self = Self::mode(0o600);

    /// These permission bits, independent of the umask.
    #[must_use]
    pub const fn mode(mode: u32) -> Self {
        Self { mode: Some(mode), group: None }
    }

    /// The group of the file, by ID. `None`: that of the process.
    #[must_use]
    pub const fn with_group(self, group: Option<u32>) -> Self {
        Self { group, ..self }
    }
}

/// Replaces a file, or creates it. Mode and group are set before the first byte is written, so that
/// nobody else can open the content in between.
///
/// # Guarantees
/// Readers see the old or the new content. An error leaves no temporary file, because the disk may
/// be full.
///
/// # Errors
/// The file cannot be written: it has its old content. Only if the directory cannot be synced
/// ([`Survives::PowerLoss`]) it may have the new one.
pub fn replace(path: &Path, content: &[u8], access: Access, survives: Survives) -> io::Result<()> {
    let temporary = temporary(path);
    // A file that exists would keep its mode and group.
    remove_file(&temporary)?;
    let replaced =
        create(&temporary, content, access).and_then(|()| adopt(&temporary, path, survives));
    if replaced.is_err() {
        let _ = remove_file(&temporary);
    }
    replaced
}

fn create(path: &Path, content: &[u8], access: Access) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    if let Some(mode) = access.mode {
        // The bits of the group follow once it is the right group.
        options.mode(if access.group.is_some() { mode & 0o700 } else { mode });
    }
    let mut file = options.open(path)?;
    if access.group.is_some() {
        fchown(&file, None, access.group)?;
    }
    if let Some(mode) = access.mode
        && file.metadata()?.permissions().mode() & MODE_BITS != mode
    {
        // The umask removed some.
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    file.write_all(content)
}

/// Gives a finished file or directory its name, on the same file system. Replaces a file, or an empty
/// directory by a directory. With [`Survives::PowerLoss`], syncs the file, or all files and
/// directories below the directory, first; links in it are not followed. A writer with an open file
/// flushes and syncs it before, because only there each error of a write is reported.
///
/// # Errors
/// `from` cannot be synced or renamed; then nothing has changed. Or the directory of `to` cannot be
/// synced; then `to` has its new content, which a power failure may take back.
pub fn adopt(from: &Path, to: &Path, survives: Survives) -> io::Result<()> {
    match survives {
        Survives::Kill => fs::rename(from, to),
        Survives::PowerLoss => {
            sync_tree(from)?;
            fs::rename(from, to)?;
            sync_directory(parent(to))
        }
    }
}

/// Moves a file or directory to a name that nobody uses, on the same file system, so that it is gone
/// in one step, however long its removal takes. Survives a kill: a power failure may bring the old
/// name back. Returns whether it existed.
///
/// # Errors
/// It cannot be renamed, for example because `to` is a directory with content.
pub fn move_aside(path: &Path, to: &Path) -> io::Result<bool> {
    match fs::rename(path, to) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Puts the names of a directory on the disk: those of new files, and the absence of removed ones.
///
/// # Errors
/// The directory cannot be opened or synced.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Returns where [`replace`] writes the content of a file before it gets its name.
pub fn temporary(path: &Path) -> PathBuf {
    let mut name = OsString::from(PREFIX);
    name.push(path.file_name().unwrap_or_default());
    name.push(SUFFIX);
    path.with_file_name(name)
}

/// Whether a file of this name is a temporary one.
pub fn is_temporary(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.len() > PREFIX.len() + SUFFIX.len()
        && name.starts_with(PREFIX.as_bytes())
        && name.ends_with(SUFFIX.as_bytes())
}

/// Removes the temporary files that a kill left in a directory. Nobody may replace a file in it
/// meanwhile. A directory that does not exist has none.
///
/// # Errors
/// The directory cannot be read, or a file cannot be removed.
pub fn remove_leftovers(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if is_temporary(&entry.file_name()) && !entry.file_type()?.is_dir() {
            remove_file(&entry.path())?;
        }
    }
    Ok(())
}

/// Syncs a file, or a directory with all that is in it.
fn sync_tree(path: &Path) -> io::Result<()> {
    let kind = fs::symlink_metadata(path)?.file_type();
    if kind.is_dir() {
        for entry in fs::read_dir(path)? {
            sync_tree(&entry?.path())?;
        }
    }
    // Opening a pipe would block.
    if kind.is_dir() || kind.is_file() { File::open(path)?.sync_all() } else { Ok(()) }
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Removes a file, if it exists. Survives a kill: a power failure may bring it back.
///
/// # Errors
/// It cannot be removed.
pub fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes a file, a link, or a directory with its content, if it exists. Survives a kill, as
/// [`remove_file`].
///
/// # Errors
/// It cannot be removed, or only a part of it.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path).map(|metadata| metadata.is_dir()) {
        Ok(true) => match fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        },
        _ => remove_file(path),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    const BOTH: [Survives; 2] = [Survives::Kill, Survives::PowerLoss];

    fn names(directory: &Path) -> Vec<OsString> {
        let mut names: Vec<_> =
            fs::read_dir(directory).unwrap().map(|it| it.unwrap().file_name()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn file_is_replaced_and_no_temporary_one_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        for survives in BOTH {
            for content in ["one", "two"] {
                replace(&path, content.as_bytes(), Access::default(), survives).unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), content);
                assert_eq!(names(directory.path()), ["a.json"]);
            }
        }
    }

    #[test]
    fn mode_is_exact_also_over_a_leftover_that_everybody_can_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        for mode in [0o600, 0o400, 0o440, 0o666] {
            fs::write(temporary(&path), "of a killed process").unwrap();
            replace(&path, b"key", Access::mode(mode), Survives::Kill).unwrap();
            let metadata = fs::metadata(&path).unwrap();
            assert_eq!(metadata.permissions().mode() & MODE_BITS, mode);
            let access = Access::mode(mode).with_group(Some(metadata.gid()));
            replace(&path, b"key", access, Survives::Kill).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & MODE_BITS, mode);
        }
    }

    #[test]
    fn replacement_that_fails_keeps_the_file_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("taken");
        fs::create_dir_all(path.join("content")).unwrap();
        for survives in BOTH {
            assert!(replace(&path, b"x", Access::default(), survives).is_err());
        }
        assert_eq!(names(directory.path()), ["taken"]);
        let absent = directory.path().join("absent/file");
        assert!(replace(&absent, b"x", Access::default(), Survives::Kill).is_err());
    }

    #[test]
    fn file_and_directory_are_adopted_with_their_content() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for (number, survives) in BOTH.into_iter().enumerate() {
            fs::write(path("partial"), "all").unwrap();
            adopt(&path("partial"), &path("file"), survives).unwrap();
            assert_eq!(fs::read_to_string(path("file")).unwrap(), "all");
            fs::create_dir_all(path("building/below")).unwrap();
            fs::write(path("building/below/a"), "a").unwrap();
            symlink("/nowhere", path("building/link")).unwrap();
            let target = path(&format!("tree-{number}"));
            adopt(&path("building"), &target, survives).unwrap();
            assert_eq!(fs::read_to_string(target.join("below/a")).unwrap(), "a");
            assert!(adopt(&path("partial"), &path("file"), survives).is_err());
        }
        assert_eq!(names(directory.path()), ["file", "tree-0", "tree-1"]);
    }

    #[test]
    fn only_temporary_files_are_removed_as_leftovers() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let kept = [".new", ".hidden", "a", "a.new"];
        for name in kept {
            fs::write(path(name), "").unwrap();
        }
        fs::write(temporary(&path("a")), "").unwrap();
        fs::create_dir(path(".directory.new")).unwrap();
        remove_leftovers(directory.path()).unwrap();
        assert_eq!(names(directory.path()), [".directory.new", ".hidden", ".new", "a", "a.new"]);
        remove_leftovers(&path("absent")).unwrap();
    }

    #[test]
    fn file_link_and_directory_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir_all(path("kept")).unwrap();
        fs::write(path("file"), "").unwrap();
        symlink(path("kept"), path("link")).unwrap();
        fs::create_dir_all(path("tree/below")).unwrap();
        for name in ["file", "link", "tree", "absent"] {
            remove(&path(name)).unwrap();
        }
        assert_eq!(names(directory.path()), ["kept"]);
    }

    #[test]
    fn what_is_moved_aside_is_gone_and_may_be_absent() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir_all(path("a/below")).unwrap();
        assert!(move_aside(&path("a"), &path("trash")).unwrap());
        assert!(!move_aside(&path("a"), &path("trash")).unwrap());
        assert_eq!(names(directory.path()), ["trash"]);
        fs::create_dir(path("a")).unwrap();
        assert!(move_aside(&path("a"), &path("trash")).is_err());
    }
}
