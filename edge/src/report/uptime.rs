//! Reads how long the node has been up.

/// Milliseconds since the node's boot, with the time in which it was suspended. `None` if the kernel
/// does not provide it.
pub fn uptime_ms() -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/uptime").ok()?)
}

/// Parses seconds with two decimals, and what follows them.
fn parse(text: &str) -> Option<u64> {
    let (seconds, rest) = text.split_whitespace().next()?.split_once('.')?;
    let (seconds, hundredths): (u64, u64) = (seconds.parse().ok()?, rest.parse().ok()?);
    (rest.len() == 2).then(|| seconds.saturating_mul(1000).saturating_add(hundredths * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptime_has_hundredths_of_a_second() {
        assert_eq!(parse("350735.47 234388.90\n"), Some(350_735_470));
        for wrong in ["", "1", "1.5 2.0", "x.00 1"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
        let (before, after) = (uptime_ms(), uptime_ms());
        assert!(before.is_some() && before <= after);
    }
}
