//! Several upstream messages in one payload, for a transport that carries few messages and loses
//! some.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, SeqAccess, Visitor},
};
use serde_json::{Value, value::RawValue};

use crate::AgentInstance;

/// Maximum number of messages in a batch. Agents fill batches up to 64 KiB, which is less.
pub const MAX_BATCH_MESSAGES: usize = 2048;

/// The messages that a node publishes together over `KubeEdge`'s `EventBus`.
///
/// Each message is complete in itself: a later batch repairs a lost one. `(instance, epoch, seq)`
/// orders the batches of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// Identifies the agent's data directory.
    pub instance: AgentInstance,
    /// Number of agent starts on that data directory.
    pub epoch: u64,
    /// Sequence number of this batch within the epoch.
    pub seq: u64,
    /// Milliseconds from the node's boot until this batch was sent, with the time in which the node
    /// was suspended. Shows how late it arrives, independent of the node's clock. Absent from earlier
    /// agents.
    #[serde(rename = "uptimeMs", default, skip_serializing_if = "Option::is_none")]
    pub uptime_ms: Option<u64>,
    /// The messages. An empty list is a heartbeat.
    #[serde(default, deserialize_with = "messages")]
    pub messages: Vec<BatchMessage>,
}

/// One message of a [`Batch`], as it would be published on its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchMessage {
    /// The complete topic, including the prefix.
    pub topic: String,
    /// The payload. `null` is the empty payload, which clears a retained message.
    pub payload: Payload,
}

/// The JSON of a payload, as text. It is parsed when its topic is known, so a batch of any
/// content costs little more memory than its text.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Payload(Box<RawValue>);

impl Payload {
    /// Whether this is the empty payload, which clears a retained message.
    pub fn is_empty(&self) -> bool {
        self.0.get() == "null"
    }

    /// The payload as it would be published on its own.
    pub fn as_bytes(&self) -> &[u8] {
        if self.is_empty() { &[] } else { self.0.get().as_bytes() }
    }

    /// The payload of a published message; an empty one is `null`.
    ///
    /// # Errors
    /// The payload is not JSON.
    pub fn parse(payload: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(if payload.is_empty() { b"null" } else { payload }).map(Self)
    }
}

impl From<Value> for Payload {
    fn from(value: Value) -> Self {
        let raw = RawValue::from_string(value.to_string());
        Self(raw.expect("the text of a value is JSON"))
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.get())
    }
}

/// Decodes the messages, at most [`MAX_BATCH_MESSAGES`].
fn messages<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<BatchMessage>, D::Error> {
    struct Messages;

    impl<'de> Visitor<'de> for Messages {
        type Value = Vec<BatchMessage>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of messages")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut messages = Vec::new();
            while let Some(message) = seq.next_element()? {
                if messages.len() == MAX_BATCH_MESSAGES {
                    let why = format!("more than {MAX_BATCH_MESSAGES} messages in a batch");
                    return Err(A::Error::custom(why));
                }
                messages.push(message);
            }
            Ok(messages)
        }
    }

    from.deserialize_seq(Messages)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn batch_costs_at_most_four_times_its_size() {
        let elements = vec![r#"{"":0}"#; 500_000].join(",");
        let payload = format!(
            r#"{{"instance":"i","epoch":1,"seq":1,"messages":[{{"topic":"t","payload":[{elements}]}}]}}"#
        );
        let batch: Batch = crate::decode(payload.as_bytes()).unwrap();
        let [message] = &batch.messages[..] else { unreachable!("one message") };
        assert!(message.payload.as_bytes().len() < payload.len(), "its text and nothing else");

        let message = r#"{"topic":"","payload":0}"#;
        let many = vec![message; MAX_BATCH_MESSAGES + 1].join(",");
        let payload = format!(r#"{{"instance":"i","epoch":1,"seq":1,"messages":[{many}]}}"#);
        let error = crate::decode::<Batch>(payload.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("more than 2048 messages"), "{error}");
    }

    #[test]
    fn messages_that_are_no_list_are_refused_with_what_was_expected() {
        let payload = br#"{"instance":"i","epoch":1,"seq":1,"messages":7}"#;
        let error = crate::decode::<Batch>(payload).unwrap_err().to_string();
        assert!(error.contains("expected a list of messages"), "{error}");
    }

    #[test]
    fn null_is_the_empty_payload() {
        let payload = Payload::parse(b"").unwrap();
        assert!(payload.is_empty() && payload.as_bytes().is_empty());
        assert_eq!(payload.to_string(), "null");
        assert_eq!(Payload::parse(b"{\"a\":1}").unwrap().as_bytes(), b"{\"a\":1}");
        assert!(Payload::parse(b"{").is_err());
        assert_eq!(Payload::parse(b"null").unwrap(), payload);
        assert_ne!(Payload::parse(b"0").unwrap(), payload);
    }
}
