//! Seals the values of Secrets to the key of one node: HPKE (RFC 9180) in base mode, one message per
//! context, with DHKEM(X25519, HKDF-SHA256), HKDF-SHA256 and ChaCha20-Poly1305.
//!
//! # Guarantees
//! - Only the owner of the node's seal key can open what is sealed to it, and only for the program of
//!   the [`SealScope`](neptune_wire::SealScope).
//! - A seal key counts only with the signature of a key that the caller trusts ([`verify`]).
//! - Opened values are overwritten when they are dropped, and no `Debug` output has them.
//!
//! Base mode does not authenticate the sender.

#![deny(missing_docs)]

mod key;
mod sealing;
mod signature;
mod values;

pub use crate::{
    key::{SealKey, SealKeyError},
    sealing::{OpenError, seal},
    signature::{VerifyError, sign, verify},
};
pub use neptune_wire::{SecretBytes, SecretValues};
