//! The `Model` controller: observe and status. A model by itself means nothing for a node: it goes
//! with the services that use it, whose plans say so.

#[cfg(test)]
mod agreement;
mod observe;
mod reconcile;
mod status;
mod users;
mod validate;

pub use users::{uses, wake_used};
pub use validate::validate;
