//! The rate of all downloads, as the option names it.

/// The lowest rate of all downloads, in bytes per second. A piece of a response that was read at
/// once delays the next one by seconds only, so that no server gives up.
pub const MIN_DOWNLOAD_RATE: u64 = 64 * 1024;

const UNITS: [(&str, u64); 6] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

/// The text is not a rate of downloads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRate {
    /// The text is not a number of bytes.
    #[error("{0:?} is not a number of bytes")]
    NotBytes(String),
    /// The rate is below [`MIN_DOWNLOAD_RATE`].
    #[error("{0} is less than {MIN_DOWNLOAD_RATE} bytes per second")]
    TooLow(u64),
}

/// Returns the bytes per second that a text such as `2MiB`, `500kB` or `1000000` names.
///
/// # Errors
/// The text is not a number of bytes, or below [`MIN_DOWNLOAD_RATE`].
pub fn parse_rate(text: &str) -> Result<u64, InvalidRate> {
    let unit = UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let (number, factor) = unit.unwrap_or((text, 1));
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    let number: Option<u64> = number.parse().ok().filter(|_| is_number);
    let rate = number.and_then(|number| number.checked_mul(factor));
    match rate {
        None => Err(InvalidRate::NotBytes(text.to_owned())),
        Some(rate) if rate < MIN_DOWNLOAD_RATE => Err(InvalidRate::TooLow(rate)),
        Some(rate) => Ok(rate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_has_binary_or_decimal_units_or_none() {
        for (text, bytes) in [
            ("2MiB", 2 << 20),
            ("64KiB", 65_536),
            ("1GiB", 1 << 30),
            ("500kB", 500_000),
            ("2MB", 2_000_000),
            ("1GB", 1_000_000_000),
            ("1000000", 1_000_000),
        ] {
            assert_eq!(parse_rate(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn text_that_names_no_usable_rate_is_refused() {
        for text in
            ["", "MiB", "2 MiB", "2MiB/s", "+2MiB", "-1", "1.5MiB", "99999999999GiB", "2mib"]
        {
            assert_eq!(parse_rate(text), Err(InvalidRate::NotBytes(text.to_owned())), "{text}");
        }
        for (text, rate) in [("0", 0), ("63KiB", 64_512), ("65535", 65_535)] {
            assert_eq!(parse_rate(text), Err(InvalidRate::TooLow(rate)), "{text}");
        }
    }
}
