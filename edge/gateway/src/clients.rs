//! The clients of the gateway: their keys, their limits, and what they asked for.

mod counts;
mod file;
mod key;
mod registry;
mod window;

pub use self::{
    counts::{ClientCounts, ClientEntry},
    file::ClientFile,
    key::Keys,
    registry::Clients,
};
