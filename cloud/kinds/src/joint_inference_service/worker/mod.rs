//! Programs of the user, on either side.

pub mod resolve;
pub mod task;
#[cfg(test)]
pub mod tests;
