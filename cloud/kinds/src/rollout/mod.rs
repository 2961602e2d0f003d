//! Rollouts in waves: which nodes may get a change, by a frontier in an order that a hash decides.

pub mod memory;
pub mod node;
pub mod observe;
pub mod planned;
pub mod policy;
#[cfg(test)]
mod properties;
pub mod rank;
#[cfg(test)]
mod shared;
#[cfg(test)]
mod simulation;
pub mod step;
pub mod summary;
