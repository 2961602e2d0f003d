//! The serial number of a certificate. No I/O.

use std::{fmt, str::FromStr};

/// The serial number of a node's certificate: 63 bits, as 16 lower-case hex digits.
///
/// ```
/// # use neptune_pinned_tls::Serial;
/// let serial = Serial::from_random([0xff; 8]);
/// assert_eq!(serial.to_string(), "7fffffffffffffff");
/// assert_eq!("7fffffffffffffff".parse(), Ok(serial));
/// assert!("0000000000000000".parse::<Serial>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serial(u64);

/// A text is no serial number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a serial number has 16 hex digits in lower case, of which the first is at most 7")]
pub struct SerialError;

impl Serial {
    /// Makes a serial number of random bytes that are cryptographically secure.
    #[must_use]
    pub fn from_random(random: [u8; 8]) -> Self {
        // Positive, and not zero: RFC 5280, section 4.1.2.2.
        Self((u64::from_be_bytes(random) & (u64::MAX >> 1)).max(1))
    }

    /// Reads the bytes of a certificate, which may begin with zeros.
    pub(crate) fn from_der(bytes: &[u8]) -> Option<Self> {
        let significant = bytes.iter().position(|byte| *byte != 0).map(|first| &bytes[first..])?;
        let mut number = [0; 8];
        let start = number.len().checked_sub(significant.len())?;
        number[start..].copy_from_slice(significant);
        let number = u64::from_be_bytes(number);
        (number <= u64::MAX >> 1).then_some(Self(number))
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Serial {
    type Err = SerialError;

    fn from_str(text: &str) -> Result<Self, SerialError> {
        let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let number = u64::from_str_radix(text, 16).map_err(|_| SerialError)?;
        let is_valid = is_hex && text.len() == 16 && (1..=u64::MAX >> 1).contains(&number);
        is_valid.then_some(Self(number)).ok_or(SerialError)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn serial_is_read_as_it_was_written() {
        for bytes in [[0; 8], [1; 8], [0x80; 8], [0xff; 8]] {
            let serial = Serial::from_random(bytes);
            assert_eq!(serial.to_string().parse(), Ok(serial));
            let der = [&[0][..], &serial.0.to_be_bytes()].concat();
            assert_eq!(Serial::from_der(&der), Some(serial));
        }
        assert_eq!(Serial::from_der(&[1, 0]).unwrap().to_string(), "0000000000000100");
    }

    #[test]
    fn text_that_is_no_serial_is_refused() {
        for text in ["", "1", "ffffffffffffffff", "000000000000000A", "+000000000000001"] {
            assert_eq!(text.parse::<Serial>(), Err(SerialError), "{text}");
        }
        assert_eq!(Serial::from_der(&[0, 0]), None);
        assert_eq!(Serial::from_der(&[1; 9]), None);
    }
}
