//! The `InferenceModel` controller: observe, validate, plan, apply, status.

#[cfg(test)]
mod crd_consistency;
mod events;
#[cfg(test)]
mod fixtures;
mod manifest;
mod observe;
mod observed;
mod place;
mod plan;
mod program;
mod reconcile;
mod rollout;
mod status;
mod validate;
mod workload;
