//! A program that runs for as long as its guard lives, with its output in a file.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command},
};

/// A running program. Dropped, it is killed; if the test failed, the end of its output is printed.
pub struct Process {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts a program; its output is appended to `<dir>/<name>.log`.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(name: &str, dir: &Path, command: &mut Command) -> Self {
        let log = dir.join(format!("{name}.log"));
        let file = || File::options().create(true).append(true).open(&log).unwrap();
        let child = command
            .stdout(file())
            .stderr(file())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { name: name.to_owned(), log, child }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as a power cut would: nothing of it runs afterwards.
    ///
    /// # Panics
    /// If it is not a child of this process.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }

    /// What it printed so far.
    pub fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let output = self.output();
            let lines: Vec<_> = output.lines().collect();
            let tail = lines[lines.len().saturating_sub(60)..].join("\n");
            eprintln!("--- the end of {}'s output ---\n{tail}", self.name);
        }
    }
}
