//! Publishes to the cloud: object status, node presence, and the batches over `EventBus`.

pub mod capacity;
pub mod own_address;
pub mod publisher;
mod uptime;
