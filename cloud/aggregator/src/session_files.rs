//! The directory that the aggregator shares with the server of a session. The server can write below
//! `out` only, so that no link in it is followed, and no more than a limit is read.
//!
//! | Path | Content |
//! |---|---|
//! | `in/start` | name of the attempt that runs, `RUN-ATTEMPT`; absent: none |
//! | `in/NAME/` | `env`, certificate and key of the server, certificate of the authority, weights |
//! | `out/server` | hash of the container of the server, written at its start |
//! | `out/NAME/exit` | exit code of the server |
//! | `out/NAME/output/` | `progress.jsonl`, `weights.npz` or `weights.safetensors` |

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use neptune_transfer::durable::{self, Access, Survives};
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

use crate::run::SessionAttempt;

/// The largest of the small files that the server writes, in bytes.
const MAX_TEXT: u64 = 256;

/// The directory that the aggregator and the server of an engine share.
#[derive(Debug, Clone)]
pub struct SessionFiles {
    root: PathBuf,
}

/// The name of the files of an attempt.
fn name(attempt: SessionAttempt) -> String {
    format!("{}-{}", attempt.run, attempt.attempt)
}

/// The attempt whose files have this name.
fn attempt_of(name: &OsStr) -> Option<SessionAttempt> {
    let (run, attempt) = name.to_str()?.split_once('-')?;
    Some(SessionAttempt { run: run.parse().ok()?, attempt: attempt.parse().ok()? })
}

impl SessionFiles {
    /// The directory of sessions in a data directory.
    pub fn new(data_dir: &Path) -> Self {
        Self { root: data_dir.join("session") }
    }

    /// The directory of an attempt for the server to read.
    pub fn input(&self, attempt: SessionAttempt) -> PathBuf {
        self.root.join("in").join(name(attempt))
    }

    /// The directory in which the files of an attempt are written: see [`SessionFiles::complete`].
    pub fn building(&self, attempt: SessionAttempt) -> PathBuf {
        durable::temporary(&self.input(attempt))
    }

    /// Creates the directory in which the files of an attempt are written, and removes those of all
    /// others. What the servers of earlier attempts of the run wrote stays: it has the newest
    /// weights until the state names them. See [`SessionFiles::remove_earlier`].
    pub fn create(&self, attempt: SessionAttempt) -> io::Result<()> {
        for side in ["in", "out"] {
            fs::create_dir_all(self.root.join(side))?;
        }
        self.remove("in", |_| true)?;
        self.remove("out", |name| attempt_of(name).is_none_or(|it| it.run != attempt.run))?;
        fs::DirBuilder::new().mode(0o750).create(self.building(attempt))
    }

    /// Removes what the servers of other attempts wrote.
    pub fn remove_earlier(&self, attempt: SessionAttempt) -> io::Result<()> {
        self.remove("out", |other| *other != *name(attempt))
    }

    /// Removes directories by their name.
    fn remove(&self, side: &str, is_unneeded: impl Fn(&OsStr) -> bool) -> io::Result<()> {
        for entry in fs::read_dir(self.root.join(side))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() && is_unneeded(&entry.file_name()) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }

