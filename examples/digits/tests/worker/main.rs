//! The worker programs as an agent runs them: the real binary with its environment, a real broker, and a cloud in this process.
#![allow(clippy::unwrap_used, clippy::panic)]

mod cloud;
mod edge;
mod mosquitto;
mod program;

/// What takes longer will not come.
pub async fn soon<T>(coming: impl Future<Output = T>) -> T {
    let limit = std::time::Duration::from_secs(20);
    tokio::time::timeout(limit, coming).await.expect("nothing came within 20 s")
}
