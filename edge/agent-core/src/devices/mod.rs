//! The devices that the operator of the node offers to workers: what `--allow-device` means, which of
//! them are present, and which container gets which.

pub mod allocate;
pub mod engine_support;
pub mod inventory;
pub mod messages;
pub mod offered;
pub mod source;
