//! The observation of a service whose edge worker runs and counts no samples, with the times of the
//! fleet's clock.
#![allow(clippy::unwrap_used)]
use k8s_openapi::jiff::SignedDuration;
use neptune_api::{JointInferenceService, crdgen::crds};
use neptune_cloud_kinds::{
    joint_inference_service::fixtures, kubernetes::identity::key, steps::Steps as _,
    worker::names::worker_name,
};
use neptune_harness::cluster::api_server;
use neptune_wire::{NodeName, Role};
use serde_json::json;

use super::{controller::Controller as _, tests::context_of};

#[tokio::test]
async fn silent_worker_is_degraded_from_its_time_until_the_next_sample() {
    let context = context_of(&api_server(&crds()).await).await;
    let mut service = fixtures::service();
    service.spec.edge_worker.silent_after_seconds = Some(60);
    let (key, uid) = (key(&service).unwrap(), service.metadata.uid.clone().unwrap());
    let node: NodeName = service.spec.edge_worker.node_name.clone().unwrap().parse().unwrap();
    let settled_at = context.fleet().settled_at();
    let at = |second| settled_at + SignedDuration::from_secs(second);
    let edge = &service.spec.edge_worker.name;
    let worker = worker_name(key.namespace.as_str(), key.name.as_str(), Role::Edge, edge);
    let count = |samples: u64, second| {
        let report = json!({
            "instance": "i", "epoch": 1, "seq": samples, "uid": uid, "revision": 1,
            "phase": "Running", "status": "",
            "output": {"taskInfo": {
                "inferenceNumber": samples, "hardExampleNumber": 0, "uploadCloudRatio": 0.0,
                "startTime": "", "currentTime": "",
            }},
            "workers": [{"name": worker, "role": "edge", "state": "Running"}],
        });
        let report = serde_json::from_value(report).unwrap();
        context.fleet().on_status_report(&node, &key, report, true, at(second));
    };
    let heartbeat = |second| {
        let report = json!({"instance": "i", "epoch": 1, "online": true});
        let report = serde_json::from_value(report).unwrap();
        context.fleet().on_node_report(&node, report, true, at(second));
    };
    let observe = |service: &JointInferenceService, second| {
        let observed = service.observe(&key, None, &context, at(second));
        let (state, finding) = observed.edges[0].worker.row_state();
        let due_at = JointInferenceService::recompute_at(&observed);
        let due_in = due_at.map(|due_at| due_at.duration_since(at(second)).as_secs());
        (
            format!("{state} {}", finding.map_or_else(String::new, |it| it.reason.to_string())),
            due_in,
        )
    };
    let seen = |text: &str, due_in| (text.to_owned(), due_in);
    count(1, -5);
    assert_eq!(observe(&service, -5), seen("Running ", Some(65)));
    assert_eq!(observe(&service, 59), seen("Running ", Some(1)));
    assert_eq!(observe(&service, 60), seen("Running ", Some(10)), "it may be offline");
    heartbeat(62);
    assert_eq!(observe(&service, 70), seen("Running NoSamples", None));
    count(2, 80);
    assert_eq!(observe(&service, 80), seen("Running ", Some(60)));
    heartbeat(141);
    assert_eq!(observe(&service, 142), seen("Running NoSamples", None));
    let mut other = service.clone();
    other.spec.edge_worker.silent_after_seconds = None;
    assert_eq!(observe(&other, 143), seen("Running ", None));
    assert_eq!(observe(&service, 144), seen("Running ", Some(60)), "the time begins again");
}
