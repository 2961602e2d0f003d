//! Parses the MQTT 3.1.1 packets of clients within limits. Pure. `encode.rs` has those of the broker.

use bytes::{Buf as _, Bytes, BytesMut};

use crate::fields::{
    Fields, MAX_TOPIC, ProtocolError,
    ProtocolError::{Malformed, TooLarge, Version},
};

/// Maximum payload of a message. A larger one is discarded while it is read.
pub const MAX_PAYLOAD: usize = 64 * 1024;
/// Maximum length of a PUBLISH packet that is discarded. A larger one closes the connection.
const MAX_PUBLISH: usize = 1024 * 1024;
/// Maximum length of CONNECT. Anybody may send one, so it is small.
const MAX_CONNECT: usize = 16 * 1024;
/// Maximum length of a SUBSCRIBE or UNSUBSCRIBE packet.
const MAX_SUBSCRIBE: usize = 8 * 1024;
/// A buffer that grew beyond this is replaced when it is empty.
const RETAINED_CAPACITY: usize = 8 * 1024;

const CONNECT: u8 = 1;
const PUBLISH: u8 = 3;
const PUBACK: u8 = 4;
const PUBREC: u8 = 5;
const PUBREL: u8 = 6;
const PUBCOMP: u8 = 7;
const SUBSCRIBE: u8 = 8;
const UNSUBSCRIBE: u8 = 10;
const PINGREQ: u8 = 12;
const DISCONNECT: u8 = 14;

/// A packet of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packet {
    Connect(Box<Connect>),
    /// A CONNECT of another version of MQTT.
    OtherConnect(Box<OtherConnect>),
    Publish(Publish),
    /// A message above [`MAX_PAYLOAD`], without its payload. `payload` is empty.
    OversizedPublish(Publish),
    /// PUBACK, PUBREC or PUBCOMP. The broker repeats nothing, so that they have no effect.
    Acknowledged,
    PubRel(u16),
    Subscribe {
        id: u16,
        filters: Vec<(String, QoS)>,
    },
    Unsubscribe {
        id: u16,
        filters: Vec<String>,
    },
    PingReq,
    Disconnect,
}

/// The CONNECT packet of a client that uses MQTT 3.1.1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connect {
    pub client_id: String,
    pub clean_session: bool,
    /// Maximum time between two packets of the client in seconds; 0 for no limit.
    pub keep_alive: u16,
    /// The message to publish when the client leaves without DISCONNECT.
    pub will: Option<Publish>,
    pub login: Option<Login>,
}

/// A CONNECT of a version that the broker does not support. It has only the identity of the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherConnect {
    /// Whether the version is 5 or later.
    pub is_newer: bool,
    pub client_id: String,
    pub login: Option<Login>,
}

/// User and password of a CONNECT. The `Debug` output has only the user.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    pub user: String,
    pub password: Vec<u8>,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// A PUBLISH packet, or the will of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish {
    pub topic: String,
    pub payload: Bytes,
    pub qos: QoS,
    pub retain: bool,
    /// The packet identifier; 0 with `QoS` 0, which has none.
    pub id: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::enum_variant_names, reason = "the names of the specification")]
pub enum QoS {
    AtMostOnce,
    AtLeastOnce,
    ExactlyOnce,
}

/// Return codes of CONNACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectCode {
    Accepted = 0,
    UnsupportedVersion = 1,
    IdentifierRejected = 2,
    ServerUnavailable = 3,
    BadLogin = 4,
    NotAuthorized = 5,
}

/// Splits the bytes of a connection into packets. Its memory is bounded by the largest packet.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
    /// Bytes of an oversized payload that are still to be discarded.
    discard: usize,
}

impl Decoder {
    /// The buffer to which bytes of the connection are appended.
    pub fn buffer(&mut self) -> &mut BytesMut {
        if self.buffer.is_empty() && self.buffer.capacity() > RETAINED_CAPACITY {
            self.buffer = BytesMut::new();
        }
        self.buffer.reserve(2048);
        &mut self.buffer
    }

