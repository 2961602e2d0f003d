//! Exports the present condition of each object when the metrics are read.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use neptune_api::{Dataset, InferenceModel, JointInferenceService, Model, TrainingModel};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet},
};

use super::family::{Objects, gauge};

/// The objects of all kinds in the cluster.
#[derive(Debug)]
pub struct ResourceCollector(pub Objects<ResourceState>);

/// The present condition of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ResourceState {
    /// Kind of the object.
    pub kind: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// The type of its condition, or `NotReady`.
    pub state: String,
    /// The reason of the condition.
    pub reason: String,
}

const STATE: (&str, &str) =
    ("neptune_resource_state", "Present condition of each object; the value is 1");

impl Collector for ResourceCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let states = (self.0.0)();
        gauge(&mut encoder, STATE, states.into_iter().map(|labels| (labels, 1.0)))
    }
}

/// An object whose status has conditions.
pub trait Conditioned {
    /// The state and the reason of the object; `None` before its first status.
    fn present_condition(&self) -> Option<(String, String)>;
}

macro_rules! conditioned {
    ($($kind:ident),+) => {
        $(impl Conditioned for $kind {
            fn present_condition(&self) -> Option<(String, String)> {
                present(&self.status.as_ref()?.conditions)
            }
        })+
    };
}

conditioned!(Dataset, InferenceModel, Model, TrainingModel);

impl Conditioned for JointInferenceService {
    fn present_condition(&self) -> Option<(String, String)> {
        // The last one is the current state.
        let condition = self.status.as_ref()?.conditions.last()?;
        Some((condition.type_.to_string(), condition.reason.clone().unwrap_or_default()))
    }
}

/// The state and the reason of an object with the conditions `Degraded`, `Ready` and `Progressing`,
/// of which the first one that is true counts; `None` before the first status.
fn present(conditions: &[Condition]) -> Option<(String, String)> {
    let condition = |name: &str| conditions.iter().find(|condition| condition.type_ == name);
    let mut named = ["Degraded", "Ready", "Progressing"].into_iter().filter_map(condition);
    match named.find(|condition| condition.status == "True") {
        Some(condition) => Some((condition.type_.clone(), condition.reason.clone())),
        None => Some(("NotReady".to_owned(), condition("Ready")?.reason.clone())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn degraded_wins_over_ready() {
        let present = |conditions: &[(&str, &str)]| {
            let conditions: Vec<_> = conditions
                .iter()
                .map(|(name, status)| {
                    json!({"type": name, "status": status, "reason": format!("{name}{status}"),
                        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
                })
                .collect();
            present(&serde_json::from_value::<Vec<_>>(conditions.into()).unwrap())
        };
        let state = |state: &str, reason: &str| Some((state.to_owned(), reason.to_owned()));
        assert_eq!(
            present(&[("Ready", "True"), ("Degraded", "True")]),
            state("Degraded", "DegradedTrue")
        );
        assert_eq!(
            present(&[("Ready", "True"), ("Degraded", "False")]),
            state("Ready", "ReadyTrue")
        );
        assert_eq!(
            present(&[("Ready", "False"), ("Progressing", "True")]),
            state("Progressing", "ProgressingTrue")
        );
        assert_eq!(present(&[("Ready", "False")]), state("NotReady", "ReadyFalse"));
        assert_eq!(present(&[]), None);
    }
}
