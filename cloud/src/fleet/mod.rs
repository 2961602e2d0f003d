//! The nodes: what each should have, how it is published, and what they report.

pub mod desired;
pub mod publisher;
pub mod state;
pub mod upstream;