    /// The next complete packet, if there is one.
    ///
    /// # Errors
    /// [`ProtocolError`]; the connection must be closed.
    pub fn next(&mut self) -> Result<Option<Packet>, ProtocolError> {
        let discarded = self.discard.min(self.buffer.len());
        self.buffer.advance(discarded);
        self.discard -= discarded;
        if self.discard > 0 {
            return Ok(None);
        }
        let Some(header) = Header::parse(&self.buffer)? else { return Ok(None) };
        let available = &self.buffer[header.size..];
        let available = &available[..available.len().min(header.length)];
        if header.kind == PUBLISH {
            let Some((publish, used)) = publish_head(header, available)? else { return Ok(None) };
            let payload = header.length - used;
            if payload > MAX_PAYLOAD {
                self.buffer.advance(header.size + used);
                self.discard = payload;
                return Ok(Some(Packet::OversizedPublish(publish)));
            }
            if available.len() < header.length {
                return Ok(None);
            }
            // A copy of its own size: a slice would keep the whole buffer alive in a queue.
            let payload = Bytes::copy_from_slice(&available[used..]);
            self.buffer.advance(header.size + header.length);
            return Ok(Some(Packet::Publish(Publish { payload, ..publish })));
        }
        if available.len() < header.length {
            return Ok(None);
        }
        let packet = header.body(available)?;
        self.buffer.advance(header.size + header.length);
        Ok(Some(packet))
    }
}

/// The fixed header of a packet.
#[derive(Debug, Clone, Copy)]
struct Header {
    kind: u8,
    flags: u8,
    /// Number of bytes after the header.
    length: usize,
    /// Number of bytes of the header.
    size: usize,
}

impl Header {
    fn parse(bytes: &[u8]) -> Result<Option<Self>, ProtocolError> {
        let Some((first, rest)) = bytes.split_first() else { return Ok(None) };
        let (kind, flags) = (first >> 4, first & 0x0f);
        let (expected_flags, limit) = match kind {
            CONNECT => (0, MAX_CONNECT),
            PUBLISH => (flags, MAX_PUBLISH),
            PUBACK | PUBREC | PUBCOMP => (0, 2),
            PUBREL => (2, 2),
            SUBSCRIBE | UNSUBSCRIBE => (2, MAX_SUBSCRIBE),
            PINGREQ | DISCONNECT => (0, 0),
            _ => return Err(Malformed("packet type")),
        };
        if flags != expected_flags {
            return Err(Malformed("packet flags"));
        }
        let mut length = 0;
        for (index, byte) in rest.iter().take(4).enumerate() {
            length |= usize::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                if length > limit {
                    return Err(TooLarge(name(kind)));
                }
                return Ok(Some(Self { kind, flags, length, size: index + 2 }));
            }
        }
        if rest.len() < 4 { Ok(None) } else { Err(Malformed("packet length")) }
    }

    fn body(self, body: &[u8]) -> Result<Packet, ProtocolError> {
        let mut fields = Fields { rest: body, packet: name(self.kind) };
        let packet = match self.kind {
            CONNECT => parse_connect(&mut fields)?,
            PUBREL => Packet::PubRel(fields.id()?),
            SUBSCRIBE => {
                let id = fields.id()?;
                let filters = fields.list(|fields| Ok((fields.topic()?, qos(fields.byte()?)?)))?;
                Packet::Subscribe { id, filters }
            }
            UNSUBSCRIBE => {
                let id = fields.id()?;
                Packet::Unsubscribe { id, filters: fields.list(Fields::topic)? }
            }
            PINGREQ => Packet::PingReq,
            DISCONNECT => Packet::Disconnect,
            _ => {
                fields.id()?;
                Packet::Acknowledged
            }
        };
        if fields.rest.is_empty() { Ok(packet) } else { Err(Malformed(name(self.kind))) }
    }
}

fn name(kind: u8) -> &'static str {
    match kind {
        CONNECT => "CONNECT",
        PUBLISH => "PUBLISH",
        SUBSCRIBE => "SUBSCRIBE",
        UNSUBSCRIBE => "UNSUBSCRIBE",
        _ => "packet",
    }
}

fn qos(byte: u8) -> Result<QoS, ProtocolError> {
    match byte {
        0 => Ok(QoS::AtMostOnce),
        1 => Ok(QoS::AtLeastOnce),
        2 => Ok(QoS::ExactlyOnce),
        _ => Err(Malformed("QoS")),
    }
}

