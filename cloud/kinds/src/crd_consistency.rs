//! Compares in tests the schemas and rules of the CRDs with `validate` of the controllers. The CRDs
//! may reject fewer specs than the controller, which knows the cluster, and no spec that the
//! controller accepts.
#![allow(clippy::panic)]

use std::fmt::Debug;

use kube::{Api, Error, api::PostParams, core::NamespaceResourceScope};
use neptune_harness::cluster::api_server;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// The number of specs per result.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ConsistencyCounts {
    /// Accepted by the API server and the controller.
    pub accepted: usize,
    /// Rejected by the API server and the controller.
    pub rejected: usize,
    /// Accepted by the API server; the controller reports a finding.
    pub rejected_later: usize,
}

/// Validates the sample with each of the changes (RFC 7386) to its spec.
///
/// Panics at a spec that the API server rejects and the controller accepts.
pub async fn compare<K>(
    sample: &K,
    changes: &[Value],
    is_valid: impl Fn(&K) -> bool,
) -> ConsistencyCounts
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Serialize
        + DeserializeOwned
        + Clone
        + Debug,
{
    let api: Api<K> = Api::default_namespaced(api_server(&neptune_api::crdgen::crds()).await);
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let mut counts = ConsistencyCounts::default();
    for change in changes {
        let mut object = serde_json::to_value(sample).expect("a sample is JSON");
        merge(&mut object["spec"], change);
        let object: K = serde_json::from_value(object).expect("the change fits the type");
        let rejection = match api.create(&dry_run, &object).await {
            Ok(_) => None,
            Err(Error::Api(status)) if status.code == 422 => Some(status.message),
            Err(error) => panic!("{change}: {error}"),
        };
        match (is_valid(&object), rejection) {
            (true, None) => counts.accepted += 1,
            (false, Some(_)) => counts.rejected += 1,
            (false, None) => counts.rejected_later += 1,
            (true, Some(message)) => {
                panic!("{change} is rejected by the CRD and valid for the controller: {message}")
            }
        }
    }
    counts
}

fn merge(value: &mut Value, change: &Value) {
    match (value.as_object_mut(), change.as_object()) {
        (Some(fields), Some(changes)) => {
            for (name, change) in changes {
                if change.is_null() {
                    fields.remove(name);
                } else {
                    merge(fields.entry(name).or_insert(Value::Null), change);
                }
            }
        }
        _ => *value = change.clone(),
    }
}
