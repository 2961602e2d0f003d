//! How a node joins the fleet: its token, and what it exchanges with the join server.
//!
//! `neptune-cloud enroll NODE` prints a [`JoinToken`]. `neptune-edge join URL TOKEN` sends it with a
//! certificate signing request to `POST /v1/join`, after the server has proved that it belongs to the
//! authority that the token names.
//!
//! # Guarantees
//! - The secret of a token is stored nowhere but on the joining node. The cluster has its SHA-256.
//! - A token has no character that a shell changes.
//! - Debug output contains no secret.

#![deny(missing_docs)]

mod exchange;
mod token;

pub use crate::{
    exchange::{
        JOIN_PATH, JOIN_SERVER_NAME, JOIN_VERSION, JoinAnswer, JoinRefusal, JoinRequest,
        MAX_JOIN_BODY, RefusalReason,
    },
    token::{JoinSecret, JoinToken, TokenError, TokenId},
};