/// Topic and packet identifier of PUBLISH, and their length; `None` if they are incomplete.
fn publish_head(header: Header, body: &[u8]) -> Result<Option<(Publish, usize)>, ProtocolError> {
    let qos = qos(header.flags >> 1 & 3)?;
    let Some(length) = body.first_chunk().map(|bytes| usize::from(u16::from_be_bytes(*bytes)))
    else {
        let is_incomplete = body.len() < header.length;
        return if is_incomplete { Ok(None) } else { Err(Malformed("PUBLISH")) };
    };
    if length > MAX_TOPIC {
        return Err(TooLarge("topic"));
    }
    let used = 2 + length + if qos == QoS::AtMostOnce { 0 } else { 2 };
    if used > header.length {
        return Err(Malformed("PUBLISH"));
    }
    let Some(head) = body.get(..used) else { return Ok(None) };
    let mut fields = Fields { rest: head, packet: "PUBLISH" };
    let topic = fields.topic()?;
    let id = if qos == QoS::AtMostOnce { 0 } else { fields.id()? };
    let retain = header.flags & 1 == 1;
    Ok(Some((Publish { topic, payload: Bytes::new(), qos, retain, id }, used)))
}

fn parse_connect(fields: &mut Fields<'_>) -> Result<Packet, ProtocolError> {
    let protocol = fields.bytes()?;
    let level = fields.byte()?;
    let is_newer = match (protocol, level) {
        (b"MQTT", 4) => return Ok(Packet::Connect(Box::new(parse_connect_4(fields, false)?))),
        (b"MQIsdp", 3) => false,
        (b"MQTT", 5) => true,
        _ => return Err(Version),
    };
    let Connect { client_id, login, .. } = parse_connect_4(fields, is_newer)?;
    Ok(Packet::OtherConnect(Box::new(OtherConnect { is_newer, client_id, login })))
}

