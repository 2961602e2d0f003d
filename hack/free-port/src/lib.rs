//! A port for a program that tests start, stop and start again on the same one.

#![expect(clippy::panic, reason = "a test cannot go on without a port")]

use std::{
    net::TcpListener,
    process,
    sync::atomic::{AtomicU16, Ordering},
};

/// Below the ports that the system gives to outgoing connections (from 32768 on Linux), one of which
/// would take a port while the program on it restarts; and below those of cloud workers (20000 on).
const FIRST: u16 = 10_000;
const COUNT: u16 = 10_000;

/// A port on loopback that nothing listens on now. Processes begin at places of their own, so that
/// tests side by side do not meet.
///
/// # Panics
/// If the machine has none.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = process::id().wrapping_mul(61);
    for _ in 0..COUNT {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let offset = start.wrapping_add(step) % u32::from(COUNT);
        let port = FIRST + u16::try_from(offset).expect("below a u16's COUNT");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port from {FIRST} on is free");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_in_a_row_differ_and_are_no_outgoing_ports() {
        let (one, other) = (free_port(), free_port());
        assert_ne!(one, other);
        assert!((FIRST..FIRST + COUNT).contains(&one));
    }
}
