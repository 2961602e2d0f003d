//! Reads the file of `--upstream-token-file`, and polls it: a mounted Secret changes without a
//! notification.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    error::Error,
    transport::eventbus::{EventBus, token::TokenKey},
};

/// The interval between two reads of the file.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// Reads the key of the tokens.
///
/// # Errors
/// [`Error::TokenFile`]: the file cannot be read, or does not contain a valid key.
pub fn read(path: &Path) -> Result<TokenKey, Error> {
    let error = |why: String| Error::TokenFile { path: path.to_owned(), why };
    let text = std::fs::read_to_string(path).map_err(|source| error(source.to_string()))?;
    text.parse().map_err(|why: &str| error(why.to_owned()))
}

/// Applies changes of the file, indefinitely.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn follow(bus: &EventBus) {
    let Some(path) = &bus.0.settings.token_file else { return std::future::pending().await };
    let mut is_invalid = false;
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        match read(path) {
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
