//! Decides about requests for logs: which log is read, what of it leaves the node, and which answers
//! are repeated.

pub mod lines;
pub mod requests;
pub mod source;
pub mod tails;