    /// Returns the earlier attempts of the run whose server wrote something, the newest one first.
    pub fn earlier(&self, attempt: SessionAttempt) -> io::Result<Vec<SessionAttempt>> {
        let entries = match fs::read_dir(self.root.join("out")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut earlier = Vec::new();
        for entry in entries {
            let candidate = attempt_of(&entry?.file_name());
            earlier.extend(
                candidate.filter(|it| it.run == attempt.run && it.attempt < attempt.attempt),
            );
        }
        earlier.sort_unstable_by_key(|it| std::cmp::Reverse(it.attempt));
        Ok(earlier)
    }

    /// Writes a file of an attempt.
    pub fn write(&self, attempt: SessionAttempt, file: &str, content: &[u8]) -> io::Result<()> {
        let path = self.building(attempt).join(file);
        let mut file = File::options().write(true).create_new(true).mode(0o640).open(path)?;
        file.write_all(content)
    }

    /// Gives the files of an attempt their name. Survives a power failure: with the state that is
    /// stored next they count as complete.
    pub fn complete(&self, attempt: SessionAttempt) -> io::Result<()> {
        durable::adopt(&self.building(attempt), &self.input(attempt), Survives::PowerLoss)
    }

    /// Lets the server of an attempt start, unless it runs: see [`SessionFiles::stop`]. Survives a
    /// power failure, and replaces what one left: a server would wait indefinitely for a name in an
    /// empty file.
    pub fn start(&self, attempt: SessionAttempt) -> io::Result<()> {
        let (path, name) = (self.root.join("in/start"), name(attempt));
        if fs::read(&path).is_ok_and(|content| content == name.as_bytes()) {
            return Ok(());
        }
        durable::replace(&path, name.as_bytes(), Access::default(), Survives::PowerLoss)
    }

    /// Ends the server that runs.
    pub fn stop(&self) -> io::Result<()> {
        durable::remove_file(&self.root.join("in/start"))
    }

    /// Returns the hash of the container that runs.
    pub fn server(&self) -> io::Result<Option<String>> {
        self.text(&["server"])
    }

    /// Returns the exit code of the server of an attempt; `None` while it runs. A text that is no
    /// number is the code 255.
    pub fn exit_code(&self, attempt: SessionAttempt) -> io::Result<Option<i32>> {
        let text = self.text(&[&name(attempt), "exit"])?;
        Ok(text.map(|it| it.trim().parse().unwrap_or(255)))
    }

    /// Returns the end of a file that the server wrote, and whether it has more before.
    pub fn tail(
        &self,
        attempt: SessionAttempt,
        file: &str,
        limit: u64,
    ) -> io::Result<Option<(Vec<u8>, bool)>> {
        let Some(mut file) = self.open(&[&name(attempt), "output", file])? else {
            return Ok(None);
        };
        let first = file.metadata()?.len().saturating_sub(limit);
        file.seek(SeekFrom::Start(first))?;
        let mut content = Vec::new();
        file.take(limit).read_to_end(&mut content)?;
        Ok(Some((content, first > 0)))
    }

    /// Opens a file of the output of an attempt.
    pub fn output(&self, attempt: SessionAttempt, file: &str) -> io::Result<Option<File>> {
        self.open(&[&name(attempt), "output", file])
    }

    fn text(&self, path: &[&str]) -> io::Result<Option<String>> {
        let Some(file) = self.open(path)? else { return Ok(None) };
        let mut text = Vec::new();
        file.take(MAX_TEXT).read_to_end(&mut text)?;
        Ok(Some(String::from_utf8_lossy(&text).into_owned()))
    }

    /// Opens a regular file below `out`. `None` if it does not exist or is something else, such as a
    /// link.
    fn open(&self, path: &[&str]) -> io::Result<Option<File>> {
        let Some((file, parents)) = path.split_last() else { return Ok(None) };
        let absent = |error: &Errno| {
            matches!(*error, Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::NXIO)
        };
        let directory = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let mut at = match rustix::fs::open(self.root.join("out"), directory, Mode::empty()) {
            Err(error) if absent(&error) => return Ok(None),
            opened => opened?,
        };
        for parent in parents {
            at = match rustix::fs::openat(&at, *parent, directory, Mode::empty()) {
                Err(error) if absent(&error) => return Ok(None),
                opened => opened?,
            };
        }
        // A pipe would block.
        let flags = OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match rustix::fs::openat(&at, *file, flags, Mode::empty()) {
            Err(error) if absent(&error) => Ok(None),
            Err(error) => Err(error.into()),
            Ok(opened) => {
                let opened = File::from(opened);
                Ok(opened.metadata()?.is_file().then_some(opened))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;

    use super::*;

    const FIRST: SessionAttempt = SessionAttempt { run: 1, attempt: 1 };
    const SECOND: SessionAttempt = SessionAttempt { run: 1, attempt: 2 };

    fn files() -> (tempfile::TempDir, SessionFiles, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let files = SessionFiles::new(directory.path());
        files.create(FIRST).unwrap();
        let out = directory.path().join("session/out/1-1");
        fs::create_dir_all(out.join("output")).unwrap();
        (directory, files, out)
    }

    #[test]
    fn exit_code_is_read_once_it_is_written() {
        let (_directory, files, out) = files();
        assert_eq!(files.exit_code(FIRST).unwrap(), None);
        for (text, code) in [("0", 0), ("137\n", 137), ("", 255), ("\u{0}x", 255)] {
            fs::write(out.join("exit"), text).unwrap();
            assert_eq!(files.exit_code(FIRST).unwrap(), Some(code), "{text:?}");
        }
    }

    #[test]
    fn links_pipes_and_directories_are_absent() {
        let (directory, files, out) = files();
        let secret = directory.path().join("secret");
        fs::write(&secret, "0").unwrap();
        symlink(&secret, out.join("exit")).unwrap();
        assert_eq!(files.exit_code(FIRST).unwrap(), None);
        fs::create_dir(out.join("output/weights.npz")).unwrap();
        assert!(files.output(FIRST, "weights.npz").unwrap().is_none());
        let pipe = out.join("output/progress.jsonl");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, Mode::RUSR, 0).unwrap();
        assert!(files.tail(FIRST, "progress.jsonl", 10).unwrap().is_none());
        fs::remove_dir_all(out.join("output")).unwrap();
        symlink(directory.path(), out.join("output")).unwrap();
        assert!(files.output(FIRST, "secret").unwrap().is_none());
    }

    #[test]
    fn next_attempt_removes_the_files_of_others_but_not_what_they_link_to() {
        let (directory, files, out) = files();
        files.write(FIRST, "env", b"a").unwrap();
        files.complete(FIRST).unwrap();
        files.start(FIRST).unwrap();
        fs::write(directory.path().join("session/out/server"), "hash").unwrap();
        symlink(directory.path(), out.join("link")).unwrap();
        files.create(SECOND).unwrap();
        files.complete(SECOND).unwrap();
        assert!(!files.input(FIRST).exists() && files.input(SECOND).exists());
        assert_eq!(files.earlier(SECOND).unwrap(), [FIRST]);
        files.remove_earlier(SECOND).unwrap();
        assert!(!out.exists() && files.earlier(SECOND).unwrap().is_empty());
        assert_eq!(files.server().unwrap().as_deref(), Some("hash"));
        files.stop().unwrap();
        files.stop().unwrap();
        assert!(!directory.path().join("session/in/start").exists());
    }

    #[test]
    fn output_of_the_same_run_is_kept_until_the_state_names_its_weights() {
        let (directory, files, _) = files();
        let out = |name: &str| directory.path().join("session/out").join(name);
        for name in ["1-2", "1-10", "2-1", "other"] {
            fs::create_dir_all(out(name)).unwrap();
        }
        let attempt = SessionAttempt { run: 1, attempt: 11 };
        files.create(attempt).unwrap();
        let attempts: Vec<_> =
            files.earlier(attempt).unwrap().iter().map(|it| it.attempt).collect();
        assert_eq!(attempts, [10, 2, 1]);
        assert!(!out("2-1").exists() && !out("other").exists());
    }

    #[test]
    fn start_that_a_power_failure_left_empty_is_written_again() {
        let (directory, files, _) = files();
        let start = directory.path().join("session/in/start");
        files.start(FIRST).unwrap();
        for left in ["", "1-", "1-2"] {
            fs::write(&start, left).unwrap();
            files.start(FIRST).unwrap();
            assert_eq!(fs::read_to_string(&start).unwrap(), "1-1", "{left:?}");
        }
    }

    #[test]
    fn end_of_a_large_file_is_read() {
        let (_directory, files, out) = files();
        fs::write(out.join("output/progress.jsonl"), "0123456789").unwrap();
        assert_eq!(files.tail(FIRST, "progress.jsonl", 4).unwrap(), Some((b"6789".into(), true)));
        assert!(!files.tail(FIRST, "progress.jsonl", 10).unwrap().unwrap().1);
    }
}
