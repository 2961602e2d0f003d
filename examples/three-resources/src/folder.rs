//! Reads a directory of versions, `<version>/<file>.json`, and watches it. Which version answers is shelf.rs's.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use digits::model_file;
use tokio::sync::watch;

use crate::shelf::{Loaded, Shelf, version};

/// Looking again and again works on every kind of volume; events of a file system do not.
const PERIOD: Duration = Duration::from_millis(250);

/// Reads the directory every 250 ms until nobody listens. One that cannot be read leaves what was loaded as it is.
pub async fn watch(dir: PathBuf, shelf: watch::Sender<Shelf>) {
    let mut trouble = None;
    let mut ticks = tokio::time::interval(PERIOD);
    while !shelf.is_closed() {
        ticks.tick().await;
        let (path, before) = (dir.clone(), shelf.borrow().clone());
        let read =
            tokio::task::spawn_blocking(move || scan(&path, &before).map_err(|e| e.to_string()));
        let read = read.await.unwrap_or_else(|error| Err(error.to_string()));
        let problem = read.as_ref().err().cloned();
        if let Some(error) = problem.as_ref().filter(|error| trouble.as_ref() != Some(*error)) {
            eprintln!("{}: {error}", dir.display());
        }
        trouble = problem;
        let Ok(next) = read else { continue };
        shelf.send_if_modified(|current| {
            let changes = next.changes(current);
            for change in &changes {
                eprintln!("{change}");
            }
            *current = next;
            !changes.is_empty()
        });
    }
}

/// What the directory holds now. A version that was loaded is not read again: a version never changes. One that could not be
/// is, since it may have been a copy under way. Blocking.
///
/// # Errors
/// When the directory cannot be read.
pub fn scan(dir: &Path, before: &Shelf) -> io::Result<Shelf> {
    let mut shelf = Shelf::default();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let Some(number) = entry.file_name().to_str().and_then(version) else { continue };
        let loaded = match before.versions.get(&number) {
            Some(Ok(model)) => Ok(Arc::clone(model)),
            _ => load(&entry.path()),
        };
        shelf.versions.insert(number, loaded);
    }
    Ok(shelf)
}

fn load(dir: &Path) -> Loaded {
    let files = json_files(dir).map_err(|error| error.to_string())?;
    match &files[..] {
        [file] => model_file::read(file).map(Arc::new).map_err(|error| error.to_string()),
        _ => Err(format!("{} has {} files *.json instead of one", dir.display(), files.len())),
    }
}

fn json_files(dir: &Path) -> io::Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path.to_string_lossy().into_owned());
        }
    }
    Ok(files)
}
