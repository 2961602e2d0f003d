//! The rollout of the edge worker: the revision of what its nodes run, and what they report of it.

use neptune_api::JointInferenceService;
use neptune_gateway_config::{AllowedHosts, Goal};
use neptune_wire::{NodeName, Role, StatusReport, WorkerName, WorkerReason, WorkerState};
use serde_json::json;

use crate::{
    finding::Finding,
    joint_inference_service::{
        edge::worker::planned_edge_worker,
        facts::ServiceFacts,
        gateway::task::planned_gateway,
        resolved::{CloudRuntime, CloudSide, EdgeSide, ValidGateway, ValidService},
    },
    reason::Reason,
    rollout::{
        observe::ReportedState,
        planned::{ValidRollout, revision},
        policy,
    },
    worker::{config::references::variables_of_objects, restart::Restart},
};

/// Checks the settings of the rollout.
pub fn check(service: &JointInferenceService, findings: &mut Vec<Finding>) {
    policy::check(service.spec.rollout.as_deref(), findings);
}

/// The rollout of a valid service; `None` without `spec.rollout`.
pub fn rollout(
    service: &JointInferenceService,
    valid: &ValidService,
    facts: &ServiceFacts,
) -> Option<ValidRollout> {
    service.spec.rollout.as_ref()?;
    let stored = service.status.as_ref().and_then(|status| status.rollout.as_deref());
    Some(ValidRollout::new(template(service, valid), &facts.granted, stored))
}

/// The node of the edge worker that runs the cloud worker too. Both have one task, so it gets changes
/// at once.
pub fn exempt(valid: &ValidService) -> Option<&NodeName> {
    match &valid.cloud {
        CloudSide::Worker(cloud) if matches!(cloud.runtime, CloudRuntime::Agent { .. }) => {
            Some(&cloud.node)
        }
        _ => None,
    }
}

/// The revision of what runs on each node, without values of nodes, addresses and ports.
fn template(service: &JointInferenceService, valid: &ValidService) -> String {
    let spec = &service.spec.edge_worker;
    // A restart of certain nodes does not wait for the rollout.
    let restart = Restart::requested(&service.metadata);
    let restarted_at = restart.and_then(|it| it.everywhere(Role::Edge).cloned());
    let template = match (&valid.edge, &spec.worker_spec) {
        (EdgeSide::Worker(resolved), Some(program)) => {
            let nowhere = (String::new(), 0, None);
            let mut worker = planned_edge_worker(valid, resolved, (spec, program), nowhere);
            worker.restarted_at = restarted_at;
            let model = &resolved.model.spec;
            let values =
                resolved.node_values.is_some().then_some((&program.parameters, &program.env));
            let mut template = json!({
                "worker": worker,
                "model": [crate::model::address_text(model), model.format],
                "sha256": model.sha256sum,
                "values": values,
            });
            // What the objects have is not part of it: a changed password must not wait for waves.
            let variables: Vec<_> = variables_of_objects(program.into()).collect();
            if !program.env_from.is_empty() || !variables.is_empty() {
                template["config"] = json!([program.env_from, program.env]);
            }
            template
        }
        (EdgeSide::Gateway { gateway, .. }, _) => {
            let is_total = valid.total.is_some();
            let gateway = without_addresses(gateway, is_total);
            let mut worker = planned_gateway(&gateway, &valid.metadata);
            worker.restarted_at = restarted_at;
            json!({ "worker": worker })
        }
        (EdgeSide::Worker(_), None) => unreachable!("a worker has a program"),
    };
    revision(&template)
}

/// A gateway without its addresses and ports, and without a goal that the controller sets itself.
fn without_addresses(gateway: &ValidGateway, has_own_goal: bool) -> ValidGateway {
    let mut gateway = gateway.clone();
    let config = &mut gateway.config;
    config.listen = ([0, 0, 0, 0], 0).into();
    config.grpc_listen = None;
    config.allowed_hosts = AllowedHosts::default();
    if let Some(cloud) = &mut config.cloud {
        cloud.url = String::new();
        cloud.grpc_url = None;
        cloud.addresses.clear();
    }
    if has_own_goal {
        config.hard_example.goal = Goal::default();
    }
    gateway
}

