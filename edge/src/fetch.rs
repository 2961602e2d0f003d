//! The `fetch` command: one model to one place, by the same store that the agent has.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use neptune_models::{Policy, Progress, Store};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::{Error, cli::FetchArgs, config::policy, desired::Source, start::s3};

/// Fetches a file to `--output`, or unpacks an archive so that `--output` is its directory. What may
/// pass is waited for. A fetch that was cut is continued by the next one of the same output.
///
/// # Errors
/// What somebody has to change. `--output` is then as it was before.
pub async fn fetch(args: FetchArgs) -> Result<(), Error> {
    let refused = |flag, problem: String, remedy| Error::Config { flag, problem, remedy };
    let source = Source { url: args.url, sha256: args.sha256 };
    let want = source
        .want()
        .map_err(|problem| refused("--url, --sha256", problem, "correct the one that is named"))?;
    let output = std::path::absolute(&args.output)
        .map_err(|source| Error::File { path: args.output.clone(), source })?;
    let Some(name) = output.file_name().map(|name| name.to_string_lossy().into_owned()) else {
        return Err(refused("--output", "names no file".to_owned(), "give what to write"));
    };
    let policy = Policy { s3: s3()?, ..policy(args.models)? };
    // Beside the output: on its file system, so that it comes by one rename.
    let dir = output.with_file_name(format!(".{name}.fetch"));
    fs::create_dir_all(&dir).map_err(|source| Error::File { path: dir.clone(), source })?;
    let store = Store::open(&dir, policy)?;
    let (sender, progress) = watch::channel(Progress::default());
    tokio::spawn(tell(progress));
    let artifact = match store.ensure(&want, &sender).await {
        Ok(artifact) => artifact,
        Err(error) => {
            remove(&dir)?;
            return Err(Error::Fetch(error));
        }
    };
    place(&artifact.path, &output)
        .map_err(|source| Error::File { path: output.clone(), source })?;
    info!(output = %output.display(), bytes = artifact.bytes, sha256 = %artifact.digest, "fetched");
    drop(artifact);
    drop(store);
    remove(&dir)
}

async fn tell(mut progress: watch::Receiver<Progress>) {
    while progress.changed().await.is_ok() {
        let trouble = progress.borrow_and_update().trouble.clone();
        if let Some(error) = trouble {
            warn!(%error, "not fetched yet");
        }
    }
}

fn place(from: &Path, to: &Path) -> io::Result<()> {
    // An earlier directory cannot be renamed over.
    if to.is_dir() {
        fs::remove_dir_all(to)?;
    }
    fs::rename(from, to)?;
    fs::File::open(to.parent().unwrap_or_else(|| Path::new("/")))?.sync_all()
}

fn remove(dir: &PathBuf) -> Result<(), Error> {
    fs::remove_dir_all(dir).map_err(|source| Error::File { path: dir.clone(), source })
}
