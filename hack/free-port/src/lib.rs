//! A port for a program that tests start, stop and start again on the same one.

#![expect(clippy::panic, reason = "a test cannot go on without a port")]

use std::{
    env,
    fs::{self, File, TryLockError},
    net::TcpListener,
    path::Path,
    process,
    sync::{
        Mutex,
        atomic::{AtomicU16, Ordering},
    },
};

/// Below the ports that the system gives to outgoing connections (from 32768 on Linux), one of which
/// would take a port while the program on it restarts; and below those of cloud workers (20000 on).
const FIRST: u16 = 10_000;
const COUNT: u16 = 10_000;

/// A port on loopback that nothing listens on now, and that no other process gets from here before this
/// one ends: also while the program on it restarts it is not so much as tried.
///
/// # Panics
/// If the machine has none.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    static RESERVED: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let dir = env::temp_dir().join("neptune-test-ports");
    // What cannot be reserved, since the directory is another user's, is as good as it was.
    let _ = fs::create_dir(&dir);
    let start = process::id().wrapping_mul(61);
    for _ in 0..COUNT {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let offset = start.wrapping_add(step) % u32::from(COUNT);
        let port = FIRST + u16::try_from(offset).expect("below a u16's COUNT");
        let Ok(reservation) = reserve(&dir, port) else { continue };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            let mut reserved = RESERVED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            reserved.extend(reservation);
            return port;
        }
    }
    panic!("no port from {FIRST} on is free");
}

/// Another process has the port reserved.
#[derive(Debug)]
struct Reserved;

/// A lock that goes with the process; none where there can be none.
fn reserve(dir: &Path, port: u16) -> Result<Option<File>, Reserved> {
    let path = dir.join(port.to_string());
    let Ok(file) = File::open(&path).or_else(|_| File::create(&path)) else { return Ok(None) };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(Reserved),
        Err(TryLockError::Error(_)) => Ok(None),
    }
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

    #[test]
    fn a_port_is_reserved_although_nothing_listens_on_it() {
        let dir = env::temp_dir().join(format!("neptune-free-port-{}", process::id()));
        fs::create_dir(&dir).expect("a directory of its own");
        let first = reserve(&dir, 1).expect("nobody has it");
        assert!(first.is_some() && reserve(&dir, 1).is_err() && reserve(&dir, 2).is_ok());
        drop(first);
        assert!(reserve(&dir, 1).is_ok(), "it goes with who had it");
        fs::remove_dir_all(&dir).expect("it is there");
    }
}
