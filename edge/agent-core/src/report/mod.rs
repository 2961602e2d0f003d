//! The messages to the cloud: object status, and the batches over `EventBus`.

pub mod batches;
pub mod reporter;
