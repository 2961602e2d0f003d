//! Notifies systemd: the agent is ready, its loop runs, its status, and it stops. Without systemd
//! it does nothing.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tracing::warn;

/// The service manager, as far as the agent has one.
pub struct ServiceNotifier {
    /// How often it wants to hear from the loop; half of what it allows.
    interval: Option<Duration>,
    notified_at: Option<Instant>,
    last_status: String,
}

impl ServiceNotifier {
    /// As the environment says.
    pub fn from_environment() -> Self {
        let interval = sd_notify::watchdog_enabled().map(|limit| limit / 2);
        Self { interval, notified_at: None, last_status: String::new() }
    }

    /// The loop has turned: the first time that makes the agent ready, and it feeds the watchdog.
    /// Only the loop may call this, so that one which hangs is noticed. Returns when it has to turn
    /// again.
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

    /// The agent is on its way out.
    pub fn stopping() {
        notify(&[NotifyState::Stopping]);
    }
}

fn notify(messages: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(messages) {
        warn!(%error, "systemd does not hear the agent");
    }
}
