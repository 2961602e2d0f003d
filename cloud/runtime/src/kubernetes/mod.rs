//! How the controller uses the API server: its address, outages, the Lease of the leader, and the
//! objects and settings that only this program reads.

pub mod edge_node_writes;
mod follow;
pub mod history;
pub mod kubeconfig;
pub mod leader_election;
pub mod outage;
pub mod pod_settings;
pub mod reference;
pub mod report_target;

pub use self::follow::follow;

/// The field manager of every write.
pub const FIELD_MANAGER: &str = "neptune-cloud";
