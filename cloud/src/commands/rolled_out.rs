//! The kinds with rollouts, as the `rollout` commands use them.

use std::fmt::Debug;

use kube::{Resource, core::NamespaceResourceScope};
use neptune_api::{InferenceModel, JointInferenceService, RolloutStatus};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A kind with rollouts.
pub trait RolledOut:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned
{
    /// How its rollout is named on the command line.
    const SHORT: &str;

    /// Its spec as JSON.
    fn spec(&self) -> Value;

    /// The rollout of its status.
    fn rollout(&self) -> Option<&RolloutStatus>;
}

impl RolledOut for JointInferenceService {
    const SHORT: &str = "jis";

    fn spec(&self) -> Value {
        json!(self.spec)
    }

    fn rollout(&self) -> Option<&RolloutStatus> {
        self.status.as_ref()?.rollout.as_deref()
    }
}

impl RolledOut for InferenceModel {
    const SHORT: &str = "im";

    fn spec(&self) -> Value {
        json!(self.spec)
    }

    fn rollout(&self) -> Option<&RolloutStatus> {
        self.status.as_ref()?.rollout.as_deref()
    }
}
