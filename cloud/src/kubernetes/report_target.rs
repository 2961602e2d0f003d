//! The address to which a cloud worker in a Pod posts its reports. Pure.

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector};

use crate::token_key::TokenKey;

/// The variable with the Pod's uid, which the address contains.
const POD_UID: &str = "WORKER_POD_UID";

/// Where cloud workers in Pods post their reports.
#[derive(Debug, Clone)]
pub struct ReportTarget {
    /// The URL of the receiver, as Pods reach it.
    pub url: String,
    /// The key of the workers' tokens.
    pub key: TokenKey,
}

impl ReportTarget {
    /// The address of a service's cloud worker. The kubelet replaces the Pod's uid.
    pub fn address(&self, namespace: &str, name: &str, uid: &str) -> String {
        let token = self.key.worker_token(uid);
        format!("{}/workers/{namespace}/{name}/$({POD_UID})/{token}", self.url)
    }
}

/// The variables with this address. The first one has to precede the second.
pub fn variables(address: &str) -> [EnvVar; 2] {
    let field = ObjectFieldSelector { field_path: "metadata.uid".to_owned(), api_version: None };
    let source = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    [
        EnvVar { name: POD_UID.to_owned(), value: None, value_from: Some(source) },
        EnvVar {
            name: "WORKER_REPORT_URL".to_owned(),
            value: Some(address.to_owned()),
            value_from: None,
        },
    ]
}
