//! Connects to members of the site, and downloads from them.

pub mod connection;
pub mod download;
pub mod kept;
pub mod partial;
pub mod pool;
