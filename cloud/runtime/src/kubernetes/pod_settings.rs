//! The settings of the program for the Pods and Services that it creates.

use std::time::Duration;

use neptune_cloud_kinds::kubernetes::{identity::ControllerIdentity, pod_policy::PodPolicy};

use crate::kubernetes::report_target::ReportTarget;

/// The settings of the Pods and Services that the controllers create.
#[derive(Debug, Clone)]
pub struct PodSettings {
    /// The image that downloads models.
    pub fetch_image: String,
    /// The image from which gateways run.
    pub gateway_image: String,
    /// The image from which aggregators run.
    pub aggregator_image: String,
    /// The domain of the cluster's Services.
    pub cluster_domain: String,
    /// What the operator allows in Pods.
    pub policy: PodPolicy,
    /// Where cloud workers post their reports; `None` if they cannot.
    pub reports: Option<ReportTarget>,
    /// Who the controller is, for the keys and rights of trainings.
    pub controller: ControllerIdentity,
    /// The interval at which the Secrets and `ConfigMap`s of workers at agents are read.
    pub config_interval: Duration,
}
