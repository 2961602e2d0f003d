//! Decides what a worker's container gets of its Secrets and `ConfigMap`s: environment variables,
//! files and credentials of registries; and what the agent replaces in texts that leave the node.

pub mod files;
pub mod mask;
pub mod resolve;
