//! Reads a directory of versions, `<version>/<file>.json`, and polls it for changes. `versions`
//! decides which one answers.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use digits::model_file;
use tokio::sync::watch;

use crate::versions::{Loaded, Versions, version};

/// Polling works on every kind of volume; file system events do not.
const PERIOD: Duration = Duration::from_millis(250);

/// Reads the directory every 250 ms until the receiver is dropped. An unreadable directory changes
/// nothing.
pub async fn watch(dir: PathBuf, versions: watch::Sender<Versions>) {
    let mut trouble = None;
    let mut ticks = tokio::time::interval(PERIOD);
    while !versions.is_closed() {
        ticks.tick().await;
        let (path, before) = (dir.clone(), versions.borrow().clone());
        let read =
            tokio::task::spawn_blocking(move || scan(&path, &before).map_err(|e| e.to_string()));
        let read = read.await.unwrap_or_else(|error| Err(error.to_string()));
        let problem = read.as_ref().err().cloned();
        if let Some(error) = problem.as_ref().filter(|error| trouble.as_ref() != Some(*error)) {
            eprintln!("{}: {error}", dir.display());
        }
        trouble = problem;
        let Ok(next) = read else { continue };
        versions.send_if_modified(|current| {
            let changes = next.changes(current);
            for change in &changes {
                eprintln!("{change}");
            }
            *current = next;
            !changes.is_empty()
        });
    }
}

/// The versions in the directory. A loaded version is not read again, because versions never
/// change. A failed one is read again, because it may have been an incomplete copy. Blocking.
///
/// # Errors
/// When the directory cannot be read.
pub fn scan(dir: &Path, before: &Versions) -> io::Result<Versions> {
    let mut versions = Versions::default();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let Some(number) = entry.file_name().to_str().and_then(version) else { continue };
        let loaded = match before.by_number.get(&number) {
            Some(Ok(model)) => Ok(Arc::clone(model)),
            _ => load(&entry.path()),
        };
        versions.by_number.insert(number, loaded);
    }
    Ok(versions)
}

fn load(dir: &Path) -> Loaded {
    let files = model_files(dir).map_err(|error| error.to_string())?;
    match &files[..] {
        [file] => model_file::read(file).map(Arc::new).map_err(|error| error.to_string()),
        _ => Err(format!(
            "{} has {} files *.json or *.npz instead of one",
            dir.display(),
            files.len()
        )),
    }
}

fn model_files(dir: &Path) -> io::Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "json" || it == "npz") {
            files.push(path.to_string_lossy().into_owned());
        }
    }
    Ok(files)
}
