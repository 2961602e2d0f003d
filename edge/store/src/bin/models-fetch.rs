//! Fetches one artifact. The tests kill this program, and `hack/bench-models.sh` measures it.
//!
//! Usage: `models-fetch DIRECTORY URL [SHA256]`. Environment: `MODELS_ALLOW` lists allowed
//! addresses, separated by commas; `MODELS_RESERVE` is the disk space to leave free, in bytes; with
//! `MODELS_ONCE` the program ends at the first error instead of retrying.

use std::{env, fs, path::Path, process::ExitCode, time::Instant};

use neptune_store::{
    ArtifactRequest, FetchPhase, FetchProgress, ModelError, ModelStore, StorePolicy,
};
use tokio::sync::watch;

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
async fn run() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [dir, url, digest @ ..] = arguments.as_slice() else {
        return Err("usage: models-fetch DIRECTORY URL [SHA256]".into());
    };
    let mut policy = StorePolicy::default();
    for allowed in env::var("MODELS_ALLOW").iter().flat_map(|all| all.split(',')) {
        policy.allowed_addresses.push(allowed.parse()?);
    }
    if let Ok(reserve) = env::var("MODELS_RESERVE") {
        policy.reserve_bytes = reserve.parse()?;
    }
    let store = ModelStore::open(Path::new(dir), policy)?;
    let digest = digest.first().map(|text| text.parse()).transpose()?;
    let request = ArtifactRequest::parse(url, digest)?;
    // Resets the peak memory usage, if the kernel permits it.
    let _ = fs::write("/proc/self/clear_refs", "5");
    let before = peak_memory_kib()?;
    let start = Instant::now();
    let (sender, progress) = watch::channel(FetchProgress::default());
    let artifact = tokio::select! {
        result = store.ensure(&request, &sender) => result?,
        error = print_errors(progress) => return Err(error),
    };
    println!(
        "digest={} bytes={} seconds={:.3} growth_kib={} path={}",
        artifact.digest,
        artifact.bytes,
        start.elapsed().as_secs_f64(),
        peak_memory_kib()?.saturating_sub(before),
        artifact.path.display(),
    );
    Ok(())
}

/// Prints each transient error. With `MODELS_ONCE`, returns the first one instead.
async fn print_errors(mut progress: watch::Receiver<FetchProgress>) -> Failure {
    loop {
        if progress.changed().await.is_err() {
            return std::future::pending().await;
        }
        let now = progress.borrow_and_update().clone();
        let error = now.last_error.filter(|_| now.phase == FetchPhase::Retrying);
        let Some(error) = error.as_deref().map(ModelError::to_string) else { continue };
        if env::var_os("MODELS_ONCE").is_some() {
            return error.into();
        }
        eprintln!("{error}");
    }
}

/// Peak resident memory of this process, in KiB.
fn peak_memory_kib() -> Result<u64, Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let value = line.and_then(|line| line.split_whitespace().next());
    Ok(value.ok_or("/proc/self/status has no VmHWM")?.parse()?)
}
