//! Checks of the repository as text: vocabulary, short documentation comments, import cycles, links
//! and widths of Markdown, lengths of files, renames, servers without the shared accept loop, images
//! of tests, shell blocks of pages, known flaky tests, tests of documented behaviour, repeated property tests, walks through the
//! code. Reads tracked files only. The tests in `tests/repository.rs` run the checks.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod doc_comments;
pub mod documented;
pub mod fences;
pub mod flaky;
pub mod images;
pub mod imports;
pub mod language;
pub mod length;
pub mod listeners;
pub mod markdown;
pub mod node_type;
mod paths;
pub mod renames;
pub mod retries;
pub mod source;
pub mod walks;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A text file of the repository.
#[derive(Debug, Clone)]
pub struct TextFile {
    /// Relative to the repository's root, with `/`.
    pub path: String,
    pub text: String,
}

/// The repository's root folder.
pub fn root() -> PathBuf {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_folder.ancestors().nth(2).expect("the crate is two folders below the root").to_owned()
}

/// The paths of the files that git tracks, or would track after `git add`, sorted.
///
/// # Panics
/// If git is missing or this is not a clone.
pub fn tracked_paths() -> Vec<String> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git is installed");
    let listed = String::from_utf8(output.stdout).expect("paths are UTF-8");
    let mut paths: Vec<String> =
        listed.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect();
    assert!(!paths.is_empty(), "git lists no files: {}", String::from_utf8_lossy(&output.stderr));
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// The tracked files whose path is wanted. Links, deleted files and files that are not UTF-8 are
/// left out.
pub fn tracked_files(wanted: impl Fn(&str) -> bool) -> Vec<TextFile> {
    let root = root();
    let paths = tracked_paths().into_iter().filter(|path| wanted(path));
    let read = |path: String| {
        let file = root.join(&path);
        if fs::symlink_metadata(&file).ok()?.is_symlink() {
            return None;
        }
        Some(TextFile { text: fs::read_to_string(file).ok()?, path })
    };
    paths.filter_map(read).collect()
}

/// What follows the last dot of the file's name; empty without a dot.
pub fn extension(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.rsplit_once('.').map_or("", |(_, extension)| extension)
}

/// Whether the path is one of these files or in one of these folders.
pub fn is_within(path: &str, folders: &[&str]) -> bool {
    folders.iter().any(|folder| {
        let folder = folder.trim_end_matches('/');
        path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::is_within;

    #[test]
    fn folder_matches_whole_path_components() {
        assert!(is_within("cloud/src/run.rs", &["edge", "cloud/src/"]));
        assert!(is_within("README.md", &["README.md"]));
        assert!(!is_within("cloudy/run.rs", &["cloud"]));
    }
}
