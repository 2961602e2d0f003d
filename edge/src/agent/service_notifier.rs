//! Tells systemd that the agent is ready, that its loop turns, what it does, and that it stops. Where
//! there is no systemd, nobody is told.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tracing::warn;

/// The service manager, as far as the agent has one.
pub struct ServiceNotifier {
    /// How often it wants to hear from the loop; half of what it allows.
    every: Option<Duration>,
    fed_at: Option<Instant>,
    told: String,
}

impl ServiceNotifier {
    /// As the environment says.
    pub fn of_environment() -> Self {
        let every = sd_notify::watchdog_enabled().map(|limit| limit / 2);
        Self { every, fed_at: None, told: String::new() }
    }

    /// The loop has turned: the first time that makes the agent ready, and it feeds the watchdog. Only the
    /// loop may call this, so that one which hangs is noticed. Returns when it has to turn again.
    pub fn turned(&mut self, now: Instant, status: impl FnOnce() -> String) -> Option<Instant> {
        let is_first = self.fed_at.is_none();
        let is_due = |(at, every): (Instant, Duration)| now.duration_since(at) >= every;
        if is_first || self.fed_at.zip(self.every).is_some_and(is_due) {
            self.fed_at = Some(now);
            let status = status();
            let mut news = Vec::new();
            if is_first {
                news.push(NotifyState::Ready);
            }
            if self.every.is_some() {
                news.push(NotifyState::Watchdog);
            }
            if status != self.told {
                news.push(NotifyState::Status(&status));
            }
            tell(&news);
            self.told = status;
        }
        Some(self.fed_at? + self.every?)
    }

    /// The agent is on its way out.
    pub fn stopping() {
        tell(&[NotifyState::Stopping]);
    }
}

fn tell(news: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(news) {
        warn!(%error, "systemd does not hear the agent");
    }
}
