//! How many requests an address may send to the join server. Pure: the caller reads the clock.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use neptune_program::listen::Source;

/// Requests of one address per window.
const MAX_REQUESTS: u32 = 10;

/// The length of a window.
const WINDOW: Duration = Duration::from_mins(1);

/// Addresses that are counted at the same time.
const MAX_SOURCES: usize = 10_000;

/// The requests of each address in its present window.
#[derive(Debug, Default)]
pub struct RequestRates {
    windows: BTreeMap<Source, (Instant, u32)>,
}

impl RequestRates {
    /// Counts a request. Returns whether to serve it. Clients on this machine have no limit; while
    /// too many addresses are counted, new ones are refused.
    pub fn admit(&mut self, source: Option<Source>, now: Instant) -> bool {
        let Some(source) = source else { return true };
        let is_over = |since: Instant| now.saturating_duration_since(since) >= WINDOW;
        if self.windows.len() >= MAX_SOURCES && !self.windows.contains_key(&source) {
            self.windows.retain(|_, (since, _)| !is_over(*since));
            if self.windows.len() >= MAX_SOURCES {
                return false;
            }
        }
        let (since, count) = self.windows.entry(source).or_insert((now, 0));
        if is_over(*since) {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count <= MAX_REQUESTS
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use std::net::{Ipv4Addr, SocketAddr};

    use neptune_program::listen::Peer;

    use super::*;

    fn source(number: u32) -> Option<Source> {
        let address = SocketAddr::from((Ipv4Addr::from_bits(0x0a00_0000 + number), 1));
        Source::from_peer(Peer::Address(address))
    }

    #[test]
    fn address_above_its_rate_waits_for_the_next_window_and_delays_no_other() {
        let (mut rates, start) = (RequestRates::default(), Instant::now());
        assert!((0..MAX_REQUESTS).all(|_| rates.admit(source(1), start)));
        assert!(!rates.admit(source(1), start) && rates.admit(source(2), start));
        assert!(rates.admit(source(1), start + WINDOW));
        assert!((0..100).all(|_| rates.admit(None, start)), "this machine");
    }

    #[test]
    fn addresses_that_are_counted_have_a_limit() {
        let (mut rates, start) = (RequestRates::default(), Instant::now());
        let count = u32::try_from(MAX_SOURCES).unwrap();
        assert!((0..count).all(|number| rates.admit(source(number), start)));
        assert!(!rates.admit(source(count), start) && rates.admit(source(0), start));
        assert!(rates.admit(source(count), start + WINDOW));
        assert_eq!(rates.windows.len(), 1, "windows that are over are removed");
    }
}
