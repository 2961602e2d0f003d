//! Copies the missing bytes of a partial download from servers and local files.

pub mod access;
pub mod connector;
pub mod http;
pub mod local;
mod s3;

pub use self::s3::{S3Config, S3Credentials};
