//! The connection task: connects, polls the event loop of the client library, and reconnects. Only
//! this file polls, and nothing else is awaited around a poll: a cancelled poll loses packets.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use neptune_backoff::{Backoff, Retries};
use rumqttc::{
    AsyncClient, ConnectReturnCode, ConnectionError, EventLoop, LastWill, MqttOptions, Outgoing,
    Packet, QoS, StateError, SubAck, SubscribeFilter, SubscribeReasonCode,
};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tracing::{debug, info, warn};

use crate::outbox::WINDOW;
use crate::shared::{CHANNEL, LinkPhase, Shared};
use crate::takeover::{ConnectionEnd, REPORTED_FOR, Takeovers};
use crate::{
    LinkEvent, LinkOptions, Message,
    secrets::{self, MEMORY},
};

/// The delay before a reconnect.
const RECONNECT: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(15));

/// A connection that was up for this time resets the backoff, even if the broker acknowledged
/// nothing.
const STABLE_AFTER: Duration = Duration::from_secs(5);

/// Packet identifiers wrap around after this number. It is twice the window, so that an identifier
/// is never assigned while it is in flight, which the client library does not handle. At most two
/// subscriptions are in flight.
const PACKET_IDS: u16 = 200;
const _: () = assert!(PACKET_IDS as usize > WINDOW + 2);

/// The largest packet that is read from the broker, in bytes. The client library closes the
/// connection on a larger one before it has read its topic, so this is far above
/// [`LinkOptions::max_packet_size`], and larger messages than that are dropped by this file.
const MAX_INCOMING: usize = 64 << 20;

pub struct Connection {
    mqtt: MqttOptions,
    options: LinkOptions,
    shared: Arc<Shared>,
    events: mpsc::Sender<LinkEvent>,
}

/// The result of one connection.
struct Lost {
    reason: String,
    was_up: bool,
    was_stable: bool,
    end: ConnectionEnd,
}

/// One connection, from the connection attempt to its loss.
struct Attempt {
    client: AsyncClient,
    up_since: Option<Instant>,
    has_acknowledged: bool,
}

impl Connection {
    pub fn new(options: LinkOptions, shared: Arc<Shared>, events: mpsc::Sender<LinkEvent>) -> Self {
        // The client library does not limit outgoing packets: `publish` has refused messages that
        // are too large, and here a limit would close the connection each time.
        let mut mqtt = MqttOptions::new(&options.client_id, options.url.host(), options.url.port());
        mqtt.set_keep_alive(Duration::from_secs(options.keep_alive.as_secs()))
            .set_clean_session(true)
            .set_inflight(PACKET_IDS)
            .set_max_packet_size(options.max_packet_size.max(MAX_INCOMING), usize::MAX);
        if let Some(will) = &options.will {
            mqtt.set_last_will(LastWill::new(
                &will.topic,
                will.payload.clone(),
                QoS::AtLeastOnce,
                will.retain,
            ));
        }
        Self { mqtt, options, shared, events }
    }

