//! Posts the worker's reports: at most one per interval, again after a failure, and what is left on
//! SIGTERM.

use std::{pin::pin, time::Duration};

use neptune_agent_core::backoff::REPORT_POST;
use neptune_backoff::Retries;
use neptune_program::random::random;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::{
    pending::Report,
    poster::{PostError, Poster},
    reports::Reports,
};

/// Minimum time between two posts. The controller refuses more.
const INTERVAL: Duration = Duration::from_millis(500);
/// After this time without a report, the last status is posted again, for a controller that
/// restarted.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);
/// The failure of a series that is logged. Earlier ones are usual while the controller restarts.
const LOGGED_FAILURE: u32 = 3;
/// How long the last reports may take. Shorter than what a kubelet grants.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// What happened to a report.
enum Outcome {
    /// Posted, or dropped because it is invalid.
    Done,
    Forbidden,
    Unavailable,
}

/// Posts reports until `stop` resolves, and then those that are left.
pub async fn run(reports: &Reports, poster: &Poster, stop: impl Future<Output = ()>) {
    let mut relay = Relay { reports, poster, retries: Retries::new(REPORT_POST) };
    let mut stop = pin!(stop);
    loop {
        let report = tokio::select! {
            report = reports.next() => report,
            () = sleep(REPEAT_INTERVAL) => {
                reports.repeat();
                continue;
            }
            () = &mut stop => break,
        };
        // Not cancelled: it has a timeout, and a report that may have arrived is not posted again.
        let wait = match relay.post(report).await {
            Outcome::Done => INTERVAL,
            Outcome::Forbidden | Outcome::Unavailable => relay.retries.failed(random()),
        };
        tokio::select! {
            () = sleep(wait) => {}
            () = &mut stop => break,
        }
    }
    if timeout(FLUSH_TIMEOUT, relay.flush()).await.is_err() {
        warn!("the worker's last report was not posted in time");
    }
}

struct Relay<'a> {
    reports: &'a Reports,
    poster: &'a Poster,
    retries: Retries,
}

impl Relay<'_> {
    /// Posts one report, and puts it back if it has to be posted again. Logs a series of failures
    /// and its end.
    async fn post(&mut self, report: Report) -> Outcome {
        let failures = self.retries.failures();
        match self.poster.post(report.payload.clone()).await {
            Ok(()) if failures >= LOGGED_FAILURE => info!("the controller accepts reports again"),
            Ok(()) => {}
            Err(PostError::Invalid(why)) => {
                warn!(why, "the controller rejected a report of the worker");
            }
            Err(error) => {
                if failures + 1 == LOGGED_FAILURE {
                    warn!(%error, "the controller does not accept reports; retrying");
                }
                self.reports.put_back(report);
                let is_forbidden = matches!(error, PostError::Forbidden(_));
                return if is_forbidden { Outcome::Forbidden } else { Outcome::Unavailable };
            }
        }
        self.retries.reset();
        Outcome::Done
    }

    /// Posts what is left. Ends early if the service was deleted.
    async fn flush(&mut self) {
        while let Some(report) = self.reports.take() {
            match self.post(report).await {
                Outcome::Done => {}
                Outcome::Unavailable => drop(self.retries.failed(random())),
                Outcome::Forbidden => return,
            }
            // The controller refuses a report that follows the last one too soon.
            sleep(INTERVAL).await;
        }
    }
}
