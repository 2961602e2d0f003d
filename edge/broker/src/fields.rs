//! Reads the fields of an MQTT packet within limits, or why they are refused. Pure.

/// Maximum length of a topic and of a topic filter in bytes.
pub const MAX_TOPIC: usize = 512;

/// Why a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    #[error("malformed {0}")]
    Malformed(&'static str),
    #[error("{0} is too large")]
    TooLarge(&'static str),
    #[error("protocol version is not 3.1.1")]
    Version,
}

use ProtocolError::{Malformed, TooLarge};

/// The fields of a packet, in order.
pub struct Fields<'a> {
    pub rest: &'a [u8],
    /// The packet's name, for errors.
    pub packet: &'static str,
}

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], ProtocolError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Malformed(self.packet))?;
        self.rest = rest;
        Ok(taken)
    }

    pub fn byte(&mut self) -> Result<u8, ProtocolError> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn number(&mut self) -> Result<u16, ProtocolError> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// A packet identifier, which is never 0.
    pub fn id(&mut self) -> Result<u16, ProtocolError> {
        self.number().and_then(|id| if id == 0 { Err(Malformed(self.packet)) } else { Ok(id) })
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], ProtocolError> {
        let length = self.number()?;
        self.take(length.into())
    }

    pub fn text(&mut self) -> Result<String, ProtocolError> {
        let text = std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("text"))?;
        if text.contains('\0') { Err(Malformed("text")) } else { Ok(text.to_owned()) }
    }

    pub fn topic(&mut self) -> Result<String, ProtocolError> {
        let topic = self.text()?;
        match topic.len() {
            0 => Err(Malformed("topic")),
            1..=MAX_TOPIC => Ok(topic),
            _ => Err(TooLarge("topic")),
        }
    }

    /// Skips the properties of MQTT 5: their length in up to 4 bytes, and as many bytes.
    pub fn skip_properties(&mut self) -> Result<(), ProtocolError> {
        let mut length = 0;
        for index in 0..4 {
            let byte = self.byte()?;
            length |= usize::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                return self.take(length).map(drop);
            }
        }
        Err(Malformed(self.packet))
    }

    /// Reads items to the end of the packet. At least one is required.
    pub fn list<T>(
        &mut self,
        item: impl Fn(&mut Self) -> Result<T, ProtocolError>,
    ) -> Result<Vec<T>, ProtocolError> {
        let mut items = vec![item(self)?];
        while !self.rest.is_empty() {
            items.push(item(self)?);
        }
        Ok(items)
    }
}
