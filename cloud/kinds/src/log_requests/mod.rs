//! Decides about `LogRequests`: which node is asked, when it is asked again, and how each one ends.

pub mod open;
pub mod target;
