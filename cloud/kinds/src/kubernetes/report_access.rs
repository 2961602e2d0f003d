//! How the cloud worker of a service in a Pod reports: the address, its password, its topics.

use neptune_wire::TopicPrefix;

/// The variable with the Pod's uid, which the address contains.
pub const POD_UID: &str = "WORKER_POD_UID";

/// How the cloud worker of one service reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportAccess {
    /// The URL to which reports are posted. The kubelet replaces `$(WORKER_POD_UID)`.
    pub url: String,
    /// The worker's password at the broker in its Pod.
    pub broker_password: String,
    /// The prefix of the worker's topics.
    pub prefix: TopicPrefix,
}
