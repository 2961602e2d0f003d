//! The `fetch` command: downloads one model to one path, with the store that the agent uses.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use neptune_registry_config::LOGINS_VARIABLE;
use neptune_store::{FetchPhase, FetchProgress, ModelStore, StorePolicy};
use neptune_transfer::durable::{self, Survives};
use neptune_wire::MAX_MIRRORS;
use tokio::{sync::watch, time::timeout};
use tracing::{info, warn};

use crate::{
    Error,
    artifacts::{
        registry_logins::{logins_of_variable, registry_logins},
        request::request,
    },
    cli::FetchArgs,
    config::{hub_from_environment, policy, s3_from_environment},
};

/// Downloads a file to `--output`, or unpacks an archive so that `--output` is its directory.
/// Retries transient errors until `--give-up-after` seconds pass without progress. The next run
/// with the same output resumes an interrupted download.
///
/// # Errors
/// A permanent error, or no progress. `--output` is then unchanged.
pub async fn fetch(args: FetchArgs) -> Result<(), Error> {
    let error_file = args.error_file.clone();
    let result = fetch_to_output(args).await;
    if let (Err(error), Some(path)) = (&result, &error_file)
        && let Err(problem) = fs::write(path, error.to_string())
    {
        warn!(path = %path.display(), %problem, "cannot write the error file");
    }
    result
}

async fn fetch_to_output(args: FetchArgs) -> Result<(), Error> {
    let invalid = |flag, problem: String, remedy| Error::Config { flag, problem, remedy };
    let mut want = request(&args.url, args.sha256.as_deref())
        .map_err(|problem| invalid("--url, --sha256", problem, "correct the named flag"))?;
    for (mirror, number) in args.mirrors.iter().take(MAX_MIRRORS).zip(1..) {
        want.add_mirror(number, mirror)
            .map_err(|error| invalid("--mirror", error.to_string(), "correct the flag"))?;
    }
    let output = std::path::absolute(&args.output)
        .map_err(|source| Error::File { path: args.output.clone(), source })?;
    let Some(name) = output.file_name().map(|name| name.to_string_lossy().into_owned()) else {
        return Err(invalid("--output", "has no file name".to_owned(), "give the path to write"));
    };
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let policy = StorePolicy {
        s3: s3_from_environment()?,
        hub: hub_from_environment(args.models.hf_endpoint.as_ref(), variable)?,
        registry_logins: registry_logins(args.registry_config)
            .or_else(|| variable(LOGINS_VARIABLE).map(logins_of_variable)),
        ..policy(&args.models)?
    };
    // Beside the output, on its file system, so that the output appears by one rename.
    let dir = output.with_file_name(format!(".{name}.fetch"));
    fs::create_dir_all(&dir).map_err(|source| Error::File { path: dir.clone(), source })?;
    let store = ModelStore::open(&dir, policy)?;
    let (sender, progress) = watch::channel(FetchProgress::default());
    tokio::spawn(log_errors(progress.clone()));
    let fetched = tokio::select! {
        fetched = store.ensure(&want, &sender) => fetched,
        gave_up = give_up(progress, args.give_up_after) => return Err(gave_up),
    };
    let artifact = match fetched {
        Ok(artifact) => artifact,
        Err(error) => {
            remove(&dir)?;
            return Err(Error::Fetch(error));
        }
    };
    place(&artifact.path, &output)
        .map_err(|source| Error::File { path: output.clone(), source })?;
    info!(output = %output.display(), bytes = artifact.bytes, sha256 = %artifact.digest, "download completed");
    drop(artifact);
    drop(store);
    remove(&dir)
}

/// Resolves when no byte was received for `after` seconds; never without `after`.
async fn give_up(mut progress: watch::Receiver<FetchProgress>, after: Option<u64>) -> Error {
    let Some(seconds) = after else { return std::future::pending().await };
    let limit = Duration::from_secs(seconds);
    loop {
        let received = progress.borrow_and_update().received;
        // Unpacking and verifying have no time limit.
        let has_progressed =
            |new: &FetchProgress| new.received != received || new.phase == FetchPhase::Finishing;
        if timeout(limit, progress.wait_for(has_progressed)).await.is_err() {
            let last_error = progress.borrow().last_error.clone();
            let why =
                last_error.map_or_else(|| "no response".to_owned(), |error| error.to_string());
            return Error::GaveUp { seconds, why };
        }
        if progress.borrow().phase == FetchPhase::Finishing {
            return std::future::pending().await;
        }
    }
}

async fn log_errors(mut progress: watch::Receiver<FetchProgress>) {
    while progress.changed().await.is_ok() {
        let last_error = progress.borrow_and_update().last_error.clone();
        if let Some(error) = last_error {
            warn!(%error, "download failed; retrying");
        }
    }
}

/// Survives a power failure: after exit code 0 the caller relies on the output.
fn place(from: &Path, to: &Path) -> io::Result<()> {
    // A rename cannot replace a directory that has content.
    if to.is_dir() {
        fs::remove_dir_all(to)?;
    }
    durable::adopt(from, to, Survives::PowerLoss)
}

fn remove(dir: &PathBuf) -> Result<(), Error> {
    fs::remove_dir_all(dir).map_err(|source| Error::File { path: dir.clone(), source })
}
