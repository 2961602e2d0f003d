//! The last step up: a POST of the raw payload to the rule's URL. One attempt on a connection of its own; the answer is
//! read by nobody.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::Error;
use crate::payload::mangle;
use crate::rules::Rules;
use crate::uplink::Message;

/// As in cloudcore (read).
const CONNECT: Duration = Duration::from_secs(30);
const ANSWER: Duration = Duration::from_secs(300);

/// Posts what arrives in the cloud.
#[derive(Debug)]
pub struct Forwarder {
    client: reqwest::Client,
    rules: Arc<Mutex<Rules>>,
}

impl Forwarder {
    /// # Errors
    /// [`Error::Client`].
    pub fn new(rules: Arc<Mutex<Rules>>) -> Result<Self, Error> {
        // Fails only when there is one already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            // Each message is a new TCP connection (seen).
            .pool_max_idle_per_host(0)
            // TLS is not verified (seen).
            .tls_danger_accept_invalid_certs(true)
            .no_proxy()
            .connect_timeout(CONNECT)
            .timeout(ANSWER)
            .build()
            .map_err(Error::Client)?;
        Ok(Self { client, rules })
    }

    /// Posts to the URL of the rule for this node and topic; `false` if nobody got it.
    pub async fn post(&self, node: &str, message: Message) -> bool {
        let url = {
            let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
            rules.url(node, &message.topic).map(str::to_owned)
        };
        let Some(url) = url else {
            // A zombie subscription, or anything else under `user/`.
            return false;
        };
        if message.payload.is_empty() {
            // Refused by cloudcore (seen).
            return false;
        }
        let posted = self.client.post(&url).body(mangle(message.payload)).send().await;
        if let Err(error) = &posted {
            tracing::debug!(node, url, %error, "lost on the last step");
        }
        posted.is_ok()
    }
}
