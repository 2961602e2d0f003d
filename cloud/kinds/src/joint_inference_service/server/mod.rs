//! Model servers, on either side.

pub mod named;
pub mod owned;
pub mod ports;
pub mod served_file;
#[cfg(test)]
pub mod tests;
pub mod transformer;
