//! What Kubernetes' own objects mean to this controller: nodes, Pods, workloads, conditions,
//! quantities, the Lease of the leader, and how to reach the API server.

pub mod conditions;
pub mod expansion;
pub mod identity;
pub mod kubeconfig;
pub mod labels;
pub mod leader_election;
pub mod node_keys;
pub mod node_selector;
pub mod nodes;
pub mod outage;
pub mod placement;
pub mod pod_policy;
pub mod pod_security;
pub mod pod_template;
pub mod pods;
pub mod quantities;
pub mod report_sidecar;
pub mod report_target;
pub mod secrets;
pub mod workloads;
