//! The background task: fetches first weights, computes new weights, closes rounds at their deadlines,
//! and follows the server of a session.

use std::{fs::File, path::Path, sync::Arc, time::Duration};

use neptune_aggregate::{
    aggregate::{AggregateError, Inputs, aggregate},
    close::CloseRecord,
    weights::{Weights, WeightsError},
};
use neptune_backoff::{Backoff, Retries};
use neptune_content::Digest;
use neptune_wire::ContentReference;
use tracing::{info, warn};

use crate::{
    aggregator::Aggregator,
    clock::stopwatch,
    error::{Error, is_full},
    fetch,
    run::{Event, Outputs, Problem, Work},
    session,
};

/// The time between two looks at what the server of a session wrote.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The delays between attempts at work that failed.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));

/// Does what the run needs, indefinitely.
pub async fn run(aggregator: Arc<Aggregator>, client: reqwest::Client) {
    let mut changes = aggregator.changes();
    let mut retries = Retries::new(RETRY);
    loop {
        let Some(run) = changes.borrow_and_update().run.clone() else {
            // The sender is a part of `aggregator`, so this cannot fail.
            let _ = changes.changed().await;
            continue;
        };
        let work = run.work();
        if !matches!(work, Some(Work::WatchSession(_))) {
            apply(&aggregator, |it| {
                session::stop(it);
                Ok(())
            })
            .await
            .expect("it returns no error");
        }
        let result = if let Some(work) = work {
            perform(&aggregator, &client, work).await
        } else {
            let wait = run.deadline().map_or(Duration::from_hours(24), |it| {
                Duration::from_secs(it.saturating_sub(aggregator.clock().now()))
            });
            if tokio::time::timeout(wait, changes.changed()).await.is_ok() {
                continue;
            }
            apply(&aggregator, |it| it.apply(Event::Tick).map(|_| true)).await
        };
        match result {
            Ok(true) => retries.reset(),
            Ok(false) => delay(&mut retries).await,
            Err(error) => {
                warn!(%error, "work on the run failed; retrying");
                delay(&mut retries).await;
            }
        }
    }
}

async fn delay(retries: &mut Retries) {
    // Nobody else competes, so the delay needs no jitter.
    tokio::time::sleep(retries.failed(0)).await;
}

/// Returns whether the work succeeded.
async fn perform(
    aggregator: &Arc<Aggregator>,
    client: &reqwest::Client,
    work: Work,
) -> Result<bool, Error> {
    match &work {
        Work::Fetch(source) => {
            let result = fetch::fetch(aggregator, client, source).await;
            let is_done = result.as_ref().err().is_none_or(|it| it.is_permanent);
            let event = Event::Fetched(result);
            apply(aggregator, move |it| it.apply_result(&work, event)).await?;
            Ok(is_done)
        }
        Work::Aggregate { .. } => apply(aggregator, move |it| aggregate_round(it, &work)).await,
        Work::StartSession(start) => {
            let (start, shared) = (start.clone(), Arc::clone(aggregator));
            apply(aggregator, move |_| session::start(&shared, &work, &start)).await
        }
        Work::WatchSession(attempt) => {
            tokio::time::sleep(WATCH_INTERVAL).await;
            let (attempt, shared) = (*attempt, Arc::clone(aggregator));
            apply(aggregator, move |_| session::watch(&shared, &work, attempt)).await?;
            Ok(true)
        }
    }
}

/// Runs a blocking function.
async fn apply<T: Send + 'static>(
    aggregator: &Arc<Aggregator>,
    function: impl FnOnce(&Aggregator) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let aggregator = Arc::clone(aggregator);
    match tokio::task::spawn_blocking(move || function(&aggregator)).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime stops.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Computes the new weights of a round that closes, and ends the round. Returns whether that
/// succeeded. It can be repeated after a stop at any point.
///
/// # Errors
/// The new state cannot be stored.
pub fn aggregate_round(aggregator: &Aggregator, work: &Work) -> Result<bool, Error> {
    let started = stopwatch();
    let computed = match compute(aggregator, work) {
        Ok(computed) => computed,
        Err(AggregationFailure { problem, is_permanent }) => {
            let event =
                if is_permanent { Event::Impossible(problem) } else { Event::Delayed(problem) };
            aggregator.apply_result(work, event)?;
            return Ok(is_permanent);
        }
    };
    aggregator.metrics().aggregated(started.elapsed());
    aggregator.apply_result(work, Event::Computed(computed))?;
    store(aggregator, work)?;
    aggregator.apply_result(work, Event::Stored)?;
    Ok(true)
}

