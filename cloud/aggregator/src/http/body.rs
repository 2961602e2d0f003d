//! Reads request bodies with limits of size and time.

use std::time::Duration;

use axum::{
    body::Body,
    http::{Response, StatusCode},
};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use neptune_program::listen::MinSpeed;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use super::response::problem;

/// How long a client may take to send the next bytes.
const IDLE: Duration = Duration::from_secs(60);
/// The slowest that a client may send a body: 8 MiB in 572 s.
const MIN_SPEED: MinSpeed =
    MinSpeed { allowance: Duration::from_secs(60), bytes_per_second: 16 * 1024 };

/// Reads a body.
///
/// # Errors
/// The response for a body that is too large, too slow, or cut.
pub async fn read(body: Body, limit: usize) -> Result<Bytes, Response<Body>> {
    read_at(MIN_SPEED, body, limit).await
}

#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
async fn read_at(speed: MinSpeed, mut body: Body, limit: usize) -> Result<Bytes, Response<Body>> {
    let (began, mut bytes) = (Instant::now(), BytesMut::new());
    loop {
        let deadline = began + speed.time_for(bytes.len());
        let next = timeout_at(deadline.min(Instant::now() + IDLE), body.frame());
        let Some(frame) = next.await.map_err(|_| too_slow())? else { return Ok(bytes.freeze()) };
        let frame = frame.map_err(|error| {
            problem(StatusCode::BAD_REQUEST, "InvalidRequest", error.to_string())
        })?;
        if let Some(data) = frame.data_ref() {
            if bytes.len() + data.len() > limit {
                let text = format!("the body exceeds {limit} bytes");
                return Err(problem(StatusCode::PAYLOAD_TOO_LARGE, "InvalidRequest", text));
            }
            bytes.extend_from_slice(data);
        }
    }
}

fn too_slow() -> Response<Body> {
    let text = format!(
        "the body was sent with less than {} KiB/s, or paused for {} s; send smaller blocks",
        MIN_SPEED.bytes_per_second / 1024,
        IDLE.as_secs()
    );
    problem(StatusCode::REQUEST_TIMEOUT, "TooSlow", text)
}

/// Reads a body of JSON.
///
/// # Errors
/// As [`read`], and for JSON that is not of this type.
pub async fn read_json<T: DeserializeOwned>(body: Body, limit: usize) -> Result<T, Response<Body>> {
    let bytes = read(body, limit).await?;
    serde_json::from_slice(&bytes)
        .map_err(|error| problem(StatusCode::BAD_REQUEST, "InvalidRequest", error.to_string()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::{
        io::AsyncWriteExt as _,
        time::{interval, timeout},
    };
    use tokio_util::io::ReaderStream;

    use super::*;

    #[tokio::test]
    async fn body_that_never_pauses_and_is_too_slow_is_refused() {
        let (mut client, server) = tokio::io::duplex(16);
        let drip = tokio::spawn(async move {
            let mut ticks = interval(Duration::from_millis(5));
            while client.write_all(b"x").await.is_ok() {
                ticks.tick().await;
            }
        });
        let speed = MinSpeed { allowance: Duration::from_millis(100), bytes_per_second: 16 * 1024 };
        let body = Body::from_stream(ReaderStream::new(server));
        let refused = timeout(Duration::from_secs(20), read_at(speed, body, 1 << 20)).await;
        assert_eq!(refused.unwrap().unwrap_err().status(), StatusCode::REQUEST_TIMEOUT);
        // The body is dropped with the refusal.
        drip.await.unwrap();
    }
}
