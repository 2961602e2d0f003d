//! Messages of the neighbouring minor versions, as files in `golden`: those of the next one contain
//! fields, resources and enum values that this version does not know, those of the previous one
//! lack every field that was added since.
#![allow(clippy::unwrap_used)]

use neptune_wire::{
    Counters, DatasetState, GatewayCloud, GatewayProblemReason, GatewaySignal, Index, Insert,
    ModelServer, Phase, PresenceState, Role, RunReport, RunTotals, ServerUpdateMode, StatusReport,
    Sync, Transition, WorkerInfo, WorkerReason, WorkerState, WorkerUpdateMode, decode,
};

#[test]
fn index_with_unknown_resource_is_applied() {
    let index: Index = decode(include_bytes!("golden/index-next.json")).unwrap();
    assert_eq!(index.revision.0, 7);
    let keys: Vec<_> = index.objects.keys().map(ToString::to_string).collect();
    assert_eq!(keys, ["default/models/m"]);
    let kept: Vec<_> = index.keep.iter().map(ToString::to_string).collect();
    assert_eq!(kept, ["default/datasets/d"]);
}

#[test]
fn sync_with_unknown_resource_is_answered() {
    let sync: Sync = decode(include_bytes!("golden/sync-next.json")).unwrap();
    let keys: Vec<_> = sync.objects.keys().map(ToString::to_string).collect();
    assert_eq!(keys, ["default/models/m"]);
}

#[test]
fn report_with_unknown_values_still_counts() {
    let report: StatusReport = decode(include_bytes!("golden/status-next.json")).unwrap();
    assert_eq!(report.phase, Phase::Pending, "neither running nor failed, as far as is known");
    let counters = report.output.task_info.unwrap().counters;
    assert_eq!((counters.inference, counters.decided_hard, counters.over_budget), (9, 3, 1));
    let [worker] = &report.workers[..] else {
        unreachable!("a worker of an unknown role is skipped")
    };
    assert_eq!((worker.role, worker.state), (Role::Edge, WorkerState::Pending));
    assert_eq!(worker.reason, Some(WorkerReason::Unknown));
    let gateway = worker.gateway.as_ref().unwrap();
    assert_eq!((gateway.signal, gateway.cloud), (GatewaySignal::Unknown, GatewayCloud::Unknown));
    let problems: Vec<_> = gateway.problems.iter().map(|problem| problem.reason).collect();
    assert_eq!(problems, [GatewayProblemReason::Unknown, GatewayProblemReason::Drifting]);
    assert_eq!(report.serving.unwrap().transition, Transition::InProgress);
    assert_eq!(report.model.unwrap().state, PresenceState::Downloading);
    assert_eq!(report.dataset.unwrap().state, DatasetState::Counting);
}

#[test]
fn insert_with_unknown_values_is_applied() {
    let insert: Insert = decode(include_bytes!("golden/insert-next.json")).unwrap();
    let [worker] = &insert.content.workers[..] else { unreachable!("an unknown role is skipped") };
    assert_eq!((worker.role, worker.model_update), (Role::Edge, WorkerUpdateMode::Restart));
    let serving = insert.content.serving.unwrap();
    assert_eq!((serving.reload, serving.grpc_port), (ServerUpdateMode::Replace, Some(8502)));
    let transformer = serving.transformer.unwrap();
    assert_eq!((transformer.program.image.as_str(), transformer.server_port), ("t", 13_501));
}

#[test]
fn server_without_additions_is_encoded_as_in_the_previous_version() {
    let previous = r#"{"name":"s","modelName":"m","image":"i","port":8501,"reload":"watch",
        "health":{"periodMs":1,"timeoutMs":1,"startWithinMs":1,"probationMs":1}}"#;
    let serving: ModelServer = serde_json::from_str(previous).unwrap();
    assert_eq!(serving.grpc_port, None);
    assert_eq!(serving.transformer, None);
    let encoded = serde_json::to_value(&serving).unwrap();
    for added in ["grpcPort", "transformer"] {
        assert_eq!(encoded.get(added), None, "the agent would replace every server");
    }
}

#[test]
fn messages_of_the_previous_version_are_complete() {
    let index: Index = decode(include_bytes!("golden/index-previous.json")).unwrap();
    let sync: Sync = decode(include_bytes!("golden/sync-previous.json")).unwrap();
    assert_eq!(index.objects, sync.objects);
    let report: StatusReport = decode(include_bytes!("golden/status-previous.json")).unwrap();
    assert_eq!((report.phase, report.workers.len()), (Phase::Running, 0));
    let insert: Insert = decode(include_bytes!("golden/insert-previous.json")).unwrap();
    assert_eq!(insert.content.workers.len(), 1);
}

#[test]
fn worker_message_of_another_version_is_counted() {
    let read = |payload: &[u8]| WorkerInfo::decode(payload).unwrap();
    let next = read(include_bytes!("golden/worker-info-next.json"));
    let expected = Counters {
        inference: 9,
        hard: 2,
        fallback: 1,
        decided_hard: 4,
        over_budget: 1,
        unjudged: 2,
        shadow: 3,
        ..Counters::default()
    };
    assert_eq!(next.task_info.unwrap().checked().unwrap(), expected);
    let gateway = next.gateway.unwrap();
    assert_eq!(gateway.signal, GatewaySignal::Unknown);
    assert_eq!(gateway.threshold.unwrap().to_string(), "0.713");
    assert_eq!(gateway.problems[0].reason, GatewayProblemReason::Unknown);
    let previous = read(include_bytes!("golden/worker-info-previous.json"));
    let counted = Counters { inference: 9, hard: 2, ..Counters::default() };
    assert_eq!(previous.task_info.unwrap().checked().unwrap(), counted);
    assert_eq!(previous.gateway, None);
}

#[test]
fn stored_totals_of_the_previous_version_continue() {
    let stored = include_bytes!("golden/run-totals-previous.json");
    let mut totals: RunTotals = serde_json::from_slice(stored).unwrap();
    let before = Counters { inference: 14, hard: 3, fallback: 1, ..Counters::default() };
    assert_eq!(totals.total(), before);
    let counters = Counters { inference: 10, hard: 2, fallback: 1, unjudged: 4, ..before };
    let report = RunReport { run: Some("c0@s"), start: "t", counters, is_inherited: false };
    totals.observe(&report);
    assert_eq!(totals.total(), Counters { inference: 15, hard: 3, fallback: 1, ..counters });
}