/// Why there are no new weights.
#[derive(Debug)]
pub struct AggregationFailure {
    /// Reason and text for the status.
    pub problem: Problem,
    /// Whether a repetition cannot succeed.
    pub is_permanent: bool,
}

/// Computes the files of a round in the work directory. Other work than [`Work::Aggregate`] fails.
///
/// # Errors
/// A file cannot be read or written, or a number exceeds its type.
pub fn compute(aggregator: &Aggregator, work: &Work) -> Result<Outputs, AggregationFailure> {
    let Work::Aggregate { record, base, velocity, round } = work else {
        let problem = Problem::new("WaitingForAggregator", "no round closes");
        return Err(AggregationFailure { problem, is_permanent: false });
    };
    let outputs = aggregate_files(aggregator, record, base, velocity.as_ref());
    let outputs = outputs.map_err(|error| failure(&error, *round))?;
    info!(round, sha256 = outputs.weights.sha256, "new weights are computed");
    Ok(outputs)
}

/// Moves the computed files to the contents.
///
/// # Errors
/// The disk failed.
pub fn store(aggregator: &Aggregator, work: &Work) -> Result<(), Error> {
    // The run has recorded the outputs, or does not want them any more.
    let Some(outputs) = aggregator.run().filter(|it| it.work().as_ref() == Some(work)) else {
        return Ok(());
    };
    let Some(outputs) = outputs.outputs() else { return Ok(()) };
    let files = [("weights", Some(&outputs.weights)), ("velocity", outputs.velocity.as_ref())];
    for (name, content) in files {
        let Some(content) = content else { continue };
        let digest: Digest = content.sha256.parse().expect("it was computed from a digest");
        let path = aggregator.work_file(name);
        aggregator.uploads().adopt(&path, &digest).map_err(Error::file(path))?;
    }
    Ok(())
}

fn aggregate_files(
    aggregator: &Aggregator,
    record: &CloseRecord,
    base: &ContentReference,
    velocity: Option<&ContentReference>,
) -> Result<Outputs, AggregateError> {
    let open = |sha256: &str| -> Result<Weights, AggregateError> {
        let missing = || std::io::Error::other(format!("content {sha256} is missing"));
        let path = aggregator.content(sha256).ok_or_else(missing)?;
        Ok(Weights::open(File::open(path)?)?)
    };
    let base = open(&base.sha256)?;
    let velocity = velocity.map(|it| open(&it.sha256)).transpose()?;
    let updates =
        record.entries.iter().map(|it| open(&it.sha256)).collect::<Result<Vec<_>, _>>()?;
    let updates: Vec<_> = updates.iter().collect();
    let has_momentum = record.rule.server_momentum > 0.0;
    let create = |name: &str| {
        let path = aggregator.work_file(name);
        File::options().read(true).write(true).create(true).truncate(true).open(path)
    };
    let output = create("weights")?;
    let velocity_output = has_momentum.then(|| create("velocity")).transpose()?;
    let inputs = Inputs { base: &base, updates: &updates, velocity: velocity.as_ref() };
    aggregate(record, inputs, output, velocity_output)?;
    let weights = described(&aggregator.work_file("weights"))?;
    let velocity =
        has_momentum.then(|| described(&aggregator.work_file("velocity"))).transpose()?;
    Ok(Outputs { weights, velocity })
}

/// Only numbers that do not fit are certain to fail again: a file of the data directory can be
/// restored, and a disk emptied.
fn failure(error: &AggregateError, round: u32) -> AggregationFailure {
    let is_permanent = matches!(error, AggregateError::Overflow { .. });
    let is_disk_full = matches!(
        error,
        AggregateError::Io(error) | AggregateError::Weights(WeightsError::Io(error)) if is_full(error)
    );
    let (reason, text) = match (is_permanent, is_disk_full) {
        (true, _) => ("NotFinite", error.to_string()),
        (_, true) => ("DiskFull", "the disk of the aggregator is full; retrying".to_owned()),
        _ => {
            let text = format!("the new weights cannot be computed: {error}; retrying");
            ("WaitingForAggregator", text)
        }
    };
    let problem = Problem::new(reason, format!("round {round}: {text}"));
    AggregationFailure { problem, is_permanent }
}

/// Returns digest and size of a file.
///
/// # Errors
/// The file cannot be read.
pub fn described(path: &Path) -> std::io::Result<ContentReference> {
    let (digest, bytes) = Digest::of_reader(File::open(path)?)?;
    Ok(ContentReference { sha256: digest.to_string(), bytes })
}
