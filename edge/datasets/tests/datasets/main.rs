//! Datasets in real files and directories, counted once and watched.
#![allow(clippy::unwrap_used, clippy::panic)]

mod directories;
mod files;
mod permission;
mod watching;

use std::{
    fs,
    path::{Path, PathBuf},
};

use neptune_datasets::{DatasetSpec, Error, Format, Meter, Options, Policy, State};
use tempfile::TempDir;

/// A directory that datasets may be in, and one beside it that they may not.
struct Place {
    dir: TempDir,
}

impl Place {
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

    fn policy(&self) -> Policy {
        Policy { allowed_roots: vec![self.dir.path().join("allowed")] }
    }

    fn spec(&self, name: &str, format: Format) -> DatasetSpec {
        let options = Options { header: false, ..Options::default() };
        DatasetSpec { path: self.path(name), format, options }
    }

    /// Counts once; the bytes that were read come with it.
    fn count(&self, spec: &DatasetSpec, known: Option<&State>) -> (Result<State, Error>, u64) {
        let meter = Meter::default();
        (spec.count(known, &self.policy(), &meter), meter.bytes_read())
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
