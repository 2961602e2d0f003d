//! The reports that wait, shared between the broker's thread, which adds them, and the relay, which
//! posts them.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::warn;

use super::pending::{Pending, Report};

/// The reports that wait.
#[derive(Debug, Default)]
pub struct Reports {
    pending: Mutex<Pending>,
    added: Notify,
    is_invalid: AtomicBool,
}

impl Reports {
    /// Adds a worker's message. Logs invalid ones once, until a valid one is added.
    pub fn add(&self, payload: &[u8]) {
        let added = self.pending.lock().add(payload);
        match added {
            Ok(()) => {
                self.is_invalid.store(false, Ordering::Relaxed);
                self.added.notify_one();
            }
            Err(why) => {
                if !self.is_invalid.swap(true, Ordering::Relaxed) {
                    warn!(why, "dropped an invalid report of the worker");
                }
            }
        }
    }

    /// Waits for the next report.
    pub async fn next(&self) -> Report {
        loop {
            // A permit is stored if a report is added before the wait.
            if let Some(report) = self.take() {
                return report;
            }
            self.added.notified().await;
        }
    }

    /// The next report, if there is one.
    pub fn take(&self) -> Option<Report> {
        self.pending.lock().take()
    }

    /// Puts a report back that could not be posted.
    pub fn put_back(&self, report: Report) {
        self.pending.lock().put_back(report);
    }

    /// Adds the last status, unless a report waits.
    pub fn repeat(&self) {
        self.pending.lock().repeat();
    }
}
