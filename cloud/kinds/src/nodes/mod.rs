//! What the controller keeps about nodes in their `EdgeNodes`: the keys that are used, and what the
//! agents report.

pub mod keys;
pub mod migration;
pub mod offer;
pub mod sealing;
pub mod status;
