//! The last step upstream: a POST of the raw payload to the rule's URL. One attempt on a new
//! connection; the status is ignored.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::Error;
use crate::payload::replace_invalid_utf8;
use crate::rules::Rules;
use crate::uplink::Message;

/// The timeout of a connection, as in the source of cloudcore.
const CONNECT: Duration = Duration::from_secs(30);
const ANSWER: Duration = Duration::from_secs(300);

/// Posts messages that have arrived in the cloud.
#[derive(Debug)]
pub struct Forwarder {
    client: reqwest::Client,
    rules: Arc<Mutex<Rules>>,
}

impl Forwarder {
    /// Returns a forwarder with an HTTP client of its own.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn new(rules: Arc<Mutex<Rules>>) -> Result<Self, Error> {
        // Fails only if a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            // Each message is a new TCP connection (measured).
            .pool_max_idle_per_host(0)
            // TLS is not verified (measured).
            .tls_danger_accept_invalid_certs(true)
            .no_proxy()
            .connect_timeout(CONNECT)
            .timeout(ANSWER)
            .build()
            .map_err(Error::Client)?;
        Ok(Self { client, rules })
    }

    /// Posts to the URL of the rule for this node and topic. Returns `false` if the message was
    /// lost.
    pub async fn post(&self, node: &str, message: Message) -> bool {
        let url = {
            let rules = self.rules.lock();
            rules.url(node, &message.topic).map(str::to_owned)
        };
        let Some(url) = url else {
            // A leftover subscription, or another topic under `user/`.
            return false;
        };
        if message.payload.is_empty() {
            // Refused by cloudcore (measured).
            return false;
        }
        let posted =
            self.client.post(&url).body(replace_invalid_utf8(message.payload)).send().await;
        if let Err(error) = &posted {
            tracing::debug!(node, url, %error, "message lost: the POST failed");
        }
        posted.is_ok()
    }
}