/// What a node reports of the edge worker.
pub fn reported_state(worker: &WorkerName, report: &StatusReport) -> ReportedState {
    let mut workers = report.workers.iter();
    let Some(worker) = workers.find(|it| it.name == *worker && it.role == Role::Edge) else {
        return ReportedState::default();
    };
    let is_completed = worker.reason == Some(WorkerReason::Completed);
    let failure = match worker.state {
        _ if is_completed => None,
        WorkerState::Running if report.status == "failed" => Some(Reason::WorkerFailed),
        WorkerState::Failed => Some(worker.reason.map_or(Reason::CrashLoopBackOff, Reason::from)),
        WorkerState::Running | WorkerState::Pending => None,
    };
    ReportedState {
        is_ready: is_completed || worker.state == WorkerState::Running && failure.is_none(),
        failure,
        is_deferred: worker.reason == Some(WorkerReason::DownloadWindow),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use neptune_api::{Placement, Rollout, RolloutStatus};
    use serde_json::Value;

    use super::*;
    use crate::{
        joint_inference_service::{
            cases::{plan_of, task},
            fixtures,
            validate::validate,
        },
        rollout::planned::GrantedNodes,
        steps::Steps as _,
        worker::restart::RESTARTED_ANNOTATION,
    };

    type Change<'a> = &'a dyn Fn(&mut JointInferenceService, &mut ServiceFacts);

    /// The sample on three nodes, with a rollout.
    fn sample() -> (JointInferenceService, ServiceFacts) {
        let (mut service, mut facts) = (fixtures::service(), fixtures::facts());
        fixtures::select(&mut service, &mut facts, &["e1", "e2", "e3"]);
        service.spec.edge_worker.placement = Some(Placement::All);
        service.spec.rollout = Some(Box::new(Rollout::default()));
        service.spec.edge_worker.silent_after_seconds = Some(600);
        service.status = Some(fixtures::placed_on(&["e1", "e2", "e3"]));
        (service, facts)
    }

    fn revision_of(service: &JointInferenceService, facts: &ServiceFacts) -> String {
        validate(service, facts).unwrap().rollout.unwrap().revision
    }

    fn store(service: &mut JointInferenceService, facts: &mut ServiceFacts, granted: &[&str]) {
        let revision = revision_of(service, facts);
        let stored = RolloutStatus { revision: revision.clone(), ..RolloutStatus::default() };
        service.status.as_mut().unwrap().rollout = Some(Box::new(stored));
        let nodes = granted.iter().map(|node| node.parse().unwrap()).collect();
        facts.granted = GrantedNodes { revision, nodes };
    }

    #[test]
    fn revision_is_stored_before_a_node_gets_it() {
        let (mut service, mut facts) = sample();
        let new = plan_of(&service, &facts);
        assert!(new.awaits_status && new.requirements.is_empty() && new.rollout.is_none());
        let retained: Vec<_> = new.retained.unwrap().into_keys().collect();
        for node in ["e1", "e2", "e3"] {
            assert!(retained.contains(&node.parse().unwrap()), "{node} keeps what it has");
        }
        store(&mut service, &mut facts, &["e2"]);
        let stored = plan_of(&service, &facts);
        assert!(!stored.awaits_status && stored.objects.is_some());
        let names = |nodes: Vec<&NodeName>| -> Vec<String> {
            nodes.into_iter().map(ToString::to_string).collect()
        };
        assert_eq!(names(stored.requirements.keys().collect()), ["e2"]);
        assert_eq!(names(stored.kept.keys().collect()), ["e1", "e3"]);
        let kept: Vec<_> =
            stored.kept[&"e1".parse().unwrap()].iter().map(ToString::to_string).collect();
        let both =
            ["default/jointinferenceservices/helmet-detection-demo", "default/models/small-model"];
        assert_eq!(kept, both);
        let planned = stored.rollout.clone().unwrap();
        assert_eq!((planned.expected.len(), planned.revision), (3, revision_of(&service, &facts)));
        let sent = task(&stored, "e2").spec;
        assert_eq!(sent.get("rollout"), None, "a setting reaches no node");
        assert_eq!(sent["edgeWorker"].get("silentAfterSeconds"), None);
    }

    #[test]
    fn restart_is_a_revision_unless_it_names_nodes() {
        let (mut service, facts) = sample();
        let first = revision_of(&service, &facts);
        let restart = |service: &mut JointInferenceService, value: &str| {
            let annotation = (RESTARTED_ANNOTATION.to_owned(), value.to_owned());
            service.metadata.annotations = Some([annotation].into());
            revision_of(service, &facts)
        };
        let time = "2026-11-24T06:00:00Z";
        for value in ["now", &format!("{time} e1"), &format!("{time} worker=cloud")] {
            assert_eq!(restart(&mut service, value), first, "{value}");
        }
        assert_ne!(restart(&mut service, time), first);
        service.spec.rollout = None;
        let annotation = (RESTARTED_ANNOTATION.to_owned(), format!("{time} e1,e3"));
        service.metadata.annotations = Some([annotation].into());
        let plan = plan_of(&service, &facts);
        let restarted = ["e1", "e2", "e3"].map(|node| {
            let worker = task(&plan, node).workers.remove(0);
            worker.restarted_at.map(String::from)
        });
        let time = Some("2026-11-24T06:00:00.000Z".to_owned());
        assert_eq!(restarted, [time.clone(), None, time]);
    }

    #[test]
    fn service_without_a_rollout_reaches_all_nodes_at_once() {
        let (mut service, facts) = sample();
        service.spec.rollout = None;
        let plan = plan_of(&service, &facts);
        assert_eq!((plan.requirements.len(), plan.kept.len(), plan.rollout), (3, 0, None));
    }

    #[test]
    fn change_of_many_nodes_at_the_same_time_is_a_warning() {
        let (mut service, mut facts) = sample();
        service.spec.rollout = None;
        service.spec.edge_worker.silent_after_seconds = None;
        let nodes: Vec<_> = (0..33).map(|number| format!("e{number}")).collect();
        let nodes: Vec<_> = nodes.iter().map(String::as_str).collect();
        let mut warnings = |service: &JointInferenceService, nodes: &[&str]| {
            fixtures::select(&mut service.clone(), &mut facts, nodes);
            service.warnings(&facts)
        };
        assert_eq!(warnings(&service, &nodes[..32]), [""; 0]);
        let text = "spec.edgeWorker.nodeSelector matches 33 edge nodes and spec.rollout is not set: a change reaches all of them at the same time; rollout: {} begins with one node and stops when it fails";
        assert_eq!(warnings(&service, &nodes), [text]);
        service.spec.rollout = Some(Box::default());
        assert_eq!(warnings(&service, &nodes), [""; 0]);
    }

    #[test]
    fn revision_follows_the_program_and_not_addresses_or_values_of_nodes() {
        let (service, facts) = sample();
        let first = revision_of(&service, &facts);
        let changed = |change: Change| {
            let (mut service, mut facts) = (service.clone(), facts.clone());
            change(&mut service, &mut facts);
            revision_of(&service, &facts)
        };
        let program = |service: &mut JointInferenceService, change: Value| {
            let spec = service.spec.edge_worker.worker_spec.as_mut().unwrap();
            let mut value = serde_json::to_value(&*spec).unwrap();
            value.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            *spec = serde_json::from_value(value).unwrap();
        };
        let same: [Change; 3] = [
            &|service, _| {
                let paused = Rollout { paused: true, ..Rollout::default() };
                service.spec.rollout = Some(Box::new(paused));
            },
            &|service, _| service.metadata.labels = Some([("a".into(), "b".into())].into()),
            &|_, facts| facts.agent_address = Some("10.9.8.7".to_owned()),
        ];
        for change in same {
            assert_eq!(changed(change), first);
        }
        let value = |value: &str| json!({"env": [{"name": "CAMERA", "value": value}]});
        let of_node = changed(&|service, _| program(service, value("rtsp://$(NODE_NAME)/")));
        let other = changed(&|service, _| program(service, value("rtsp://$(NODE_NAME)/2")));
        let model = changed(&|_, facts| {
            let mut model = (**facts.edge_model.as_ref().unwrap()).clone();
            model.spec.model_url = "/models/other.onnx".to_owned();
            facts.edge_model = Some(Arc::new(model));
        });
        let new = [of_node, other, model];
        for (at, revision) in new.iter().enumerate() {
            assert!(*revision != first && !new[..at].contains(revision), "{at}");
        }
    }

    #[test]
    fn invalid_settings_are_findings() {
        let (mut service, facts) = sample();
        let rollout = Rollout { min_ready_seconds: Some(-1), ..Rollout::default() };
        service.spec.rollout = Some(Box::new(rollout));
        let findings = service.validate(&facts).unwrap_err();
        assert_eq!(findings[0].reason, Reason::RolloutInvalid);
    }

    #[test]
    fn state_of_the_worker_is_read_from_its_report() {
        let worker: WorkerName = "w".parse().unwrap();
        let state = |state: &str, reason: Value, status: &str| {
            let report: StatusReport = serde_json::from_value(json!({
                "uid": "u", "revision": 1, "instance": "i", "epoch": 1, "seq": 1, "phase": "Running",
                "status": status, "output": {},
                "workers": [{"name": "w", "role": "edge", "state": state, "reason": reason}],
            }))
            .unwrap();
            reported_state(&worker, &report)
        };
        let none = Value::Null;
        let ready = ReportedState { is_ready: true, ..ReportedState::default() };
        let failed = |reason| ReportedState { failure: Some(reason), ..ReportedState::default() };
        assert_eq!(state("Running", none.clone(), ""), ready);
        assert_eq!(state("Pending", json!("Completed"), ""), ready);
        assert_eq!(state("Running", none.clone(), "failed"), failed(Reason::WorkerFailed));
        assert_eq!(state("Failed", none.clone(), ""), failed(Reason::CrashLoopBackOff));
        assert_eq!(state("Failed", json!("ImageMissing"), ""), failed(Reason::ImageMissing));
        assert_eq!(state("Pending", none, ""), ReportedState::default());
        assert!(state("Pending", json!("DownloadWindow"), "").is_deferred);
    }
}
