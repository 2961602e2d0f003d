//! The validating admission webhook: tells whoever applies an object at once what the controllers would
//! find. Without it the same is said by conditions.

mod certificate;
mod configuration;
mod keep;
mod look;
mod question;
mod rotation;
mod serve;
mod shown;
mod suggest;
mod verdict;
mod webhook;

pub use webhook::Webhook;