    /// Returns when the link is closing and the connection is closed.
    pub async fn run(self) {
        let mut retries = Retries::new(RECONNECT);
        let mut takeovers = Takeovers::default();
        let mut last_reason: Option<String> = None;
        loop {
            let lost = self.attempt().await;
            self.shared.connection_lost();
            if self.shared.phase() != LinkPhase::Running {
                self.shared.enter(LinkPhase::Closed);
                return;
            }
            let reason = format!("{}: {}", self.options.url, lost.reason);
            if lost.was_up || last_reason.as_ref() != Some(&reason) {
                warn!(client = self.options.client_id, reason, "link down");
                self.deliver(LinkEvent::Down { reason: reason.clone() }).await;
                last_reason = Some(reason);
            } else {
                debug!(client = self.options.client_id, reason, "link still down");
            }
            if lost.was_stable {
                retries.reset();
            }
            // The standard library's only source of randomness.
            let random = RandomState::new().build_hasher().finish();
            let delay = match takeovers.record(lost.end, random) {
                Some(delay) => {
                    self.yield_id(delay);
                    delay
                }
                None => retries.failed(random),
            };
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = self.shared.reached(LinkPhase::Closing) => {}
            }
        }
    }

    /// Another client takes over the connections of this client ID.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn yield_id(&self, delay: Duration) {
        if self.shared.taken_over(Instant::now() + REPORTED_FOR) {
            warn!(
                client = self.options.client_id,
                broker = %self.options.url,
                "another client with this client ID takes over each connection; reconnecting with growing pauses (stop the other program, or give it another name)"
            );
        } else {
            debug!(client = self.options.client_id, ?delay, "taken over again");
        }
    }

    /// Uses a new client and event loop for each connection: the library drops unsent messages when
    /// it reconnects by itself, and the outbox has the unacknowledged messages.
    async fn attempt(&self) -> Lost {
        let mqtt = match self.prepare().await {
            Ok(mqtt) => mqtt,
            Err(reason) => {
                let end = ConnectionEnd::Other;
                return Lost { reason, was_up: false, was_stable: false, end };
            }
        };
        #[expect(clippy::disallowed_methods, reason = "the one MQTT client")]
        let (client, mut event_loop) = AsyncClient::new(mqtt, CHANNEL);
        // Each packet is flushed separately, so Nagle's algorithm would only add delay.
        event_loop.network_options.set_tcp_nodelay(true);
        let mut attempt = Attempt { client, up_since: None, has_acknowledged: false };
        let (mut result, mut is_closed, mut is_oversized) = (Ok(()), false, false);
        while result.is_ok() {
            result = match event_loop.poll().await {
                Ok(event) => self.handle(&mut attempt, event).await,
                Err(error) => {
                    is_closed = is_closed_by_broker(&error);
                    is_oversized = oversized(&error).is_some();
                    Err(self.describe(&error))
                }
            };
        }
        self.drain(&mut attempt, &mut event_loop).await;
        let end = match attempt.up_since {
            Some(since) if is_closed => ConnectionEnd::ClosedByBroker(since.elapsed()),
            _ => ConnectionEnd::Other,
        };
        Lost {
            reason: result.err().unwrap_or_default(),
            was_up: attempt.up_since.is_some(),
            // The broker sends a retained message again on each connection.
            was_stable: !is_oversized
                && (attempt.has_acknowledged
                    || attempt.up_since.is_some_and(|since| since.elapsed() >= STABLE_AFTER)),
            end,
        }
    }

    /// Returns the options with the current content of the secret files.
    async fn prepare(&self) -> Result<MqttOptions, String> {
        let options = self.options.clone();
        let secrets = tokio::task::spawn_blocking(move || secrets::read(&options));
        let secrets = secrets.await.map_err(|error| error.to_string())?;
        let secrets = secrets.map_err(|error| error.to_string())?;
        let mut mqtt = self.mqtt.clone();
        mqtt.set_transport(secrets.transport);
        if let Some((user, password)) = secrets.login {
            mqtt.set_credentials(user, password);
        }
        Ok(mqtt)
    }

    /// Handles packets that were read together with the end of the connection.
    async fn drain(&self, attempt: &mut Attempt, event_loop: &mut EventLoop) {
        for event in std::mem::take(&mut event_loop.state.events) {
            if let rumqttc::Event::Incoming(Packet::Publish(_) | Packet::PubAck(_)) = &event {
                // These two never fail.
                let _ = self.handle(attempt, event).await;
            }
        }
    }

    /// Handles one event of the client library. An error closes the connection.
    async fn handle(&self, attempt: &mut Attempt, event: rumqttc::Event) -> Result<(), String> {
        match event {
            rumqttc::Event::Incoming(Packet::ConnAck(_)) => return self.accepted(attempt).await,
            rumqttc::Event::Incoming(Packet::SubAck(answer)) => {
                self.check_subscribed(&answer)?;
                self.shared.subscribed();
                if attempt.up_since.is_none() {
                    self.up(attempt).await;
                }
            }
            rumqttc::Event::Incoming(Packet::Publish(publish)) => {
                let size = publish.topic.len() + publish.payload.len();
                if size > self.options.max_packet_size {
                    self.drop_oversized(&publish.topic, size);
                    return Ok(());
                }
                let message = Message {
                    topic: publish.topic,
                    payload: publish.payload,
                    retain: publish.retain,
                };
                self.deliver(LinkEvent::Message(message)).await;
            }
            rumqttc::Event::Incoming(Packet::PubAck(ack)) => {
                attempt.has_acknowledged = true;
                self.shared.acknowledged(ack.pkid);
            }
            rumqttc::Event::Outgoing(Outgoing::Publish(packet_id)) => {
                self.shared.numbered(packet_id);
            }
            // After DISCONNECT the broker closes the connection. Polling continues until then:
            // closing a socket with unread bytes resets the connection, and the broker may publish
            // the last will.
            _ => {}
        }
        Ok(())
    }

    /// The broker has its acknowledgement: it does not send the message again before the next
    /// connection.
    fn drop_oversized(&self, topic: &str, size: usize) {
        if self.shared.oversized(topic) {
            warn!(
                client = self.options.client_id,
                topic,
                size,
                limit = self.options.max_packet_size,
                "dropped a message above the size limit; further ones on this topic are only counted (clear a retained one: mosquitto_pub -r -n -t <topic>)"
            );
        }
    }

    /// Subscribes before it publishes, so that responses to replayed messages are received.
    async fn accepted(&self, attempt: &mut Attempt) -> Result<(), String> {
        let filters = self.options.subscriptions.iter();
        if self.options.subscriptions.is_empty() {
            self.shared.connected(attempt.client.clone());
            self.up(attempt).await;
            return Ok(());
        }
        let filters = filters.map(|filter| SubscribeFilter::new(filter.clone(), QoS::AtLeastOnce));
        attempt.client.try_subscribe_many(filters).map_err(|error| error.to_string())?;
        self.shared.connected(attempt.client.clone());
        Ok(())
    }

    fn check_subscribed(&self, answer: &SubAck) -> Result<(), String> {
        let refused = self.options.subscriptions.iter().zip(&answer.return_codes);
        match refused.into_iter().find(|(_, code)| **code == SubscribeReasonCode::Failure) {
            Some((filter, _)) => Err(format!("the broker refused the subscription to {filter}")),
            None => Ok(()),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    async fn up(&self, attempt: &mut Attempt) {
        attempt.up_since = Some(Instant::now());
        self.shared.set_up();
        info!(client = self.options.client_id, broker = %self.options.url, "link up");
        self.deliver(LinkEvent::Up).await;
    }

    /// Waits for room in the channel; reading from the socket pauses meanwhile. A closing link does
    /// not wait.
    async fn deliver(&self, event: LinkEvent) {
        // A dropped receiver is not an error: the link continues without it.
        if let Err(TrySendError::Full(event)) = self.events.try_send(event) {
            tokio::select! {
                _ = self.events.send(event) => {}
                () = self.shared.reached(LinkPhase::Closing) => {}
            }
        }
    }

    fn describe(&self, error: &ConnectionError) -> String {
        if let Some(size) = oversized(error) {
            return format!(
                "the broker sends a message of {size} bytes, at most {MAX_INCOMING} are read; a retained one closes each connection until it is cleared (mosquitto_pub -r -n -t <topic>, with a topic of {:?}); set the broker's limit of packets to 1 MiB",
                self.options.subscriptions
            );
        }
        match error {
            ConnectionError::ConnectionRefused(
                ConnectReturnCode::BadUserNamePassword | ConnectReturnCode::NotAuthorized,
            ) => "the broker refused the user or the password".to_owned(),
            ConnectionError::ConnectionRefused(ConnectReturnCode::BadClientId) => {
                format!("the broker refused the client ID {:?}", self.options.client_id)
            }
            ConnectionError::NetworkTimeout => "no response from the broker within 5 s".to_owned(),
            ConnectionError::Tls(error) => {
                let ca_file = self.options.ca_file.as_deref().unwrap_or_else(|| MEMORY.as_ref());
                format!("TLS: {error} (CA file {})", ca_file.display())
            }
            other => self.with_certificate(other.to_string()),
        }
    }

    /// In TLS 1.3 a broker refuses a missing or invalid client certificate after the handshake.
    fn with_certificate(&self, error: String) -> String {
        match error.split_once("received fatal alert") {
            Some((_, alert)) => {
                let none = if self.options.identity.is_some() { MEMORY } else { "none" };
                let file = self.options.certificate_file.as_deref().unwrap_or(none.as_ref());
                format!("TLS: alert from the broker{alert} (certificate file {})", file.display())
            }
            None => error,
        }
    }
}

/// The size of the message that is too large to be read.
fn oversized(error: &ConnectionError) -> Option<usize> {
    match error {
        ConnectionError::MqttState(StateError::Deserialization(
            rumqttc::mqttbytes::Error::PayloadSizeLimitExceeded(size),
        )) => Some(*size),
        _ => None,
    }
}

/// Whether the broker, and not the network, ended the connection.
fn is_closed_by_broker(error: &ConnectionError) -> bool {
    let error = match error {
        ConnectionError::MqttState(StateError::ConnectionAborted) => return true,
        ConnectionError::MqttState(StateError::Io(error)) | ConnectionError::Io(error) => error,
        _ => return false,
    };
    let kind = error.kind();
    matches!(
        kind,
        ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::UnexpectedEof
            | ErrorKind::BrokenPipe
    )
}
