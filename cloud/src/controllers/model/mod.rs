//! The `Model` controller: observe and status. A model by itself means nothing for a node: it goes
//! with the services that use it, whose plans say so.

#[cfg(test)]
mod crd_consistency;
mod observe;
mod reconcile;
mod status;
mod users;
mod validate;

pub use users::{enqueue_used_models, uses};
pub use validate::validate;
