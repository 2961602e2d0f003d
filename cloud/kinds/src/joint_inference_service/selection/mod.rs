//! The choice of the edge worker's model.

pub mod choice;
#[cfg(test)]
pub mod fixtures;
pub mod rules;
pub mod selected;
