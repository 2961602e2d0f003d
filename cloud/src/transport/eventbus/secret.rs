//! Reads the file of `--upstream-token-file`, and polls it: a mounted Secret changes without a
//! notification.

use std::time::{Duration, Instant};

use crate::{token_key::TokenKey, transport::eventbus::EventBus};

/// The flag that names the file.
pub const FLAG: &str = "--upstream-token-file";

/// The interval between two reads of the file.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// Applies changes of the file, indefinitely.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn follow(bus: &EventBus) {
    let Some(path) = &bus.0.settings.token_file else { return std::future::pending().await };
    let mut is_invalid = false;
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        match TokenKey::read(FLAG, path) {
            Ok(key) => {
                is_invalid = false;
                if bus.tokens().replace(key, Instant::now()) {
                    tracing::info!("upstream token key changed; recreating the Rules");
                    bus.0.rules_changed.notify_one();
                }
            }
            // The previous key stays valid.
            Err(error) => {
                if !std::mem::replace(&mut is_invalid, true) {
                    tracing::warn!(%error, "cannot read the upstream token key; keeping the previous one");
                }
            }
        }
    }
}
