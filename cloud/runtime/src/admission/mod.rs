//! The validating admission webhook: reports the findings of the controllers at apply time. Without
//! it the conditions report them.

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

pub use self::{
    decision::MissingReferences,
    webhook::{Webhook, WebhookSettings},
};
