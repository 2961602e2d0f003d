//! Encodes the MQTT 3.1.1 packets of the broker, and those of its own probe. Pure.

use bytes::{BufMut as _, Bytes, BytesMut};

use crate::packet::{ConnectCode, Login, QoS};

pub fn connack(code: ConnectCode) -> Bytes {
    // Sessions are always clean, so that none is present.
    Bytes::copy_from_slice(&[0x20, 2, 0, code as u8])
}

/// CONNACK of MQTT 5 with "unsupported protocol version", which its clients understand.
pub fn connack_5() -> Bytes {
    Bytes::from_static(&[0x20, 3, 0, 0x84, 0])
}

fn acknowledgement(first: u8, id: u16) -> Bytes {
    let [high, low] = id.to_be_bytes();
    Bytes::copy_from_slice(&[first, 2, high, low])
}

pub fn puback(id: u16) -> Bytes {
    acknowledgement(0x40, id)
}

pub fn pubrec(id: u16) -> Bytes {
    acknowledgement(0x50, id)
}

pub fn pubcomp(id: u16) -> Bytes {
    acknowledgement(0x70, id)
}

pub fn unsuback(id: u16) -> Bytes {
    acknowledgement(0xb0, id)
}

pub fn pingresp() -> Bytes {
    Bytes::from_static(&[0xd0, 0])
}

/// Returns a SUBACK with the granted `QoS` per filter; `None` refuses a filter.
pub fn suback(id: u16, granted: &[Option<QoS>]) -> Bytes {
    let mut body = BytesMut::new();
    body.put_u16(id);
    body.extend(granted.iter().map(|granted| granted.map_or(0x80, |qos| qos as u8)));
    with_header(0x90, &body)
}

/// A message to a subscriber; with `QoS` 1 if it has a packet identifier.
pub fn publish(topic: &str, payload: &[u8], retain: bool, id: Option<u16>) -> Bytes {
    let mut body = BytesMut::with_capacity(topic.len() + payload.len() + 4);
    body.put_u16(u16::try_from(topic.len()).expect("a parsed topic is shorter than MAX_TOPIC"));
    body.put_slice(topic.as_bytes());
    if let Some(id) = id {
        body.put_u16(id);
    }
    body.put_slice(payload);
    let qos = if id.is_some() { 2 } else { 0 };
    with_header(0x30 | qos | u8::from(retain), &body)
}

/// CONNECT of the broker's own probe, with a clean session and without keep-alive.
pub fn connect(client_id: &str, login: &Login) -> Bytes {
    let mut body = BytesMut::new();
    body.put_slice(b"\0\x04MQTT\x04\xc2\0\0");
    for field in [client_id.as_bytes(), login.user.as_bytes(), &login.password] {
        body.put_u16(u16::try_from(field.len()).expect("the agent's own fields are short"));
        body.put_slice(field);
    }
    with_header(0x10, &body)
}

pub fn disconnect() -> Bytes {
    Bytes::from_static(&[0xe0, 0])
}

pub fn with_header(first: u8, body: &[u8]) -> Bytes {
    let mut packet = BytesMut::with_capacity(body.len() + 5);
    packet.put_u8(first);
    let mut rest = body.len();
    loop {
        let low = u8::try_from(rest & 0x7f).expect("seven bits fit");
        rest >>= 7;
        packet.put_u8(if rest > 0 { low | 0x80 } else { low });
        if rest == 0 {
            break;
        }
    }
    packet.put_slice(body);
    packet.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_to_clients_are_as_specified() {
        assert_eq!(&*connack(ConnectCode::NotAuthorized), [0x20, 2, 0, 5]);
        assert_eq!(&*puback(258), [0x40, 2, 1, 2]);
        assert_eq!(&*suback(1, &[Some(QoS::AtLeastOnce), None]), [0x90, 4, 0, 1, 1, 0x80]);
        assert_eq!(&*publish("t", b"x", true, None), b"\x31\x04\0\x01tx");
        assert_eq!(publish("t", &[0; 200], false, Some(1))[..3], [0x32, 0xcd, 1]);
    }
}
