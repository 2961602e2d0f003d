//! How fast downloads from URLs may run: the values of the agent's options.

mod rate;

pub use self::rate::{InvalidRate, MIN_DOWNLOAD_RATE, parse_rate};
