//! The Secrets and `ConfigMap`s of a worker at an agent: what it refers to, what it gets of them, and
//! for which node a value is sealed. Values are in memory only while a plan is made.

#[cfg(test)]
pub mod fixtures;
pub mod objects;
pub mod references;
pub mod resolve;
pub mod resolved;
pub mod seal;
