//! The spec of a service: its forms, fields, names, goals and placement.

pub mod fields;
pub mod forms;
pub mod goal;
pub mod names;
pub mod placement;
#[cfg(test)]
pub mod tests;
