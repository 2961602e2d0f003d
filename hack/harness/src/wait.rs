//! Waiting with a deadline, and a message that names what did not happen.

use std::time::Duration;

use tokio::time::{sleep, timeout};

/// The deadline of every wait: longer than anything takes on a busy machine with the slowest
/// broker, and shorter than the test runner's limit.
pub const TIMEOUT: Duration = Duration::from_secs(100);

/// Pause between two checks of a condition.
const INTERVAL: Duration = Duration::from_millis(10);

/// Waits for a future.
///
/// # Panics
/// After [`TIMEOUT`].
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let result = timeout(TIMEOUT, future).await;
    result.unwrap_or_else(|_| panic!("timed out after {TIMEOUT:?} waiting for: {what}"))
}

/// Waits until a condition holds that nothing announces.
///
/// # Panics
/// After [`TIMEOUT`].
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    eventually_async(what, async || condition()).await;
}

/// Like [`eventually`], for a condition that is itself asynchronous.
///
/// # Panics
/// After [`TIMEOUT`].
pub async fn eventually_async(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    eventually_some(what, async || condition().await.then_some(())).await;
}

/// Waits until a probe returns a value, and returns it.
///
/// # Panics
/// After [`TIMEOUT`].
pub async fn eventually_some<T>(what: &str, probe: impl AsyncFnMut() -> Option<T>) -> T {
    poll(TIMEOUT, what, probe).await
}

async fn poll<T>(limit: Duration, what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let polling = async {
        loop {
            if let Some(value) = probe().await {
                return value;
            }
            sleep(INTERVAL).await;
        }
    };
    let result = timeout(limit, polling).await;
    result.unwrap_or_else(|_| panic!("timed out after {limit:?} waiting for: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn eventually_some_returns_the_first_value() {
        let mut probes = 0;
        let value = eventually_some("the third probe", async || {
            probes += 1;
            (probes == 3).then_some(probes)
        });
        assert_eq!(value.await, 3);
    }

    #[tokio::test]
    #[should_panic(expected = "timed out after 30ms waiting for: a miracle")]
    async fn condition_that_never_holds_panics_with_its_name() {
        poll(Duration::from_millis(30), "a miracle", async || None::<()>).await;
    }
}
