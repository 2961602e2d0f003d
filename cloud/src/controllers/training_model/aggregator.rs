//! The port, the key and the size of the volume of an aggregator. Values only. Pure.

use k8s_openapi::api::apps::v1::Deployment;
use neptune_wire::{KeyPin, aggregator::RunSettings};

/// The port of an aggregator.
pub const PORT: u16 = 8418;

/// The annotation of the Pods with the key that they use: another Secret replaces them.
pub const PIN_ANNOTATION: &str = "neptune.io/key-pin";

/// Room for the database, in bytes.
const DATABASE_BYTES: u64 = 256 << 20;

/// Files of weights of a run beside the updates of its workers: the base, the new weights, the best
/// ones, and the momentum.
const WEIGHTS: u64 = 4;

/// The size of the volume in bytes: the largest update times (workers + kept + 4), and 256 MiB, in
/// whole MiB. With an engine, `state` is the room for its files, and no update of a worker arrives.
pub fn volume_bytes(settings: &RunSettings, keep: u32, state: Option<u64>) -> u64 {
    let workers = if state.is_some() { 0 } else { settings.workers.len() as u64 };
    let files = workers + u64::from(keep) + WEIGHTS;
    let bytes = settings.max_update_bytes.saturating_mul(files).saturating_add(DATABASE_BYTES);
    let bytes = bytes.saturating_add(state.unwrap_or_default());
    bytes.div_ceil(1 << 20).saturating_mul(1 << 20)
}

/// The key that the Pods of a Deployment use.
pub fn deployed_pin(deployment: &Deployment) -> Option<KeyPin> {
    let template = &deployment.spec.as_ref()?.template;
    let annotations = template.metadata.as_ref()?.annotations.as_ref()?;
    annotations.get(PIN_ANNOTATION).cloned().map(KeyPin)
}
