//! Reads the caches and the fleet: the facts of a service, and what is observed of it.

pub mod chain;
pub mod facts;
pub mod gateway;
pub mod observe;
pub mod selection;
pub mod services;
pub mod slices;
