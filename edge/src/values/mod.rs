//! Values of Secrets and `ConfigMap`s on the node: opens them with the seal key of the node, and
//! writes the files of volumes. What a container gets is decided in `neptune_agent_core::values`.

mod layout;
pub mod opened;
pub mod opener;
pub mod runtime_files;
pub mod seal_key;
