//! Counts and watches datasets in real files and directories.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod directories;
mod files;
mod permissions;
mod watching;

use std::{
    fs,
    path::{Path, PathBuf},
};

use neptune_datasets::{CountState, DatasetError, LocalDataset, PathPolicy, ReadMeter};
use neptune_sources::{DatasetFormat, FormatOptions};
use tempfile::TempDir;

/// A directory in which datasets are allowed, and one beside it in which they are not.
struct DataDirs {
    dir: TempDir,
}

impl DataDirs {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("allowed")).unwrap();
        fs::create_dir(dir.path().join("other")).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("allowed").join(name)
    }

    fn outside(&self, name: &str) -> PathBuf {
        self.dir.path().join("other").join(name)
    }

    fn policy(&self) -> PathPolicy {
        PathPolicy { allowed_roots: vec![self.dir.path().join("allowed")] }
    }

    fn dataset(&self, name: &str, format: DatasetFormat) -> LocalDataset {
        let options = FormatOptions { header: false, ..FormatOptions::default() };
        LocalDataset { path: self.path(name), format, options }
    }

    /// Counts once. Returns the result and the number of bytes read.
    fn count(
        &self,
        dataset: &LocalDataset,
        known: Option<&CountState>,
    ) -> (Result<CountState, DatasetError>, u64) {
        let meter = ReadMeter::default();
        (dataset.count(known, &self.policy(), &meter), meter.bytes_read())
    }
}

fn append(path: &Path, bytes: &[u8]) {
    use std::io::Write;
    fs::OpenOptions::new().append(true).create(true).open(path).unwrap().write_all(bytes).unwrap();
}

fn lines(from: u32, to: u32) -> String {
    use std::fmt::Write;
    (from..to).fold(String::new(), |mut text, n| {
        writeln!(text, "{n},\"a line of a file that grows\",{}", n % 7).unwrap();
        text
    })
}

fn annotation(class: &str) -> String {
    format!("<annotation><object><name>{class}</name></object></annotation>")
}
