//! TLS 1.3 between programs that know each other's public keys: nodes, aggregators and the controller.
//!
//! Each side has a key and presents a certificate that it signed itself. The other side compares the
//! SHA-256 of the public key with a pin, which it got through a channel that it trusts already: the
//! broker's topic of the node, or the API server.
//!
//! # Guarantees
//! - The side that completes a handshake has the private key of the certificate.
//! - Names, dates and signatures of certificates mean nothing, so that a node with a wrong clock can
//!   connect, and a certificate cannot expire.
//! - [`Authority`] is for programs that know no pins: the MQTT broker, and clients of training
//!   sessions. Its certificates name hosts, nodes or users, and live as long as the authority.
//! - [`authority_client_config`] is for a client that knows the pin of an authority: a node that joins.
//! - A key is written to the disk before it is used, readable by its owner alone.

#![deny(missing_docs)]

mod authority;
mod certificates;
mod chain;
mod key;
mod pin;
mod revocation;
mod serial;
mod signature;
mod verify;

pub use crate::{
    authority::Authority,
    certificates::{Credentials, RequestError, SigningRequest},
    chain::authority_client_config,
    key::{KeyError, TlsKey},
    pin::{certificate_pin, pin_of, pin_of_key},
    serial::{Serial, SerialError},
    signature::is_signed,
    verify::{client_config, server_config},
};
