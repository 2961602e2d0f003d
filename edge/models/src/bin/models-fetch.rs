//! One fetch from the command line: what the tests kill and `hack/bench-models.sh` measures.
//!
//! `models-fetch DIRECTORY URL [SHA256]`; `MODELS_ALLOW` lists addresses that are allowed, and
//! `MODELS_RESERVE` gives the reserve in bytes. With `MODELS_ONCE` it ends at the first trouble.

use std::{env, fs, path::Path, process::ExitCode, time::Instant};

use neptune_models::{ModelError, Phase, Policy, Progress, Store, Want};
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

async fn run() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [dir, url, digest @ ..] = arguments.as_slice() else {
        return Err("models-fetch DIRECTORY URL [SHA256]".into());
    };
    let mut policy = Policy::default();
    for allowed in env::var("MODELS_ALLOW").iter().flat_map(|all| all.split(',')) {
        policy.allowed.push(allowed.parse()?);
    }
    if let Ok(reserve) = env::var("MODELS_RESERVE") {
        policy.reserve = reserve.parse()?;
    }
    let store = Store::open(Path::new(dir), policy)?;
    let want = Want::parse(url, digest.first().map(|text| text.parse()).transpose()?)?;
    // The peak so far is forgotten, where the kernel lets us.
    let _ = fs::write("/proc/self/clear_refs", "5");
    let before = peak()?;
    let start = Instant::now();
    let (progress, told) = watch::channel(Progress::default());
    let artifact = tokio::select! {
        result = store.ensure(&want, &progress) => result?,
        trouble = first_trouble(told) => return Err(trouble),
    };
    println!(
        "digest={} bytes={} seconds={:.3} growth_kib={} path={}",
        artifact.digest,
        artifact.bytes,
        start.elapsed().as_secs_f64(),
        peak()?.saturating_sub(before),
        artifact.path.display(),
    );
    Ok(())
}

/// Tells each trouble; ends at the first if it is told to.
async fn first_trouble(mut told: watch::Receiver<Progress>) -> Failure {
    loop {
        if told.changed().await.is_err() {
            return std::future::pending().await;
        }
        let progress = told.borrow_and_update().clone();
        let trouble = progress.trouble.filter(|_| progress.phase == Phase::Retrying);
        let Some(trouble) = trouble.as_deref().map(ModelError::to_string) else { continue };
        if env::var_os("MODELS_ONCE").is_some() {
            return trouble.into();
        }
        eprintln!("{trouble}");
    }
}

/// The most memory that was resident at a time, in KiB.
fn peak() -> Result<u64, Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    Ok(line.and_then(|line| line.split_whitespace().next()).ok_or("no VmHWM")?.parse()?)
}
