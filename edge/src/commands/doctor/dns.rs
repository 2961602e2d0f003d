//! A query for the IPv4 addresses of a host, and its answer, as in RFC 1035. Pure.

use std::net::{IpAddr, Ipv4Addr};

use crate::commands::doctor::facts::NameAnswer;

const ID: [u8; 2] = *b"NP";
const HEADER: usize = 12;
const TYPE_A: [u8; 2] = [0, 1];
const CLASS_IN: [u8; 2] = [0, 1];
/// The longest part of a name between two dots, in bytes.
const MAX_LABEL: usize = 63;
/// The longest name in bytes, with the bytes of its lengths.
const MAX_NAME: usize = 255;

/// The query; `None` if the host is no name.
pub fn query(host: &str) -> Option<Vec<u8>> {
    // Recursion desired, one question.
    let mut query = [&ID[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
    for label in host.strip_suffix('.').unwrap_or(host).split('.') {
        let length = u8::try_from(label.len()).ok().filter(|_| label.len() <= MAX_LABEL)?;
        if label.is_empty() {
            return None;
        }
        query.push(length);
        query.extend(label.as_bytes());
    }
    query.push(0);
    (query.len() - HEADER <= MAX_NAME).then(|| [&query[..], &TYPE_A, &CLASS_IN].concat())
}

/// The answer of a name server; `None` if it is none to [`query`].
pub fn answer(packet: &[u8]) -> Option<NameAnswer> {
    const NAME_ERROR: u8 = 3;
    let header = packet.get(..HEADER)?;
    let count = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    if header[..2] != ID || header[2] & 0x80 == 0 {
        return None;
    }
    match header[3] & 0x0f {
        0 => {}
        NAME_ERROR => return Some(NameAnswer::Unknown),
        code => return Some(NameAnswer::Failed(code)),
    }
    let mut rest = &packet[HEADER..];
    for _ in 0..count(4) {
        rest = after_name(rest)?.get(4..)?;
    }
    let mut addresses = Vec::new();
    for _ in 0..count(6) {
        rest = after_name(rest)?;
        let (fields, data) = rest.split_at_checked(10)?;
        let (data, after) =
            data.split_at_checked(usize::from(u16::from_be_bytes([fields[8], fields[9]])))?;
        if let (true, Ok(octets)) = (fields[..2] == TYPE_A, <[u8; 4]>::try_from(data)) {
            addresses.push(IpAddr::V4(Ipv4Addr::from(octets)));
        }
        rest = after;
    }
    addresses.sort_unstable();
    Some(if addresses.is_empty() { NameAnswer::Unknown } else { NameAnswer::Addresses(addresses) })
}

/// What follows a name, which may end with a pointer to an earlier one.
fn after_name(packet: &[u8]) -> Option<&[u8]> {
    const POINTER: u8 = 0xc0;
    let mut rest = packet;
    loop {
        let (length, after) = rest.split_first()?;
        match *length {
            0 => return Some(after),
            pointer if pointer & POINTER == POINTER => return after.get(1..),
            length => rest = after.get(usize::from(length)..)?,
        }
    }
}

#[cfg(test)]
pub mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    /// The answer of a name server to [`query`], with this code and these addresses.
    pub fn response(query: &[u8], code: u8, addresses: &[Ipv4Addr]) -> Vec<u8> {
        let mut packet = query.to_vec();
        (packet[2], packet[3]) = (0x81, 0x80 | code);
        packet[7] = u8::try_from(addresses.len()).unwrap();
        for address in addresses {
            packet.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4]);
            packet.extend(address.octets());
        }
        packet
    }

    #[test]
    fn answer_has_the_addresses_or_why_there_are_none() {
        let query = query("c.ns.svc.cluster.local").unwrap();
        assert_eq!(&query[HEADER..], b"\x01c\x02ns\x03svc\x07cluster\x05local\0\0\x01\0\x01");
        let (a, b) = (Ipv4Addr::new(10, 96, 0, 7), Ipv4Addr::new(10, 96, 0, 8));
        let addresses = NameAnswer::Addresses(vec![a.into(), b.into()]);
        assert_eq!(answer(&response(&query, 0, &[b, a])), Some(addresses));
        assert_eq!(answer(&response(&query, 0, &[])), Some(NameAnswer::Unknown));
        assert_eq!(answer(&response(&query, 3, &[])), Some(NameAnswer::Unknown));
        assert_eq!(answer(&response(&query, 2, &[])), Some(NameAnswer::Failed(2)));
        assert_eq!(answer(&query), None, "a query is no answer");
    }

    #[test]
    fn text_that_is_no_name_has_no_query() {
        for host in ["", ".", "a..b", &"a".repeat(64), &"a.".repeat(128)] {
            assert_eq!(query(host), None, "{host}");
        }
    }

    proptest! {
        #[test]
        fn no_packet_panics(tail in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = answer(&tail);
            let _ = answer(&[&b"NP\x81\x80"[..], &tail].concat());
        }
    }
}
