//! Load on an endpoint: up to 200 requests per second, each on its own, until the test ends it.
#![allow(clippy::disallowed_methods, reason = "the time of an answer")]

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
    time::{MissedTickBehavior, interval},
};

/// Interval at which requests are sent.
const PERIOD: Duration = Duration::from_millis(5);
/// Requests at a time; a slow machine answers fewer per second.
const IN_FLIGHT: usize = 16;

/// Requests that are being sent.
pub struct Load<T> {
    stop: Arc<AtomicBool>,
    task: JoinHandle<LoadResult<T>>,
}

/// What the requests got.
#[derive(Debug)]
pub struct LoadResult<T> {
    /// The different answers, the first one first.
    pub answers: Vec<T>,
    pub sent: u32,
    pub failed: u32,
    /// The different errors, without repetitions.
    pub errors: Vec<String>,
    /// The longest time between two good answers.
    pub longest_outage: Duration,
}

impl<T: PartialEq + Send + 'static> Load<T> {
    /// Sends requests with `ask`.
    pub fn start<F>(ask: impl Fn() -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<T, String>> + Send + 'static,
    {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let (mut ticks, mut requests) = (interval(PERIOD), JoinSet::new());
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let places = Arc::new(Semaphore::new(IN_FLIGHT));
            while !stopped.load(Ordering::Relaxed) {
                ticks.tick().await;
                let place = Arc::clone(&places).acquire_owned().await;
                let request = ask();
                requests.spawn(async move {
                    let answer = request.await;
                    drop(place);
                    (answer, Instant::now())
                });
            }
            result(requests.join_all().await)
        });
        Self { stop, task }
    }

    /// Stops, and waits for the requests in flight.
    pub async fn end(self) -> LoadResult<T> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

fn result<T: PartialEq>(mut done: Vec<(Result<T, String>, Instant)>) -> LoadResult<T> {
    done.sort_by_key(|(_, at)| *at);
    let mut last_good = done.first().map(|(_, at)| *at);
    let mut result = LoadResult {
        answers: Vec::new(),
        sent: 0,
        failed: 0,
        errors: Vec::new(),
        longest_outage: Duration::ZERO,
    };
    for (answer, at) in done {
        result.sent += 1;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                result.failed += 1;
                if !result.errors.contains(&error) {
                    result.errors.push(error);
                }
                continue;
            }
        };
        let outage = at.duration_since(last_good.unwrap_or(at));
        result.longest_outage = result.longest_outage.max(outage);
        last_good = Some(at);
        if !result.answers.contains(&answer) {
            result.answers.push(answer);
        }
    }
    result
}
