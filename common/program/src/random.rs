//! Random numbers for jitter and names, from the standard library and the system.

use std::{
    fs::File,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    io::{self, Read as _},
};

/// A random number for jitter. Not cryptographically secure.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Random bytes of the system, for secrets.
///
/// # Errors
/// `/dev/urandom` cannot be read.
pub fn secure<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A globally unique ID of 32 hex digits.
///
/// # Errors
/// `/dev/urandom` cannot be read.
pub fn unique_id() -> io::Result<String> {
    secure().map(|bytes| format!("{:032x}", u128::from_be_bytes(bytes)))
}
