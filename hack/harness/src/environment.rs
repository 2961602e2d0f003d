//! Numbers that a person gives a test by environment variables.

use std::{fmt::Debug, str::FromStr};

/// Returns the number in an environment variable, or `None` without the variable.
///
/// # Panics
/// If the variable has something else: a run with a mistyped size proves nothing.
pub fn number<T>(variable: &str) -> Option<T>
where
    T: FromStr<Err: Debug>,
{
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{variable}={text}: {error:?}")))
}

/// Returns the seed of a test's random input, `NEPTUNE_SEED` or `default`, and prints it: a run
/// with the same seed has the same input.
pub fn seed(default: u64) -> u64 {
    let seed = number("NEPTUNE_SEED").unwrap_or(default);
    println!("NEPTUNE_SEED={seed} chooses the same input");
    seed
}
