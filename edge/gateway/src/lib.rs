//! The gateway of joint inference: answers inference requests with the model server of its node,
//! and sends hard samples to the cloud.
//!
//! The folders depend on each other in one direction:
//!
//! | folder | uses |
//! |---|---|
//! | `config` | nothing |
//! | `decision` | nothing |
//! | `protocol` | `config` |

#![deny(missing_docs)]

pub mod cli;
pub mod clock;
pub mod config;
pub mod decision;
pub mod error;
pub mod protocol;

pub use crate::error::Error;
