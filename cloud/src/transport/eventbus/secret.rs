//! Reads the file of `--upstream-token-file`, and again and again: a Secret that is mounted changes there
//! without a word.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    error::Error,
    transport::eventbus::{EventBus, token::Token},
};

/// Between two looks at the file.
const EVERY: Duration = Duration::from_secs(10);

/// Reads the token.
///
/// # Errors
/// [`Error::TokenFile`]: the file cannot be read, or what it holds is no token.
pub fn read(path: &Path) -> Result<Token, Error> {
    let error = |why: String| Error::TokenFile { path: path.to_owned(), why };
    let text = std::fs::read_to_string(path).map_err(|source| error(source.to_string()))?;
    text.parse().map_err(|why: &str| error(why.to_owned()))
}

/// Takes over what the file holds, for ever.
pub async fn follow(bus: &EventBus) {
    let Some(path) = &bus.0.settings.token_file else { return std::future::pending().await };
    let mut is_bad = false;
    loop {
        tokio::time::sleep(EVERY).await;
        match read(path) {
            Ok(token) => {
                is_bad = false;
                if bus.tokens().replace(token, Instant::now()) {
                    tracing::info!("another upstream token: the Rules are made anew");
                    bus.0.rules_changed.notify_one();
                }
            }
            // The one that was read before holds on.
            Err(error) => {
                if !std::mem::replace(&mut is_bad, true) {
                    tracing::warn!(%error, "the upstream token stays what it was");
                }
            }
        }
    }
}
