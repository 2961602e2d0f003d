//! An MQTT 3.1.1 client that sends what a correct client library refuses to send.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// How long a broker may take for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// User and password of a CONNECT; `None` for a client without a login.
pub type Login<'a> = Option<(&'a str, &'a str)>;

/// A connection to a broker on loopback.
pub struct RawMqtt {
    stream: TcpStream,
}

/// A packet with this first byte and body.
pub fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    let mut rest = body.len();
    loop {
        let low = u8::try_from(rest & 0x7f).unwrap();
        rest >>= 7;
        bytes.push(if rest > 0 { low | 0x80 } else { low });
        if rest == 0 {
            break;
        }
    }
    bytes.extend_from_slice(body);
    bytes
}

fn text(text: &str) -> Vec<u8> {
    let length = u16::try_from(text.len()).unwrap().to_be_bytes();
    [&length[..], text.as_bytes()].concat()
}

pub fn connect_packet(client_id: &str, login: Login<'_>, clean: bool) -> Vec<u8> {
    let flags = u8::from(clean) << 1 | if login.is_some() { 0xc0 } else { 0 };
    let mut body = [text("MQTT"), vec![4, flags, 0, 60], text(client_id)].concat();
    if let Some((user, password)) = login {
        body.extend([text(user), text(password)].concat());
    }
    packet(0x10, &body)
}

/// Encodes a PUBLISH, with `QoS` 0 if `packet_id` is `None`, else with `QoS` 1.
pub fn publish_packet(
    topic: &str,
    payload: &[u8],
    retain: bool,
    packet_id: Option<u16>,
) -> Vec<u8> {
    let id = packet_id.map(|id| id.to_be_bytes().to_vec()).unwrap_or_default();
    let first = 0x30 | u8::from(retain) | if packet_id.is_some() { 2 } else { 0 };
    packet(first, &[text(topic), id, payload.to_vec()].concat())
}

pub fn subscribe_packet(filter: &str, packet_id: u16) -> Vec<u8> {
    packet(0x82, &[packet_id.to_be_bytes().to_vec(), text(filter), vec![1]].concat())
}

impl RawMqtt {
    pub async fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream }
    }

    /// The connection, and the return code of CONNACK; `None` if the broker does not answer.
    pub async fn connect(port: u16, client_id: &str, login: Login<'_>) -> (Self, Option<u8>) {
        let mut client = Self::open(port).await;
        client.send(&connect_packet(client_id, login, true)).await;
        let code = client.connack().await;
        (client, code)
    }

    /// The return code of CONNACK; `None` if there is none.
    pub async fn connack(&mut self) -> Option<u8> {
        let (first, body) = self.next().await?;
        assert_eq!((first, body.len()), (0x20, 2), "CONNACK");
        Some(body[1])
    }

    /// A broker may have closed the connection.
    pub async fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    /// The next packet; `None` at the end of the connection or after a timeout.
    pub async fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        timeout(ANSWER_TIMEOUT, self.read()).await.ok().flatten()
    }

    async fn read(&mut self) -> Option<(u8, Vec<u8>)> {
        let first = self.stream.read_u8().await.ok()?;
        let (mut length, mut shift) = (0, 0);
        loop {
            let byte = self.stream.read_u8().await.ok()?;
            length |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.ok()?;
        Some((first, body))
    }

    /// Publishes with `QoS` 1 and waits for PUBACK. Returns whether it came.
    pub async fn publish(&mut self, topic: &str, payload: &[u8]) -> bool {
        self.send(&publish_packet(topic, payload, false, Some(7))).await;
        matches!(self.next().await, Some((0x40, body)) if body == [0, 7])
    }

    /// Subscribes, and returns the code of SUBACK.
    pub async fn subscribe(&mut self, filter: &str) -> Option<u8> {
        self.send(&subscribe_packet(filter, 9)).await;
        match self.next().await {
            Some((0x90, body)) => body.get(2).copied(),
            _ => None,
        }
    }

    /// Waits until the broker closes the connection, and returns whether it did in time.
    pub async fn is_closed(&mut self) -> bool {
        let read = async { while self.read().await.is_some() {} };
        timeout(ANSWER_TIMEOUT, read).await.is_ok()
    }
}
