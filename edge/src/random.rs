//! Random numbers for jitter, and unique names. The only file that reads a source of randomness.

use std::{
    fs::File,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    io::{self, Read as _},
};

/// Any number: good enough for jitter.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A name that nobody else has: 32 hex digits.
pub fn unique_id() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}
