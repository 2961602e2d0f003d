//! One folder a kind, each with the same steps: observe, validate, plan, apply, status.

pub mod jointinferenceservice;
