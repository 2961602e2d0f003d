//! Free ports of loopback for programs that a test starts, stops and starts again on the same port.

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

/// Above the ports that the product chooses on a node by itself: 12,000 to 19,999 for servers behind
/// transformers, 20,000 to 29,999 for cloud workers.
const FIRST: u16 = 30_000;
/// Up to the ports of outgoing connections, which begin at 32,768 on Linux: such a connection could
/// take a port while the program on it restarts.
const COUNT: u16 = 32_768 - FIRST;

/// A port on loopback on which nothing listens. It stays reserved for this process until it exits,
/// also while the program on it restarts.
///
/// # Panics
/// If the machine has none.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    static RESERVED: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let dir = env::temp_dir().join("neptune-test-ports");
    // Without a reservation (the directory belongs to another user) the port is merely free now.
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

/// Another process has reserved the port.
#[derive(Debug)]
struct Reserved;

/// Locks a file until the process exits. `None` if the file cannot be locked at all.
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
    fn ports_differ_and_are_those_of_no_server_and_no_outgoing_connection() {
        let (one, other) = (free_port(), free_port());
        assert_ne!(one, other);
        assert!([one, other].iter().all(|port| (30_000..32_768).contains(port)), "{one} {other}");
    }

    #[test]
    fn port_is_reserved_although_nothing_listens_on_it() {
        let dir = env::temp_dir().join(format!("neptune-free-port-{}", process::id()));
        fs::create_dir(&dir).expect("a new directory");
        let first = reserve(&dir, 1).expect("the port is not reserved");
        assert!(first.is_some() && reserve(&dir, 1).is_err() && reserve(&dir, 2).is_ok());
        drop(first);
        assert!(reserve(&dir, 1).is_ok(), "the reservation ends with its holder");
        fs::remove_dir_all(&dir).expect("the directory exists");
    }
}
