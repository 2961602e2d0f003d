//! The validating admission webhook: tells whoever applies an object at once what the controllers would
//! find. Without it the same is said by conditions.

mod certificate;
mod certificate_store;
mod configuration;
mod decision;
mod request;
mod reviewer;
mod rotation;
mod server;
mod serving_certificate;
mod suggestion;
mod webhook;

pub use webhook::Webhook;
