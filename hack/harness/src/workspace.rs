//! The checkout, and the programs that were built from it.

use std::{path::PathBuf, process::Command};

/// The root of the checkout.
///
/// # Panics
/// If this crate was moved.
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("hack/harness is two levels below the root").to_owned()
}

/// A program of the workspace, from the same build as the running process.
///
/// # Panics
/// If it was not built.
pub fn program(name: &str) -> PathBuf {
    let mut path = std::env::current_exe().expect("a process has an executable");
    path.pop();
    // Test executables are one folder below.
    if path.ends_with("deps") {
        path.pop();
    }
    path.push(name);
    assert!(path.exists(), "{} is missing: run cargo build --workspace first", path.display());
    path
}

/// Runs a command until it exits, and returns its standard output.
///
/// # Panics
/// If it cannot be started or fails; the message contains its output.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?} exited with {}:\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}
