//! Notifies systemd that the agent is ready, alive or stopping, and of its status. Does nothing
//! without systemd.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tracing::warn;

/// The connection to the service manager, if the agent has one.
pub struct ServiceNotifier {
    /// Half of the watchdog timeout; `None` without a watchdog.
    interval: Option<Duration>,
    notified_at: Option<Instant>,
    last_status: String,
}

impl ServiceNotifier {
    /// Reads the watchdog timeout from the environment.
    pub fn from_environment() -> Self {
        let interval = sd_notify::watchdog_enabled().map(|limit| limit / 2);
        Self { interval, notified_at: None, last_status: String::new() }
    }

    /// Notifies systemd after a turn of the loop: readiness after the first, then the watchdog.
    /// Only the loop may call this, so that systemd detects a loop that hangs. Returns when the
    /// next turn is due for the watchdog.
    pub fn on_turn(&mut self, now: Instant, status: impl FnOnce() -> String) -> Option<Instant> {
        let is_first = self.notified_at.is_none();
        let is_due = |(at, interval): (Instant, Duration)| now.duration_since(at) >= interval;
        if is_first || self.notified_at.zip(self.interval).is_some_and(is_due) {
            self.notified_at = Some(now);
            let status = status();
            let mut messages = Vec::new();
            if is_first {
                messages.push(NotifyState::Ready);
            }
            if self.interval.is_some() {
                messages.push(NotifyState::Watchdog);
            }
            if status != self.last_status {
                messages.push(NotifyState::Status(&status));
            }
            notify(&messages);
            self.last_status = status;
        }
        Some(self.notified_at? + self.interval?)
    }

    /// Notifies systemd that the agent is stopping.
    pub fn stopping() {
        notify(&[NotifyState::Stopping]);
    }
}

fn notify(messages: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(messages) {
        warn!(%error, "failed to notify systemd");
    }
}