/// CONNECT after the version. That of version 5 differs only by its properties.
fn parse_connect_4(
    fields: &mut Fields<'_>,
    has_properties: bool,
) -> Result<Connect, ProtocolError> {
    let flags = fields.byte()?;
    let has = |bit: u8| flags >> bit & 1 == 1;
    let (has_will, has_user, has_password) = (has(2), has(7), has(6));
    let is_invalid = has(0)
        || (!has_will && flags & 0b0011_1000 != 0)
        || (has_password && !has_user && !has_properties);
    if is_invalid {
        return Err(Malformed("CONNECT"));
    }
    let keep_alive = u16::from_be_bytes([fields.byte()?, fields.byte()?]);
    let skip_properties = |fields: &mut Fields<'_>| {
        if has_properties { fields.skip_properties() } else { Ok(()) }
    };
    skip_properties(fields)?;
    let client_id = fields.text()?;
    let will = if has_will {
        skip_properties(fields)?;
        let topic = fields.topic()?;
        let payload = Bytes::copy_from_slice(fields.bytes()?);
        Some(Publish { topic, payload, qos: qos(flags >> 3 & 3)?, retain: has(5), id: 0 })
    } else {
        None
    };
    let user = if has_user { Some(fields.text()?) } else { None };
    let password = if has_password { fields.bytes()?.to_vec() } else { Vec::new() };
    let login = user.map(|user| Login { user, password });
    Ok(Connect { client_id, clean_session: has(1), keep_alive, will, login })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use proptest::prelude::*;

    use super::{
        super::encode::{publish, with_header},
        *,
    };

    fn decode(bytes: &[u8]) -> Result<Option<Packet>, ProtocolError> {
        let mut decoder = Decoder::default();
        decoder.buffer().extend_from_slice(bytes);
        decoder.next()
    }

    fn publish_of(size: usize) -> Vec<u8> {
        publish("neptune/workers/w/info", &vec![b'x'; size], true, Some(7)).to_vec()
    }

    fn connect_bytes(flags: u8, fields: &[&str]) -> Vec<u8> {
        let mut body = b"\0\x04MQTT\x04".to_vec();
        body.extend([flags, 0, 60]);
        for field in fields {
            body.extend(u16::try_from(field.len()).unwrap().to_be_bytes());
            body.extend(field.as_bytes());
        }
        with_header(0x10, &body).to_vec()
    }

    #[test]
    fn connect_with_will_and_login_is_parsed() {
        let bytes = connect_bytes(0b1110_1110, &["id", "t", "bye", "w-1", "pw"]);
        let Some(Packet::Connect(connect)) = decode(&bytes).unwrap() else { panic!("CONNECT") };
        assert_eq!((connect.client_id.as_str(), connect.keep_alive), ("id", 60));
        assert!(connect.clean_session);
        let will = connect.will.unwrap();
        assert_eq!((will.topic.as_str(), &*will.payload, will.retain), ("t", &b"bye"[..], true));
        assert_eq!(will.qos, QoS::AtLeastOnce);
        let login = connect.login.unwrap();
        assert_eq!((login.user.as_str(), &*login.password), ("w-1", &b"pw"[..]));
        assert!(!format!("{login:?}").contains("pw"), "a password is not shown");
    }

    #[test]
    fn invalid_connect_is_refused() {
        for (flags, fields) in [
            (0b0000_0011, &["id"][..]),
            (0b0000_1010, &["id"]),
            (0b0100_0010, &["id", "pw"]),
            (0b0000_0010, &["id", "more"]),
            (0b1000_0010, &["id"]),
            (0b0001_1110, &["id", "t", "p"]),
        ] {
            assert!(decode(&connect_bytes(flags, fields)).is_err(), "{flags:08b} {fields:?}");
        }
        let mut unknown = connect_bytes(2, &["id"]);
        unknown[8] = 6;
        assert_eq!(decode(&unknown), Err(Version));
    }

    #[test]
    fn connect_of_version_5_names_its_client() {
        let text = |text: &str| {
            [&u16::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
        };
        // The session expires after 10 s; the will is delayed by 1 s.
        let (session, will) = ([5, 0x11, 0, 0, 0, 10], [5, 0x18, 0, 0, 0, 1]);
        let head = [&text("MQTT")[..], &[5, 0b1100_0110, 0, 60]].concat();
        let fields = [text("id"), will.to_vec(), text("t"), text("bye"), text("w-1"), text("pw")];
        let bytes = with_header(0x10, &[head, session.to_vec(), fields.concat()].concat());
        let Some(Packet::OtherConnect(other)) = decode(&bytes).unwrap() else { panic!("CONNECT") };
        assert!(other.is_newer);
        let login = Login { user: "w-1".into(), password: b"pw".to_vec() };
        assert_eq!((other.client_id.as_str(), other.login), ("id", Some(login)));
    }

    #[test]
    fn oversized_payload_is_discarded_and_the_next_packet_is_parsed() {
        let mut decoder = Decoder::default();
        let bytes = [publish_of(MAX_PAYLOAD + 1), publish_of(3)].concat();
        let (mut packets, mut largest) = (Vec::new(), 0);
        for chunk in bytes.chunks(1000) {
            decoder.buffer().extend_from_slice(chunk);
            while let Some(packet) = decoder.next().unwrap() {
                packets.push(packet);
            }
            largest = largest.max(decoder.buffer.capacity());
        }
        let [Packet::OversizedPublish(large), Packet::Publish(small)] = &packets[..] else {
            panic!("{packets:?}")
        };
        assert_eq!((large.id, large.payload.len(), small.payload.len()), (7, 0, 3));
        assert!(largest < MAX_PAYLOAD, "{largest} bytes were buffered");
        assert!(decode(&publish_of(MAX_PUBLISH)).is_err(), "it closes the connection");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_or_allocate_much(
            bytes in proptest::collection::vec(any::<u8>(), 0..4096),
            first in prop::sample::select(vec![0x10u8, 0x30, 0x32, 0x34, 0x82, 0xa2, 0x62, 0xc0]),
            chunk in 1usize..600,
        ) {
            let mut decoder = Decoder::default();
            let bytes = [vec![first], bytes].concat();
            'input: for chunk in bytes.chunks(chunk) {
                decoder.buffer().extend_from_slice(chunk);
                loop {
                    match decoder.next() {
                        Ok(Some(_)) => {}
                        Ok(None) => break,
                        Err(_) => break 'input,
                    }
                }
                prop_assert!(decoder.buffer.capacity() <= 2 * (MAX_PAYLOAD + 8192));
            }
        }

        #[test]
        fn message_round_trips_in_any_chunks(
            payload in proptest::collection::vec(any::<u8>(), 0..3000),
            id in proptest::option::of(1u16..),
            chunk in 1usize..500,
        ) {
            let bytes = publish("neptune/workers/w/info", &payload, false, id);
            let mut decoder = Decoder::default();
            let mut packet = None;
            for chunk in bytes.chunks(chunk) {
                prop_assert!(packet.is_none());
                decoder.buffer().extend_from_slice(chunk);
                packet = decoder.next().unwrap();
            }
            let Some(Packet::Publish(message)) = packet else { panic!("no message") };
            prop_assert_eq!(&*message.payload, &payload[..]);
            prop_assert_eq!(message.id, id.unwrap_or(0));
        }
    }
}
