//! A connection that is logged in: its packets until it leaves or is closed.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use neptune_wire::{TopicPrefix, is_topic};
use tokio::{
    io::AsyncReadExt as _,
    net::tcp::OwnedReadHalf,
    sync::Notify,
    task::JoinHandle,
    time::{sleep, sleep_until, timeout},
};
use tracing::debug;

use crate::{
    access::{ClientIdentity, PublishRefusal, check_publish, may_subscribe},
    credentials::BrokerCredentials,
    encode::{pingresp, puback, pubcomp, pubrec, suback, unsuback},
    fields::ProtocolError,
    hub::{Hub, Registration},
    notes::WorkerNote,
    packet::{Connect, ConnectCode, Decoder, MAX_PAYLOAD, Packet, Publish, QoS},
    queue::Outgoing,
    rate::RateLimit,
};

/// How long the last packets to a client that leaves may take.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a connection whose container is gone stays open, for its last messages.
const REVOKED_TIMEOUT: Duration = Duration::from_secs(2);
/// Messages with `QoS` 2 between PUBLISH and PUBREL.
const MAX_UNRELEASED: usize = 64;

/// What all connections share.
pub struct Shared {
    pub hub: Arc<Hub>,
    pub credentials: Arc<BrokerCredentials>,
    pub prefix: TopicPrefix,
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub enum Closed {
    #[error("the client left")]
    ByClient,
    #[error("the connection is lost: {0}")]
    Lost(#[from] std::io::Error),
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    #[error("refused: {0:?}")]
    Refused(ConnectCode),
    #[error("{0}")]
    Broker(&'static str),
}

/// A connection after CONNECT.
pub struct Session {
    shared: Arc<Shared>,
    identity: ClientIdentity,
    registration: Registration,
    /// The queue of packets for the client; `None` when the session ends.
    outgoing: Option<Outgoing>,
    writer: JoinHandle<()>,
    close: Arc<Notify>,
    keep_alive: Option<Duration>,
    will: Option<Publish>,
    rate: RateLimit,
    /// Identifiers of messages with `QoS` 2 that were delivered and not released.
    unreleased: BTreeSet<u16>,
}

/// What a connection has after its login.
pub struct Connected {
    pub identity: ClientIdentity,
    pub registration: Registration,
    /// Packets to the client.
    pub outgoing: Outgoing,
    /// The task that writes them.
    pub writer: JoinHandle<()>,
    /// Notified when the connection must be closed.
    pub close: Arc<Notify>,
}

impl Session {
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub fn new(shared: Arc<Shared>, connected: Connected, connect: Connect) -> Self {
        let Connected { identity, registration, outgoing, writer, close } = connected;
        Self {
            shared,
            identity,
            registration,
            outgoing: Some(outgoing),
            writer,
            close,
            keep_alive: match connect.keep_alive {
                0 => None,
                seconds => Some(Duration::from_secs(seconds.into()) * 3 / 2),
            },
            will: connect.will,
            rate: RateLimit::new(Instant::now()),
            unreleased: BTreeSet::new(),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub async fn run(&mut self, mut reader: OwnedReadHalf, mut decoder: Decoder) -> Closed {
        let mut changes = self.shared.credentials.changes();
        let mut revoked_at: Option<Instant> = None;
        if !self.shared.credentials.is_valid(&self.identity) {
            revoked_at = Some(Instant::now() + REVOKED_TIMEOUT);
        }
        let mut received_at = Instant::now();
        loop {
            loop {
                match decoder.next() {
                    Ok(Some(packet)) => {
                        if let Err(closed) = self.on_packet(packet).await {
                            return closed;
                        }
                    }
                    Ok(None) => break,
                    Err(error) => return error.into(),
                }
            }
            let silent_at = self.keep_alive.map(|time| received_at + time);
            tokio::select! {
                // In this order: bytes that arrived in time count as such, also if this task did not
                // run meanwhile, and a client that sends without a pause is closed as any other.
                biased;
                () = self.close.notified() => return Closed::Broker("replaced, or reads too slowly"),
                _ = changes.changed() => {
                    if !self.shared.credentials.is_valid(&self.identity) {
                        revoked_at.get_or_insert(Instant::now() + REVOKED_TIMEOUT);
                    }
                }
                () = until(revoked_at) => return Closed::Broker("its container is gone"),
                read = reader.read_buf(decoder.buffer()) => match read {
                    Ok(0) => return Closed::ByClient,
                    Ok(_) => received_at = Instant::now(),
                    Err(error) => return error.into(),
                },
                () = until(silent_at) => return Closed::Broker("keep-alive expired"),
            }
        }
    }

    async fn on_packet(&mut self, packet: Packet) -> Result<(), Closed> {
        match packet {
            Packet::Connect(_) | Packet::OtherConnect(_) => {
                return Err(Closed::Broker("second CONNECT"));
            }
            Packet::Publish(publish) => self.on_publish(publish).await?,
            Packet::OversizedPublish(publish) => {
                if let ClientIdentity::Worker(worker, _) = &self.identity {
                    self.shared.credentials.notes.add(worker, WorkerNote::OversizedMessage);
                }
                self.acknowledge(&publish).await?;
            }
            Packet::Acknowledged => {}
            Packet::PubRel(id) => {
                self.unreleased.remove(&id);
                self.send(pubcomp(id)).await?;
            }
            Packet::Subscribe { id, filters } => self.on_subscribe(id, &filters).await?,
            Packet::Unsubscribe { id, filters } => {
                for filter in &filters {
                    self.registration.unsubscribe(filter);
                }
                self.send(unsuback(id)).await?;
            }
            Packet::PingReq => self.send(pingresp()).await?,
            Packet::Disconnect => {
                self.will = None;
                return Err(Closed::ByClient);
            }
        }
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    async fn on_publish(&mut self, publish: Publish) -> Result<(), Closed> {
        if !is_topic(&publish.topic) {
            return Err(ProtocolError::Malformed("topic").into());
        }
        if self.identity != ClientIdentity::Agent {
            while let Err(wait) = self.rate.take(publish.payload.len(), Instant::now()) {
                // A message with QoS 0 may be lost; others wait, which slows the client down.
                if publish.qos == QoS::AtMostOnce {
                    return Ok(());
                }
                sleep(wait).await;
            }
        }
        let is_repeated = publish.qos == QoS::ExactlyOnce && self.unreleased.contains(&publish.id);
        if !is_repeated {
            self.deliver(&publish).await?;
        }
        self.acknowledge(&publish).await
    }

    /// Delivers a message, or discards one that the client may not publish.
    async fn deliver(&self, publish: &Publish) -> Result<(), Closed> {
        let Shared { hub, credentials, prefix } = &*self.shared;
        let is_allowed = |worker: &_| credentials.is_anonymous_allowed(worker);
        match check_publish(&self.identity, &publish.topic, prefix, is_allowed) {
            Ok(owner) => {
                if let (ClientIdentity::Anonymous, Some(worker)) = (&self.identity, &owner) {
                    credentials.note_anonymous(worker);
                }
                // Only the agent's messages are retained: one per worker that reloads.
                let is_retained = publish.retain && self.identity == ClientIdentity::Agent;
                let delivered = hub.deliver(publish, is_retained).await;
                delivered.map_err(|_| Closed::Broker("the agent does not accept messages"))
            }
            Err(refusal) => {
                debug!(topic = publish.topic, ?refusal, "message discarded");
                if let (ClientIdentity::Worker(worker, _), PublishRefusal::Topic) =
                    (&self.identity, refusal)
                {
                    credentials.notes.add(worker, WorkerNote::ForeignTopic);
                }
                Ok(())
            }
        }
    }

    async fn acknowledge(&mut self, publish: &Publish) -> Result<(), Closed> {
        match publish.qos {
            QoS::AtMostOnce => Ok(()),
            QoS::AtLeastOnce => self.send(puback(publish.id)).await,
            QoS::ExactlyOnce => {
                self.unreleased.insert(publish.id);
                if self.unreleased.len() > MAX_UNRELEASED {
                    return Err(Closed::Broker("too many messages with QoS 2 in flight"));
                }
                self.send(pubrec(publish.id)).await
            }
        }
    }

    async fn on_subscribe(&mut self, id: u16, filters: &[(String, QoS)]) -> Result<(), Closed> {
        let Shared { credentials, prefix, .. } = &*self.shared;
        let (mut granted, mut retained) = (Vec::new(), Vec::new());
        for (filter, qos) in filters {
            let is_allowed = |worker: &_| credentials.is_anonymous_allowed(worker);
            // The broker sends no message with QoS 2.
            let qos = (*qos).min(QoS::AtLeastOnce);
            let subscribed = may_subscribe(&self.identity, filter, prefix, is_allowed)
                .then(|| self.registration.subscribe(filter, qos))
                .flatten();
            granted.push(subscribed.is_some().then_some(qos));
            retained.extend(subscribed.into_iter().flatten());
        }
        self.send(suback(id, &granted)).await?;
        for message in retained {
            self.send(message).await?;
        }
        Ok(())
    }

    /// Waits for room in the queue, which a client that does not read ends after a time.
    async fn send(&self, packet: Bytes) -> Result<(), Closed> {
        let Some(outgoing) = &self.outgoing else { return Err(Closed::ByClient) };
        outgoing.send(packet).await.map_err(|_| Closed::Broker("reads too slowly"))
    }

    /// Publishes the will of a client that left without DISCONNECT, and sends the last packets.
    pub async fn end(mut self, closed: &Closed) {
        let is_revoked = !self.shared.credentials.is_valid(&self.identity);
        if let Some(will) = self.will.take()
            && !is_revoked
            && is_topic(&will.topic)
            && will.payload.len() <= MAX_PAYLOAD
        {
            debug!(topic = will.topic, %closed, "last will published");
            // A failure is the end of the connection, which it is already.
            let _ = self.deliver(&will).await;
        }
        self.outgoing = None;
        let Self { registration, mut writer, .. } = self;
        // The registration has the other sender of the queue.
        drop(registration);
        if timeout(CLOSE_TIMEOUT, &mut writer).await.is_err() {
            writer.abort();
        }
    }
}

/// Resolves at a time; never without one.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
