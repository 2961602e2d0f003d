//! What Kubernetes' own objects mean to this controller: nodes, Pods, workloads, conditions and
//! quantities.

pub mod conditions;
pub mod container;
pub mod container_inputs;
pub mod expansion;
pub mod identity;
pub mod labels;
pub mod node_selector;
pub mod node_view;
pub mod nodes;
pub mod placement;
pub mod pod_config;
pub mod pod_policy;
pub mod pod_probes;
pub mod pod_security;
pub mod pod_template;
pub mod pod_volumes;
pub mod pods;
pub mod quantities;
pub mod report_access;
pub mod report_sidecar;
pub mod secrets;
pub mod workloads;
