//! The `InferenceModel` controller: observe, validate, plan, apply, status.

#[cfg(test)]
mod agreement;
mod kubernetes;
mod manifest;
mod notices;
mod observe;
mod place;
mod plan;
mod program;
mod reconcile;
mod rollout;
#[cfg(test)]
mod sample;
mod status;
mod validate;
mod view;
