//! Posts the scheduled messages to `KubeEdge`'s router, and reports the outcomes to the schedule.

use std::{
    io,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use neptune_cloud_metrics::PostOutcome;
use neptune_program::{causes, chain, random::random};
use neptune_wire::NodeName;
use reqwest::{Client, StatusCode};

use crate::transport::eventbus::{EventBus, outbox::QueuedMessage};

/// Timeout of a post. The router responds within 2 s if it has no session; the rest is for 12 MiB
/// on a slow network.
const POST_TIMEOUT: Duration = Duration::from_secs(20);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The response body if cloudcore has queued the message. Some of its internal errors are an empty
/// 200.
const DELIVERED: &str = "message delivered";

/// The HTTP client.
///
/// # Errors
/// As of [`reqwest::ClientBuilder::build`].
#[expect(clippy::disallowed_methods, reason = "the one HTTP client of the transport")]
pub fn client() -> reqwest::Result<Client> {
    Client::builder().no_proxy().connect_timeout(CONNECT_TIMEOUT).timeout(POST_TIMEOUT).build()
}

/// Posts the messages of the schedule until the process ends.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn run(bus: &EventBus) {
    let mut posts = FuturesUnordered::new();
    loop {
        // Registered before the check, so that a change between the check and the wait is not
        // missed.
        let mut changed = std::pin::pin!(bus.0.changed.notified());
        changed.as_mut().enable();
        while let Some((node, message)) = bus.schedule().next(Instant::now()) {
            posts.push(async move {
                let start = Instant::now();
                let outcome = post(bus, &node, &message).await;
                bus.on_answer(outcome, start.elapsed());
                (node, message, outcome)
            });
        }
        bus.0.metrics.set_router_reachable(bus.schedule().is_router_reachable());
        let due_at = bus.schedule().next_due_at();
        let timer = async {
            match due_at {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some((node, message, outcome)) = posts.next() => {
                bus.0.metrics.posted(outcome);
                bus.schedule().done(&node, message, outcome, Instant::now(), random());
            }
            () = changed => {}
            () = timer => {}
        }
    }
}

async fn post(bus: &EventBus, node: &NodeName, message: &QueuedMessage) -> PostOutcome {
    let settings = &bus.0.settings;
    // The rule's path is the prefix of the topic.
    let url = format!("{}/{node}/{}/{}", settings.router, settings.namespace, message.topic);
    let sent = bus.0.client.post(&url).body(message.payload.clone()).send().await;
    let answer = match sent {
        Ok(response) => {
            let status = response.status();
            response.text().await.map(|text| (status, text))
        }
        Err(error) => Err(error),
    };
    let (outcome, why) = match answer {
        Ok((status, text)) => (meaning(status, &text), format!("{status} {}", text.trim())),
        Err(error) => {
            let outcome =
                if is_absent(&error) { PostOutcome::NoRouter } else { PostOutcome::Failed };
            (outcome, causes(&error))
        }
    };
    let bytes = message.payload.len();
    if outcome == PostOutcome::Taken {
        tracing::debug!(%node, topic = message.topic, bytes, "posted");
    } else {
        tracing::debug!(%node, topic = message.topic, bytes, ?outcome, why, "not posted");
    }
    bus.warn_outcome(outcome, &why);
    outcome
}

/// Maps the router's response to an outcome.
fn meaning(status: StatusCode, text: &str) -> PostOutcome {
    match status {
        StatusCode::OK if text.trim() == DELIVERED => PostOutcome::Taken,
        StatusCode::INTERNAL_SERVER_ERROR => PostOutcome::NoSession,
        StatusCode::NOT_FOUND => PostOutcome::NoRule,
        StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE => PostOutcome::TooLarge,
        _ => PostOutcome::Failed,
    }
}

/// Whether the address refuses or closes the connection before a response, as while cloudcore
/// restarts.
fn is_absent(error: &reqwest::Error) -> bool {
    if error.is_connect() {
        return true;
    }
    let io = chain(error).skip(1).find_map(|cause| cause.downcast_ref::<io::Error>());
    if let Some(io) = io {
        return matches!(
            io.kind(),
            io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::UnexpectedEof
        );
    }
    // The client library's error for a connection that is closed before the response has no public
    // kind.
    error.is_request() && !error.is_timeout()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_200_with_the_expected_body_is_taken() {
        for (status, text, outcome) in [
            (200, "message delivered", PostOutcome::Taken),
            (200, "message delivered\n", PostOutcome::Taken),
            (200, "", PostOutcome::Failed),
            (200, "ok", PostOutcome::Failed),
            (404, "Request error", PostOutcome::NoRule),
            (500, "", PostOutcome::NoSession),
            (400, "Request error,body is null", PostOutcome::TooLarge),
            (503, "", PostOutcome::Failed),
            (301, "", PostOutcome::Failed),
        ] {
            let status = StatusCode::from_u16(status).unwrap_or_default();
            assert_eq!(meaning(status, text), outcome, "{status} {text:?}");
        }
    }
}
