//! Follows the file of `--upstream-token-file`.

use std::time::Instant;

use crate::{token_key, transport::eventbus::EventBus};

/// The flag that names the file.
pub const FLAG: &str = "--upstream-token-file";

/// Applies changes of the file, indefinitely.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn follow(bus: &EventBus) {
    let Some(path) = &bus.0.settings.token_file else { return std::future::pending().await };
    let on_key = |key| {
        if bus.tokens().replace(key, Instant::now()) {
            tracing::info!("upstream token key changed; recreating the Rules");
            bus.0.rules_changed.notify_one();
        }
    };
    token_key::follow(FLAG, path, on_key).await;
}
