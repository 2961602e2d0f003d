//! The connection task: connects, polls the client library's event loop, and connects again. The only place that
//! polls, and nothing else is awaited around a poll: a cancelled poll loses packets.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rumqttc::{
    AsyncClient, ConnectReturnCode, ConnectionError, EventLoop, LastWill, MqttOptions, Outgoing,
    Packet, QoS, SubAck, SubscribeFilter, SubscribeReasonCode,
};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tracing::{debug, info, warn};

use crate::backoff::Backoff;
use crate::outbox::WINDOW;
use crate::shared::{CHANNEL, Phase, Shared};
use crate::{LinkEvent, LinkOptions, Message, secrets};

/// A connection that was up for so long was of use, even if it acknowledged nothing.
const LIVED: Duration = Duration::from_secs(5);

/// Packet ids go round through so many. Twice the window, so that with the subscription's id too an id is never given
/// out while it is in flight: the client library handles that badly. Of subscriptions there are two at most.
const PACKET_IDS: u16 = 200;
const _: () = assert!(PACKET_IDS as usize > WINDOW + 2);

pub struct Connection {
    mqtt: MqttOptions,
    options: LinkOptions,
    shared: Arc<Shared>,
    events: mpsc::Sender<LinkEvent>,
}

/// What became of one connection.
struct Lost {
    reason: String,
    was_up: bool,
    was_of_use: bool,
}

/// One connection, from the attempt to the loss.
struct Attempt {
    client: AsyncClient,
    up_since: Option<Instant>,
    has_acknowledged: bool,
}

impl Connection {
    pub fn new(options: LinkOptions, shared: Arc<Shared>, events: mpsc::Sender<LinkEvent>) -> Self {
        // Outgoing packets have no second limit: `publish` has refused what is too large, and here it would cost the
        // connection each time.
        let mut mqtt = MqttOptions::new(&options.client_id, options.url.host(), options.url.port());
        mqtt.set_keep_alive(Duration::from_secs(options.keep_alive.as_secs()))
            .set_clean_session(true)
            .set_inflight(PACKET_IDS)
            .set_max_packet_size(options.max_packet_size, usize::MAX);
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

    /// Ends when the link is closing and the connection over.
    pub async fn run(self) {
        let mut backoff = Backoff::default();
        let mut said: Option<String> = None;
        loop {
            let lost = self.attempt().await;
            self.shared.connection_lost();
            if self.shared.phase() != Phase::Running {
                self.shared.enter(Phase::Closed);
                return;
            }
            let reason = format!("{}: {}", self.options.url, lost.reason);
            if lost.was_up || said.as_ref() != Some(&reason) {
                warn!(client = self.options.client_id, reason, "link down");
                self.deliver(LinkEvent::Down { reason: reason.clone() }).await;
                said = Some(reason);
            } else {
                debug!(client = self.options.client_id, reason, "link still down");
            }
            if lost.was_of_use {
                backoff.reset();
            }
            // The standard library's only source of randomness.
            let random = RandomState::new().build_hasher().finish();
            tokio::select! {
                () = tokio::time::sleep(backoff.next(random)) => {}
                () = self.shared.reached(Phase::Closing) => {}
            }
        }
    }

    /// A client and an event loop of its own for each connection: the library drops what it holds when it connects
    /// again by itself, and the outbox knows better what is owed.
    async fn attempt(&self) -> Lost {
        let mqtt = match self.prepare().await {
            Ok(mqtt) => mqtt,
            Err(reason) => return Lost { reason, was_up: false, was_of_use: false },
        };
        #[expect(clippy::disallowed_methods, reason = "the one MQTT client")]
        let (client, mut event_loop) = AsyncClient::new(mqtt, CHANNEL);
        // Each packet is flushed by itself, so waiting to fill segments would only add delay.
        event_loop.network_options.set_tcp_nodelay(true);
        let mut attempt = Attempt { client, up_since: None, has_acknowledged: false };
        let mut result = Ok(());
        while result.is_ok() {
            result = match event_loop.poll().await {
                Ok(event) => self.handle(&mut attempt, event).await,
                Err(error) => Err(self.describe(&error)),
            };
        }
        self.drain(&mut attempt, &mut event_loop).await;
        Lost {
            reason: result.err().unwrap_or_default(),
            was_up: attempt.up_since.is_some(),
            was_of_use: attempt.has_acknowledged
                || attempt.up_since.is_some_and(|since| since.elapsed() >= LIVED),
        }
    }

    /// With what the files say now.
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

    /// Packets that were read together with the end of the connection are still buffered.
    async fn drain(&self, attempt: &mut Attempt, event_loop: &mut EventLoop) {
        for event in std::mem::take(&mut event_loop.state.events) {
            if let rumqttc::Event::Incoming(Packet::Publish(_) | Packet::PubAck(_)) = &event {
                // These two never fail.
                let _ = self.handle(attempt, event).await;
            }
        }
    }

    /// An error ends the connection.
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
            // After the goodbye the broker hangs up; polling goes on until then, because closing with unread bytes
            // resets the connection, and the broker may take that for a death.
            _ => {}
        }
        Ok(())
    }

    /// The subscriptions go first, so that an answer to a replayed message finds somebody listening.
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
            Some((filter, _)) => Err(format!("the broker refuses the subscription to {filter}")),
            None => Ok(()),
        }
    }

    async fn up(&self, attempt: &mut Attempt) {
        attempt.up_since = Some(Instant::now());
        self.shared.set_up();
        info!(client = self.options.client_id, broker = %self.options.url, "link up");
        self.deliver(LinkEvent::Up).await;
    }

    /// Waits for room, and with it the reading of the socket. A closing link waits for nobody.
    async fn deliver(&self, event: LinkEvent) {
        // A reader that is gone is no error: the link goes on without it.
        if let Err(TrySendError::Full(event)) = self.events.try_send(event) {
            tokio::select! {
                _ = self.events.send(event) => {}
                () = self.shared.reached(Phase::Closing) => {}
            }
        }
    }

    fn describe(&self, error: &ConnectionError) -> String {
        match error {
            ConnectionError::ConnectionRefused(
                ConnectReturnCode::BadUserNamePassword | ConnectReturnCode::NotAuthorized,
            ) => "the broker refuses the user or the password".to_owned(),
            ConnectionError::ConnectionRefused(ConnectReturnCode::BadClientId) => {
                format!("the broker refuses the client id {:?}", self.options.client_id)
            }
            ConnectionError::NetworkTimeout => "no answer from the broker within 5 s".to_owned(),
            ConnectionError::Tls(error) => {
                let ca_file = self.options.ca_file.as_deref().unwrap_or_else(|| "none".as_ref());
                format!("TLS: {error} (CA file {})", ca_file.display())
            }
            other => self.with_certificate(other.to_string()),
        }
    }

    /// In TLS 1.3 a broker refuses a client's certificate, or the lack of one, after the handshake.
    fn with_certificate(&self, error: String) -> String {
        match error.split_once("received fatal alert") {
            Some((_, alert)) => {
                let file =
                    self.options.certificate_file.as_deref().unwrap_or_else(|| "none".as_ref());
                format!("TLS: the broker says{alert} (certificate file {})", file.display())
            }
            None => error,
        }
    }
}
