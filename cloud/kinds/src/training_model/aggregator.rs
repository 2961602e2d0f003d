//! The port, the reported key and the size of the volume of an aggregator. Values only.

use k8s_openapi::api::core::v1::Pod;
use neptune_wire::{KeyPin, aggregator::RunSettings};

/// The port of an aggregator.
pub const PORT: u16 = 8418;

/// The init container that makes the key. Its termination message is the pin.
pub const KEY_CONTAINER: &str = "key";

/// Bytes of the volume for the database.
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

/// The pin that the newest Pod of the aggregator reports. Only the kubelet of its node writes the
/// status of a Pod. A Pod that a kubelet made itself has no `ReplicaSet` and does not count.
pub fn reported_pin<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Option<KeyPin> {
    let reported = pods
        .into_iter()
        .filter(|pod| is_of_replica_set(pod))
        .filter_map(|pod| Some((pod.metadata.creation_timestamp.as_ref()?.0, pin_of(pod)?)));
    reported.max().map(|(_, pin)| pin)
}

fn is_of_replica_set(pod: &Pod) -> bool {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.controller == Some(true) && owner.kind == "ReplicaSet")
}

fn pin_of(pod: &Pod) -> Option<KeyPin> {
    let mut containers = pod.status.as_ref()?.init_container_statuses.iter().flatten();
    let state = containers.find(|it| it.name == KEY_CONTAINER)?.state.as_ref()?;
    let ended = state.terminated.as_ref().filter(|ended| ended.exit_code == 0)?;
    Some(KeyPin(ended.message.as_deref()?.trim().to_owned())).filter(KeyPin::is_valid)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::fixtures::pin;
    use serde_json::{Value, json};

    use super::*;
    use crate::training_model::fixtures::frozen;

    fn pod(second: u32, owner: &str, state: &Value) -> Pod {
        let created = format!("2026-01-01T00:00:{second:02}Z");
        let owner = json!({"apiVersion": "apps/v1", "kind": owner, "name": "a-1", "uid": "u",
            "controller": true});
        let key = json!({"name": "key", "image": "i", "imageID": "", "ready": true,
            "restartCount": 0, "state": state});
        serde_json::from_value(json!({
            "metadata": {"name": "a-1-x", "creationTimestamp": created, "ownerReferences": [owner]},
            "status": {"initContainerStatuses": [key]},
        }))
        .unwrap()
    }

    fn ended(code: i32, message: &str) -> Value {
        json!({"terminated": {"exitCode": code, "message": message}})
    }

    #[test]
    fn pin_is_that_of_the_newest_pod_that_reports_one() {
        let old = pod(1, "ReplicaSet", &ended(0, &pin('a').0));
        let new = pod(2, "ReplicaSet", &ended(0, &format!("{}\n", pin('b').0)));
        let starting = pod(3, "ReplicaSet", &json!({"running": {}}));
        assert_eq!(reported_pin([&new, &old, &starting]).unwrap().0, pin('b').0);
        assert_eq!(reported_pin([&old, &starting]).unwrap().0, pin('a').0);
        assert_eq!(reported_pin([&starting]), None);
    }

    #[test]
    fn report_of_a_failed_container_or_a_kubelets_own_pod_is_no_pin() {
        for pod in [
            pod(1, "ReplicaSet", &ended(1, &pin('a').0)),
            pod(1, "ReplicaSet", &ended(0, "sha256:a")),
            // What a kubelet writes if the container was removed meanwhile.
            pod(1, "ReplicaSet", &ended(0, "Unable to get init container status")),
            pod(1, "Node", &ended(0, &pin('a').0)),
        ] {
            assert_eq!(reported_pin([&pod]), None, "{:?}", pod.status);
        }
    }

    #[test]
    fn volume_has_room_for_the_updates_and_what_is_kept() {
        let mut settings = frozen().settings;
        settings.max_update_bytes = 16 << 20;
        assert_eq!(volume_bytes(&settings, 3, None), (10 * 16 + 256) << 20);
        settings.max_update_bytes = 1;
        assert_eq!(volume_bytes(&settings, 3, None), 257 << 20);
        settings.max_update_bytes = u64::MAX;
        assert!(volume_bytes(&settings, 3, None) > 1 << 60, "no overflow");
    }
}
