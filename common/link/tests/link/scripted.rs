//! The link with a broker that sends exactly the packets that the test scripts.

use std::time::{Duration, Instant};

use bytes::BytesMut;
use neptune_link::{Link, LinkEvent};
use rumqttc::{
    ConnAck, ConnectReturnCode, Packet, PubAck, Publish, SubAck, Subscribe, SubscribeReasonCode,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use neptune_harness::within;

use crate::{flush, message, next, next_down, options};

const MAX: usize = 1 << 20;

struct Peer {
    stream: TcpStream,
    buffer: BytesMut,
}

impl Peer {
    /// Accepts the next client, which has to wait so many milliseconds before it connects.
    async fn accept_after(listener: &TcpListener, shortest: u64) -> Self {
        let before = Instant::now();
        let peer = Self::accept(listener).await;
        let waited = before.elapsed();
        assert!(waited >= Duration::from_millis(shortest), "reconnected after {waited:?}");
        peer
    }

    /// Accepts the next client and answers its CONNECT.
    async fn accept(listener: &TcpListener) -> Self {
        let (stream, _) = within("a client to connect", listener.accept()).await.unwrap();
        let mut peer = Self { stream, buffer: BytesMut::new() };
        match peer.read().await {
            Packet::Connect(connect) => assert!(connect.clean_session),
            other => panic!("expected CONNECT, got {other:?}"),
        }
        peer.write(Packet::ConnAck(ConnAck::new(ConnectReturnCode::Success, false))).await;
        peer
    }

    async fn read(&mut self) -> Packet {
        loop {
            match Packet::read(&mut self.buffer, MAX) {
                Ok(packet) => return packet,
                Err(rumqttc::mqttbytes::Error::InsufficientBytes(_)) => {
                    let reading = self.stream.read_buf(&mut self.buffer);
                    let read = within("a packet", reading).await.unwrap();
                    assert_ne!(read, 0, "the client closed the connection");
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    async fn read_subscribe(&mut self) -> Subscribe {
        match self.read().await {
            Packet::Subscribe(subscribe) => subscribe,
            other => panic!("expected SUBSCRIBE, got {other:?}"),
        }
    }

    /// Returns topic and payload as `topic=payload`, and the packet ID.
    async fn read_publish(&mut self) -> (String, u16) {
        match self.read().await {
            Packet::Publish(Publish { topic, payload, pkid, .. }) => {
                (format!("{topic}={}", String::from_utf8(payload.to_vec()).unwrap()), pkid)
            }
            other => panic!("expected PUBLISH, got {other:?}"),
        }
    }

    async fn write(&mut self, packet: Packet) {
        let mut bytes = BytesMut::new();
        packet.write(&mut bytes, MAX).unwrap();
        self.stream.write_all(&bytes).await.unwrap();
    }

    async fn acknowledge_subscription(
        &mut self,
        subscribe: &Subscribe,
        codes: Vec<SubscribeReasonCode>,
    ) {
        self.write(Packet::SubAck(SubAck::new(subscribe.pkid, codes))).await;
    }

    async fn acknowledge(&mut self, packet_id: u16) {
        self.write(Packet::PubAck(PubAck::new(packet_id))).await;
    }
}

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

#[tokio::test]
async fn refused_subscription_is_reported_with_its_topic() {
    let (listener, port) = listener().await;
    let (link, mut events) = Link::start(options(port, "me", &["yours", "not/yours"])).unwrap();
    let mut peer = Peer::accept(&listener).await;
    let subscribe = peer.read_subscribe().await;
    let codes =
        vec![SubscribeReasonCode::Success(rumqttc::QoS::AtLeastOnce), SubscribeReasonCode::Failure];
    peer.acknowledge_subscription(&subscribe, codes).await;
    let reason = next_down(&mut events).await;
    assert!(reason.contains("not/yours"), "{reason}");
    assert!(!link.is_up());
}

#[tokio::test]
async fn unacknowledged_messages_are_resent_in_order_after_subscribing() {
    let (listener, port) = listener().await;
    let (link, mut events) = Link::start(options(port, "me", &["t"])).unwrap();
    let accepted = vec![SubscribeReasonCode::Success(rumqttc::QoS::AtLeastOnce)];
    for topic in ["a", "b", "c"] {
        link.publish(message(topic, "1")).unwrap();
    }

    let mut peer = Peer::accept(&listener).await;
    let subscribe = peer.read_subscribe().await;
    assert_eq!(peer.read_publish().await.0, "a=1");
    let (text, packet_id) = peer.read_publish().await;
    assert_eq!(text, "b=1");
    assert_eq!(peer.read_publish().await.0, "c=1");
    link.publish(message("a", "2")).unwrap();
    assert_eq!(peer.read_publish().await.0, "a=2");
    // The answer and the acknowledgement arrive before the connection is closed, so both count.
    peer.acknowledge(packet_id).await;
    peer.acknowledge_subscription(&subscribe, accepted.clone()).await;
    assert_eq!(next(&mut events).await, LinkEvent::Up);
    drop(peer);
    next_down(&mut events).await;

    link.publish(message("d", "1")).unwrap();
    let mut peer = Peer::accept(&listener).await;
    let subscribe = peer.read_subscribe().await;
    peer.acknowledge_subscription(&subscribe, accepted).await;
    let mut packet_ids = Vec::new();
    for expected in ["c=1", "a=2", "d=1"] {
        let (text, packet_id) = peer.read_publish().await;
        assert_eq!(text, expected);
        packet_ids.push(packet_id);
    }
    // Acknowledged in another order: the flush waits for all.
    let mut flushed = std::pin::pin!(link.flushed());
    assert!(timeout(Duration::ZERO, &mut flushed).await.is_err());
    peer.acknowledge(packet_ids[2]).await;
    peer.acknowledge(packet_ids[0]).await;
    link.publish(message("e", "1")).unwrap();
    assert_eq!(peer.read_publish().await.0, "e=1");
    assert!(timeout(Duration::ZERO, &mut flushed).await.is_err());
    peer.acknowledge(packet_ids[1]).await;
    // The flush does not wait for messages that were published after it began.
    within("the link to be flushed", flushed).await;
}

#[tokio::test]
async fn broker_that_disconnects_on_a_message_is_retried_with_backoff() {
    let (listener, port) = listener().await;
    let (link, _events) = Link::start(options(port, "me", &[])).unwrap();
    link.publish(message("poison", "")).unwrap();
    for shortest in [0, 100, 200, 400] {
        let mut peer = Peer::accept_after(&listener, shortest).await;
        peer.read_publish().await;
    }
    // A message that the broker accepts replaces it, and the link continues.
    link.publish(message("poison", "accepted")).unwrap();
    let mut peer = Peer::accept(&listener).await;
    let (text, packet_id) = peer.read_publish().await;
    assert_eq!(text, "poison=accepted");
    peer.acknowledge(packet_id).await;
    flush(&link).await;
}

#[tokio::test]
async fn message_that_is_too_large_to_read_is_named_and_retried_with_backoff() {
    let (listener, port) = listener().await;
    let (link, mut events) = Link::start(options(port, "me", &["fleet/#"])).unwrap();
    link.publish(message("a", "1")).unwrap();
    for shortest in [0, 100, 200, 400] {
        let mut peer = Peer::accept_after(&listener, shortest).await;
        let subscribe = peer.read_subscribe().await;
        let accepted = vec![SubscribeReasonCode::Success(rumqttc::QoS::AtLeastOnce)];
        peer.acknowledge_subscription(&subscribe, accepted).await;
        assert_eq!(next(&mut events).await, LinkEvent::Up);
        // An acknowledgement shows a connection that works, but not here.
        let (_, packet_id) = peer.read_publish().await;
        peer.acknowledge(packet_id).await;
        link.publish(message("a", "1")).unwrap();
        // A retained message of 2^28 - 1 bytes. Its payload is not read.
        peer.stream.write_all(b"\x31\xff\xff\xff\x7f").await.unwrap();
        let reason = next_down(&mut events).await;
        assert!(reason.contains("a message of 268435455 bytes"), "{reason}");
        assert!(reason.contains("fleet/#"), "{reason}");
    }
}
